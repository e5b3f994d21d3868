"""`spotguard demo`: a preemption and a resume on a simulated cloud, in a minute or two.

The law of this room: nothing is staged. The demo uses the command line, the script and the store as a user would.
It simulates only the cloud, and reports weights that differ.

Importing this package loads neither torch, which only the training processes need, nor rich, which only the screen needs.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from .clouds import CLOUDS

#: Steps to train: about a minute on two cores.
STEPS = 600
#: Mbit/s of the simulated link. The state needs 11 s on it, as 1.4 GB need on 1 Gbit/s: each cloud's window is enough, and
#: 10 s are not.
LINK = 4.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--cloud",
        choices=list(CLOUDS),
        default="aws",
        help="play this cloud [aws]",
    )
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path("spotguard-demo"),
        metavar="DIR",
        help="leave the report here [./spotguard-demo]",
    )
    parser.add_argument(
        "--steps", type=int, default=STEPS, metavar="N", help=f"train this many steps [{STEPS}]"
    )
    parser.add_argument(
        "--window",
        type=float,
        metavar="SECONDS",
        help=f"stop the machine so long after the notice [{_windows()}]",
    )
    parser.add_argument(
        "--link",
        type=float,
        default=LINK,
        metavar="MBIT",
        help=f"limit the link to the store; 0: as fast as the disk [{LINK:g}]",
    )
    parser.add_argument(
        "--store",
        metavar="URL",
        help="save to this store, such as s3://bucket/prefix [temporary]",
    )
    parser.add_argument("--no-color", action="store_true", help="print plain lines, without bars and colours")
    # The test that plants a difference passes another script in place of demo/train.py.
    parser.add_argument(
        "--script", type=Path, default=Path(__file__).with_name("train.py"), help=argparse.SUPPRESS
    )


def _windows() -> str:
    return ", ".join(f"{cloud.title} {cloud.window:g}" for cloud in CLOUDS.values())


def run(arguments: argparse.Namespace) -> int:
    """Play the demo and return its exit code.

    The code is 0 only if machine 2 ended exactly where the uninterrupted run did, and machine 1 saved its state in time.
    Machine 1 need not have saved if its window was shorter than its cloud's.
    """
    from .main import run

    return run(arguments)
