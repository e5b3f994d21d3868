"""Reports about the agent: `status`, `logs`, `systemd` and `metrics`."""
