"""`python -m spotguard`: the `spotguard` command, for machines whose PATH lacks it."""

from __future__ import annotations

import sys

from spotguard.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
