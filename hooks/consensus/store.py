"""The job's store, as much of it as is used, and the doing of one operation with it. `torch.distributed.Store` is one.

Its own timeouts are not relied on: with a host that stands still (SIGSTOP) none fires. So whoever calls here is a
thread that can be done without.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Generic, Protocol, TypeVar

from ...providers.clock import Clock
from ...providers.errors import SpotguardError
from . import store as c10d
from .protocol import Add, Answer, Claim, Drop, Get, Has, Hear, Operation, Saying, Set, Wait, Waited


class StoreSilent(SpotguardError):
    """The job's store does not answer: the process that hosts it is gone, or stands still."""


class JobStore(Protocol):
    """The whole of the job's store. Values are text where they are given and bytes where they are got."""

    def add(self, key: str, value: int, /) -> int: ...
    def check(self, keys: list[str], /) -> bool: ...
    def clone(self) -> JobStore: ...
    def compare_set(self, key: str, expected: str, value: str, /) -> bytes: ...
    def delete_key(self, key: str, /) -> bool: ...
    def multi_get(self, keys: list[str], /) -> Sequence[bytes]: ...
    def multi_set(self, keys: list[str], values: list[str], /) -> None: ...
    def wait(self, keys: list[str], timeout: timedelta, /) -> None: ...


def connect(store: JobStore) -> JobStore:
    """A connection for one more thread: one that waits keeps all others from the connection that it waits on. (It may
    take seconds: c10d asks for the host's name.)

    Raises:
        Silent: the store is gone.
    """
    try:
        return store.clone()
    except (AttributeError, NotImplementedError):
        return store  # in this process's memory or in a file: there is no connection
    except RuntimeError as error:
        raise StoreSilent(f"the job's store does not answer: {_line(error)}") from error


def do(store: JobStore, operation: Operation) -> Answer:
    """All but waiting and hearing, which take time that somebody must measure.

    Raises:
        Silent: the store is gone. One that stands still gives no answer at all.
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
            case Wait() | Hear():
                raise TypeError(f"{operation} is not done here")
    except RuntimeError as error:  # the root of all that c10d raises
        raise StoreSilent(f"the job's store does not answer: {_line(error)}") from error


def wait(store: JobStore, keys: Sequence[str], seconds: float) -> bool:
    """Wait for all keys; whether they are there. (That it took too long, and that the store is gone, are one error in
    some stores: so it is asked once more. For a wait that may well be in vain this is not: c10d writes two warnings to
    standard error for each.)

    Raises:
        Silent: the store is gone.
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
        pass  # a store that keeps everything; and one that is gone says so when it is asked for something


def _line(error: BaseException) -> str:
    return str(error).partition("\n")[0][:200]


# A line to the job's store: one connection, and one thread that alone uses it and that can be done without.
#
# A store whose host stands still keeps whoever asks it, for as long as it pleases. So the asking thread waits beside, by
# its own deadline. What it leaves behind ends by itself when the store answers again; until then the line is taken.

#: Seconds between two looks for what is waited for, at first and at last, and how they grow. (A wait in c10d that ends
#: by its timeout writes to the user's standard error; and what is waited for here is there in a millisecond, or is late.)
_PAUSE, _LONGEST, _GROWTH = 0.0005, 0.03, 1.3
#: Seconds after which who asks looks at its own deadline again: one that is known may move earlier.
_LOOK = 0.25

T = TypeVar("T")


class _Errand(Generic[T]):
    def __init__(self, job: Callable[[JobStore], T], dropped: threading.Event) -> None:
        self.job = job
        self.done = threading.Event()
        #: Set when nobody waits for it any more.
        self.dropped = dropped
        self.error: Exception | None = None
        self.result: T


class StoreConnection:
    """Named, a daemon: a process ends whatever the store does.

    Args:
        longest: seconds between two looks for what is waited for, at most. They cost the store's host a little each: of a
            thousand ranks that wait for hours, all that it has.
    """

    def __init__(self, name: str, store: JobStore, clock: Clock, *, longest: float = _LONGEST) -> None:
        self._longest = longest
        self._store = store
        self._clock = clock
        self._errands: queue.SimpleQueue[_Errand[object] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def say(
        self,
        saying: Saying[T],
        left: Callable[[], float | None],
        waiting: Callable[[], Waited | None] | None = None,
    ) -> T:
        """Say all of it, and return what it returns. From any thread.

        Args:
            left: seconds until it is given up; None: as long as it takes.
            waiting: asked now and then during a wait in the store, on the line's thread: how it is to end, or None.
                By default it is late when nothing is left.

        Raises:
            Silent: the store is gone, or has not answered in time.
        """
        dropped = threading.Event()
        asked = waiting or (lambda: Waited.LATE if _spent(left()) else None)
        errand = self._give(lambda store: self._say(store, saying, asked, dropped), dropped)
        try:
            while not errand.done.is_set():
                seconds = left()
                if _spent(seconds):
                    raise StoreSilent(
                        "the job's store has not answered in time: its host is gone, or stands still"
                    )
                self._clock.wait(errand.done, _LOOK if seconds is None else min(seconds, _LOOK))
        finally:
            dropped.set()  # also where `left` raises
        if errand.error is not None:
            raise errand.error
        return errand.result

    def give(self, job: Callable[[JobStore], None]) -> None:
        """Something else to be done with the connection; nobody waits for it, and what it raises is lost."""
        self._give(job, threading.Event())

    def close(self, seconds: float) -> bool:
        """Join the thread; whether it has ended. The store may keep it."""
        self._errands.put(None)
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _give(self, job: Callable[[JobStore], T], dropped: threading.Event) -> _Errand[T]:
        errand = _Errand(job, dropped)
        self._errands.put(errand)  # type: ignore[arg-type]
        return errand

    def _run(self) -> None:
        store: JobStore | None = None
        while (errand := self._errands.get()) is not None:
            try:
                if not errand.dropped.is_set():
                    # Here, and not where the line is made: it may take as long as anything else.
                    store = store or c10d.connect(self._store)
                    errand.result = errand.job(store)
            except Exception as error:  # noqa: BLE001 it is raised where the errand came from
                errand.error = error
            errand.done.set()

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
                raise StoreSilent("nobody waits for this any more")
            if isinstance(operation, Wait):
                answer = self._wait(store, operation.keys, waiting, dropped)
            else:
                answer = c10d.do(store, operation)

    def _wait(
        self,
        store: JobStore,
        keys: tuple[str, ...],
        waiting: Callable[[], Waited | None],
        dropped: threading.Event,
    ) -> Waited:
        pause = _PAUSE
        while not c10d.do(store, Has(keys)):
            if (ended := waiting()) is not None:
                return ended
            if self._clock.wait(dropped, pause):
                raise StoreSilent("nobody waits for this any more")
            pause = min(pause * _GROWTH, self._longest)
        return Waited.THERE


def _spent(seconds: float | None) -> bool:
    return seconds is not None and seconds <= 0
