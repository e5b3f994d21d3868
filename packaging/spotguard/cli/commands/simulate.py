"""`spotguard simulate CLOUD`: the command of `spotguard.providers.simulator`."""

from __future__ import annotations

from spotguard.providers.simulator.cli import EXAMPLES, add_arguments, run

__all__ = ["DESCRIPTION", "EXAMPLES", "add_arguments", "run"]

DESCRIPTION = """\
Serve a metadata service on loopback that behaves like the cloud's own, its faults included, and issues
notices on demand. It prints a command to try it with."""
