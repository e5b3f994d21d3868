"""The `spotguard` command."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import spotguard


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    parser = argparse.ArgumentParser(prog="spotguard", description=spotguard.__doc__)
    parser.add_argument("--version", action="version", version=f"%(prog)s {spotguard.__version__}")
    parser.parse_args(argv)
    return 0
