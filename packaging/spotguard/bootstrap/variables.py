"""Refusal of a `$NAME` that nothing on the machine expands. The text would stay as it is, and nobody sees the result there.

On the machine a shell expands `--prepare`, `--then`, `--on-notice`, `--on-failure`, and the script of an `sh -c` in the command. pip expands
variables of its own form in its requirements.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence

from spotguard.providers.errors import UsageError

#: Text that a shell would expand: `$NAME`, `${NAME}`, `${NAME:-…}`, `$(…`. `$1` and a final $ belong to other syntaxes.
_EXPANDED = r"\$(?:[A-Za-z_]\w*|\{[A-Za-z_]\w*(?:\}|:?[-=?+])|\()"
#: The same without `${seed}`: in a command that is OmegaConf's form, whose names are in lower case.
_OF_SHELLS = re.compile(rf"(?!\$\{{[a-z]){_EXPANDED}")
#: The same without `${NAME}` in capitals, which pip expands in a requirements file ("Using environment variables").
_NOT_OF_PIP = re.compile(rf"(?!\$\{{[A-Z0-9_]+\}}){_EXPANDED}")
_ANY = re.compile(_EXPANDED)
#: Azure's own containers, whose names begin with $. The reader of the store's URL refuses them.
_OF_AZURE = re.compile(r"\Aaz://\$(?:root|web|logs|blobchangefeed)(?=[/?]|\Z)")

#: Places whose text a shell expands. The command is checked word by word instead.
_READ_BY_A_SHELL = ("the command", "--prepare", "--then", "--on-notice", "--on-failure")
_READ_BY_PIP = ("--package", "--with", "--index")
_SHELLS = ("sh", "bash", "dash", "zsh", "ksh", "ash")


def refuse_unexpanded(said: Mapping[str, str], command: Sequence[str]) -> None:
    """Refuse a variable that nothing expands.

    Args:
        said: every text of the command line, by its place.
        command: the words of the command.

    Raises:
        UsageError: a text holds such a variable; the message says what to write instead.
    """
    scripts = set(_scripts(command))
    for at, word in enumerate(command):
        if at not in scripts and (match := _OF_SHELLS.search(word)):
            raise UsageError(
                f"the command holds {match[0]!r}, and no shell reads it: let the program read its environment, or use "
                "… -- sh -c 'exec COMMAND'"
            )
    for where, text in said.items():
        if where in _READ_BY_A_SHELL:
            continue
        if where in _READ_BY_PIP:
            if match := _NOT_OF_PIP.search(text):
                raise UsageError(
                    f"{where} holds {match[0]!r}, and pip expands ${{NAME}} only, in capitals: write it so"
                )
        elif match := _ANY.search(_OF_AZURE.sub("", text)):
            raise UsageError(f"{where} holds {match[0]!r}, which nobody expands: write what it stands for")


def _scripts(command: Sequence[str]) -> Iterator[int]:
    """Yield the indexes of the words that a shell in the command reads as a script, by its `-c`."""
    for at, word in enumerate(command):
        if os.path.basename(word) in _SHELLS:
            yield from _script(command, at + 1)


def _script(words: Sequence[str], start: int) -> Iterator[int]:
    reads, values = False, 0
    for at in range(start, len(words)):
        word = words[at]
        if values:
            values = 0  # the value of -o, as in -euo pipefail
        elif not word.startswith(("-", "+")):
            if reads:
                yield at
            return
        elif not word.startswith("--"):
            reads = reads or (word.startswith("-") and "c" in word)
            values = word.endswith(("o", "O"))
