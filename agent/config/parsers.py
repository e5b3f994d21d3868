"""Parsers from a user's text to a value: one function for each kind of option.

Each parser takes the origin ("--window", "SPOTGUARD_WINDOW", "spot.toml: window") and the text. It raises `UsageError` with
one line that names both, the expected form, and an example to copy.
"""

from __future__ import annotations

import math
import os
import re
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, NoReturn
from urllib.parse import urlsplit

from ...hooks.ipc.failure_classes import FAILURES
from ...providers.clock import WEEK
from ...providers.dates import parse_duration
from ...providers.errors import UsageError
from ...providers.run_id import RUN_ID, is_run_id
from ...providers.text import NO, YES, store_url
from ..core.state import BUDGET, RecoveryAction, RecoveryRule

PROVIDERS = ("auto", "aws", "azure", "gcp", "none")


#: `K` or `K+N`: the newest K checkpoints stay, and one of every N steps.
_KEEP = re.compile("[1-9][0-9]{0,8}(?:[+][1-9][0-9]{0,8})?")

#: Signals that a command cannot handle, so that they give it no time to save.
_DEAF = (signal.SIGKILL, signal.SIGSTOP)


def refuse(origin: str, text: str, expected: str) -> NoReturn:
    raise UsageError(f"{origin} {text!r}: expected {expected}")


def seconds(origin: str, text: str) -> float:
    """Parse seconds, or a duration. 0 is allowed: no reserve, or a window that is over at once."""
    value = _number(text)
    if not 0 <= value <= WEEK:
        refuse(origin, text, f"seconds from 0 up to {WEEK} (a week), as in 30 or 2m")
    return value


def interval(origin: str, text: str) -> float | Literal["auto", "off"]:
    word = text.lower()
    if word in ("auto", "off"):
        return "auto" if word == "auto" else "off"
    if (value := _span(text)) is None:
        refuse(origin, text, f"auto, off, or seconds above 0 up to {WEEK} (a week), as in 60 or 5m")
    return value


def stall(origin: str, text: str) -> float | Literal["off"]:
    if text.lower() == "off":
        return "off"
    if (value := _span(text)) is None:
        refuse(origin, text, f"off, or seconds above 0 up to {WEEK} (a week), as in 1800 or 30m")
    return value


def recover(origin: str, text: str) -> Mapping[str, RecoveryRule]:
    """Parse `CLASS=ACTION` pairs with commas between them; `restart` and `leave` may have a number, as in `stall=restart:5`."""
    rules = {}
    for pair in filter(None, (each.strip() for each in text.split(","))):
        kind, _, rest = pair.partition("=")
        word, colon, number = rest.partition(":")
        if kind not in FAILURES:
            refuse(origin, text, f"a class of failures before each =, not {kind!r}: {', '.join(FAILURES)}")
        if kind in rules:
            refuse(origin, text, f"each class once, not {kind} twice")
        if word not in set(RecoveryAction) or (colon and word == RecoveryAction.STOP):
            refuse(origin, text, f"restart, restart:N, leave, leave:N or stop behind {kind}=, not {rest!r}")
        if word == RecoveryAction.BACK and kind != "nan":
            refuse(origin, text, f"back behind nan= only, as in nan=back, not {pair!r}")
        if colon and not (number.isdecimal() and 0 < int(number) < 10**9):
            refuse(origin, text, f"a whole number from 1 up behind {kind}={word}:, not {number!r}")
        rules[kind] = RecoveryRule(RecoveryAction(word), int(number) if colon else BUDGET)
    if not rules:
        refuse(origin, text, "CLASS=ACTION, as in stall=restart,host-memory=stop,gpu=leave")
    return rules


def hours(origin: str, text: str) -> float | Literal["off"]:
    """Parse hours, or a duration with a unit, and return seconds."""
    word = text.lower()
    if word == "off":
        return "off"
    if (value := _span(text, 3600.0 if word.replace(".", "", 1).isdigit() else 1.0)) is None:
        refuse(origin, text, f"off, or hours above 0 up to {WEEK // 3600} (a week), as in 6 or 90m")
    return value


def at_least(least: int, most: int | None = None, why: str = "") -> Callable[[str, str], int]:
    """Return a parser of whole numbers from `least` up, to `most` if given. `why` goes behind the error's text."""
    span = f"from {least} up" if most is None else f"from {least} to {most}"

    def read(origin: str, text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least or (most is not None and value > most):
            refuse(origin, text, f"a whole number {span}{why}")
        return value

    return read


def keep(origin: str, text: str) -> str:
    """Check how many checkpoints stay. The training process parses the text (`hooks.checkpoint.retention.Keep`)."""
    if not _KEEP.fullmatch(text):
        refuse(
            origin,
            text,
            "a whole number from 1 up, for the last good one always stays; or two, as in 3+1000, to keep the first at or "
            "after every 1000th step as well",
        )
    return text


def yes_or_no(origin: str, text: str) -> bool:
    word = text.lower()
    if word not in YES + NO:
        refuse(origin, text, "true or false")
    return word in YES


def one_of(*words: str) -> Callable[[str, str], str]:
    def read(origin: str, text: str) -> str:
        if (word := text.lower()) not in words:
            refuse(origin, text, f"{', '.join(words[:-1])} or {words[-1]}")
        return word

    return read


def provider(origin: str, text: str) -> str:
    return one_of(*PROVIDERS)(origin, text)


def endpoint(origin: str, text: str) -> str:
    # Imported here, because it loads the HTTP client, which a run without an endpoint and a cloud does not need.
    from ...providers.clouds.http import parse_endpoint

    return parse_endpoint(text, origin)


def vm_name(origin: str, text: str) -> str:
    if not text.isprintable() or not 0 < len(text) <= 128 or " " in text:
        refuse(origin, text, "a machine's name in one word, as in pool-vmss_12")
    return text


def run_id(origin: str, text: str) -> str:
    if not is_run_id(text):
        refuse(origin, text, RUN_ID)
    return text


def store(origin: str, text: str) -> str:
    """Return the URL of the store. A path becomes absolute here, because the command may run in another directory."""
    if not text.strip() or "\0" in text:
        refuse(origin, text, "a path, or a store's URL, as in s3://bucket/prefix")
    return store_url(text)


def absolute_path(origin: str, text: str) -> str:
    """Return the absolute path, because the command may be in another directory when it uses the path."""
    if not text or "\0" in text:
        refuse(origin, text, "a path, as in /run/user/1000/gpt.sock")
    return os.path.abspath(text)


def appendable_path(origin: str, text: str) -> str:
    """Return the absolute path of a file that is there, or can be made."""
    path = absolute_path(origin, text)
    if os.path.isdir(path) or not os.path.isdir(os.path.dirname(path)):
        refuse(origin, text, "a file in a directory that exists, as in /shared/exclude.txt")
    return path


def socket_path(origin: str, text: str) -> str:
    """Return the absolute path, and refuse `/`: it has no name for a lock file beside it."""
    path = absolute_path(origin, text)
    if not os.path.basename(path):
        refuse(origin, text, "a path with a name at its end, as in /run/user/1000/gpt.sock")
    return path


def folder(origin: str, text: str) -> str:
    """Return the absolute path of a directory that exists or can be created. The parser only checks; the writer creates it."""
    path = existing = os.path.abspath(text.partition("\0")[0])
    while not os.path.lexists(existing):
        existing = os.path.dirname(existing)
    if not text or "\0" in text or not os.path.isdir(existing) or not os.access(existing, os.W_OK | os.X_OK):
        refuse(
            origin, text, "a directory that exists or can be made, and is writable, as in /mnt/nvme/spotguard"
        )
    return path


def shell_command(origin: str, text: str) -> str:
    if not text.strip() or "\0" in text:
        refuse(origin, text, "a command for the shell, as in 'logger notice'")
    return text


#: A receiver of incidents: its kind, which may be missing, and its URL.
_WEBHOOK = re.compile(r"(?:(?P<kind>alertmanager|slack|json):)?(?P<url>https?://[^\s/?#]+\S*)")


def webhooks(origin: str, text: str) -> tuple[str, ...]:
    """Parse receivers of incidents, separated by commas. The URL of one may be a secret, so no error repeats it."""
    given = tuple(word for each in text.split(",") if (word := each.strip()))
    for word in given:
        found = _WEBHOOK.fullmatch(word)
        if found is not None and not _has_port(found["url"]):
            refuse(origin, f"{word[:8]}…", "a port from 1 to 65535 in the URL, as in http://127.0.0.1:9093")
        if found is None:
            refuse(
                origin,
                f"{word[:8]}…",
                "a URL, as in http://127.0.0.1:9093, or its kind before it, as in slack:https://…: alertmanager, slack or json",
            )
    if not given:
        refuse(origin, text, "a URL, as in http://127.0.0.1:9093")
    return given


def _has_port(url: str) -> bool:
    """Return whether the URL's port, if it has one, is a number."""
    try:
        return urlsplit(url).port != 0
    except ValueError:
        return False


def signal_number(origin: str, text: str) -> int | None:
    word = text.upper()
    if word == "NONE":
        return None
    name = word if word.startswith("SIG") else f"SIG{word}"
    signum = signal.Signals.__members__.get(name)
    if signum is None or signum in _DEAF:
        refuse(origin, text, "none, or a signal that a program can act on, as in TERM or USR1")
    return int(signum)


def toml_text(origin: str, value: object) -> str:
    """Return a TOML value as its command-line text, so that one set of parsers serves flags, environment and file."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (str, int, float, datetime)):
        return str(value)
    raise UsageError(f"{origin}: expected a text, a number or true or false, not a {_toml_name(value)}")


def _toml_name(value: object) -> str:
    return "table" if isinstance(value, dict) else "list" if isinstance(value, list) else "date"


def _number(text: str) -> float:
    value = parse_duration(text)
    return math.nan if value is None else value


def _span(text: str, unit: float = 1.0) -> float | None:
    """Return the seconds of a number in this unit, or of a duration; None unless they are above 0, and a week at most."""
    value = _number(text) * unit
    return value if 0 < value <= WEEK else None


DEADLINE = "--deadline"
_FROM_NOW = re.compile(r"\+.*|.*[a-z]", re.DOTALL)
#: Seconds. No reservation is longer than ten years, and Unix milliseconds would be the year 58000.
FARTHEST = 10 * 366 * 86400.0
#: The example in every message, help text and page. Users copy it, so for years it must be neither past nor too far off.
DEADLINE_EXAMPLE = "2035-06-30T18:00"
_A_TIME = f"a time, as in {DEADLINE_EXAMPLE} (or with a zone, +01:00 or Z), Unix seconds, or from now +3600 or 2h30m"


@dataclass(frozen=True, slots=True)
class Deadline:
    """A parsed deadline: an instant, or a time from the start of this program. One of the two is None."""

    #: Unix seconds.
    wall: float | None = None
    #: Seconds from the start of this program.
    after: float | None = None
    #: The place where the deadline was given, for later messages.
    origin: str = field(default=DEADLINE, compare=False)
    #: The text as given, for later messages.
    text: str = field(default="", compare=False)


def deadline(origin: str, text: str, expected: str = _A_TIME) -> Deadline:
    """Parse a deadline. A time without a zone is in the machine's own zone.

    Args:
        origin: the place where the text was given.
        text: the user's text.
        expected: the description of a time in the error's text.

    Raises:
        UsageError: the text is not a time.
    """
    word = text.strip()
    after = parse_duration(word.removeprefix("+")) if _FROM_NOW.fullmatch(word.lower()) else None
    if after is not None and math.isfinite(after) and after >= 0:
        if after > FARTHEST:
            refuse(origin, text, "a time within ten years from now on: Unix seconds are written without a +")
        return Deadline(after=after, origin=origin, text=text)
    wall = _instant(word)
    if wall is None or not math.isfinite(wall):
        refuse(origin, text, expected)
    return Deadline(wall=wall, origin=origin, text=text)


def _instant(word: str) -> float | None:
    try:
        return float(word)
    except ValueError:
        pass
    try:
        return datetime.fromisoformat(word).timestamp()
    except (ValueError, OverflowError, OSError):  # a year that the system's clock does not know
        return None
