"""`python -m spotguard.slurm`: print the batch script."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from spotguard.commands.parsers import Parser
from spotguard.providers.errors import UsageError

from . import batch_script

DESCRIPTION = "Prints a batch script for Slurm, which guards the command that it is given: docs/slurm.md."


def main(words: Sequence[str] | None = None) -> int:
    try:
        Parser(prog="python -m spotguard.slurm", description=DESCRIPTION).parse_args(words)
    except UsageError as error:
        print(f"spotguard: {error}", file=sys.stderr)
        return 2
    sys.stdout.write(batch_script())
    return 0


if __name__ == "__main__":
    sys.exit(main())
