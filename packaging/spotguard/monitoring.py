"""`python -m spotguard.monitoring`: the older name of `spotguard deploy monitoring`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from spotguard.cli.main import deploy_by_its_older_name


def main(words: Sequence[str] | None = None) -> int:
    return deploy_by_its_older_name("monitoring", words)


if __name__ == "__main__":
    sys.exit(main())
