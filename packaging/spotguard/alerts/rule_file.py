"""The reader of the rules of alerts: `defaults.toml` has those that hold without a file.

A file changes a rule by its name, switches it off (`enabled = false`), or adds one. An error names the file, the line, the key, its
value, and what was expected.
"""

from __future__ import annotations

import math
import re
import string
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import fields
from importlib import resources
from typing import Any, NoReturn

from ..agent.telemetry.metrics.definitions import STATES
from ..hooks.ipc.failure_classes import FAILURES
from ..providers.dates import parse_duration
from ..providers.errors import UsageError
from ..providers.text import TEXT, clip, did_you_mean
from .readings.disk import PLACES
from .rules import (
    ACTIONS,
    COMPARISONS,
    HISTORY,
    INCIDENTS,
    LABELS,
    LONGEST_WINDOW,
    SEVERITIES,
    TYPES,
    Rule,
    is_rule_name,
    labels_in,
)

#: The options that actions need.
_OPTIONS = {"webhook": "--webhook", "command": "--on-failure"}
#: By metric or incident and label: the values that there are.
_VALUES = {
    ("failure", "class"): (*FAILURES, "unknown"),
    ("kernel", "kind"): ("xid", "oom", "disk", "machine-check"),
    ("spotguard_source_state", "state"): STATES,
    **{(name, "place"): PLACES for name in TYPES if "place" in LABELS[name]},
    **{("outcome", name): ("true", "false") for name in ("drill", "failed", "ended_well")},
}
#: Seconds of a counter's shortest window: a sample comes every ten, and a rise takes two.
_COUNTER_LEAST = 30.0


def default_rules() -> tuple[Rule, ...]:
    """Return the rules that hold without a file."""
    return _Reader("defaults.toml", default_text()).rules({})


def default_text() -> str:
    """Return the file of the default rules."""
    return resources.files(__package__).joinpath("defaults.toml").read_text()


def read_rules(path: str, origin: str = "--rules") -> tuple[Rule, ...]:
    """Return the default rules as the file changes them, and the file's own.

    Raises:
        UsageError: the file cannot be read, or a rule in it cannot be used.
    """
    return _Reader(path, _content(path, origin)).rules(_tables("defaults.toml", default_text()))


def idle_actions(path: str, *, webhook: bool, command: bool) -> Iterator[str]:
    """Yield a line for each rule that names in its file an action that cannot happen. The default rules name any, and so may copies.

    Args:
        path: the file, which `read_rules` has read.
        webhook: whether there is a receiver.
        command: whether there is a command.

    Raises:
        UsageError: no action that a rule names can happen.
    """
    text = _content(path, "--rules")
    missing = {"webhook": not webhook, "command": not command}
    defaults = _tables("defaults.toml", default_text())
    for name, table in _tables(path, text).items():
        if table.get("actions") == defaults.get(name, {}).get("actions"):
            continue  # a copy of the defaults behaves as they do
        actions = table.get("actions", ()) if table.get("enabled", True) else ()
        idle = [each for each in actions if missing.get(each)]
        needed = " and ".join(_OPTIONS[each] for each in idle)
        if idle and len(idle) == len(actions):
            _Reader(path, text).refuse(name, "actions", actions, f"{needed} too, or another action")
        if idle:
            at = _place(path, text, "actions", name)
            yield f"{at}rule {name} cannot do {' and '.join(idle)} without {needed}; its other actions happen [SG705]"


def _content(path: str, origin: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UsageError(f"{origin} {path!r}: expected a TOML file to read: {why} [SG705]") from error


def _tables(file: str, text: str) -> dict[str, dict[str, Any]]:
    """Return the tables of the rules in a file, by name."""
    try:
        content = tomllib.loads(text)
    except (
        ValueError,
        RecursionError,
    ) as error:  # ValueError: Python reads whole numbers of 4,300 digits at most
        why = "it nests too deeply" if isinstance(error, RecursionError) else str(error).partition(";")[0]
        raise UsageError(f"{file}: expected TOML: {why} [SG705]") from error
    for key, value in content.items():
        if key != "rule":
            at = _place(file, text, key)
            raise UsageError(f"{at}unknown key {key!r}: expected tables such as [rule.stall] [SG705]")
        if not isinstance(value, dict) or not all(isinstance(each, dict) for each in value.values()):
            at = _place(file, text, "rule")
            raise UsageError(f"{at}rule: expected tables such as [rule.stall] [SG705]")
    rules: dict[str, dict[str, Any]] = content.get("rule", {})
    return rules


def _place(file: str, text: str, key: str, table: str = "") -> str:
    """Return the file and the line of a key. `tomllib` gives the lines of a syntax error alone, so the text is searched."""
    inside = not table
    head = re.compile(rf"""\s*\[\s*rule\s*\.\s*["']?{re.escape(table)}["']?\s*\]""")
    line_of_table = 0
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("["):
            inside = head.match(line) is not None if table else key == "rule" or f"[{key}" in line
            line_of_table = number if inside else line_of_table
            if inside and (not key or not table):
                return f"{file}, line {number}: "
        elif inside and re.match(rf"""\s*["']?{re.escape(key)}["']?\s*[=.]""", line):
            return f"{file}, line {number}: "
    return f"{file}, line {line_of_table}: " if line_of_table else f"{file}: "


class _Reader:
    """The reader of one file."""

    def __init__(self, file: str, text: str) -> None:
        self._file, self._text = file, text

    def rules(self, known: Mapping[str, Mapping[str, Any]]) -> tuple[Rule, ...]:
        """Return the rules of this file, over the tables of the rules that are known."""
        given = _tables(self._file, self._text)
        names = [*known, *(name for name in given if name not in known)]
        return tuple(
            rule for name in names if (rule := self._rule(name, known.get(name, {}), given.get(name, {})))
        )

    def _rule(self, name: str, known: Mapping[str, Any], given: Mapping[str, Any]) -> Rule | None:
        if not is_rule_name(name):
            self.refuse(name, "", name, "a name of small letters, digits and -, as in loss-high")
        for key in given:
            if key not in _KEYS:
                near = did_you_mean(key, list(_KEYS)) or f"expected one of {', '.join(_KEYS)}"
                raise UsageError(
                    f"{_place(self._file, self._text, key, name)}unknown key {key!r} in rule {name}: {near} [SG705]"
                )
        table = self._merged(known, given)
        if not known and not table.keys() & {"metric", "incident"}:
            near = did_you_mean(name, list(_tables("defaults.toml", default_text())))
            self.refuse(
                name,
                "",
                name,
                f"a metric or an incident, or the name of a default rule{': ' * bool(near)}{near}",
            )
        if not self._enabled(name, table):
            return None
        values: dict[str, Any] = {"name": name}
        for key, read in _KEYS.items():
            if key in table and key != "enabled":
                try:
                    values[_FIELDS.get(key, key)] = read(table[key])
                except ValueError as error:
                    self.refuse(name, key, table[key], str(error))
        rule = Rule(**values)
        self._check(rule, table)
        return rule

    @staticmethod
    def _merged(known: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the keys of both. A threshold of the file replaces the known one with what belongs to it, and so do the others."""
        table = dict(known)
        if "deviation" in given:
            table.pop("threshold", None), table.pop("of", None)
        if "threshold" in given and "deviation" in table:
            table.pop("deviation")
        return {**table, **given}

    def _enabled(self, name: str, table: Mapping[str, Any]) -> bool:
        if not isinstance(enabled := table.get("enabled", True), bool):
            self.refuse(name, "enabled", enabled, "true or false")
        return bool(enabled)

    def _check(self, rule: Rule, table: Mapping[str, Any]) -> None:
        """Refuse keys that do not fit together."""
        if bool(rule.metric) == bool(rule.incident):
            self.refuse(rule.name, "", rule.name, "a metric or an incident, and not both")
        if rule.incident:
            for key in ("compare", "threshold", "of", "deviation", "window", "for"):
                if key in table:
                    self.refuse(rule.name, key, table[key], "no such key in a rule of an incident")
            self._check_names(rule, INCIDENTS[rule.incident], f"a fact of {rule.incident}")
            return
        if (rule.threshold is None) == (rule.deviation is None):
            self.refuse(rule.name, "", rule.name, "a threshold or a deviation, and not both")
        if rule.deviation is not None and rule.of not in ("", HISTORY):
            self.refuse(rule.name, "of", rule.of, f"{HISTORY} for a deviation, or no such key")
        if rule.deviation is not None and rule.compare[0] not in "<>":
            self.refuse(rule.name, "compare", rule.compare, "> or < for a deviation")
        if rule.of == HISTORY and rule.counts:
            self.refuse(
                rule.name, "of", rule.of, "a metric that may fall: the history of a counter only rises"
            )
        if "keep" in table:
            self.refuse(rule.name, "keep", table["keep"], "no such key in a rule of a metric")
        if rule.counts and 0 < rule.window < _COUNTER_LEAST:
            self.refuse(rule.name, "window", table["window"], f"{_COUNTER_LEAST:.0f} s or more for a counter")
        if rule.of not in ("", HISTORY) and LABELS[rule.of] != LABELS[rule.metric]:
            same = ", ".join(name for name in TYPES if LABELS[name] == LABELS[rule.metric])
            self.refuse(rule.name, "of", rule.of, f"a metric with the labels of {rule.metric}: {same}")
        self._check_names(rule, LABELS[rule.metric], f"a label of {rule.metric}")

    def _check_names(self, rule: Rule, known: Collection[str], what: str) -> None:
        """Refuse labels and values that nothing has: the rule would never fire, or its line would have a hole."""
        there = f"{what} ({', '.join(sorted(known)) or 'none'})"
        for name, values in (rule.where or {}).items():
            if name not in known:
                self.refuse(rule.name, "where", name, there)
            possible = _VALUES.get((rule.metric or rule.incident, name), values)
            if not values or not set(values) <= set(possible):
                words = f"one of {', '.join(possible)}" if possible else "one value at least"
                self.refuse(rule.name, "where", list(values), f"{words} for {name}")
        for name in labels_in(rule):
            if name not in known and not (rule.metric and name == "value"):
                self.refuse(rule.name, "summary", f"{{{name}}}", f"{'value, or ' * bool(rule.metric)}{there}")

    def refuse(self, name: str, key: str, value: object, expected: str) -> NoReturn:
        at = _place(self._file, self._text, key, name)
        what = f"rule {name}" if not key else f"{key} of rule {name}"
        given = (
            repr(value) if not isinstance(value, int) or abs(value) < 10**300 else "a number of many digits"
        )
        raise UsageError(f"{at}{what} {clip(given, TEXT)}: expected {expected} [SG705]")


# --- the values of the keys. Each reader raises `ValueError` with what was expected ---


def _metric(value: object) -> str:
    if not isinstance(value, str) or value not in TYPES:
        near = did_you_mean(str(value), list(TYPES))
        raise ValueError(
            f"a metric of docs/reference/metrics.md that is no histogram{': ' * bool(near)}{near}"
        )
    return str(value)


def _of(value: object) -> str:
    return HISTORY if value == HISTORY else _metric(value)


def _word(*words: str) -> Callable[[object], str]:
    def read(value: object) -> str:
        if value not in words:
            raise ValueError(f"one of {', '.join(words)}")
        return str(value)

    return read


def _number(value: object) -> float:
    """Return a number, or the seconds of a duration."""
    expected = ValueError("a number, or a duration such as 90s, 5m, 2h or 7d")
    given = parse_duration(value) if isinstance(value, str) else value
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise expected
    try:
        number = float(given)
    except OverflowError:  # a whole number of any length is TOML
        raise expected from None
    if not math.isfinite(number):
        raise expected
    return number


def _positive(value: object) -> float:
    if (number := _number(value)) <= 0:
        raise ValueError("a number above 0")
    return number


def _seconds(most: float) -> Callable[[object], float]:
    def read(value: object) -> float:
        if not 0 <= (number := _number(value)) <= most:
            raise ValueError(f"seconds from 0 to {most:.0f}, as in 90 or 5m")
        return number

    return read


def _where(value: object) -> dict[str, tuple[str, ...]]:
    if not isinstance(value, dict):
        raise ValueError('labels with their values, as in { state = "blind" }')
    listed = {name: each if isinstance(each, list) else [each] for name, each in value.items()}
    if not all(isinstance(one, str | int) for each in listed.values() for one in each):
        raise ValueError("texts, whole numbers, true or false as the values of labels")
    return {name: tuple(map(_text, each)) for name, each in listed.items()}


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _actions(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(each in ACTIONS for each in value):
        raise ValueError(f"a list of some of {', '.join(ACTIONS)}")
    return tuple(value)


def _summary(value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError("a line for people")
    try:
        parts = [part[1:] for part in string.Formatter().parse(value) if part[1] is not None]
    except ValueError:
        parts = [("", "", None)]
    if not all(str(name).isidentifier() and not form and not how for name, form, how in parts):
        raise ValueError("a line with names of labels in braces, as in {run_id}, and nothing beside the name")
    return value


#: The keys of a rule, with their readers.
_KEYS: dict[str, Callable[[object], Any]] = {
    "metric": _metric,
    "incident": _word(*INCIDENTS),
    "where": _where,
    "compare": _word(*COMPARISONS),
    "threshold": _number,
    "of": _of,
    "deviation": _positive,
    "window": _seconds(LONGEST_WINDOW),
    "for": _seconds(86400.0),
    "keep": _seconds(7 * 86400.0),
    "severity": _word(*SEVERITIES),
    "actions": _actions,
    "summary": _summary,
    "enabled": bool,
}
#: Keys that are no names in Python.
_FIELDS = {"for": "lasts"}


assert {_FIELDS.get(key, key) for key in _KEYS} - {"enabled"} == {field.name for field in fields(Rule)} - {
    "name"
}
