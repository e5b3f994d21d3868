"""A snapshot of an agent, as immutable values from which a scrape makes its samples.

A number that grows with time (an age, blind seconds) is kept as the instant at which it began. The reader computes it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ....hooks.ipc.failure_classes import FAILURES
from ....providers.notice import Severity
from .histogram import Histogram

if TYPE_CHECKING:
    from ...process.helpers.alert_helper import HelperState

#: Bounds in seconds of the time to detect a notice: one poll a second, long polls at once, and back-off while blind.
DETECTED = (0.01, 0.1, 0.5, 1.0, 1.5, 2.0, 5.0, 10.0, 30.0, 60.0)
#: Bounds in seconds of the time left of a warning: Azure often gives 10 s, AWS gives 120 s.
LEFT = (0.0, 1.0, 2.0, 5.0, 10.0, 15.0, 20.0, 25.0, 30.0, 45.0, 60.0, 90.0, 120.0)

#: The stages of a save, in order: those of `hooks.ipc.messages.Progress` between those of this agent.
STAGES = ("seen", "delivered", "gate", "first-byte", "written", "committed")
#: The ends of a notice. See `recorder.result_of`.
RESULTS = ("committed", "reduced", "missed", "unguarded", "withdrawn")
#: The values of `Machine.phase`.
PHASES = ("watching", "saving", "ending", "outliving", "waiting", "rejoining")
STATES = ("seeing", "starting", "blind", "wrong-server")
SEVERITIES = tuple(str(severity) for severity in Severity)
PURPOSES = ("background", "emergency")
CAUSES = ("crash", "stall", "preemption")
#: The results of a verification. See `events.Verified`.
VERIFIED = ("sound", "damaged", "unknown")
#: The label values of a yes or no, in Prometheus's spelling.
YES_NO = ("false", "true")


@dataclass(frozen=True, slots=True)
class SourceState:
    """The state of one source."""

    #: One of `STATES`.
    state: str
    #: "" if the source sees.
    reason: str
    #: Monotonic seconds at which this state was recorded.
    since: float


@dataclass(frozen=True, slots=True)
class ActiveNotice:
    """The notice that is being answered."""

    #: Monotonic seconds; None if this machine stays.
    deadline: float | None
    drill: bool
    #: Every id that an answer to the notice may carry.
    ids: frozenset[str]


@dataclass(frozen=True, slots=True)
class Process:
    """One registered training process."""

    uid: int
    run_id: str
    rank: int
    nbytes: int
    #: The process saves by itself (`on_notice`), and has no checkpoints of spotguard's.
    by_itself: bool
    #: Below 0: not restored yet.
    step: int = -1
    #: Monotonic seconds at which training began, as the process reports; None: not yet, or an older hook, which does not report.
    restored_at: float | None = None
    #: Below 0: there is no checkpoint.
    checkpoint_step: int = -1
    #: Monotonic seconds at which that checkpoint was committed.
    checkpoint_at: float = 0.0
    #: Monotonic seconds at which the present evaluation was first seen; None: no evaluation has been seen since the last step.
    evaluates_at: float | None = None
    #: Seconds; None: background checkpoints are switched off.
    interval: float | None = None
    #: Bytes a second; None: not measured yet.
    rate: float | None = None
    #: Seconds; None: not measured yet.
    save_seconds: float | None = None
    #: Seconds that a step took, over the last steps; None: too few were seen.
    step_seconds: float | None = None
    #: The same in the attempt before; None: not known.
    earlier_step_seconds: float | None = None
    #: What its training thread does ("data", "forward", …); "": it does not train.
    phase: str = ""
    #: Monotonic seconds of its last progress; None: not known.
    moved_at: float | None = None
    #: The newest loss; None: the script gives none.
    loss: float | None = None
    #: The losses that were seen while they made checkpoints suspect.
    bad_loss_steps: int = 0
    #: The newest metrics of the script's own, by name.
    metrics: Mapping[str, float] = field(default_factory=dict)


def _zeros(*labels: tuple[str, ...]) -> dict[tuple[str, ...], int]:
    """Return a zero for every combination of labels, because Prometheus sees no rise in a counter that begins with 1."""
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
    """Everything that the recorder knows. It replaces the mappings and never changes one."""

    phase: str = "watching"
    standing: ActiveNotice | None = None
    #: Seconds before the end at which the notice comes, by the cloud's own report. None: the cloud has reported nothing.
    promised: float | None = None
    sources: Mapping[str, SourceState] = field(default_factory=dict)
    #: By the session's number.
    processes: Mapping[int, Process] = field(default_factory=dict)
    #: Seconds by source and reason of blindness that is over. Blindness that lasts is in `sources`.
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
    #: By class.
    failures: Counts = field(default_factory=lambda: _zeros(FAILURES))
    #: Stalls so far, by run.
    stalls: Counts = field(default_factory=dict)
    #: The user and the run of those that stand still now.
    stalled: Collection[tuple[int, str]] = ()
    #: The run and the name of each machine that is silent now.
    silent: Collection[tuple[str, str]] = ()
    #: The helper of alerts; None: nothing asked for it.
    helper: HelperState | None = None
    #: By result.
    verifications: Counts = field(default_factory=lambda: _zeros(VERIFIED))
    #: By severity.
    detection: Histograms = field(default_factory=lambda: _empty(DETECTED, SEVERITIES))
    #: By stage, and whether it was a drill.
    left: Histograms = field(default_factory=lambda: _empty(LEFT, STAGES, YES_NO))
    #: By whether it was a drill.
    slack: Histograms = field(default_factory=lambda: _empty(LEFT, YES_NO))
