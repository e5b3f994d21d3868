"""Every metric of an agent in one table: its name, its type, what it means, and how it is read from a snapshot.

Pure: it knows nothing of Prometheus but its conventions (base units, `_total`), and docs/metrics.md is held against it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from ..fit import Fit, reserve_of
from .histogram import Histogram
from .snapshot import PHASES, STATES, Process, Snapshot

#: Training processes that are shown, those that came first: eight devices a machine, and some to spare. All are counted.
SHOWN = 128


@dataclass(frozen=True, slots=True)
class Facts:
    """What does not change while the agent runs."""

    version: str
    #: "run" or "agent".
    command: str
    run_id: str
    #: Seconds of warning to count on, and what of it is kept back.
    window: float
    reserve: float

    @classmethod
    def of(cls, version: str, command: str, run_id: str, window: float, reserve: float | None) -> Facts:
        return cls(version, command, run_id, window, reserve_of(window, window, reserve))


@dataclass(frozen=True, slots=True)
class Reading:
    """What a scrape goes by."""

    facts: Facts
    at: Snapshot
    #: Monotonic seconds.
    now: float
    #: By source and reason, "" for those that saw (`looking.LookCount`).
    looks: Mapping[tuple[str, str], int]

    @property
    def processes(self) -> list[Process]:
        """Those that are shown, each under its own labels: a script that is run twice is shown once, the newer one."""
        by_labels = {_who(one): one for one in self.at.processes.values() if not one.by_itself}
        return list(by_labels.values())[:SHOWN]


#: The values of the labels, and a number or a histogram.
Sample = tuple[tuple[str, ...], float | Histogram]


@dataclass(frozen=True, slots=True)
class Metric:
    name: str
    type: Literal["gauge", "counter", "histogram"]
    labels: tuple[str, ...]
    help: str
    read: Callable[[Reading], Iterable[Sample]]


_WHO = ("run_id", "rank", "uid")


def _who(one: Process) -> tuple[str, ...]:
    return one.run_id, str(one.rank), str(one.uid)


def _one(value: float | None) -> Iterator[Sample]:
    """A number without labels; nothing where it is not known."""
    if value is not None:
        yield (), float(value)


def _each(read: Callable[[Process, Reading], float | None]) -> Callable[[Reading], Iterator[Sample]]:
    """A number of each training process that knows it."""

    def samples(r: Reading) -> Iterator[Sample]:
        for one in r.processes:
            if (value := read(one, r)) is not None:
                yield _who(one), float(value)

    return samples


def _which(values: Iterable[str], now: str) -> Iterator[Sample]:
    """1 for what holds now, 0 for the others."""
    for value in values:
        yield (value,), float(value == now)


def _all(counts: Mapping[tuple[str, ...], float] | Mapping[tuple[str, ...], Histogram]) -> Iterator[Sample]:
    yield from counts.items()


def _states(r: Reading) -> Iterator[Sample]:
    for name, sight in r.at.sources.items():
        for state in STATES:
            yield (name, state), float(state == sight.state)


def _blind(r: Reading) -> Iterator[Sample]:
    spent = dict(r.at.blind)
    for name, sight in r.at.sources.items():
        if sight.reason:
            key = (name, sight.reason)
            spent[key] = spent.get(key, 0.0) + max(0.0, r.now - sight.since)
    yield from spent.items()


def _looks(r: Reading) -> Iterator[Sample]:
    looks: dict[tuple[str, ...], int] = {}
    for (source, _), count in r.looks.items():
        looks[(source,)] = looks.get((source,), 0) + count
    yield from looks.items()


def _failed(r: Reading) -> Iterator[Sample]:
    yield from ((key, count) for key, count in r.looks.items() if key[1])


def _seconds_left(r: Reading) -> float | None:
    standing = r.at.standing
    deadline = None if standing is None else standing.deadline
    return None if deadline is None else deadline - r.now


def _age(one: Process, r: Reading) -> float | None:
    if one.step < 0:
        return None  # it has not restored: nothing can be lost yet
    return r.now - (one.checkpoint_at if one.checkpoint_step >= 0 else one.since)


def _slack(one: Process, r: Reading) -> float | None:
    if one.save_seconds is None:
        return None
    return Fit(one.nbytes, one.rate, r.facts.window, r.facts.reserve).budget - one.save_seconds


def _fits(one: Process, r: Reading) -> float | None:
    slack = _slack(one, r)
    return None if slack is None else float(slack >= 0)


METRICS: tuple[Metric, ...] = (
    # --- the agent ---
    Metric(
        "spotguard_agent_info",
        "gauge",
        ("version", "command", "run_id"),
        "Always 1. Which spotguard this is: run or agent, and of a run its name.",
        lambda r: [((r.facts.version, r.facts.command, r.facts.run_id), 1.0)],
    ),
    Metric(
        "spotguard_agent_phase",
        "gauge",
        ("phase",),
        "1 for what the agent does now: watching, saving, ending, outliving, waiting or rejoining; 0 for the others.",
        lambda r: _which(PHASES, r.at.phase),
    ),
    Metric(
        "spotguard_sessions",
        "gauge",
        (),
        "Training processes that are registered here.",
        lambda r: _one(len(r.at.processes)),
    ),
    Metric(
        "spotguard_restarts_total",
        "counter",
        ("cause",),
        "Starts of the command after its first one: after a crash, or after a preemption that this machine outlived.",
        lambda r: _all(r.at.restarts),
    ),
    # --- what is seen ---
    Metric(
        "spotguard_source_state",
        "gauge",
        ("source", "state"),
        "1 for what a source of notices does now: seeing, starting (no answer yet), blind or wrong-server; 0 for the others.",
        _states,
    ),
    Metric(
        "spotguard_blind_seconds_total",
        "counter",
        ("source", "reason"),
        "Seconds for which a source of notices did not see, by the reason.",
        _blind,
    ),
    Metric(
        "spotguard_looks_total",
        "counter",
        ("source",),
        "Looks at a source of notices that came to an end.",
        _looks,
    ),
    Metric(
        "spotguard_failed_looks_total",
        "counter",
        ("source", "reason"),
        "Looks at a source of notices that did not see, by the reason.",
        _failed,
    ),
    # --- notices ---
    Metric(
        "spotguard_notices_total",
        "counter",
        ("kind", "source", "severity"),
        "Notices, by kind, by who showed them, and by whether they end the machine (terminal), end it later, or warn (advisory).",
        lambda r: _all(r.at.notices),
    ),
    Metric(
        "spotguard_notice_detection_seconds",
        "histogram",
        ("source",),
        "For how long nobody had looked when the look began that showed the notice: it had stood no longer than that.",
        lambda r: _all(r.at.detection),
    ),
    Metric(
        "spotguard_notice_pending",
        "gauge",
        (),
        "1 while a notice or a drill is in hand.",
        lambda r: _one(r.at.standing is not None),
    ),
    Metric(
        "spotguard_notice_left_seconds",
        "gauge",
        (),
        "Seconds until the deadline of the notice in hand. Absent without one, and where this machine stays.",
        lambda r: _one(_seconds_left(r)),
    ),
    Metric(
        "spotguard_stage_left_seconds",
        "histogram",
        ("stage", "drill"),
        "Seconds that were left of the warning at each stage: the notice seen; by each training process told, gate (its state "
        "stands still), first-byte, written and committed.",
        lambda r: _all(r.at.left),
    ),
    Metric(
        "spotguard_outcomes_total",
        "counter",
        ("result", "drill"),
        "How notices ended: committed, reduced (committed without the optimizer's moments), missed, unguarded (nobody was "
        "registered) or withdrawn.",
        lambda r: _all(r.at.outcomes),
    ),
    Metric(
        "spotguard_commit_slack_seconds",
        "histogram",
        ("drill",),
        "Seconds that were left of the warning when the last training process had committed.",
        lambda r: _all(r.at.slack),
    ),
    # --- checkpoints ---
    Metric(
        "spotguard_checkpoints_total",
        "counter",
        ("purpose",),
        "Checkpoints that training processes of this machine have committed, in the background or at a notice or drill.",
        lambda r: _all(r.at.checkpoints),
    ),
    Metric(
        "spotguard_checkpoint_bytes_total",
        "counter",
        ("purpose",),
        "Bytes of these checkpoints.",
        lambda r: _all(r.at.saved_bytes),
    ),
    # --- each training process ---
    Metric(
        "spotguard_step",
        "gauge",
        _WHO,
        "Completed steps. Absent until the process has restored.",
        _each(lambda one, r: one.step if one.step >= 0 else None),
    ),
    Metric(
        "spotguard_checkpoint_step",
        "gauge",
        _WHO,
        "Step of the newest committed checkpoint. Absent while there is none.",
        _each(lambda one, r: one.checkpoint_step if one.checkpoint_step >= 0 else None),
    ),
    Metric(
        "spotguard_checkpoint_age_seconds",
        "gauge",
        _WHO,
        "Seconds since the newest committed checkpoint; while there is none, since the process registered. What a machine that "
        "goes without a word takes along. Absent until the process has restored.",
        _each(_age),
    ),
    Metric(
        "spotguard_checkpoint_interval_seconds",
        "gauge",
        _WHO,
        "Seconds between background checkpoints. Absent where they are switched off.",
        _each(lambda one, r: one.interval),
    ),
    Metric(
        "spotguard_state_bytes",
        "gauge",
        _WHO,
        "Bytes of the process's state.",
        _each(lambda one, r: one.nbytes),
    ),
    Metric(
        "spotguard_upload_bytes_per_second",
        "gauge",
        _WHO,
        "What the process's link to the store gives, by its last saves. Absent until it has saved.",
        _each(lambda one, r: one.rate),
    ),
    # --- whether it fits ---
    Metric(
        "spotguard_window_seconds",
        "gauge",
        (),
        "Seconds of warning to count on here: --window, or what the cloud is known to give.",
        lambda r: _one(r.facts.window),
    ),
    Metric(
        "spotguard_reserve_seconds",
        "gauge",
        (),
        "Seconds of the window that are kept back to end in order.",
        lambda r: _one(r.facts.reserve),
    ),
    Metric(
        "spotguard_expected_save_seconds",
        "gauge",
        _WHO,
        "What an emergency save would take, by what the last saves have shown. Absent until then.",
        _each(lambda one, r: one.save_seconds),
    ),
    Metric(
        "spotguard_expected_slack_seconds",
        "gauge",
        _WHO,
        "Seconds that an emergency save would leave of the window less its reserve; below 0 it does not fit. Absent until a save "
        "has shown it.",
        _each(_slack),
    ),
    Metric(
        "spotguard_fits_window",
        "gauge",
        _WHO,
        "1 where an emergency save of everything fits into the window less its reserve, 0 where it does not. Absent until a save "
        "has shown it.",
        _each(_fits),
    ),
)
