"""The threads that put objects into the store: made before a notice and kept, each with a frame of its own.

Made beforehand, because at the notice only bytes move (law 8), and because Python 3.12 starts no thread once the main
thread has ended: a save that begins then has those that are there. One that hangs in a store is left where it is, with
its frame: it may still read from it. The next `ready` puts another in its place.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Generic

from .buffers import B

log = logging.getLogger("spotguard")

Task = Callable[[B], None]

#: Seconds after which a thread with nothing to do looks after its connection, and after the credentials: some stores
#: close what was idle for 20. That is 360 requests an hour for each thread: docs/stores.md says what they cost.
IDLE = 10.0

#: Seconds for a thread with nothing to do to end.
_LEAVING = 1.0
#: Seconds, for all of them together, that are waited for those whose task was called off a moment ago.
_RETURNING = 0.5
#: And for those that look after their connections: an answer takes a hundredth, and that there is none takes seconds.
_MOMENT = 0.05
#: Bytes of all frames together, those counted that a thread took along into a store that hangs: a save that is called
#: off in its middle and begun again must not have them twice (law 9's 512 MiB, and room for all else).
FRAMES = 448 * 2**20


class UploadWorker(Generic[B]):
    """One thread and its frame. A forked child has the object and not the thread: it is not `free` there.

    Args:
        idle: seconds with nothing to do after which it calls `warm`.
        at_once: it is given a task at once, and does not call it before.
    """

    def __init__(
        self, number: int, frame: B, warm: Callable[[], None], idle: float, *, at_once: bool = False
    ) -> None:
        self.frame = frame
        self._warm = warm
        self._every = idle
        self._rested = threading.Event()
        if at_once:
            self._rested.set()
        self._tasks: queue.SimpleQueue[tuple[Task[B], Callable[[], None]] | None] = queue.SimpleQueue()
        self._idle = threading.Event()
        self._idle.set()
        self._thread = threading.Thread(target=self._run, name=f"spotguard-writer-{number}", daemon=True)
        self._thread.start()

    @property
    def free(self) -> bool:
        """Whether it can be given a task, and its frame be used."""
        return self._idle.is_set() and self._thread.is_alive()

    @property
    def gone(self) -> bool:
        """Whether its thread has ended, and its frame with it."""
        return not self._thread.is_alive()

    def returns(self, seconds: float) -> bool:
        """Wait so long for it to be free."""
        return self._thread.is_alive() and self._idle.wait(max(0.0, seconds))

    def rests(self, seconds: float = 0.0) -> bool:
        """Wait so long for it to be done with its connection."""
        return self._rested.wait(max(0.0, seconds))

    def give(self, task: Task[B], ended: Callable[[], None]) -> None:
        """Have the thread do this with its frame; when it is free again it calls `ended`. Neither raises."""
        self._idle.clear()
        self._tasks.put((task, ended))

    def dismiss(self) -> None:
        """The thread ends when what it does is done; nobody waits for a store that hangs."""
        self._tasks.put(None)

    def leave(self) -> None:
        """As `dismiss`; whoever has nothing to do is waited for.

        A thread that still frees its frame while the interpreter ends takes the process down: it asks for the GIL
        inside torch and is ended there ("terminate called without an active exception": seen, 1 exit in 30).
        """
        idle = self._idle.is_set()
        self.dismiss()
        if idle:
            self._thread.join(_LEAVING)

    def _run(self) -> None:
        if not self._rested.is_set():
            self._look_after()
        while (given := self._wait()) is not None:
            task, ended = given
            task(self.frame)
            self._idle.set()
            ended()
            del given, task, ended  # they hold the tensors of a save

    def _wait(self) -> tuple[Task[B], Callable[[], None]] | None:
        while True:
            try:
                return self._tasks.get(timeout=self._every)
            except queue.Empty:
                self._rested.clear()
                self._look_after()

    def _look_after(self) -> None:
        self._warm()
        self._rested.set()


class WorkerPool(Generic[B]):
    """The hands of one writer. Used by one thread.

    Args:
        make: makes a buffer of a size in bytes.
        warm: called on each hand's thread at its beginning, and now and then while it has nothing to do. It must not raise,
            and end by itself.
        idle: seconds between two of these calls.
        most: bytes of all frames together.
    """

    def __init__(
        self,
        make: Callable[[int], B],
        warm: Callable[[], None] = lambda: None,
        idle: float = IDLE,
        most: int = FRAMES,
    ) -> None:
        self._make = make
        self._warm = warm
        self._most = most
        self._every = idle
        self.workers: list[UploadWorker[B]] = []
        #: Left behind, each with its frame.
        self._behind: list[UploadWorker[B]] = []

    def ready(self, count: int, size: int, left: float | None = None) -> list[UploadWorker[B]]:
        """So many free hands with frames of at least `size` bytes; fewer, if no thread can be started any more, or too much
        memory is held by those that hang. One at least.

        Args:
            left: seconds until a deadline: then none that waits for a network to answer, where another can be had.

        Raises:
            RuntimeError: not one is there, and none can be made.
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
            if worker.frame.size < size:
                worker.frame = self._make(size)
        while len(self.workers) < count:
            held = sum(worker.frame.size for worker in [*self.workers, *self._behind])
            if self.workers and held + size > self._most:
                log.debug("saving with %d threads of %d: others hang in the store", len(self.workers), count)
                break
            try:
                self.workers.append(self._made(len(self.workers), self._make(size), left is not None))
            except (
                RuntimeError
            ) as error:  # the interpreter is shutting down, or the machine is out of threads
                if not self.workers:
                    raise
                log.debug("saving with %d threads of %d: %s", len(self.workers), count, error)
                break
        return self.workers[:count]

    def _made(self, number: int, frame: B, at_once: bool) -> UploadWorker[B]:
        return UploadWorker(number, frame, self._warm, self._every, at_once=at_once)

    def _relieve(self, count: int) -> None:
        """Put others in the place of those whose connection does not answer, each with the frame, which nobody reads."""
        until = time.monotonic() + _MOMENT
        for at, worker in enumerate(self.workers[:count]):
            if worker.rests(until - time.monotonic()):
                continue
            try:
                self.workers[at] = self._made(at, worker.frame, True)
            except RuntimeError:  # no thread can be started any more: its task waits
                continue
            worker.dismiss()

    def dismiss(self) -> None:
        """Let every thread end, and see the idle ones gone."""
        for worker in self.workers:
            worker.leave()
        self.workers = []
