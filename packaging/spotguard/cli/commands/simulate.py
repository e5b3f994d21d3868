"""`spotguard simulate CLOUD`: the command of `spotguard.providers.simulator`."""

from __future__ import annotations

from spotguard.providers.simulator.cli import EXAMPLES, add_arguments, run

__all__ = ["DESCRIPTION", "EXAMPLES", "add_arguments", "run"]

DESCRIPTION = """\
A metadata service on loopback that behaves as the cloud's own was seen to behave, its faults
included, and issues notices when it is told to. It prints the line to try it with."""
