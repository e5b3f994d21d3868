"""The language of simulator scripts: one event a line, as in `10s preempt window=120 action=terminate`.

A line has a time after the start, a verb, for some verbs a word, and settings. Lines may come in any order. Empty lines,
and comments after `#`, are skipped.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from ..dates import parse_duration
from ..errors import UsageError

S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class Step(Generic[S]):
    """One event that happens to a simulator of type S."""

    #: Seconds after the start.
    at: float
    do: Callable[[S], object]


@dataclass(frozen=True, slots=True)
class Verb(Generic[S]):
    """A verb of the language, with its action and its arguments."""

    do: Callable[..., object]
    #: Words of which one must follow; empty for a verb without one.
    words: Sequence[str] = ()
    #: The parser of each setting. The text of its ValueError is shown to the user.
    settings: Mapping[str, Callable[[str], Any]] = field(default_factory=dict)


def seconds(text: str) -> float:
    """Return the seconds of a time such as `10`, `10s`, `1.5m` or `500ms`.

    Raises:
        ValueError: the text is not a time.
    """
    value = parse_duration(text.removeprefix("-"))
    if value is None:
        raise ValueError(f"{text!r} is not a time: expected seconds, as in 10, 10s, 1.5m or 500ms")
    return -value if text.startswith("-") else value


def count(text: str) -> int:
    """Return a number of times, at least 1.

    Raises:
        ValueError: the text is not such a number.
    """
    if not re.fullmatch(r"[1-9][0-9]{0,8}", text):
        raise ValueError(f"{text!r} is not a number of times: expected 1, 2, 3 …")
    return int(text)


def one_of(choices: Sequence[str]) -> Callable[[str], str]:
    """Return a parser that accepts one of these words."""

    def chosen(text: str) -> str:
        if text not in choices:
            raise ValueError(f"{text!r}: expected one of {', '.join(choices)}")
        return text

    return chosen


def read_script(path: str, verbs: Mapping[str, Verb[S]]) -> list[Step[S]]:
    """Return the steps of a script file.

    Raises:
        UsageError: the file cannot be read, or a line cannot be parsed. The error names file, line and what was expected.
    """
    try:
        text = Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text"
        raise UsageError(f"--script {path}: {reason}") from error
    return parse_script(text, path, verbs)


def parse_script(text: str, name: str, verbs: Mapping[str, Verb[S]]) -> list[Step[S]]:
    """Return the steps of a script's text.

    Raises:
        UsageError: a line cannot be parsed. The error calls the script `name`.
    """
    steps = []
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        try:
            steps.append(_step(words, verbs))
        except ValueError as error:
            raise UsageError(f"{name}:{number}: {error}") from error
    return steps


def _step(words: list[str], verbs: Mapping[str, Verb[S]]) -> Step[S]:
    at = seconds(words[0])
    if at < 0:
        raise ValueError(f"{words[0]!r} is before the start: expected a time from 0 on")
    if len(words) < 2:
        raise ValueError(f"nothing happens at {words[0]}: expected one of {', '.join(verbs)}")
    verb = verbs.get(words[1])
    if verb is None:
        raise ValueError(f"unknown verb {words[1]!r}: expected one of {', '.join(verbs)}")
    rest = words[2:]
    operands: list[str] = []
    if verb.words:
        if not rest or rest[0] not in verb.words:
            given = repr(rest[0]) if rest else "nothing"
            raise ValueError(f"{words[1]} {given}: expected one of {', '.join(verb.words)}")
        operands.append(rest.pop(0))
    settings = dict(_setting(word, words[1], verb) for word in rest)
    return Step(at, lambda simulator: verb.do(simulator, *operands, **settings))


def _setting(word: str, name: str, verb: Verb[S]) -> tuple[str, Any]:
    key, equals, text = word.partition("=")
    if not equals or key not in verb.settings:
        known = ", ".join(f"{key}=" for key in verb.settings) or "nothing more"
        raise ValueError(f"{name} {word!r}: expected {known}")
    return key, verb.settings[key](text)
