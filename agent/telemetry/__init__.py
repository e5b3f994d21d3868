"""What others are told of the agent: `status`, `logs`, `systemd` and `metrics`."""
