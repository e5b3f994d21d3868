"""The phase of training, and for how long it has stood still: looked at whenever the agent is told, every two seconds.

Nothing runs on the training thread, and nothing is paid per step.

Training moves while steps complete, while its loader delivers batches, while its thread computes, or while its stack is found at
more than a few places. A thread that waits in vain has few (a loop that polls a queue has two or three), and uses no processor. An
evaluation over a slow loader completes no step and computes little (seen: 0.4 % of a core, and a false alarm after a minute).
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ....providers.clock import Clock
from .phase_times import PhaseTimes
from .thread_place import phase_before_training, place_of

#: Places of a waiting thread that count as one: more are progress.
_FEW = 4
#: Seconds between two looks beyond which this process was stopped, or suspended, or without an agent: such time does not count.
_GAP = 6.0
#: The share of a processor above which the training thread computes.
_BUSY = 0.01
#: The share of a processor from which on a thread at one place, in a process with a GPU, waits for that: CUDA spins meanwhile.
_SPINS = 0.5


@dataclass(frozen=True, slots=True)
class ProgressSeen:
    """The present work of the training thread."""

    #: "data", "forward", "backward", "optimizer", "collective", "evaluation", "save"; "process" for a program or a pool that the
    #: script has started, "other" for its own code; "start" and "ranks" before training, and "" before `register` and after training.
    phase: str = ""
    #: Seconds without any sign of progress; negative if not known.
    still: float = -1.0
    #: The innermost line of the script, as "train.py:42 in main"; "" if there is none.
    where: str = ""
    #: Seconds without progress that are a stall in this phase; negative while too little is known of it.
    limit: float = -1.0


class TrainingProgress:
    """The progress of one training thread.

    Args:
        completed: returns the completed steps.
        clock: the clock.
        evaluates: returns whether the registered models are in evaluation.
        worked: returns the processor seconds that a thread has used.
        times: the times of its phases.
        all_worked: returns the processor seconds that all threads, and the processes that they have started, have used.
        moves: returns how often a store has moved.
        answers: returns a number that rises as a notice is answered, which takes some work and asks the store.
    """

    def __init__(
        self,
        completed: Callable[[], int],
        clock: Clock,
        evaluates: Callable[[], bool],
        worked: Callable[[threading.Thread], float] | None = None,
        times: PhaseTimes | None = None,
        all_worked: Callable[[], float] | None = None,
        moves: Callable[[], int] = lambda: 0,
        answers: Callable[[], int] = lambda: 0,
    ) -> None:
        self._completed, self._clock = completed, clock
        self._evaluates, self._worked = evaluates, worked or processor_seconds
        self._times = times or PhaseTimes()
        self._all_worked, self._moves, self._answers = all_worked or processor_seconds_of_all, moves, answers
        self._thread: threading.Thread | None = None
        #: The thread that has registered, and not trained yet; the moves of a store, and the processor seconds of all threads.
        self._preparing: threading.Thread | None = None
        self._moved, self._all_work = 0, 0.0
        #: The notices that were answered at the last look.
        self._answered = 0
        self._step = -1
        #: The iterator of a loader in which the thread was found last, and the batches that it had delivered.
        self._delivered = (0, 0)
        #: Places of the thread since it last moved; and whether it was found in a save.
        self._places: set[int] = set()
        self._saves = False
        #: The completed steps at which the script has ended its training; -1: it has not.
        self._ended_at = -1
        self._moved_at = self._looked_at = self._work = 0.0
        self._lock = threading.Lock()

    def prepare(self) -> None:
        """Follow the calling thread until training begins: it has registered, and is to restore."""
        thread = self._preparing = threading.current_thread()
        self._moved_at = self._looked_at = self._clock.monotonic()
        self._moved, self._work, self._all_work = self._moves(), self._worked(thread), self._all_worked()

    def begin(self) -> None:
        """Follow the calling thread from now on: it trains."""
        self._thread, self._preparing = threading.current_thread(), None
        self._ended_at = -1
        self._moved_at = self._clock.monotonic()
        self._places.clear()

    def end(self) -> None:
        """Know no usual time from now on: training is over until a step follows. An upload or a last evaluation may take minutes."""
        self._ended_at = self._completed()

    @property
    def is_here(self) -> bool:
        """Whether the calling thread trains."""
        return self._thread is threading.current_thread()

    @property
    def begins_here(self) -> bool:
        """Whether training has not begun, and the calling thread is the main one."""
        return self._thread is None and threading.current_thread() is threading.main_thread()

    def look(self) -> ProgressSeen:
        """Return what the training thread does now. Any thread may ask."""
        with self._lock:
            return self._look() if self._preparing is None else self._look_at_start(self._preparing)

    def _look(self) -> ProgressSeen:
        thread, seen = self._thread, place_of(self._thread)
        if thread is None or seen is None:
            return ProgressSeen()
        phase = seen.phase
        if phase in ("forward", "other") and self._evaluates():
            phase = "evaluation"
        step, delivered = self._completed(), seen.delivered or self._delivered
        now, share = self._times_of(thread, phase, seen.place)
        if (step, delivered) != (self._step, self._delivered) or self._computes(share):
            self._places = {seen.place}
            self._moved_at = now
        elif share > _SPINS and phase not in ("data", "save") and _has_peers():
            # NCCL's collectives return at once, and the script then waits for its GPU, as in loss.item(): so it may wait for a rank.
            phase = "collective"
        self._step, self._delivered = step, delivered
        still = now - self._moved_at
        limit = self._times.look(phase, still, step, now)
        # A rank that waits for another one behind its last step must not give that one, which still trains, its own long limit.
        # Its stack has to show that: a thread that computes at one place may compress an upload.
        ended = step == self._ended_at and seen.phase != "collective"
        return ProgressSeen(phase, still, seen.where, -1.0 if ended else limit)

    def _look_at_start(self, thread: threading.Thread) -> ProgressSeen:
        """Return what the thread does that has not begun to train. A download may run on other threads, and so does a restore."""
        seen = place_of(thread, phase_before_training)
        if seen is None:
            return ProgressSeen()
        moved, all_work, before, work = self._moves(), self._all_worked(), self._looked_at, self._work
        now, share = self._times_of(thread, seen.phase, seen.place)
        others = (all_work - self._all_work - (self._work - work)) / max(1e-9, now - before)
        answered = self._answers()
        # Else a stall's own stacks and records would be progress, and it would neither last nor end.
        aside = answered == self._answered and (moved != self._moved or others > _BUSY)
        if aside or self._computes(share):
            self._places = {seen.place}
            self._moved_at = now
        self._moved, self._all_work, self._answered = moved, all_work, answered
        return ProgressSeen(seen.phase, now - self._moved_at, seen.where)

    def _times_of(self, thread: threading.Thread, phase: str, place: int) -> tuple[float, float]:
        """Take in where the thread is; return the time, and the share of a processor that the thread has used since the last look."""
        now, work = self._clock.monotonic(), self._worked(thread)
        # A save may take as long as it likes, and what follows begins anew.
        if self._saves and phase != "save":
            self._places.clear()
            self._moved_at = now
        self._saves = phase == "save"
        self._places.add(place)
        if self._looked_at and now - self._looked_at > _GAP:
            self._moved_at = min(now, self._moved_at + now - self._looked_at - _GAP)
        share = (work - self._work) / max(1e-9, now - self._looked_at)
        self._work, self._looked_at = work, now
        return now, share

    def _computes(self, share: float) -> bool:
        """Return whether a thread moves that uses this share of a processor. One that waits for a GPU may spin at one place."""
        return len(self._places) > _FEW or (share > _BUSY and (len(self._places) > 1 or not _uses_gpu()))


def processor_seconds(thread: threading.Thread) -> float:
    """Return the processor seconds that a thread of this process has used, in ticks of 10 ms; 0 where /proc does not tell."""
    return _seconds_in(f"/proc/self/task/{thread.native_id}/stat")


def processor_seconds_of_all() -> float:
    """Return the processor seconds of this process and of those that it has started: a pool of them may prepare the data."""
    ended = os.times()
    seconds = time.process_time() + ended.children_user + ended.children_system
    for path in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):  # the thread has ended
            seconds += sum(_seconds_in(f"/proc/{pid}/stat") for pid in path.read_text().split())
    return seconds


def _seconds_in(path: str) -> float:
    try:
        with open(path, "rb") as stat:
            fields = stat.read().rpartition(b")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _uses_gpu() -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and torch.cuda.is_initialized()


def _has_peers() -> bool:
    """Return whether this process has joined others in a job of torch's."""
    c10d = sys.modules.get("torch.distributed")
    return c10d is not None and c10d.is_available() and c10d.is_initialized() and c10d.get_world_size() > 1
