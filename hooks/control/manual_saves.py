"""Saves by hand in a job of several ranks: each of this rank's `guard.save()`s, paired with the first rank's call for it.

A rank may come to its `save()` before it reads the call, or long after the save was made. The outcome waits for the rank.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from ...providers.clock import Clock
from ...providers.errors import CheckpointError, SpotguardError
from ..save.request import SaveRequest
from .quiesce import JobCoordinator

#: Seconds between two checks whether the first rank can still call.
_ALIVE = 5.0
#: The most calls that are kept for a rank that has not come to their `save()`.
_AHEAD = 64
#: Seconds for which a rank that saves by hand waits for the first rank's call: as long as for a collective.
_CALLED = 600.0


class ManualSaves:
    """The calls and the requests that are not paired yet.

    Args:
        make: returns a new, empty request.
        lock: the owner's lock. The caller of `called`, `asked`, `drop` and `give_up` has it.
        clock: the clock.
        coordinator: the other ranks; None for a job of one process.
    """

    def __init__(
        self,
        make: Callable[[], SaveRequest],
        lock: threading.Lock,
        clock: Clock,
        coordinator: JobCoordinator | None,
    ) -> None:
        self._make = make
        self._lock = lock
        self._clock = clock
        self._coordinator = coordinator
        #: Steps that the first rank called for, and that have no `save()` here yet, in order. The first rank may be steps ahead of a rank
        #: that shares no collective with it. A rank that never saves keeps the newest.
        self._called: deque[tuple[int, SaveRequest]] = deque(maxlen=_AHEAD)
        #: Steps with a `save()` here, and without a call of the first rank yet, in order.
        self._asked: deque[tuple[int, SaveRequest]] = deque()

    def called(self, step: int, epoch: int) -> SaveRequest:
        """Return the request for a call of the first rank."""
        if self._asked and self._asked[0][0] == step:
            job = self._asked.popleft()[1]
        else:
            job = self._make()
            self._called.append((step, job))
        job.epoch = epoch
        return job

    def asked(self, step: int) -> SaveRequest:
        """Return the request for this rank's `save()`: one that it waits for, or one that is done already."""
        if step in [at for at, _ in self._called]:
            # This rank has skipped each `save()` before it that the first rank made, and nobody needs those calls.
            while True:
                at, job = self._called.popleft()
                if at == step:
                    return job
        job = self._make()
        self._asked.append((step, job))
        return job

    def drop(self, job: SaveRequest) -> None:
        """Forget this rank's `save()`, which ended before it was called for: the call may come for the next `save()`."""
        self._asked = deque(each for each in self._asked if each[1] is not job)

    def wait(self, job: SaveRequest, step: int) -> None:
        """Wait until a request is done, which the first rank must call for. The caller is the training thread, at this step.

        Raises:
            CheckpointError: the first rank can call for no save any more.
        """
        until = self._clock.monotonic() + _CALLED
        if self._coordinator is not None:
            self._see_alive(self._coordinator)
            self._coordinator.by_hand(step)
        while not self._clock.wait(job.done, _ALIVE):
            if self._coordinator is None or job.epoch:
                continue
            self._see_alive(self._coordinator)
            if self._clock.monotonic() >= until:
                self.unheard(step, f"rank 0 has not called for it within {_CALLED:.0f} s")

    def unheard(self, step: int, why: str) -> None:
        """Fail the request for this step: the other ranks could not be called for it."""
        with self._lock:
            self.give_up(CheckpointError(f"step {step} is not saved: {why}"), step)

    def give_up(self, error: SpotguardError, step: int | None = None) -> None:
        """Fail the requests that wait for a call, at this step or, with None, at any step: no call will come."""
        rest = deque[tuple[int, SaveRequest]]()
        for at, job in self._asked:
            if step is not None and at != step:
                rest.append((at, job))
                continue
            job.error = error
            job.done.set()
        self._asked = rest

    def forget_calls(self) -> None:
        """Forget the calls until now: a restore begins, and the same steps may come again."""
        self._called.clear()

    @staticmethod
    def _see_alive(coordinator: JobCoordinator) -> None:
        if coordinator.orphaned:
            raise CheckpointError("this rank can no longer call the other ranks: the job's store is gone")
