"""`spotguard demo`: the command of `spotguard.demo`."""

from __future__ import annotations

from spotguard.demo import add_arguments, run

__all__ = ["DESCRIPTION", "EXAMPLES", "add_arguments", "run"]

DESCRIPTION = """\
Train a small GPT twice: once undisturbed, and once on a simulated spot machine that is preempted in the
middle, and on its replacement. Compare every bit of the results, and exit with 0 only if they are equal.
It leaves a report with a picture, takes a minute or two, and sends nothing anywhere. With a --window that
is too short for a save it shows what remains: the last background checkpoint."""

EXAMPLES = """\
examples:
  spotguard demo
  spotguard demo --cloud gcp
  spotguard demo --cloud azure --window 10
  spotguard demo --steps 200 --folder /tmp/demo"""
