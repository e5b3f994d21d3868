"""`spotguard demo`: the whole way of a notice on a simulated cloud, in about a minute.

The law of this room: nothing is staged. It uses what a user would use (the command line, the script, the store),
plays only the cloud, and says so when the weights differ.

Importing it loads nothing: torch belongs to the training processes, and rich to who watches.
"""

from __future__ import annotations

import argparse
from pathlib import Path

#: About a minute on two cores.
STEPS = 600
#: AWS gives 120 s. Waiting them out shows nothing more: the save takes a fraction of a second.
WINDOW = 20.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path("spotguard-demo"),
        metavar="DIR",
        help="where to leave the report and the picture (default: ./spotguard-demo)",
    )
    parser.add_argument(
        "--steps", type=int, default=STEPS, metavar="N", help=f"how long to train (default: {STEPS})"
    )
    parser.add_argument(
        "--window",
        type=float,
        default=WINDOW,
        metavar="SECONDS",
        help=f"from the notice to the end of the machine (default: {WINDOW:g}; AWS gives 120)",
    )
    parser.add_argument("--no-color", action="store_true", help="plain lines, no bars and no colours")
    # For the test that plants a difference: another script in place of demo/train.py.
    parser.add_argument(
        "--script", type=Path, default=Path(__file__).with_name("train.py"), help=argparse.SUPPRESS
    )


def run(arguments: argparse.Namespace) -> int:
    """Tell the story; 0 only when machine 1 saved its state in time and machine 2 ended exactly where the
    uninterrupted run did."""
    from .main import run

    return run(arguments)
