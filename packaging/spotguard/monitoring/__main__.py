"""`python -m spotguard.monitoring [FILE]`: the files that come with an install, without a checkout."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from spotguard.cli import printing

from . import FILES, text

DESCRIPTION = "Prints what an operator watches spotguard with: docs/metrics.md."


def main(words: Sequence[str] | None = None) -> int:
    return printing.main(_asked, words)


def _asked(words: list[str]) -> str:
    """The file that is named; without one, what there is."""
    if not words:
        return printing.listed(FILES)
    said = printing.parser("spotguard.monitoring", DESCRIPTION, FILES).parse_args(words)
    return text(printing.check(said.file, FILES))


if __name__ == "__main__":
    sys.exit(main())
