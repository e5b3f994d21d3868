"""What a scrape goes by, and how samples are read from it: a snapshot, the time, and what never changes.

Pure. What an agent does not know gives no sample: a number that is guessed would be believed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from ..fit import Fit, reserve_of
from .histogram import Histogram
from .snapshot import STATES, Process, Snapshot

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


#: The labels of what is said of one training process.
WHO = ("run_id", "rank", "uid")


def _who(one: Process) -> tuple[str, ...]:
    return one.run_id, str(one.rank), str(one.uid)


def single(value: float | None) -> Iterator[Sample]:
    """A number without labels; nothing where it is not known."""
    if value is not None:
        yield (), float(value)


def of_each(read: Callable[[Process, Reading], float | None]) -> Callable[[Reading], Iterator[Sample]]:
    """A number of each training process that knows it."""

    def samples(r: Reading) -> Iterator[Sample]:
        for one in r.processes:
            if (value := read(one, r)) is not None:
                yield _who(one), float(value)

    return samples


def which(values: Iterable[str], now: str) -> Iterator[Sample]:
    """1 for what holds now, 0 for the others."""
    for value in values:
        yield (value,), float(value == now)


def all_of(counts: Mapping[tuple[str, ...], float] | Mapping[tuple[str, ...], Histogram]) -> Iterator[Sample]:
    yield from counts.items()


def states(r: Reading) -> Iterator[Sample]:
    for name, sight in r.at.sources.items():
        for state in STATES:
            yield (name, state), float(state == sight.state)


def blind_seconds(r: Reading) -> Iterator[Sample]:
    spent = dict(r.at.blind)
    for name, sight in r.at.sources.items():
        if sight.reason:
            key = (name, sight.reason)
            spent[key] = spent.get(key, 0.0) + max(0.0, r.now - sight.since)
    yield from spent.items()


def ended_looks(r: Reading) -> Iterator[Sample]:
    looks: dict[tuple[str, ...], int] = {}
    for (source, _), count in r.looks.items():
        looks[(source,)] = looks.get((source,), 0) + count
    yield from looks.items()


def failed_looks(r: Reading) -> Iterator[Sample]:
    yield from ((key, count) for key, count in r.looks.items() if key[1])


def seconds_left(r: Reading) -> float | None:
    standing = r.at.standing
    deadline = None if standing is None else standing.deadline
    return None if deadline is None else deadline - r.now


def checkpoint_age(one: Process, r: Reading) -> float | None:
    """What was done before it restored cannot be lost, however old the checkpoint is that it went on from."""
    if one.trains_since is None:
        return None
    return r.now - (
        max(one.checkpoint_at, one.trains_since) if one.checkpoint_step >= 0 else one.trains_since
    )


def expected_slack(one: Process, r: Reading) -> float | None:
    if one.save_seconds is None:
        return None
    return Fit(one.nbytes, one.rate, r.facts.window, r.facts.reserve).budget - one.save_seconds


def fits_window(one: Process, r: Reading) -> float | None:
    slack = expected_slack(one, r)
    return None if slack is None else float(slack >= 0)
