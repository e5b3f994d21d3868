"""The threads that put objects into the store: a pool of workers, made before a notice and kept.

Each worker has a thread and a buffer that it sends from. The pool makes the workers beforehand because only bytes
move at the notice. Besides, no thread starts at interpreter exit, so a save that begins then has only the existing workers.

The pool leaves a worker that hangs in a store behind with its buffer, because the thread may still read from the buffer. The
next `ready` replaces the worker. A `TaskGroup` is what the thread that waits for some workers shares with them.
"""

from __future__ import annotations

import logging
import math
import mmap
import threading
import time
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from ....providers.errors import CheckpointError
from ...ipc.threads import StandingThread, TaskHandle, at_exit
from ..cancel_scope import Abandoned, CancelScope, with_last

log = logging.getLogger("spotguard")


class Buffer(Protocol):
    """Reused memory of a fixed size. One thread uses it at a time."""

    @property
    def size(self) -> int:
        """Bytes."""
        ...

    def view(self, start: int, end: int) -> memoryview:
        """Return these bytes, without a copy."""
        ...


class PlainBuffer:
    """A `Buffer` without torch. (Tensors are copied into the one of `state.device.host_buffer`.)

    Args:
        size: in bytes.
    """

    def __init__(self, size: int) -> None:
        self._view = memoryview(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))

    @property
    def size(self) -> int:
        """Bytes."""
        return len(self._view)

    def view(self, start: int, end: int) -> memoryview:
        """Return these bytes, without a copy."""
        return self._view[start:end]


B = TypeVar("B", bound=Buffer)

Task = Callable[[B], None]

#: Seconds after which an idle thread checks its connection and the credentials: some stores close a connection that was
#: idle for 20 s. That is 360 requests an hour for each thread: docs/reference/stores.md gives their cost.
IDLE = 10.0

#: Seconds to wait, for all workers together, until those return whose task was called off a moment ago.
_RETURNING = 0.5
#: Seconds to wait for workers that check their connections: an answer takes a hundredth of a second, a missing one seconds.
_MOMENT = 0.05
#: Largest sum of all buffers in bytes, including the buffers of threads that hang in a store. A save that is called off in its
#: middle and begins again must not use this memory twice (law 9's 512 MiB, minus room for all other memory).
MAX_BUFFER_BYTES = 448 * 2**20


class UploadWorker(Generic[B]):
    """A standing thread and the buffer that it sends from.

    Args:
        warm: checks the connection.
        idle: idle seconds after which the thread calls `warm`.
        at_once: the worker gets a task at once, so the thread does not call `warm` before it.

    Raises:
        RuntimeError: no thread can be started.
    """

    def __init__(
        self, number: int, buffer: B, warm: Callable[[], None], idle: float, *, at_once: bool = False
    ) -> None:
        self.buffer = buffer
        self._warm = warm
        self._rested = threading.Event()
        if at_once:
            self._rested.set()
        self._task: TaskHandle | None = None
        self._thread = StandingThread(
            f"spotguard-writer-{number}", idle=self._look_after, every=idle, idle_first=not at_once
        )

    @property
    def free(self) -> bool:
        """Whether the worker can take a task, and its buffer can be used."""
        return self.returns(0.0)

    @property
    def gone(self) -> bool:
        """Whether the thread has ended, so that nothing uses the buffer."""
        return not self._thread.alive

    def returns(self, seconds: float) -> bool:
        """Wait up to `seconds` for the worker to be free. Return whether it is."""
        return self._thread.alive and (self._task is None or self._task.done.wait(max(0.0, seconds)))

    def rests(self, seconds: float = 0.0) -> bool:
        """Wait up to `seconds` for the end of the connection check. Return whether it has ended."""
        return self._rested.wait(max(0.0, seconds))

    def give(self, task: Task[B], ended: Callable[[], None]) -> None:
        """Have the thread run `task` with its buffer, and call `ended` when it is free again. Neither may raise."""
        self._task = self._thread.give(lambda: task(self.buffer), ended)

    def dismiss(self) -> None:
        """Have the thread end after its present task. This does not wait, as the store may hang."""
        self._thread.end()

    def _look_after(self) -> None:
        self._rested.clear()
        self._warm()
        self._rested.set()


class WorkerPool(Generic[B]):
    """The workers of one writer. One thread uses the pool.

    Args:
        make: makes a buffer of a size in bytes.
        warm: called on each worker's thread at its start, and from time to time while it is idle. It must not raise, and must
            end by itself.
        idle: seconds between two calls of `warm`.
        most: largest sum of all buffers, in bytes.
    """

    def __init__(
        self,
        make: Callable[[int], B],
        warm: Callable[[], None] = lambda: None,
        idle: float = IDLE,
        most: int = MAX_BUFFER_BYTES,
    ) -> None:
        self._make = make
        self._warm = warm
        self._most = most
        self._every = idle
        self.workers: list[UploadWorker[B]] = []
        #: Workers that were left behind, each with its buffer.
        self._behind: list[UploadWorker[B]] = []

    def ready(self, count: int, size: int, left: float | None = None) -> list[UploadWorker[B]]:
        """Return `count` free workers with buffers of at least `size` bytes.

        The result has fewer workers, but at least one, in two cases: no thread can be started any more, or the hanging workers
        hold too much memory.

        Args:
            left: seconds until a deadline. With a deadline, a worker that waits for an answer of the network is replaced, if
                another can be made.

        Raises:
            RuntimeError: there is no worker, and none can be made.
        """
        free = []
        until = time.monotonic() + (_RETURNING if left is None else min(_RETURNING, left / 4))
        for worker in self.workers:
            if worker.free or worker.returns(until - time.monotonic()):
                free.append(worker)
            else:
                worker.dismiss()
                self._behind.append(worker)
        self._behind = [worker for worker in self._behind if not worker.gone]
        self.workers = free[:]
        if left is not None:
            self._relieve(count)
        for worker in self.workers[:count]:
            if worker.buffer.size < size:
                worker.buffer = self._make(size)
        while len(self.workers) < count:
            used = sum(worker.buffer.size for worker in [*self.workers, *self._behind])
            if self.workers and used + size > self._most:
                log.debug("saving with %d threads of %d: others hang in the store", len(self.workers), count)
                break
            try:
                self.workers.append(self._made(len(self.workers), self._make(size), left is not None))
            # The interpreter is shutting down, or the machine is out of threads.
            except RuntimeError as error:
                if not self.workers:
                    raise
                log.debug("saving with %d threads of %d: %s", len(self.workers), count, error)
                break
        return self.workers[:count]

    def _made(self, number: int, buffer: B, at_once: bool) -> UploadWorker[B]:
        if at_exit():
            raise RuntimeError("the interpreter ends")
        return UploadWorker(number, buffer, self._warm, self._every, at_once=at_once)

    def _relieve(self, count: int) -> None:
        """Replace each worker whose connection does not answer. Its successor gets its buffer, which no thread reads."""
        until = time.monotonic() + _MOMENT
        for at, worker in enumerate(self.workers[:count]):
            if worker.rests(until - time.monotonic()):
                continue
            try:
                self.workers[at] = self._made(at, worker.buffer, True)
            except RuntimeError:  # no thread can be started any more: the task waits for the old one
                continue
            worker.dismiss()

    def dismiss(self) -> None:
        """Have every thread end. `join_ended` waits for the idle ones, of all pools together."""
        for worker in self.workers:
            worker.dismiss()
        self.workers = []


def as_failure(error: BaseException) -> BaseException:
    """Return the error by which a save fails: a want of memory is one of them, so that the save may fall back."""
    if not isinstance(error, MemoryError):
        return error
    return CheckpointError(f"no memory was left for a part of a save: {error} [SG505]")


class TaskGroup:
    """Tasks of several workers for a thread that waits: they end with the first error, or when that thread calls them off."""

    def __init__(self, scope: CancelScope) -> None:
        self.scope = scope
        #: The scope of the workers, which ends with the first error too.
        self.part = scope.part(math.inf)
        self.error: BaseException | None = None
        #: Set when the waiting thread has something to see to.
        self.changed = threading.Event()
        self.lock = threading.Condition()
        self.last_error = ""
        self._running = 0

    def run(self, workers: Sequence[UploadWorker[B]], task: Task[B]) -> None:
        """Have these workers run a task, and wait until all of them are free again. One that hangs is left behind.

        Raises:
            Abandoned: the deadline passed, or the group was called off.
            Exception: the first error.
        """
        self._running = len(workers)
        for worker in workers:
            worker.give(task, self._ended)
        try:
            self.scope.wait(lambda: self._running == 0, self.changed)
        except Abandoned as why:
            self.call_off(why)
        if self.error is not None:
            raise self.error

    def call_off(self, why: Abandoned) -> None:
        """Call all off: no thread begins anything more, and the results of running work do not count."""
        self.fail(with_last(why, self.last_error))

    def fail(self, error: BaseException) -> None:
        """End all tasks with an error; the first one counts."""
        error = as_failure(error)
        with self.lock:
            if self.error is None:
                self.error = error
            self.lock.notify_all()
        self.part.abandon(str(error))
        self.changed.set()

    def _ended(self) -> None:
        with self.lock:
            self._running -= 1
        self.changed.set()
