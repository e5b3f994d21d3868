"""An agent at one instant, as values: what a scrape makes its samples of.

Nothing here changes once it is made; what grows with time (an age, blind seconds) is kept as the instant since when,
and reckoned where it is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ....providers.notice import Severity
from .histogram import Histogram

#: Seconds within which a notice may be found out: one look a second, long polls at once, and back-off while blind.
DETECTED = (0.01, 0.1, 0.5, 1.0, 1.5, 2.0, 5.0, 10.0, 30.0, 60.0)
#: Seconds that may be left of a warning: 10 s is what Azure often gives, 120 s is AWS's.
LEFT = (0.0, 1.0, 2.0, 5.0, 10.0, 15.0, 20.0, 25.0, 30.0, 45.0, 60.0, 90.0, 120.0)

#: How far a save is, in order: the words of `hooks.ipc.messages.Progress` between those of this agent.
STAGES = ("seen", "told", "gate", "first-byte", "written", "committed")
#: How a notice ended. See `recorder.result_of`.
RESULTS = ("committed", "reduced", "missed", "unguarded", "withdrawn")
#: `Machine.phase`.
PHASES = ("watching", "saving", "ending", "outliving", "waiting", "rejoining")
STATES = ("seeing", "starting", "blind", "wrong-server")
SEVERITIES = tuple(str(severity) for severity in Severity)
PURPOSES = ("background", "emergency")
CAUSES = ("crash", "preemption")
#: Labels of what is true or not, as Prometheus writes them.
YES_NO = ("false", "true")


@dataclass(frozen=True, slots=True)
class SourceState:
    """What one source sees."""

    #: One of `STATES`.
    state: str
    #: "" where it sees.
    reason: str
    #: Monotonic seconds since when it is for this reason.
    since: float


@dataclass(frozen=True, slots=True)
class ActiveNotice:
    """The notice in hand."""

    #: Monotonic seconds; None where this machine stays.
    deadline: float | None
    drill: bool
    #: Every name that an answer to it may carry.
    ids: frozenset[str]


@dataclass(frozen=True, slots=True)
class Process:
    """One registered training process."""

    uid: int
    run_id: str
    rank: int
    nbytes: int
    #: It saves by itself (`on_notice`), and has no checkpoints of ours.
    by_itself: bool
    #: Below 0: not restored yet.
    step: int = -1
    #: Monotonic seconds at which training began, by its own word; None: not yet, or an older hook, which does not say.
    restored_at: float | None = None
    #: Below 0: there is none.
    checkpoint_step: int = -1
    #: Monotonic seconds at which that was committed.
    checkpoint_at: float = 0.0
    #: None: background checkpoints are switched off; not measured yet.
    interval: float | None = None
    rate: float | None = None
    save_seconds: float | None = None


def _zeros(*labels: tuple[str, ...]) -> dict[tuple[str, ...], int]:
    """Every combination, from the start on: to Prometheus a counter that begins with 1 did not rise."""
    rows: list[tuple[str, ...]] = [()]
    for values in labels:
        rows = [(*row, value) for row in rows for value in values]
    return dict.fromkeys(rows, 0)


def _empty(bounds: tuple[float, ...], *labels: tuple[str, ...]) -> dict[tuple[str, ...], Histogram]:
    return {row: Histogram.empty(bounds) for row in _zeros(*labels)}


Counts = Mapping[tuple[str, ...], int]
Histograms = Mapping[tuple[str, ...], Histogram]


@dataclass(frozen=True, slots=True)
class MetricsSnapshot:
    """Everything that is known. Mappings are made anew and never changed."""

    phase: str = "watching"
    standing: ActiveNotice | None = None
    #: Seconds before the end at which the cloud's own service says that its notice comes. None: it has said nothing.
    promised: float | None = None
    sources: Mapping[str, SourceState] = field(default_factory=dict)
    #: By the session's number.
    processes: Mapping[int, Process] = field(default_factory=dict)
    #: Seconds by source and reason, of what is over; what lasts is in `sources`.
    blind: Mapping[tuple[str, str], float] = field(default_factory=dict)
    #: By kind, source and severity.
    notices: Counts = field(default_factory=dict)
    #: By result, and whether it was a drill.
    outcomes: Counts = field(default_factory=lambda: _zeros(RESULTS, YES_NO))
    #: By purpose.
    checkpoints: Counts = field(default_factory=lambda: _zeros(PURPOSES))
    saved_bytes: Counts = field(default_factory=lambda: _zeros(PURPOSES))
    #: By cause.
    restarts: Counts = field(default_factory=lambda: _zeros(CAUSES))
    #: By severity.
    detection: Histograms = field(default_factory=lambda: _empty(DETECTED, SEVERITIES))
    #: By stage, and whether it was a drill.
    left: Histograms = field(default_factory=lambda: _empty(LEFT, STAGES, YES_NO))
    #: By whether it was a drill.
    slack: Histograms = field(default_factory=lambda: _empty(LEFT, YES_NO))
