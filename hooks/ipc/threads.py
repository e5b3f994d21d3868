"""The owner of threads: those that work for spotguard beside training, made while training begins, and kept.

Python 3.12 starts no thread once the main thread has ended (python/cpython#104690), and a forked child has none of its parent's. A
checkpoint or a notice may come at exit, so each part makes its threads beforehand and gives them tasks. A thread that hangs in a
store, in a driver or in a function of the script is left behind; while the interpreter lives, another one replaces it.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar
from weakref import WeakSet

log = logging.getLogger("spotguard")

#: Seconds that a closing process waits, for all threads together, until those have ended that had no task.
_LEAVING = 1.0

#: Threads that were told to end while they had no task, unless they have ended.
_leaving: WeakSet[threading.Thread] = WeakSet()


class TaskHandle:
    """The handle of a task that was given to a thread.

    Args:
        run: the task.
        ended: called on the thread behind `done`. It must not raise.
    """

    __slots__ = ("_begun", "_ended", "_run", "done")

    def __init__(self, run: Callable[[], object], ended: Callable[[], object] | None = None) -> None:
        self._run: Callable[[], object] | None = run
        self._ended = ended
        self._begun = threading.Lock()
        #: Set when the task has ended.
        self.done = threading.Event()

    def withdraw(self) -> bool:
        """Have no thread begin the task. Return whether that succeeds: False if a thread has begun it."""
        return self._begun.acquire(blocking=False)

    def run(self) -> None:
        """Run the task, unless it was withdrawn. An exception is logged, since nobody waits for it."""
        if not self._begun.acquire(blocking=False) or self._run is None:
            return
        try:
            self._run()
        except BaseException:  # a bug in spotguard must not end a thread that later tasks rely on
            log.exception("internal error; please report it [SG704]")
        ended, self._run, self._ended = self._ended, None, None  # they keep the tensors of a save alive
        self.done.set()
        if ended is not None:
            ended()


class StandingThread:
    """One daemon thread, which runs the tasks given to it, in order, until it is told to end.

    Any thread may give it tasks, a signal handler too. In a forked child it is not alive, and runs nothing.

    Args:
        name: the name of the thread.
        tasks: a queue that several threads share; None for one of its own.
        stays: called after each task; returns whether the thread takes another.
        idle: called on the thread after each `every` seconds without a task. It must not raise.
        every: seconds; None to never call `idle`.
        idle_first: whether the thread calls `idle` before its first task.

    Raises:
        RuntimeError: no thread can be started: the machine has none left, or the interpreter ends.
    """

    def __init__(
        self,
        name: str,
        tasks: queue.SimpleQueue[TaskHandle | None] | None = None,
        *,
        stays: Callable[[StandingThread], bool] = lambda thread: True,
        idle: Callable[[], None] = lambda: None,
        every: float | None = None,
        idle_first: bool = False,
    ) -> None:
        self._tasks = queue.SimpleQueue[TaskHandle | None]() if tasks is None else tasks
        self._stays = stays
        self._idle = idle
        self._every = every
        self._idle_first = idle_first
        self._busy = False
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    @property
    def ident(self) -> int | None:
        """The identifier of the thread, as `threading.get_ident` returns it there."""
        return self._thread.ident

    def give(self, run: Callable[[], object], ended: Callable[[], object] | None = None) -> TaskHandle:
        """Have the thread run a task after those given before. Returns at once."""
        handle = TaskHandle(run, ended)
        self._tasks.put(handle)
        return handle

    def end(self) -> None:
        """Have the thread end after the tasks given before. Returns at once: `join_ended` waits, unless it has a task now."""
        if not self._busy:
            _leaving.add(self._thread)
        self._tasks.put(None)

    def join(self, seconds: float) -> bool:
        """Wait up to `seconds` for the thread's end, and return whether it has ended."""
        self._thread.join(max(0.0, seconds))
        return not self._thread.is_alive()

    def _work(self) -> None:
        if self._idle_first:
            self._idle()
        while (handle := self._next()) is not None:
            self._busy = True
            handle.run()
            self._busy = False
            del handle
            if not self._stays(self):
                return

    def _next(self) -> TaskHandle | None:
        while True:
            try:
                return self._tasks.get(timeout=self._every)
            except queue.Empty:
                self._idle()


class ThreadPool:
    """Standing threads for tasks that any of them may run, in the order given.

    A task never waits for one that hangs, while a thread can be started: if all have a task, another thread joins them. A thread
    that returns to more than `count` ends.

    Args:
        name: the name of each thread.
        count: number of threads that the pool keeps.
        idle: as for `StandingThread`, and `every` too. No task waits for it.
    """

    def __init__(
        self,
        name: str,
        count: int = 1,
        *,
        idle: Callable[[], None] = lambda: None,
        every: float | None = None,
    ) -> None:
        self._name = name
        self._idle, self._every = idle, every
        self._count = count
        self._process = os.getpid()
        self._tasks: queue.SimpleQueue[TaskHandle | None] = queue.SimpleQueue()
        self._lock = threading.Lock()  # guards the fields below
        self._threads: list[StandingThread] = []
        #: Number of tasks that have not ended, and of threads that are in `idle`.
        self._open = 0
        self._closed = False

    @property
    def inherited(self) -> bool:
        """Whether this process is a forked child of the one that made the pool, so that it has none of the threads."""
        return self._process != os.getpid()

    def make(self) -> None:
        """Start the threads that the pool keeps, or as many as can be started."""
        with self._lock:
            while len(self._threads) < self._count and self._start(idle_first=self._every is not None):
                pass

    def give(self, run: Callable[[], object]) -> TaskHandle:
        """Have a thread run a task, and return at once. With no thread free, and none to be started, the task waits for one.

        Raises:
            RuntimeError: the pool has no thread, and none can be started.
        """
        if self.inherited:
            raise RuntimeError(f"this forked child has no thread for {self._name}")
        with self._lock:
            if self._open >= len(self._threads) and not at_exit():
                self._start()
            if not self._threads:
                raise RuntimeError(f"no thread can be started for {self._name}")
            self._open += 1
            handle = TaskHandle(run)
            self._tasks.put(handle)
            if self._closed:
                self._end()
            return handle

    def close(self) -> None:
        """Have the threads end once they have run the tasks given to them. It does not wait for them."""
        with self._lock:
            self._closed = True
            self._end()

    def _end(self) -> None:
        threads, self._threads = self._threads, []
        for thread in threads:
            thread.end()
        self._tasks = queue.SimpleQueue()  # one that hangs leaves its end in the old one

    def _start(self, *, idle_first: bool = False) -> bool:
        """Start a thread; the caller holds the lock. Return whether it runs."""
        try:
            thread = StandingThread(
                self._name,
                self._tasks,
                stays=self._stays,
                idle=self._look_after,
                every=self._every,
                idle_first=idle_first,
            )
            self._threads.append(thread)
        except RuntimeError as error:
            log.debug("no other thread for %s: %s", self._name, error)
            return False
        return True

    def _look_after(self) -> None:
        with self._lock:
            self._open += 1
        self._idle()
        with self._lock:
            self._open -= 1

    def _stays(self, thread: StandingThread) -> bool:
        with self._lock:
            self._open -= 1
            surplus = len(self._threads) > max(self._count, self._open)
            if surplus:
                self._threads.remove(thread)
            return not surplus


def at_exit() -> bool:
    """Return whether the interpreter ends: only daemon threads are left. A thread that is started now may be cut off anywhere."""
    return all(thread.daemon or not thread.is_alive() for thread in threading.enumerate())


def join_ended(seconds: float = _LEAVING) -> None:
    """Wait for the threads that had no task when they were told to end: at most `seconds`, for all of them together.

    A thread that frees its memory while the interpreter ends takes the process down. It asks for the GIL inside torch and is
    ended there ("terminate called without an active exception": seen in 1 of 30 exits).
    """
    until = time.monotonic() + seconds
    while _leaving:
        thread = _leaving.pop()
        if thread is not threading.current_thread():
            thread.join(max(0.0, until - time.monotonic()))


# --- calls that several threads make at once ---

_K = TypeVar("_K")
_V = TypeVar("_V")

#: Most threads that make calls at once: sixteen requests are enough for a store.
_AT_ONCE = 16
_helpers = ThreadPool("spotguard-helper", _AT_ONCE - 1)
#: Has `busy` set on a thread that makes such calls.
_here = threading.local()


def side_by_side(get: Callable[[_K], _V], keys: Sequence[_K], threads: int = _AT_ONCE) -> list[_V]:
    """Return what `get` returns for these keys, in order. Several threads call it; the caller is one of them.

    A call inside `get` uses no other threads. At interpreter exit only threads take part that an earlier call has made; without
    any, the caller makes all calls. That matters because the last checkpoint of a job is marked and pruned at exit.

    Args:
        threads: number of threads, at most 16.

    Raises:
        Exception: the error of `get` for the first key in order that failed.
    """
    global _helpers
    if _helpers.inherited:
        _helpers = ThreadPool("spotguard-helper", _AT_ONCE - 1)
    waiting = deque(enumerate(keys))
    got: dict[int, _V] = {}
    failed: dict[int, Exception] = {}
    inside = getattr(_here, "busy", False)

    def work() -> None:
        _here.busy = True
        while not failed:
            try:
                at, key = waiting.popleft()
            except IndexError:
                return
            try:
                got[at] = get(key)
            except Exception as error:  # noqa: BLE001 - the caller raises it below
                failed[at] = error

    helping: list[TaskHandle] = []
    try:
        for _ in range(1, 1 if inside else min(threads, _AT_ONCE, len(keys))):
            try:
                helping.append(_helpers.give(work))
            except RuntimeError:  # at interpreter exit, or the machine is out of threads
                break
        work()
    finally:
        _here.busy = inside
        waiting.clear()  # Ctrl-C: begin no further call
        for handle in helping:
            if not handle.withdraw():
                handle.done.wait()
    if failed:
        raise failed[min(failed)]
    return [got[at] for at in range(len(keys))]
