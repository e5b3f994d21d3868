"""`spotguard demo`: the whole way of a notice on a simulated cloud, in a minute or two.

The law of this room: nothing is staged. It uses what a user would use (the command line, the script, the store),
plays only the cloud, and says so when the weights differ.

Importing it loads nothing: torch belongs to the training processes, and rich to who watches.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from .clouds import CLOUDS

#: About a minute on two cores.
STEPS = 600
#: Mbit/s. The state needs 11 s on it, as 1.4 GB do on 1 Gbit/s: what each cloud gives is enough, and 10 s are not.
LINK = 4.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--cloud",
        choices=list(CLOUDS),
        default="aws",
        help="whose metadata service, notice and manners are played (default: aws)",
    )
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
        metavar="SECONDS",
        help=f"from the notice to the end of the machine (default: what the cloud gives: {_windows()})",
    )
    parser.add_argument(
        "--link",
        type=float,
        default=LINK,
        metavar="MBIT",
        help=f"the simulated link to the store, in Mbit/s; 0: as fast as the disk (default: {LINK:g})",
    )
    parser.add_argument(
        "--store",
        metavar="URL",
        help="where checkpoints go, such as s3://bucket/prefix (default: a folder that goes with the demo)",
    )
    parser.add_argument("--no-color", action="store_true", help="plain lines, no bars and no colours")
    # For the test that plants a difference: another script in place of demo/train.py.
    parser.add_argument(
        "--script", type=Path, default=Path(__file__).with_name("train.py"), help=argparse.SUPPRESS
    )


def _windows() -> str:
    return ", ".join(f"{cloud.title} {cloud.window:g}" for cloud in CLOUDS.values())


def run(arguments: argparse.Namespace) -> int:
    """Tell the story; 0 only when machine 2 ended exactly where the uninterrupted run did, and machine 1 had saved its
    state in time, unless it was given less time than its cloud gives."""
    from .main import run

    return run(arguments)
