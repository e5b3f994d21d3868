"""Agreement of up to 10,000 ranks, simulated: the protocol's own code for each rank, and a store whose times were measured here.

The job's store is one process that does one operation after the other, and each rank is a machine of its own. Per operation the
simulation counts the store's seconds (by `service_times`, from a real `TCPStore`), the network's, and those of the rank's own
code, which really runs: the rank that decides reads the votes of all others.
"""

from __future__ import annotations

import heapq
import itertools
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from spotguard.hooks.consensus import protocol
from spotguard.hooks.consensus.protocol import Add, Claim, Drop, Get, Has, Keys, LogEntry, Set, Wait, Waited
from spotguard.hooks.consensus.stores.connection import JobStore, first_pause, pauses
from spotguard.hooks.consensus.vote import ReplicaGroup, Vote, ranges

#: Seconds to the store's machine and back, between machines of one zone.
_ROUND_TRIP = 0.0005
#: Seconds in which one thread of a rank wakes another.
_WAKE = 0.0001
#: Operations and keys by which a service time is measured, and clients at once.
_OPERATIONS, _KEYS, _CLIENTS = 5000, 2000, 4


@dataclass(frozen=True)
class ServiceTimes:
    """Seconds of the store's process: for an operation, for each further key of it, and for each byte that it sends."""

    operation: float
    key_set: float
    key_get: float
    byte: float


@dataclass
class Simulated:
    """The outcome for one number of ranks."""

    #: Seconds from the call until the last rank has the decision.
    seconds: float
    #: Operations of the store in all, and of the rank that had the most.
    operations: int
    most: int
    #: Seconds for which the store's process worked.
    busy: float


def service_times() -> ServiceTimes:
    """Measure a real store: the seconds of its process, by the kernel's count, while several clients keep it busy.

    A store that sleeps between two operations takes seven times as long for each: to wake is most of it.
    """
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        host = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        os.write(writing, host.port.to_bytes(2))
        signal.pause()  # until it is ended
        os._exit(0)
    port = int.from_bytes(os.read(reading, 2))
    names = [f"key/{each}" for each in range(_KEYS)]
    store = _connected(port)
    store.multi_set(names, ["x" * 300] * _KEYS)
    store.multi_set(["large"], ["x" * 100_000])

    def took(times: int, what: Callable[[JobStore, str], object]) -> float:
        began = _cpu(pid)
        clients = [_client(port, times, what) for _ in range(_CLIENTS)]
        if any(os.waitpid(each, 0)[1] for each in clients):
            raise RuntimeError("a client of the store has failed")
        return (_cpu(pid) - began) / (times * _CLIENTS)

    def set_many(store: JobStore, name: str) -> None:
        store.multi_set([f"bell/{each}" for each in names], ["1"] * _KEYS)
        store.check(["key/1"])  # a set is not answered: the operation behind it is

    times = ServiceTimes(
        operation=max(
            took(_OPERATIONS, lambda store, name: store.add("counter", 1)),
            took(_OPERATIONS, lambda store, name: store.check(["missing"])),
            took(_OPERATIONS, lambda store, name: store.multi_get(["key/1"])),
            took(_OPERATIONS, lambda store, name: store.compare_set(name, "", "value")),
        ),
        key_set=took(20, set_many) / _KEYS,
        key_get=took(20, lambda store, name: store.multi_get(names)) / _KEYS,
        byte=took(500, lambda store, name: store.multi_get(["large"])) / 100_000,
    )
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return times


def _client(port: int, times: int, what: Callable[[JobStore, str], object]) -> int:
    """Fork a process that does so many operations, and return its pid."""
    if pid := os.fork():
        return pid
    store = _connected(port)
    for each in range(times):
        what(store, f"claim/{os.getpid()}/{each}")
    os._exit(0)


def _connected(port: int) -> JobStore:
    return cast(JobStore, TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False))


def _cpu(pid: int) -> float:
    """Return the seconds for which the threads of a process have run."""
    files = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(file.read_text().split()[0]) for file in files) / 1e9


def simulate(world: int, times: ServiceTimes, *, replicas: bool) -> Simulated:
    """Return what one notice costs a job of this size.

    Args:
        world: the ranks, each on a machine of its own.
        times: the store's.
        replicas: every rank holds all state (DDP), and says so in its vote.
    """
    job = _Job(world, times, replicas)
    job.run()
    return Simulated(max(job.decided.values()), sum(job.counts), max(job.counts), job.busy)


@dataclass
class _Job:
    world: int
    times: ServiceTimes
    replicas: bool
    now: float = 0.0
    #: Seconds for which the store worked, and when it is free again.
    busy: float = 0.0
    free: float = 0.0
    keys: dict[str, Any] = field(default_factory=dict)
    #: By key: what goes on when it is set.
    waiting: dict[str, list[Callable[[], None]]] = field(default_factory=dict)
    decided: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._names = Keys("simulated", self.world)
        self.counts = [0] * self.world

    def run(self) -> None:
        for rank in range(self.world):
            self._go_on(rank, cast(Any, protocol.listen(self._names, rank)), None)
        self._step_all()  # all ranks wait for their bells
        self.now, self.free, self.busy, self.counts = 0.0, 0.0, 0.0, [0] * self.world
        self._go_on(0, cast(Any, protocol.call(self._names, '{"event":"notice"}', 0)), None)
        self._step_all()
        assert len(self.decided) == self.world

    def _step_all(self) -> None:
        while self._events:
            self.now, _, what = heapq.heappop(self._events)
            what()

    def _at(self, when: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._order), what))

    def _go_on(self, rank: int, saying: Iterator[Any], answer: Any) -> None:
        """Give a generator its answer, and send its next operation when its code has run."""
        began = time.perf_counter()
        try:
            operation = saying.send(answer)  # type: ignore[attr-defined]
        except StopIteration as end:
            if end.value.__class__.__name__ == "Decision":
                self.decided[rank] = self.now + (time.perf_counter() - began) + _WAKE
            return
        ran = time.perf_counter() - began
        match operation:
            case LogEntry(epoch=epoch):
                vote = Vote(
                    rank,
                    1000,
                    weights=10**9,
                    moments=2 * 10**9,
                    rate=1e8,
                    left=25.0,
                    plan=(ReplicaGroup("0123456789abcdef", self.world, "f" * 64),),
                    covers=ranges(range(self.world) if self.replicas else [rank]),
                )
                agreeing = cast(Any, protocol.agree(self._names, epoch, vote))
                self._at(self.now + ran + _WAKE, lambda: self._go_on(rank, agreeing, None))
                self._at(self.now + ran, lambda: self._go_on(rank, saying, None))
            case Wait(keys=(key,)) if "/bell/" in key:
                self._ask(rank, ran, Wait((key,)), lambda _: self._go_on(rank, saying, Waited.THERE))
            case Wait(keys=keys):
                self._poll(rank, ran, keys, pauses(first_pause(self.world)), saying)
            case _:
                self._ask(rank, ran, operation, lambda answer: self._go_on(rank, saying, answer))

    def _poll(
        self, rank: int, ran: float, keys: tuple[str, ...], left: Iterator[float], saying: Iterator[Any]
    ) -> None:
        def answered(there: Any) -> None:
            if there:
                self._go_on(rank, saying, Waited.THERE)
            else:
                self._at(self.now + next(left), lambda: self._poll(rank, 0.0, keys, left, saying))

        self._ask(rank, ran, Has(keys), answered)

    def _ask(self, rank: int, ran: float, operation: Any, then: Callable[[Any], None]) -> None:
        self.counts[rank] += 1
        self._at(self.now + ran + _ROUND_TRIP / 2, lambda: self._serve(operation, then))

    def _serve(self, operation: Any, then: Callable[[Any], None]) -> None:
        """The store does the operation as soon as it is free."""
        seconds, answer = self.times.operation, None
        match operation:
            case Set(values=values):
                seconds += len(values) * self.times.key_set
            case Add(key=key, amount=amount):
                answer = self.keys[key] = self.keys.get(key, 0) + amount
            case Claim(key=key, value=value):
                answer = self.keys.setdefault(key, value.encode())
            case Has(keys=keys):
                answer = all(key in self.keys for key in keys)
            case Get(keys=keys):
                answer = tuple(self.keys[key] for key in keys)
                size = sum(map(len, answer))
                seconds += (len(keys) - 1) * self.times.key_get + size * self.times.byte
            case Drop(keys=keys):
                for key in keys:
                    self.keys.pop(key, None)
            case Wait(keys=(key,)):
                if key not in self.keys:
                    self._works(seconds)
                    self.waiting.setdefault(key, []).append(lambda: self._reply(None, then))
                    return
        self._works(seconds)
        self._reply(answer, then)
        if isinstance(operation, Set):
            for key, value in operation.values:
                self.keys[key] = value.encode()
                for wake in self.waiting.pop(key, ()):
                    self._works(self.times.operation)
                    wake()

    def _works(self, seconds: float) -> None:
        self.free = max(self.free, self.now) + seconds
        self.busy += seconds

    def _reply(self, answer: Any, then: Callable[[Any], None]) -> None:
        self._at(self.free + _ROUND_TRIP / 2, lambda: then(answer))
