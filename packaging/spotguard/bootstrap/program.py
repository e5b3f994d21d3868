"""Refusal of a command that does not begin with a program.

No shell reads the command on the machine. So a word that only a shell understands would end the job there with 127.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from spotguard.providers.errors import UsageError
from spotguard.providers.run_id import is_run_id

_GIVEN = re.compile(r"([A-Za-z_]\w*)\+?=", re.ASCII)
#: POSIX's special built-ins and reserved words, and other words that change only the shell itself. If there is a /usr/bin/cd,
#: it changes nothing.
_OF_THE_SHELL = re.compile(
    r"[.:!{(]|\[\[|source|eval|exec|export|set|unset|readonly|declare|local|alias|trap|shift|return|cd|pushd|popd|umask|ulimit"
    r"|if|for|while|until|case|function"
)
#: A word with blanks that is certainly a whole command in quotes. It has one of these marks:
#: - no directory comes before its first blank, or the word ends in a blank;
#: - a program in a directory bin, or a script, comes before a blank;
#: - an option or another path comes after a blank;
#: - it has a sign for a shell or a program to read, such as a pipe or ://.
#: Any other word with blanks may be a path, because a directory's name may have blanks.
_QUOTED = re.compile(
    r"^[^/\s]*\s|\s$|/s?bin/[^/\s]+\s|[^/\s]\.(?:py|sh)\s|\s--?[A-Za-z]|\s[.~]{0,2}/|://|&&|[;|<>]"
)


def refuse_no_program(command: Sequence[str], run_id: str) -> None:
    """Refuse a command that does not begin with a program, or that guards itself. The message repeats no variable's value.

    Args:
        command: the command and its arguments.
        run_id: the run id, for the name of the environment file in the message.

    Raises:
        UsageError: the machine would find no program of that name, or guard the command twice.
    """
    first = command[0]
    assignment = _GIVEN.match(first)
    # If no word follows an assignment with blanks, it is a whole command in quotes: the next check refuses that.
    if assignment and (len(command) > 1 or not _has_blanks(first)):
        raise UsageError(
            f"the command begins with {assignment[1]}=…, which only a shell understands: put it as a line into {file_of(run_id)}, or use … -- env "
            f"{assignment[1]}=… COMMAND"
        )
    if _has_blanks(first) and (assignment or _QUOTED.search(first)):
        shown = f"{assignment[0]}…" if assignment else first
        raise UsageError(
            f"the command begins with {shown!r}, one word with blanks in it, and no shell parts it: leave the quotes out, as in "
            "… -- torchrun train.py, or use … -- sh -c 'COMMAND'"
        )
    if _OF_THE_SHELL.fullmatch(first):
        raise UsageError(
            f"the command begins with {first!r}, which is a shell builtin and no program: --directory sets where the job runs,  "
            f"{file_of(run_id)} its environment; or use … -- bash -c 'COMMAND'"
        )
    if first.rpartition("/")[2] == "spotguard":
        raise UsageError(
            "the machine runs the command under `spotguard run` by itself: pass only the words after that, as in … -- torchrun "
            "train.py"
        )


def _has_blanks(word: str) -> bool:
    return any(c.isspace() for c in word)


def file_of(run_id: str) -> str:
    """Return the path of the file on the machine that holds the job's environment, secrets included."""
    return f"/etc/spotguard/runs/{run_id if is_run_id(run_id) else 'RUN_ID'}.env"
