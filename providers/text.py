"""Numbers, times and words as a person says them. Pure."""

from __future__ import annotations

#: Characters kept of a peer's words.
NAME = 80
TEXT = 300


def span(seconds: float) -> str:
    """A time ahead as a person says it: "3 d 4 h", "5 min 20 s", "8.0 s"."""
    left = max(0.0, seconds)
    if left < 60:
        return f"{left:.1f} s"
    for size, unit, part, below in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if left >= size:
            rest = int(left % size // part)
            return f"{int(left // size)} {unit}" + (f" {rest} {below}" if rest else "")
    return ""  # never: from a minute on the last line fits


def amount(value: float) -> str:
    """Bytes as a person says them: "1.4 GiB"."""
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"


def count(number: int, what: str) -> str:
    """Things as a person counts them: "1 rank", "1,200 elements"."""
    return f"{number:,} {what}" + ("" if number == 1 else "s")


def ago(seconds: float) -> str:
    """A span as a person says it: "12 s", "4 min", "3.2 h"."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def did_you_mean(word: str, words: list[str], prefix: str = "") -> str:
    """Say "did you mean --store?", or "" where nothing is near."""
    import difflib  # only for those who erred

    near = difflib.get_close_matches(word, words, n=1)
    return f"did you mean {prefix}{near[0]}?" if near else ""


def clip(text: str, limit: int) -> str:
    """One printable line of at most `limit` characters: a peer's words must not break a log or a terminal."""
    line = "".join(c if c.isprintable() else " " for c in text[: limit + 1])
    return line if len(line) <= limit else line[: limit - 1] + "…"
