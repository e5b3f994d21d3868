"""A `$NAME` that nobody expands: on the machine it would stay those characters, where nobody reads what comes of it.

A shell there reads `--prepare`, `--then`, `--on-notice`, and in the command the script of an `sh -c`. What pip is given has pip's own form.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence

from spotguard.providers.errors import UsageError

#: What a shell would put something in the place of: `$NAME`, `${NAME}`, `${NAME:-…}`, `$(…`. (`$1`, and a $ at an end, are others'.)
_EXPANDED = r"\$(?:[A-Za-z_]\w*|\{[A-Za-z_]\w*(?:\}|:?[-=?+])|\()"
#: `${seed}` in a command is OmegaConf's, whose names are written small.
_OF_SHELLS = re.compile(rf"(?!\$\{{[a-z]){_EXPANDED}")
#: `${NAME}` in capitals is what pip expands in a file of requirements ("Using environment variables").
_NOT_OF_PIP = re.compile(rf"(?!\$\{{[A-Z0-9_]+\}}){_EXPANDED}")
_ANY = re.compile(_EXPANDED)
#: Azure's own containers bear such names. Who reads the store says that they are not taken.
_OF_AZURE = re.compile(r"\Aaz://\$(?:root|web|logs|blobchangefeed)(?=[/?]|\Z)")

#: The command is looked at by its words.
_READ_BY_A_SHELL = ("the command", "--prepare", "--then", "--on-notice")
_READ_BY_PIP = ("--package", "--with", "--index")
_SHELLS = ("sh", "bash", "dash", "zsh", "ksh", "ash")


def refuse_unexpanded(said: Mapping[str, str], command: Sequence[str]) -> None:
    """
    Args:
        said: everything that was written, by where.
        command: its words.

    Raises:
        UsageError: with the way out.
    """
    scripts = set(_scripts(command))
    for at, word in enumerate(command):
        if at not in scripts and (found := _OF_SHELLS.search(word)):
            raise UsageError(
                f"the command holds {found[0]!r}, and no shell reads it: let the program read its environment, or say "
                "… -- sh -c 'exec COMMAND'"
            )
    for where, text in said.items():
        if where in _READ_BY_A_SHELL:
            continue
        if where in _READ_BY_PIP:
            if found := _NOT_OF_PIP.search(text):
                raise UsageError(
                    f"{where} holds {found[0]!r}, and pip expands ${{NAME}} only, in capitals: write it so"
                )
        elif found := _ANY.search(_OF_AZURE.sub("", text)):
            raise UsageError(f"{where} holds {found[0]!r}, which nobody expands: write what it stands for")


def _scripts(command: Sequence[str]) -> Iterator[int]:
    """Where the words stand that a shell is given to read, by its `-c`."""
    for at, word in enumerate(command):
        if os.path.basename(word) in _SHELLS:
            yield from _script(command, at + 1)


def _script(words: Sequence[str], start: int) -> Iterator[int]:
    reads, values = False, 0
    for at in range(start, len(words)):
        word = words[at]
        if values:
            values = 0  # of -o, as in -euo pipefail
        elif not word.startswith(("-", "+")):
            if reads:
                yield at
            return
        elif not word.startswith("--"):
            reads = reads or (word.startswith("-") and "c" in word)
            values = word.endswith(("o", "O"))
