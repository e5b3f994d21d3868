"""The measurement of one training process in a trial: the seconds and phases of each step, the loader, memory and saves.

It ends the run with an emergency save, as a notice would. It reads no tensor, and costs the training thread two calls a batch.
"""

from __future__ import annotations

import functools
import os
import shutil
import sys
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
from torch.utils.data import dataloader

from ...providers.clock import Clock
from ..arguments.settings import ranks_here
from ..ipc.failures.thread_place import phase_now
from ..ipc.notice import PreemptionNotice
from ..ipc.threads import StandingThread
from ..save.request import SavedCheckpoint
from . import startup
from .guard import GuardRecorder, RecordedGuard
from .plan import NEVER, LifePlan

#: Seconds between two looks at the training thread's stack. A look takes about 20 µs.
_LOOK = 0.005
#: A job of several ranks goes on for at most this many times the plan's steps while a background checkpoint is under way, and its
#: first rank waits for it so many seconds at each boundary: the checkpoint may need the other ranks to go on.
_LONGER, _PATIENCE = 2, 0.2
#: Checkpoints that the store holds at a time: the background one, and the emergency one.
_CHECKPOINTS = 2


class RunMeasurement(GuardRecorder):
    """The recorder of a trial. The training thread calls it, except for `leaving` and `saved`."""

    def __init__(self, plan: LifePlan, state: dict[str, Any], clock: Clock) -> None:
        super().__init__(plan)
        self._clock = clock
        self._kinds = {name: type(value).__name__ for name, value in state.items()}
        self._until = clock.monotonic() + plan.stall
        self._watch = startup.begin()
        self._loader = LoaderTimes(clock)
        self._phases = PhaseSampler(clock, self._has_no_boundary)
        #: Monotonic seconds of the last boundary.
        self._since = 0.0
        self._turns, self._world = 0, 1
        self._never = threading.Event()  # never set: `_has_checkpoint` sleeps on it between two looks
        self._asked = self._acted = self._told = self._full = False

    def begin(self, guard: RecordedGuard, rank: int, world: int, said: str) -> None:
        self._open(guard, rank)
        self._world = world
        self._write(
            "begin", rank=rank, world=world, pid=os.getpid(), seed=0, early=True, kinds=self._kinds, said=said
        )
        if self._plan.acted.exists():
            raise SystemExit(75)  # a launcher has restarted the process after the trial's end
        self._loader.begin()
        self._phases.begin(guard)

    def restored(self, step: int) -> None:
        self._write("began", step=step)
        self._since = self._clock.monotonic()
        self._loader.take()
        self._phases.take()

    def boundary(self, completed: int) -> None:
        guard = self._guard
        if guard is None:
            return
        now = self._clock.monotonic()
        self._turns += 1
        self._write(
            "step",
            step=completed,
            seconds=now - self._since,
            phases=self._phases.take(),
            **self._loader.take(),
        )
        if self._watch is not None:
            self._watch.still_alive()
        late = now >= self._until
        if self._rank == 0 and not self._asked and (late or self._turns >= max(1, self._plan.steps // 2)):
            self._asked = True
            if self._has_room(guard):
                guard.checkpoint_soon()
        if late or self._turns >= self._plan.steps:
            self._tell(guard)
            if self._rank == 0 and not self._acted and (self._full or self._has_checkpoint(guard)):
                self._act(guard, completed)
        self._since = self._clock.monotonic()

    def saved(self, saved: SavedCheckpoint | None, notice: PreemptionNotice | None = None) -> None:
        if saved is None:
            self._write("saved", kind="emergency", bytes=0, why="nothing was committed")
        elif notice is None:
            self._write(
                "saved", kind="background", bytes=saved.nbytes, seconds=saved.seconds, blocked=saved.blocked
            )
        else:
            waited = max(0.0, saved.at - notice.seen - saved.seconds)
            facts = {"bytes": saved.nbytes, "seconds": saved.seconds, "level": saved.level, "why": saved.why}
            self._write("saved", kind="emergency", waited=waited, **facts)

    # --- the end ---

    def _act(self, guard: RecordedGuard, completed: int) -> None:
        """End the run: with an emergency save, or without one if the disk has no room for its checkpoint."""
        self._acted = True
        self._plan.acted.touch()
        if self._full:
            self._kill(completed)
        else:
            self._write("acted", step=completed, at="boundary")
            guard.preempt(self._plan.stall)

    def _has_checkpoint(self, guard: RecordedGuard) -> bool:
        """Wait for the background checkpoint, and return whether the run may end."""
        until = self._until if self._world == 1 else self._clock.monotonic() + _PATIENCE
        while guard.committed < 0 and (now := self._clock.monotonic()) < until:
            self._clock.wait(self._never, min(_LOOK, until - now))
        late = self._clock.monotonic() >= self._until
        return guard.committed >= 0 or late or self._turns >= _LONGER * self._plan.steps

    def _kill(self, completed: int) -> None:
        """Have the harness kill the run, as `Record.asked` does."""
        self._write("asks", action="kill", step=completed, at="boundary")

    def _has_room(self, guard: RecordedGuard) -> bool:
        free = shutil.disk_usage(self._plan.folder).free
        needed = _CHECKPOINTS * guard.share * ranks_here()
        if needed > free:
            self._full = True
            self._write("full", free=free, needed=needed)
        return not self._full

    def _has_no_boundary(self) -> bool:
        """End the run if optimizers step and no boundary comes. The sampling thread calls it."""
        guard = self._guard
        if self._turns or guard is None or (steps := guard.unmarked_steps) < NEVER * self._plan.steps:
            return False
        self._tell(guard)
        self._write("never", steps=steps)
        self._kill(0)
        return True

    def _left_by_itself(self) -> None:
        if self._guard is not None:
            self._tell(self._guard)
        super()._left_by_itself()

    def _tell(self, guard: RecordedGuard) -> None:
        """Write the facts about this rank, once."""
        if self._told:
            return
        self._told = True
        at = asdict(guard.position)
        position = {name: at[name] for name in ("step", "mode", "detail", "misuse", "unmarked_steps")}
        self._write(
            "facts",
            position=position,
            held=guard.held_bytes,
            share=guard.share,
            devices=_devices(),
            loaders=self._loader.kinds,
        )


def _devices() -> list[dict[str, Any]]:
    """Return the peak memory of each GPU that this process has used; empty without one."""
    if not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return []
    return [
        {
            "device": number,
            "name": torch.cuda.get_device_name(number),
            "allocated": torch.cuda.max_memory_allocated(number),
            "reserved": torch.cuda.max_memory_reserved(number),
            "total": torch.cuda.get_device_properties(number).total_memory,
        }
        for number in range(torch.cuda.device_count())
        if torch.cuda.max_memory_reserved(number)
    ]


class LoaderTimes:
    """The batches that the training thread has fetched from torch's loaders, and the seconds for which it waited for them."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seconds = 0.0
        self._batches = self._samples = 0
        #: The class of each loader's iterator, with its number of workers.
        self.kinds: dict[str, int] = {}
        self._thread = 0
        self._pid = os.getpid()

    def begin(self) -> None:
        """Wrap the iterators' `__next__`. It stays wrapped until the process ends."""
        original: Callable[[Any], Any] = dataloader._BaseDataLoaderIter.__next__

        @functools.wraps(original)
        def fetch(iterator: Any) -> Any:
            began = self._clock.monotonic()
            batch = original(iterator)
            # The pid counts too: a forked worker has the same thread id.
            if threading.get_ident() == self._thread and os.getpid() == self._pid:
                self._note(iterator, self._clock.monotonic() - began)
            return batch

        dataloader._BaseDataLoaderIter.__next__ = fetch  # type: ignore[assignment,method-assign]

    def take(self) -> dict[str, Any]:
        """Return the numbers since the last call. Called at a boundary, on the training thread."""
        self._thread = threading.get_ident()
        taken = {"waited": self._seconds, "batches": self._batches, "samples": self._samples}
        self._seconds, self._batches, self._samples = 0.0, 0, 0
        return taken

    def _note(self, iterator: Any, seconds: float) -> None:
        self._seconds += seconds
        self._batches += 1
        sampler = getattr(iterator, "_index_sampler", None)
        self._samples += getattr(sampler, "batch_size", None) or 0
        self.kinds[type(iterator).__name__] = int(getattr(iterator, "_num_workers", 0))


class PhaseSampler:
    """A thread that looks at the training thread's stack all the time, and counts the phases in which it finds it.

    Args:
        clock: the time between two looks.
        over: called at each look; returns whether the thread has to end.
    """

    def __init__(self, clock: Clock, over: Callable[[], bool]) -> None:
        self._clock = clock
        self._over = over
        self._found: Counter[str] = Counter()
        self._training = threading.current_thread()
        self._never = threading.Event()

    def begin(self, guard: RecordedGuard) -> None:
        self._guard = guard
        thread = StandingThread("spotguard-phases")
        thread.give(self._run)
        thread.end()  # after that

    def take(self) -> dict[str, int]:
        """Return how often each phase was found since the last call. Called at a boundary, on the training thread."""
        self._training = threading.current_thread()
        taken, self._found = self._found, Counter()
        return dict(taken)

    def _run(self) -> None:
        while not sys.is_finalizing() and not self._over():
            phase = phase_now(self._training)
            if phase in ("forward", "other") and self._guard.evaluates:
                phase = "evaluation"
            if phase:
                self._found[phase] += 1
            self._clock.wait(self._never, _LOOK)
