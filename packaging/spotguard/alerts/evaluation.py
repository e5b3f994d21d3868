"""The evaluation of rules: samples and incidents go in with the time, alerts that begin or end come out. Pure.

An alert begins when its rule's comparison has held for long enough, and ends when it has not held for a minute, so that a value
at the edge does not make a message every ten seconds. An incident's alert begins at once, and ends with the incident's opposite
or after a while.
"""

from __future__ import annotations

import logging
import math
import statistics
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from ..agent.telemetry.metrics.definitions import METRICS
from ..providers.text import TEXT, clip
from .rules import COMPARISONS, COUNTER_WINDOW, HISTORY, Rule

log = logging.getLogger("spotguard.agent")

#: Seconds for which a comparison must not hold until the alert ends.
CLEAR = 60.0
#: Seconds between two values of a history, how many are kept, and how many are needed.
_EVERY, _KEPT, _LEAST = 60.0, 360, 20
#: Seconds after which an alert's values count as history all the same: it has become usual.
_USUAL = 3600.0
#: A median of absolute deviations, as a standard deviation of values that are normally distributed.
_MAD = 1.4826
#: The least deviation of a history, as a share of its median: values that are all equal deviate by nothing.
_FLOOR = 0.01
#: Facts of an incident that identify its alert.
_IDENTITY = ("run_id", "rank", "class", "kind", "gpu", "xid", "device")
#: Incidents that end the alerts of others of the same run.
OPPOSITES = {
    "moving": ("stall",),
    "training": ("stall", "failure"),
    "launch": ("stall",),
    "gone": ("stall",),
    "failure": ("stall",),
}
#: Incidents whose alerts last until their opposite comes, however long.
_LASTING = frozenset({"stall"})
#: Seconds for which the alert of another incident lasts, unless its rule or its opposite ends it.
_KEEP = 3600.0
#: Seconds in which the same incident is the same alert: a driver in trouble writes a line over and over.
_REPEATED = {"kernel": 300.0}
#: The most alerts that are followed: only a rule about something that grows without bound makes more.
_MOST = 500

Labels = tuple[tuple[str, str], ...]
#: A metric's name, the values of its labels, and a number, as `agent.telemetry.metrics.definitions.values` has them.
Values = Iterable[Sequence[Any]]

_LABELS = {metric.name: metric.labels for metric in METRICS}


@dataclass(frozen=True, slots=True)
class Alert:
    """An alert that fires, or has ended.

    Attributes:
        rule: the rule.
        labels: what it is about.
        summary: one line for people.
        began: monotonic seconds at which its cause began.
        ended: monotonic seconds; None while it fires.
        until: monotonic seconds at which it ends by itself; None if only its cause's end ends it.
        facts: the facts of the incident.
    """

    rule: Rule
    labels: Labels
    summary: str
    began: float
    ended: float | None = None
    until: float | None = None
    facts: Mapping[str, Any] = field(default_factory=dict, compare=False)


@dataclass(slots=True)
class _MetricSeries:
    """The values of one metric with one set of labels, as one rule sees them."""

    recent: deque[tuple[float, float]] = field(default_factory=deque)
    history: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT))
    kept_at: float = -math.inf

    def add(self, value: float, now: float, window: float) -> None:
        self.recent.append((now, value))
        while self.recent[0][0] < now - window:
            self.recent.popleft()

    def keep(self, value: float, now: float) -> None:
        """Keep a value for the history."""
        if now - self.kept_at >= _EVERY and math.isfinite(value):
            self.history.append(value)
            self.kept_at = now


@dataclass(slots=True)
class _Condition:
    """A comparison that holds, or has held until a moment ago."""

    since: float
    held_at: float
    alert: Alert | None = None


class Evaluation:
    """The state of all rules.

    Args:
        rules: the rules.
    """

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._of_metrics = [rule for rule in rules if rule.metric]
        self._of_incidents = [rule for rule in rules if rule.incident]
        self._series: dict[tuple[str, Labels], _MetricSeries] = {}
        self._conditions: dict[tuple[str, Labels], _Condition] = {}
        self._incidents: dict[tuple[str, Labels], Alert] = {}

    @property
    def firing(self) -> list[Alert]:
        """The alerts that fire."""
        held = [each.alert for each in self._conditions.values() if each.alert is not None]
        return [*self._incidents.values(), *held]

    # --- incidents ---

    def ended_by(self, kind: str) -> list[str]:
        """Return the names of the rules whose alerts an incident of this kind ends."""
        return [rule.name for rule in self._of_incidents if rule.incident in OPPOSITES.get(kind, ())]

    def incident(self, kind: str, facts: Mapping[str, Any], now: float) -> Iterator[Alert]:
        """Take in an incident; yield each alert that begins or ends by it."""
        run_id = (
            None if kind == "launch" else str(facts.get("run_id"))
        )  # a start of the command is of all its runs
        for ends in OPPOSITES.get(kind, ()):
            yield from self._end_incidents(ends, run_id, now)
        texts = {name: _text(value) for name, value in facts.items() if value is not None}
        for rule in self._of_incidents:
            if rule.incident == kind:
                yield from _guarded(rule, self._begin_incident, rule, facts, texts, now)

    def _begin_incident(
        self, rule: Rule, facts: Mapping[str, Any], texts: Mapping[str, str], now: float
    ) -> Iterator[Alert]:
        if not rule.takes(texts):
            return
        labels = tuple((name, texts[name]) for name in _IDENTITY if texts.get(name))
        usual = math.inf if rule.incident in _LASTING else _KEEP
        keep = usual if rule.keep is None else rule.keep
        until = now + keep if keep < math.inf else None
        alert = Alert(rule, labels, _summary(rule, texts), now, until=until, facts=dict(facts))
        known = self._incidents.get((rule.name, labels))
        if known is not None and now - known.began < _REPEATED.get(rule.incident, 0.0):
            return
        if len(self._incidents) < _MOST:
            self._incidents[rule.name, labels] = alert
        yield alert

    def _end_incidents(self, kind: str, run_id: str | None, now: float) -> Iterator[Alert]:
        for key, alert in list(self._incidents.items()):
            of_run = run_id is None or dict(alert.labels).get("run_id") == run_id
            if alert.rule.incident == kind and of_run:
                del self._incidents[key]
                yield replace(alert, ended=now)

    def expire(self, now: float) -> Iterator[Alert]:
        """End the alerts of incidents whose time is over."""
        for key, alert in list(self._incidents.items()):
            if alert.until is not None and now >= alert.until:
                del self._incidents[key]
                yield replace(alert, ended=now)

    # --- samples ---

    def sample(self, values: Values, now: float) -> Iterator[Alert]:
        """Take in the newest values of all metrics; yield each alert that begins or ends by them."""
        found: dict[str, dict[Labels, float]] = {}
        for name, labels, value in values:
            found.setdefault(name, {})[_labels(name, labels)] = float(value)
        for rule in self._of_metrics:
            yield from _guarded(rule, self._judge_all, rule, found, now)

    def _judge_all(
        self, rule: Rule, found: Mapping[str, Mapping[Labels, float]], now: float
    ) -> Iterator[Alert]:
        there = found.get(rule.metric, {})
        for labels, value in there.items():
            if rule.takes(dict(labels)):
                yield from self._judge(rule, labels, value, found, now)
        yield from self._end_absent(rule, there, now)

    def _judge(
        self,
        rule: Rule,
        labels: Labels,
        newest: float,
        found: Mapping[str, Mapping[Labels, float]],
        now: float,
    ) -> Iterator[Alert]:
        key = (rule.name, labels)
        series = self._series.setdefault(key, _MetricSeries())
        window = rule.window or (COUNTER_WINDOW if rule.counts else 0.0)
        series.add(newest, now, window)
        value = _rise(series.recent) if rule.counts else _middle(each for _, each in series.recent)
        holds = _holds(rule, value, series.history, found.get(rule.of, {}).get(labels))
        condition = self._conditions.get(key)
        if rule.needs_history and (
            (not holds and condition is None) or (condition is not None and now - condition.since > _USUAL)
        ):
            series.keep(value, now)
        if holds:
            if condition is None and len(self._conditions) < _MOST:
                condition = self._conditions[key] = _Condition(now, now)
            if condition is not None:
                condition.held_at = now
                if condition.alert is None and now - condition.since >= rule.lasts:
                    texts = {**dict(labels), "value": _rounded(value)}
                    condition.alert = Alert(rule, labels, _summary(rule, texts), condition.since)
                    yield condition.alert
        elif condition is not None:
            yield from self._cease(key, condition, now)

    def _cease(self, key: tuple[str, Labels], condition: _Condition, now: float) -> Iterator[Alert]:
        """End a condition that holds no longer: at once if it has not fired, else after a while."""
        if condition.alert is None:
            del self._conditions[key]
        elif now - condition.held_at >= CLEAR:
            del self._conditions[key]
            yield replace(condition.alert, ended=now)

    def _end_absent(self, rule: Rule, there: Mapping[Labels, float], now: float) -> Iterator[Alert]:
        """End what was about a series that is gone, such as that of a process that has ended."""
        for name, labels in [key for key in self._series if key[0] == rule.name and key[1] not in there]:
            condition = self._conditions.get((name, labels))
            if condition is None:
                del self._series[name, labels]
            else:
                yield from self._cease((name, labels), condition, now)

    def close(self, now: float, *, ended: bool = True) -> Iterator[Alert]:
        """End the alerts of metrics, because nothing is evaluated any more. An incident's alert outlives the run.

        Args:
            now: monotonic seconds.
            ended: whether the agent has ended by itself, and with it every stall that it saw.
        """
        for kind in _LASTING if ended else ():
            yield from self._end_incidents(kind, None, now)
        for key, condition in list(self._conditions.items()):
            del self._conditions[key]
            if condition.alert is not None:
                yield replace(condition.alert, ended=now)


def _guarded(rule: Rule, work: Callable[..., Iterator[Alert]], *arguments: Any) -> Iterator[Alert]:
    """Yield what one rule makes. A mistake in it must not hide the alerts of the rules after it."""
    try:
        yield from work(*arguments)
    except Exception:
        log.exception("rule %s cannot be evaluated [SG113]", rule.name)


def _holds(rule: Rule, value: float, history: Sequence[float], other: float | None) -> bool:
    """Return whether the rule's comparison holds. It does not where what it compares with is not known.

    NaN counts as infinite, because it compares as nothing: a validation loss that is none is above every threshold.
    """
    compare, threshold = COMPARISONS[rule.compare], rule.threshold
    value = math.inf if math.isnan(value) else value
    if threshold is not None and rule.of != HISTORY:
        factor = 1.0 if not rule.of else other
        return factor is not None and compare(value, threshold * factor)
    if len(history) < _LEAST:
        return False
    median = statistics.median(history)
    if threshold is not None:
        return compare(value, threshold * median)
    spread = _MAD * statistics.median(abs(each - median) for each in history)
    away = (rule.deviation or 0.0) * max(spread, _FLOOR * abs(median))
    return compare(value, median - away if rule.compare.startswith("<") else median + away)


def _rise(recent: Sequence[tuple[float, float]]) -> float:
    """Return by how much a counter rose. One that falls began anew at 0."""
    values = [value for _, value in recent]
    return sum(b - a if b >= a else b for a, b in pairwise(values))


def _middle(values: Iterable[float]) -> float:
    """Return the median. NaN counts as infinite here, too: left to itself, it stays wherever a sort finds it."""
    ordered = sorted(values, key=lambda each: math.inf if math.isnan(each) else each)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


def _labels(name: str, values: Sequence[str]) -> Labels:
    return tuple(zip(_LABELS.get(name, ()), map(str, values), strict=False))


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _rounded(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


class _Known(dict[str, str]):
    def __missing__(self, key: str) -> str:
        return "?"


def _summary(rule: Rule, texts: Mapping[str, str]) -> str:
    return clip((rule.summary or f"{rule.name}: {{value}}").format_map(_Known(texts)), 4 * TEXT)
