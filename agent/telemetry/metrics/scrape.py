"""The data of a scrape (a snapshot, the time, and facts that never change), and the functions that read samples from it.

Pure. An unknown value gives no sample, because a reader would trust a guessed number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ...core.budget import reserve_of
from .histogram import Histogram
from .snapshot import STATES, MetricsSnapshot, Process

if TYPE_CHECKING:
    from ...process.helpers.alert_helper import HelperState

#: The most training processes that are shown, the first ones. A machine has eight devices; the rest is spare. All are counted.
SHOWN = 128


@dataclass(frozen=True, slots=True)
class MetricsFacts:
    """The facts that do not change while the agent runs."""

    version: str
    #: "run" or "agent".
    command: str
    run_id: str
    #: Seconds of warning to count on.
    window: float
    #: Whether `--window` set them. Then the cloud's own number does not count.
    window_given: bool
    #: `--reserve` in seconds; None: in proportion to the window.
    reserve: float | None
    #: Monotonic seconds at which the agent began.
    began: float = 0.0


@dataclass(frozen=True, slots=True)
class Scrape:
    """The data of one scrape."""

    facts: MetricsFacts
    at: MetricsSnapshot
    #: Monotonic seconds.
    now: float
    #: Polls by source, reason and HTTP status; the last two are "" for polls that saw (`poller.PollCount`).
    looks: Mapping[tuple[str, str, str], int]

    @property
    def processes(self) -> list[Process]:
        """The training processes that are shown, one for each set of labels: of a script that runs twice, the newer one."""
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
    read: Callable[[Scrape], Iterable[Sample]]


#: The labels of the metrics of one training process.
WHO = ("run_id", "rank", "uid")


def _who(one: Process) -> tuple[str, ...]:
    return one.run_id, str(one.rank), str(one.uid)


def single(value: float | None) -> Iterator[Sample]:
    """Yield a number without labels; nothing if it is unknown."""
    if value is not None:
        yield (), float(value)


def of_each(read: Callable[[Process, Scrape], float | None]) -> Callable[[Scrape], Iterator[Sample]]:
    """Return a function that yields a number for each training process that knows it."""

    def samples(r: Scrape) -> Iterator[Sample]:
        for one in r.processes:
            if (value := read(one, r)) is not None:
                yield _who(one), float(value)

    return samples


def phases(r: Scrape) -> Iterator[Sample]:
    """Yield 1 for the present phase of each training process."""
    yield from (((*_who(one), one.phase), 1.0) for one in r.processes if one.phase)


def script_metrics(r: Scrape) -> Iterator[Sample]:
    """Yield each metric of the scripts' own, for each training process that gives it."""
    for one in r.processes:
        yield from (((*_who(one), name), value) for name, value in one.metrics.items())


def progress_age(one: Process, r: Scrape) -> float | None:
    """Return the seconds since the process has shown progress; None if it does not train."""
    return None if one.moved_at is None else max(0.0, r.now - one.moved_at)


def which(values: Iterable[str], now: str) -> Iterator[Sample]:
    """Yield 1 for the value that holds now, 0 for the others."""
    for value in values:
        yield (value,), float(value == now)


def all_of(counts: Mapping[tuple[str, ...], float] | Mapping[tuple[str, ...], Histogram]) -> Iterator[Sample]:
    yield from counts.items()


def named(
    r: Scrape, counts: Mapping[tuple[str, ...], float] | Mapping[tuple[str, ...], Histogram]
) -> Iterator[Sample]:
    """Yield the counts with the run id as first label: a count that goes on from run to run must not continue another run's."""
    for labels, count in counts.items():
        yield (r.facts.run_id, *labels), count


def stalled(r: Scrape) -> Iterator[Sample]:
    """Yield 1 for each run that stands still, 0 for the others."""
    runs = {one.run_id for one in r.at.processes.values() if not one.by_itself}
    still = {run_id for _, run_id in r.at.stalled}
    for run_id in sorted(runs | still):
        yield (run_id,), float(run_id in still)


def silent(r: Scrape) -> Iterator[Sample]:
    """Yield how many other machines of each run are silent."""
    runs = {one.run_id for one in r.at.processes.values() if not one.by_itself}
    count = Counter(run_id for run_id, _ in r.at.silent)
    for run_id in sorted(runs | count.keys()):
        yield (run_id,), float(count[run_id])


def stalls(r: Scrape) -> Iterator[Sample]:
    """Yield how often each run stood still, 0 included: Prometheus sees no rise in a counter that begins with 1."""
    runs = {(one.run_id,): 0 for one in r.at.processes.values() if not one.by_itself}
    yield from (runs | dict(r.at.stalls)).items()


def of_helper(read: Callable[[HelperState], float]) -> Callable[[Scrape], Iterator[Sample]]:
    """Return a function that yields a number of the helper of alerts; nothing without a helper."""
    return lambda r: single(None if r.at.helper is None else read(r.at.helper))


def reported(name: str) -> Callable[[Scrape], Iterator[Sample]]:
    """Return a function that yields what the helper of alerts reads under this name."""

    def samples(r: Scrape) -> Iterator[Sample]:
        report = r.at.helper.report if r.at.helper is not None else None
        for found, labels, value in (report or {}).get("readings", ()):
            if found == name:
                yield tuple(labels), float(value)

    return samples


def firing(r: Scrape) -> Iterator[Sample]:
    """Yield how many alerts of each rule fire."""
    report = r.at.helper.report if r.at.helper is not None else None
    counts: dict[tuple[str, ...], int] = {}
    for alert in (report or {}).get("firing", ()):
        key = (alert["alert"], alert["severity"])
        counts[key] = counts.get(key, 0) + 1
    yield from counts.items()


def states(r: Scrape) -> Iterator[Sample]:
    for name, sight in r.at.sources.items():
        for state in STATES:
            yield (name, state), float(state == sight.state)


def blind_seconds(r: Scrape) -> Iterator[Sample]:
    spent = dict(r.at.blind)
    for name, sight in r.at.sources.items():
        if sight.reason:
            key = (name, sight.reason)
            spent[key] = spent.get(key, 0.0) + max(0.0, r.now - sight.since)
    yield from spent.items()


def ended_polls(r: Scrape) -> Iterator[Sample]:
    looks: dict[tuple[str, ...], int] = {}
    for (source, _, _), count in r.looks.items():
        looks[(source,)] = looks.get((source,), 0) + count
    yield from looks.items()


def failed_polls(r: Scrape) -> Iterator[Sample]:
    yield from ((key, count) for key, count in r.looks.items() if key[1])


def seconds_left(r: Scrape) -> float | None:
    standing = r.at.standing
    deadline = None if standing is None else standing.deadline
    return None if deadline is None else deadline - r.now


def checkpoint_age(one: Process, r: Scrape) -> float | None:
    """Return the seconds of work that a loss of the process would cost; None if unknown.

    Work from before the process restored cannot be lost, even if the restored checkpoint is old. An evaluation makes no step, and no
    checkpoint comes in it, so the work stays what it was at its begin.
    """
    if one.step < 0:
        return None
    began = one.checkpoint_at if one.checkpoint_step >= 0 else None
    since = [at for at in (began, one.restored_at) if at is not None]
    until = r.now if one.evaluates_at is None else one.evaluates_at
    return max(0.0, until - max(since)) if since else None


def window(r: Scrape) -> float:
    """Return the seconds of warning to count on, as `doctor` does.

    These are `--window`, else the cloud's number for this machine, else the warning that the cloud usually gives.
    """
    return r.facts.window if r.facts.window_given or r.at.promised is None else r.at.promised


def reserve(r: Scrape) -> float:
    return reserve_of(window(r), r.facts.reserve)


def expected_slack(r: Scrape) -> Iterator[Sample]:
    """Yield for each process the seconds that this machine's emergency saves leave of the window.

    At a notice all runs of the machine save at once over one link. Each run has measured the link's rate alone, so their
    times add up. The ranks of one run have measured it together.
    """
    runs: dict[tuple[int, str], float] = {}
    for one in r.at.processes.values():
        if one.save_seconds is not None:
            name = (one.uid, one.run_id)
            runs[name] = max(runs.get(name, 0.0), one.save_seconds)
    slack = window(r) - reserve(r) - sum(runs.values())
    for one in r.processes:
        if one.save_seconds is not None:
            yield _who(one), slack


def fits_window(r: Scrape) -> Iterator[Sample]:
    for labels, slack in expected_slack(r):
        if not isinstance(slack, Histogram):
            yield labels, float(slack >= 0)
