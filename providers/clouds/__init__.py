"""Metadata services: `detect` finds this machine's cloud, `http` is the client, each cloud's directory has its sources."""
