"""Commands that guard a job and watch it: `run`, `agent`, `drill`, `status`."""
