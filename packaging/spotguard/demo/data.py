"""The training text of the demo: Python's own standard library, which every machine that can run the demo has."""

from __future__ import annotations

import importlib.util

#: The modules, read in this order, so that the same Python gives the same text on every run. Each has long, well-behaved
#: source and is in every Python from 3.11 on. Modules that Python keeps frozen without their source are left out.
MODULES = (
    "argparse", "calendar", "configparser", "copy", "csv", "dataclasses", "datetime", "difflib", "dis", "enum",
    "fractions", "ftplib", "functools", "heapq", "imaplib", "inspect", "mailbox", "optparse", "pickle", "plistlib",
    "pprint", "queue", "random", "selectors", "shutil", "smtplib", "socket", "socketserver", "ssl", "statistics",
    "string", "subprocess", "tarfile", "tempfile", "textwrap", "threading", "tokenize", "trace", "traceback",
    "typing", "uuid", "warnings",
)  # fmt: skip

#: The alphabet of every text: a newline, printable ASCII, and one sign for all other characters.
ALPHABET = "\n" + "".join(map(chr, range(32, 127))) + "\N{REPLACEMENT CHARACTER}"
_NUMBERS = {character: number for number, character in enumerate(ALPHABET)}
_ELSE = len(ALPHABET) - 1


def text() -> str:
    """Return the sources, joined. A module that this Python lacks is left out."""
    return "".join(_source(name) for name in MODULES)


def encode(text: str) -> list[int]:
    return [_NUMBERS.get(character, _ELSE) for character in text]


def _source(name: str) -> str:
    spec = importlib.util.find_spec(name)
    # The loader also reads from a standard library that is packed into a zip.
    read = getattr(spec.loader, "get_source", None) if spec is not None else None
    return (read(name) or "") if read is not None else ""
