"""Text for people: numbers, times and words. Pure functions."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

#: Characters that are kept of a peer's name, and of its other text.
NAME = 80
TEXT = 300
#: Objects of checkpoints that a message names one by one: 500 keys of 100 characters are a fifth of the largest frame.
_MOST_OBJECTS = 500
#: What users write for yes and for no, in small letters.
YES, NO = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


def span(seconds: float) -> str:
    """Return a time ahead as text: "3 d 4 h", "5 min 20 s", "8.0 s"."""
    left = max(0.0, seconds)
    if left < 60:
        return f"{left:.1f} s"
    for size, unit, part, below in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if left >= size:
            rest = int(left % size // part)
            return f"{int(left // size)} {unit}" + (f" {rest} {below}" if rest else "")
    return ""  # unreachable: from a minute on, the last row of the table fits


def amount(value: float) -> str:
    """Return a number of bytes as text: "1.4 GiB"."""
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"


def count(number: int, what: str) -> str:
    """Return a number of things as text: "1 rank", "1,200 elements"."""
    return f"{number:,} {what}" + ("" if number == 1 else "s")


def ago(seconds: float) -> str:
    """Return a time span as text: "12 s", "4 min", "3.2 h"."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def did_you_mean(word: str, words: list[str], prefix: str = "") -> str:
    """Return "did you mean --store?", or "" if no known word is near."""
    import difflib  # only needed after a mistake

    near = difflib.get_close_matches(word, words, n=1)
    return f"did you mean {prefix}{near[0]}?" if near else ""


def printable(text: str, *, but: str = "") -> str:
    """Return the text with a blank for each character that is not printable: controls, marks of direction, halves of a pair.

    Args:
        but: characters that are kept.
    """
    return text if text.isprintable() else "".join([c if c.isprintable() or c in but else " " for c in text])


def clip(text: str, limit: int) -> str:
    """Return one printable line of at most `limit` characters: a peer's text must not break a log or a terminal."""
    line = printable(text[: limit + 1])
    return line if len(line) <= limit else line[: limit - 1] + "…"


def key_list(keys: Collection[str]) -> str:
    """Return the keys of checkpoints' objects as one text for a message; if they are too many, their checkpoints' directories."""
    if len(keys) > _MOST_OBJECTS:
        keys = {key if key.endswith("/") else key.rsplit("/", 2)[0] + "/" for key in keys}
    return " ".join(sorted(keys)[:_MOST_OBJECTS])


def value_in(env: Mapping[str, str], variable: str) -> str:
    """Return a variable's value without blanks around it. Set but empty is not set, as with LANG and its kind."""
    return env.get(variable, "").strip()


def store_url(text: str) -> str:
    """Return the URL of a store that a user wrote as a URL or as a path; a relative path is that of the working directory.

    A text with a colon in its first part is no path, nor one that begins with a word and two slashes: `s3:/bucket` and
    `s3//bucket` are refused later, with the URL that was probably meant.
    """
    first, _, rest = text.partition("/")
    if not text or ":" in first or "\0" in text or (first and rest.startswith("/")):
        return text
    return Path(text).expanduser().absolute().as_uri()
