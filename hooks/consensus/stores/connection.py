"""The job's store (a `torch.distributed.Store`), the operations on it, and the threads that run them.

spotguard does not rely on the store's own timeouts: with a host that stands still (SIGSTOP) none fires. So only threads that the
process can do without call it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Generic, Protocol, TypeVar

from ....providers.clock import Clock
from ....providers.errors import SpotguardError
from ...ipc.threads import StandingThread
from ..protocol import Add, Answer, Claim, Drop, Get, Has, LogEntry, Operation, Saying, Set, Wait, Waited

log = logging.getLogger("spotguard")


class StoreSilent(SpotguardError):
    """The job's store does not answer: its host process is gone, or stands still."""


class JobStore(Protocol):
    """All methods of the job's store that spotguard uses. They take values as text and return them as bytes."""

    def add(self, key: str, value: int, /) -> int: ...
    def check(self, keys: list[str], /) -> bool: ...
    def clone(self) -> JobStore: ...
    def compare_set(self, key: str, expected: str, value: str, /) -> bytes: ...
    def delete_key(self, key: str, /) -> bool: ...
    def multi_get(self, keys: list[str], /) -> Sequence[bytes]: ...
    def multi_set(self, keys: list[str], values: list[str], /) -> None: ...
    def wait(self, keys: list[str], timeout: timedelta, /) -> None: ...


def connect(store: JobStore) -> JobStore:
    """Return a connection for one more thread. It may take seconds, in which c10d looks up the host's name.

    Threads do not share a connection, because a thread that waits on it blocks all others.

    Raises:
        StoreSilent: the store is gone.
    """
    try:
        return store.clone()
    except (AttributeError, NotImplementedError):
        return store  # a store in this process's memory or in a file has no connection
    except RuntimeError as error:
        raise StoreSilent(f"the job's store does not answer: {_line(error)} [SG504]") from error


def do(store: JobStore, operation: Operation) -> Answer:
    """Run one operation and return its answer. `Wait` and `LogEntry` are left to the callers, which measure the time.

    Raises:
        StoreSilent: the store is gone. If its host stands still, the call does not return.
    """
    try:
        match operation:
            case Set(values=values):
                store.multi_set([key for key, _ in values], [value for _, value in values])
                return None
            case Add(key=key, amount=amount):
                return store.add(key, amount)
            case Claim(key=key, value=value):
                return store.compare_set(key, "", value)
            case Has(keys=keys):
                return store.check(list(keys))
            case Get(keys=keys):
                return tuple(store.multi_get(list(keys)))
            case Drop(keys=keys):
                _drop(store, keys)
                return None
            case Wait() | LogEntry():
                raise TypeError(f"{operation} is not done here")
    except RuntimeError as error:  # the base class of c10d's errors
        raise StoreSilent(f"the job's store does not answer: {_line(error)} [SG504]") from error


def wait(store: JobStore, keys: Sequence[str], seconds: float) -> bool:
    """Wait for all keys, and return whether they are there.

    Some stores raise one error for a timeout and for a store that is gone, so a failed wait asks once more. Do not use it for a
    wait that often ends without its keys: c10d writes two warnings to standard error for each.

    Raises:
        StoreSilent: the store is gone.
    """
    try:
        store.wait(list(keys), timedelta(seconds=seconds))
        return True
    except RuntimeError:
        return bool(do(store, Has(tuple(keys))))


def _drop(store: JobStore, keys: Sequence[str]) -> None:
    try:
        for key in keys:
            store.delete_key(key)
    except RuntimeError:
        pass  # some stores cannot delete keys, and one that is gone raises at the next operation


def _line(error: BaseException) -> str:
    return str(error).partition("\n")[0][:200]


# Connections to the job's store, each with one thread that alone uses it and that the process can do without.
#
# If the store's host stands still, a call does not return. So the thread that asks waits beside the connection's thread, by its
# own deadline. An errand that it gives up ends by itself when the store answers again; until then the connection is busy.

#: Seconds between two polls for a key, at first and at last, and the factor by which they grow. Not a wait in c10d: if that ends
#: by its timeout, it writes to the user's standard error. The key is there within a millisecond, or it is late.
_PAUSE, _LONGEST, _GROWTH = 0.0005, 0.03, 1.3
#: Seconds in which the store takes a rank's vote: two operations of 8 µs. A poll before all votes are there only delays them.
_EACH = 20e-6
#: Seconds after which the thread that asks checks its own deadline again, which may have moved earlier.
_LOOK = 0.25

T = TypeVar("T")


class _Answered(Generic[T]):
    """The outcome of an errand that a thread waits for."""

    error: Exception | None = None
    result: T


class StoreConnection:
    """One connection and its standing thread: the process can end whatever the store does.

    Args:
        name: name of the thread.
        store: the store to connect to.
        clock: the time.
        first: seconds between the first two polls for a key.
        longest: most seconds between two polls for a key. Each costs the store's host a little. If a thousand ranks wait for
            hours, they cost all that it has.
    """

    def __init__(
        self, name: str, store: JobStore, clock: Clock, *, first: float = _PAUSE, longest: float = _LONGEST
    ) -> None:
        self._first = first
        self._longest = longest
        self._store = store
        self._clock = clock
        self._connected: JobStore | None = None
        self._thread = StandingThread(name)

    def say(
        self,
        saying: Saying[T],
        left: Callable[[], float | None],
        waiting: Callable[[], Waited | None] | None = None,
    ) -> T:
        """Run all operations of a generator, and return its result. Any thread may call it.

        Args:
            saying: the generator, from `protocol` or `barrier`.
            left: returns the seconds that are left; None: no limit.
            waiting: called now and then during a `Wait`, on the connection's thread. It returns how the wait must end, or None.
                By default a wait is late when no seconds are left.

        Raises:
            StoreSilent: the store is gone, or has not answered in time.
        """
        #: Set when no thread waits for the result any more.
        dropped = threading.Event()
        asked = waiting or (lambda: Waited.LATE if _spent(left()) else None)
        answered = _Answered[T]()

        def errand() -> None:
            try:
                if not dropped.is_set():
                    answered.result = self._say(self._connect(), saying, asked, dropped)
            except Exception as error:  # noqa: BLE001 raised again in the thread that waits
                answered.error = error

        done = self._thread.give(errand).done
        try:
            while not done.is_set():
                seconds = left()
                if _spent(seconds):
                    raise StoreSilent("the job's store has not answered in time: its host is gone, or hangs")
                self._clock.wait(done, _LOOK if seconds is None else min(seconds, _LOOK))
        finally:
            dropped.set()  # also if `left` raises
        if answered.error is not None:
            raise answered.error
        return answered.result

    def begin(self, saying: Saying[object], waiting: Callable[[], Waited | None]) -> None:
        """Have the thread run all operations of a generator, after those given before. No thread waits for it.

        Args:
            saying: as for `say`.
            waiting: as for `say`.
        """
        never = threading.Event()

        def job(store: JobStore) -> None:
            self._say(store, saying, waiting, never)

        self.give(job)

    def give(self, job: Callable[[JobStore], None]) -> None:
        """Have the thread run a job with the connection. No thread waits for it."""

        def errand() -> None:
            try:
                job(self._connect())
            except StoreSilent as why:
                log.debug("nobody waits for this call: %s", why)

        self._thread.give(errand)

    def close(self, seconds: float) -> bool:
        """Join the thread, and return whether it has ended. It may hang in the store."""
        self._thread.end()
        return self._thread.join(seconds)

    def _connect(self) -> JobStore:
        """Return the connection, on its thread: connecting may take as long as any other call."""
        self._connected = self._connected or connect(self._store)
        return self._connected

    def _say(
        self,
        store: JobStore,
        saying: Saying[T],
        waiting: Callable[[], Waited | None],
        dropped: threading.Event,
    ) -> T:
        answer: Answer = None
        while True:
            try:
                operation = saying.send(answer)
            except StopIteration as end:
                result: T = end.value
                return result
            if dropped.is_set():
                raise StoreSilent("no thread waits for this any more")
            if isinstance(operation, Wait):
                answer = self._wait(store, operation.keys, waiting, dropped)
            else:
                answer = do(store, operation)

    def _wait(
        self,
        store: JobStore,
        keys: tuple[str, ...],
        waiting: Callable[[], Waited | None],
        dropped: threading.Event,
    ) -> Waited:
        for pause in pauses(self._first, self._longest):
            if do(store, Has(keys)):
                break
            if (ended := waiting()) is not None:
                return ended
            if self._clock.wait(dropped, pause):
                raise StoreSilent("no thread waits for this any more")
        return Waited.THERE


#: Share of the time left for agreeing, and the most seconds, kept for the end: to read the votes that are there, and decide.
SETTLE, SETTLE_MOST = 0.2, 1.0


def within(clock: Clock, seconds: float) -> Callable[[], float]:
    """Return a function that returns how many of these seconds, counted from now, are left."""
    end = clock.monotonic() + seconds
    return lambda: max(0.0, end - clock.monotonic())


def late(clock: Clock, seconds: float) -> Callable[[], Waited | None]:
    """Return a function that ends a wait in the store a little before `seconds` are over.

    The time that remains serves to read which ranks are missing.
    """
    left = within(clock, seconds - min(SETTLE_MOST, seconds * SETTLE))
    return lambda: Waited.LATE if left() <= 0 else None


def first_pause(world: int) -> float:
    """Return the seconds between the first two polls for a decision, in a job of this size."""
    return max(_PAUSE, world * _EACH)


def pauses(first: float = _PAUSE, longest: float = _LONGEST) -> Iterator[float]:
    """Yield the seconds before each next poll for a key."""
    pause = first
    while True:
        yield pause
        pause = min(pause * _GROWTH, max(longest, first))


def _spent(seconds: float | None) -> bool:
    return seconds is not None and seconds <= 0
