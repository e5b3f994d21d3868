"""`python -m spotguard.slurm`: print the batch script."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from spotguard.cli import printing
from spotguard.cli.parser import Parser
from spotguard.providers.errors import UsageError

from . import batch_script

DESCRIPTION = "Prints a batch script for Slurm, which guards the command that it is given: docs/slurm.md."
EXAMPLES = """\
examples:
  python -m spotguard.slurm >train.sbatch
  sbatch --nodes=2 train.sbatch torchrun train.py"""


def main(words: Sequence[str] | None = None) -> int:
    return printing.main(_asked, words)


def _asked(words: list[str]) -> str:
    if words and words[0] not in ("-h", "--help"):
        raise UsageError(
            f"{' '.join(words)!r}: the script takes the job's words from sbatch: python -m spotguard.slurm >train.sbatch, and then "
            "sbatch --nodes=2 train.sbatch torchrun train.py"
        )
    Parser(prog="python -m spotguard.slurm", description=DESCRIPTION, epilog=EXAMPLES).parse_args(words)
    return batch_script()


if __name__ == "__main__":
    sys.exit(main())
