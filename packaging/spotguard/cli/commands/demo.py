"""`spotguard demo`: the command of `spotguard.demo`."""

from __future__ import annotations

from spotguard.demo import add_arguments, run

__all__ = ["DESCRIPTION", "EXAMPLES", "add_arguments", "run"]

DESCRIPTION = """\
Trains a small GPT twice: once undisturbed, and once on a simulated spot machine that is taken back
in the middle, and on the next one. Compares every bit of the two results; exits with 0 only when
they are equal. Leaves a report with a picture. Takes a minute or two, and sends nothing anywhere.
With a --window that is too short for a save, shows what remains: the last background checkpoint."""

EXAMPLES = """\
examples:
  spotguard demo
  spotguard demo --cloud gcp
  spotguard demo --cloud azure --window 10
  spotguard demo --steps 200 --folder /tmp/demo"""
