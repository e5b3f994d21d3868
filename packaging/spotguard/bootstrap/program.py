"""Whether a command begins with a program: no shell reads it on the machine, so what only a shell understands ends there with 127."""

from __future__ import annotations

import re
from collections.abc import Sequence

from spotguard.providers.errors import UsageError
from spotguard.providers.run_id import is_run_id

_GIVEN = re.compile(r"([A-Za-z_]\w*)\+?=", re.ASCII)
#: POSIX's special built-ins and reserved words, and what else changes the shell alone. (A /usr/bin/cd, where there is one, changes nothing.)
_OF_THE_SHELL = re.compile(
    r"[.:!{(]|\[\[|source|eval|exec|export|set|unset|readonly|declare|local|alias|trap|shift|return|cd|pushd|popd|umask|ulimit"
    r"|if|for|while|until|case|function"
)
#: A word with blanks that surely is a whole command in quotes: no folder stands before its first blank, or it ends in one; before a blank
#: stands a program (in a folder bin, a script), behind one an option or another path; or a shell or a program was to read a sign in it.
#: Any other may be a path: folders have blanks in their names.
_QUOTED = re.compile(
    r"^[^/\s]*\s|\s$|/s?bin/[^/\s]+\s|[^/\s]\.(?:py|sh)\s|\s--?[A-Za-z]|\s[.~]{0,2}/|://|&&|[;|<>]"
)


def refuse_no_program(command: Sequence[str], run_id: str) -> None:
    """
    Raises:
        UsageError: the machine would find no program of that name, or guard it twice. What a variable is given is not repeated.
    """
    first = command[0]
    given = _GIVEN.match(first)
    # With nothing behind it, it is the whole command in quotes.
    if given and (len(command) > 1 or not _has_blanks(first)):
        raise UsageError(
            f"the command begins with {given[1]}=…, which only a shell takes: put it as a line into {file_of(run_id)}, or say … -- env "
            f"{given[1]}=… COMMAND"
        )
    if _has_blanks(first) and (given or _QUOTED.search(first)):
        shown = f"{given[0]}…" if given else first
        raise UsageError(
            f"the command begins with {shown!r}, one word with blanks in it, and no shell parts it: leave the quotes out, as in "
            "… -- torchrun train.py, or say … -- sh -c 'COMMAND'"
        )
    if _OF_THE_SHELL.fullmatch(first):
        raise UsageError(
            f"the command begins with {first!r}, which is the shell's own and no program: --directory says where the job runs, "
            f"{file_of(run_id)} what it has in its environment; or say … -- bash -c 'COMMAND'"
        )
    if first.rpartition("/")[2] == "spotguard":
        raise UsageError(
            "the machine runs the command under `spotguard run` by itself: say only what stands behind that, as in … -- torchrun "
            "train.py"
        )


def _has_blanks(word: str) -> bool:
    return any(c.isspace() for c in word)


def file_of(run_id: str) -> str:
    """The file on the machine that has the job's environment, secrets included."""
    return f"/etc/spotguard/runs/{run_id if is_run_id(run_id) else 'RUN_ID'}.env"
