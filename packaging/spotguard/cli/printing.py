"""What `python -m spotguard.containers`, `.monitoring` and `.slurm` share: each prints a file that comes with an install, and is yours then."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence

from spotguard.providers.errors import UsageError
from spotguard.providers.text import did_you_mean

from .exit import ended
from .parser import Parser
from .words import repeated


def main(text: Callable[[list[str]], str], words: Sequence[str] | None) -> int:
    """Print what `text` makes of the words, and return the exit code.

    Args:
        words: None: those of the command line.
    """

    def work() -> int:
        sys.stdout.write(text(list(sys.argv[1:] if words is None else words)))
        return 0

    return ended(work)


def parser(module: str, description: str, files: Mapping[str, str]) -> Parser:
    """One that takes the name of one of these files first: `said.file`, which `check` reads."""
    made = Parser(
        prog=f"python -m {module}", description=description, epilog=f"files:\n{listed(files, indent=2)}"
    )
    made.add_argument("file", metavar="FILE", help="one of those below; without a word they are listed")
    return made


def check(name: str, files: Mapping[str, str]) -> str:
    """
    Raises:
        UsageError: no file is called so.
    """
    if name not in files:
        near = did_you_mean(name, list(files)) or f"expected one of {', '.join(files)}"
        raise UsageError(f"{repeated(name)!r}: {near}")
    return name


def listed(files: Mapping[str, str], *, indent: int = 0) -> str:
    """A line for each: its name, and what it is."""
    width = max(map(len, files)) + 2
    return "".join(f"{'':{indent}}{name:{width}}{what}\n" for name, what in files.items())
