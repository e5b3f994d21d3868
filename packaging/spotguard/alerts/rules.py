"""The rules of alerts: what each looks at, when it fires, and what is done then. `rule_file` reads them."""

from __future__ import annotations

import operator
import re
import string
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields

from ..agent.outcome import Outcome
from ..agent.telemetry.metrics.definitions import METRICS

COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
}
SEVERITIES = ("info", "warning", "critical")
ACTIONS = ("log", "webhook", "command")
#: Incidents that the agent reports (`agent.actions.Incident`) or the helper itself finds, each with its facts.
INCIDENTS = {
    "failure": frozenset(
        [
            "class",
            "confidence",
            "newest_checkpoint",
            "phase",
            "pid",
            "rank",
            "repeats",
            "reported",
            "returncode",
            "run_id",
            "step",
            "store",
            "text",
            "where",
            "world",
            "attempt",
        ]
    ),
    "stall": frozenset(["machine", "phase", "pid", "rank", "run_id", "seconds", "step", "text", "where"]),
    "outcome": frozenset(
        {each.name for each in fields(Outcome)} - {"seen_at", "sessions"}
        | {"seen", "ended_well", "line", "failed"}
    ),
    "kernel": frozenset(["device", "gpu", "kind", "pid", "run_id", "scope", "text", "xid"]),
    "agent-lost": frozenset({"run_id"}),
}
#: The word in `of` for the median of the same series before.
HISTORY = "history"
#: Seconds over which a counter's rise is taken, if the rule has no window.
COUNTER_WINDOW = 600.0
#: Seconds of the longest window: the samples of one are kept.
LONGEST_WINDOW = 3600.0

_NAME = re.compile(r"[a-z][a-z0-9-]{0,59}")
#: By metric: what it is, and its labels.
TYPES = {metric.name: metric.type for metric in METRICS if metric.type != "histogram"}
LABELS = {metric.name: metric.labels for metric in METRICS}


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. It looks at a metric or at an incident.

    Attributes:
        name: the name, which is the alert's.
        metric: the metric; "" for a rule of incidents.
        incident: the kind of incident; "" for a rule of a metric.
        where: the values that count, by label; all of an unnamed label do.
        compare: the comparison of the value with the threshold.
        threshold: the number; with `of`, a multiple.
        of: another metric of the same labels, "history" for the median before, or "".
        deviation: robust deviations from the median before (1.4826 × MAD), in place of a threshold.
        window: seconds over which the value is taken: a gauge's median, a counter's rise. 0: the newest sample.
        lasts: seconds for which the comparison must hold (`for`).
        keep: seconds for which an incident's alert fires, unless its opposite comes first. None: an hour, and a stall's until then.
        severity: one of `SEVERITIES`.
        actions: some of `ACTIONS`.
        summary: a line for people, with labels in braces.
    """

    name: str
    metric: str = ""
    incident: str = ""
    where: Mapping[str, tuple[str, ...]] | None = None
    compare: str = ">"
    threshold: float | None = None
    of: str = ""
    deviation: float | None = None
    window: float = 0.0
    lasts: float = 0.0
    keep: float | None = None
    severity: str = "warning"
    actions: tuple[str, ...] = ("log", "webhook")
    summary: str = ""

    @property
    def counts(self) -> bool:
        """Whether the metric only rises."""
        return TYPES.get(self.metric) == "counter"

    @property
    def needs_history(self) -> bool:
        return self.of == HISTORY or self.deviation is not None

    def takes(self, labels: Mapping[str, str]) -> bool:
        """Return whether the rule looks at what has these labels."""
        return all(labels.get(name) in values for name, values in (self.where or {}).items())


def is_rule_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def labels_in(rule: Rule) -> Iterator[str]:
    """Yield the names in braces of the rule's summary."""
    yield from (name for _, name, _, _ in string.Formatter().parse(rule.summary) if name)
