"""Incidents: what happened, from events to values that begin and end. Pure.

`KINDS` is the table of all incidents. An event of the agent's, of the kernel's log or of a reading goes in; each incident that
begins or ends by it comes out, once, however often the event repeats. Rules on numbers are no part of it: Prometheus evaluates
those (`spotguard deploy monitoring rules.yml`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ..agent.actions import STANDING
from ..providers.text import TEXT, clip

#: Seconds for which an incident lasts that nothing ends sooner.
_HOUR = 3600.0
#: Facts that identify an incident, and become its labels.
_IDENTITY = ("run_id", "rank", "class", "kind", "gpu", "xid", "device", "source", "place", "direction")
#: The most incidents that are followed at once: only something that grows without bound makes more.
_MOST = 500

Severity = Literal["warning", "critical"]
Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of incident.

    Attributes:
        severity: how grave it is.
        summary: a line for people, with facts in braces.
        ended_by: the events that end it for their run.
        lasts: seconds after which it ends by itself; infinite: its cause's end ends it, however late.
        after: seconds for which its cause must last until it begins.
        apart: seconds in which the same cause is the same incident: a driver in trouble writes a line over and over.
        logged: whether it is logged as it begins and ends. Another line has told the others.
    """

    severity: Severity
    summary: str
    ended_by: tuple[str, ...] = ()
    lasts: float = _HOUR
    after: float = 0.0
    apart: float = 0.0
    logged: bool = True


_KERNEL = 300.0
KINDS: dict[str, Kind] = {
    # Events of the agent (`agent.actions.Incident`).
    "failure": Kind("critical", "training failed ({class}): {text}", ("training",), logged=False),
    "stall": Kind(
        "critical",
        "training stands still: {text}; {then}",
        STANDING["stall"],
        lasts=math.inf,
        logged=False,
    ),
    "steps-lost": Kind("critical", "a preemption has cost steps: {line}", logged=False),
    "blind": Kind("critical", "notices cannot be seen: {source} is {text}", lasts=math.inf, after=120.0),
    "checkpoints-failing": Kind(
        "warning",
        "background checkpoints of run {run_id}, rank {rank} fail: {text}",
        STANDING["checkpoints-failing"],
        lasts=math.inf,
    ),
    "agent-lost": Kind(
        "critical",
        "the agent of run {run_id} has died: no notice is seen, and training goes on unguarded",
        logged=False,
    ),
    # Lines of the kernel's log.
    "gpu-error": Kind("critical", "the GPU's driver reports Xid {xid} ({scope}): {text}", apart=_KERNEL),
    "hardware-error": Kind(
        "critical", "the kernel reports an error of the hardware ({kind}): {text}", apart=_KERNEL
    ),
    "memory-kill": Kind("warning", "the kernel killed a process for memory: {text}", apart=_KERNEL),
    # Readings of the machine.
    "disk-full": Kind(
        "critical", "the disk of the {place} is nearly full: {free} is free", lasts=math.inf, after=60.0
    ),
    "gpu-lost": Kind("critical", "GPU {gpu} does not answer", lasts=math.inf),
    "gpu-memory-error": Kind(
        "critical", "GPU {gpu} has memory errors that ECC could not correct: {rise} more", apart=_HOUR
    ),
    "clock-jump": Kind(
        "warning",
        "the wall clock was set {direction} by {rise} s: stores refuse requests of a clock that is minutes off; "
        "see spotguard doctor",
    ),
}
#: By kind of a line in the kernel's log: the incident.
_OF_KERNEL = {
    "xid": "gpu-error",
    "disk": "hardware-error",
    "machine-check": "hardware-error",
    "oom": "memory-kill",
}


@dataclass(frozen=True, slots=True)
class Incident:
    """One incident.

    Attributes:
        name: one of `KINDS`.
        labels: what it is about.
        summary: one line for people.
        began: monotonic seconds at which its cause began.
        ended: monotonic seconds; None while it lasts.
        until: monotonic seconds at which it ends by itself.
        facts: the facts of the event.
    """

    name: str
    labels: Labels
    summary: str
    began: float
    ended: float | None = None
    until: float = math.inf
    facts: Mapping[str, Any] = field(default_factory=dict, compare=False)

    @property
    def severity(self) -> Severity:
        return KINDS[self.name].severity

    @property
    def run_id(self) -> str:
        return dict(self.labels).get("run_id", "")


class Incidents:
    """The incidents that last."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, Labels], Incident] = {}
        #: Causes that have not lasted for long enough.
        self._early: dict[tuple[str, Labels], Incident] = {}

    @property
    def open(self) -> list[Incident]:
        return [*self._open.values()]

    def take(self, event: str, facts: Mapping[str, Any], now: float) -> Iterator[Incident]:
        """Take in an event; yield each incident that begins or ends by it.

        Args:
            event: the name of an incident, or an event that ends some.
            facts: its facts as plain JSON. With `over`, the incident of the same identity ends.
            now: monotonic seconds.
        """
        run_id = None if event == "launch" else str(facts.get("run_id"))  # a start is of all runs
        for key, incident in [*self._open.items(), *self._early.items()]:
            if event in KINDS[incident.name].ended_by and run_id in (None, incident.run_id):
                yield from self._end(key, now)
        name = _named(event, facts)
        if name not in KINDS:
            return
        labels = tuple((each, str(facts[each])) for each in _IDENTITY if facts.get(each) not in (None, ""))
        if facts.get("over"):
            yield from self._end((name, labels), now)
        else:
            yield from self._begin(name, labels, facts, now)

    def _begin(self, name: str, labels: Labels, facts: Mapping[str, Any], now: float) -> Iterator[Incident]:
        key, kind = (name, labels), KINDS[name]
        known = self._open.get(key) or self._early.get(key)
        if known is not None and (kind.lasts == math.inf or now - known.began < kind.apart):
            if key in self._open:
                self._open[key] = replace(known, until=now + kind.lasts)
            return
        summary = clip(kind.summary.format_map(_Known(facts)), 4 * TEXT)
        incident = Incident(name, labels, summary, now, until=now + kind.lasts, facts=dict(facts))
        if len(self._open) + len(self._early) < _MOST:
            (self._early if kind.after else self._open)[key] = incident
        if not kind.after:
            yield incident

    def _end(self, key: tuple[str, Labels], now: float) -> Iterator[Incident]:
        self._early.pop(key, None)
        if (incident := self._open.pop(key, None)) is not None:
            yield replace(incident, ended=now)

    def tick(self, now: float) -> Iterator[Incident]:
        """Yield the incidents whose causes have lasted for long enough, and the ends of those whose time is over."""
        for key, incident in [*self._early.items()]:
            if now - incident.began >= KINDS[incident.name].after:
                del self._early[key]
                self._open[key] = incident
                yield incident
        for key, incident in [*self._open.items()]:
            if now >= incident.until:
                yield from self._end(key, now)

    def close(self, now: float) -> Iterator[Incident]:
        """End the incidents whose end nobody sees any more, because the agent ends. The others last for their hour."""
        for key, incident in [*self._open.items()]:
            if incident.until == math.inf:
                yield from self._end(key, now)


def _named(event: str, facts: Mapping[str, Any]) -> str:
    """Return the name of the incident that an event is; "" if it is none."""
    if event == "outcome":
        return "steps-lost" if facts.get("failed") and not facts.get("drill") else ""
    return _OF_KERNEL.get(str(facts.get("kind")), "") if event == "kernel" else event


class _Known(dict[str, Any]):
    def __missing__(self, key: str) -> str:
        return "?"
