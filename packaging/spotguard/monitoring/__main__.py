"""`python -m spotguard.monitoring [FILE]`: the files that come with an install, without a checkout."""

from __future__ import annotations

import sys
from importlib.resources import files

from . import FILES


def main(words: list[str]) -> int:
    """Print the file that is named; without one, what there is."""
    if not words or words[0] in ("-h", "--help"):
        for name, what in FILES.items():
            print(f"{name:16}{what}")
        return 0
    if len(words) > 1 or words[0] not in FILES:
        print(f"spotguard.monitoring: {' '.join(words)}: expected one of {', '.join(FILES)}", file=sys.stderr)
        return 2
    sys.stdout.write((files(__package__) / words[0]).read_text())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
