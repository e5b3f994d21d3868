"""Saves by hand in a job of several ranks: each of this rank's `guard.save()`s, paired with the first rank's call for it.

A rank may come to its `save()` before it reads the call, or long after the save was made. The outcome waits for the rank.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from ...providers.errors import SpotguardError
from ..save.request import SaveRequest


class ManualSaves:
    """The calls and the requests that are not paired yet. Not thread-safe: its owner has a lock.

    Args:
        make: returns a new, empty request.
    """

    def __init__(self, make: Callable[[], SaveRequest]) -> None:
        self._make = make
        #: Steps that the first rank called for, and that have no `save()` here yet, in order.
        self._called: deque[tuple[int, SaveRequest]] = deque()
        #: Steps with a `save()` here, and without a call of the first rank yet, in order.
        self._asked: deque[tuple[int, SaveRequest]] = deque()

    def called(self, step: int, epoch: int) -> SaveRequest:
        """Return the request for a call of the first rank."""
        if self._asked and self._asked[0][0] == step:
            job = self._asked.popleft()[1]
        else:
            job = self._make()
            self._forget(step)
            self._called.append((step, job))
        job.epoch = epoch
        return job

    def asked(self, step: int) -> SaveRequest:
        """Return the request for this rank's `save()`: one that it waits for, or one that is done already."""
        self._forget(step)
        if self._called and self._called[0][0] == step:
            return self._called.popleft()[1]
        job = self._make()
        self._asked.append((step, job))
        return job

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

    def _forget(self, step: int) -> None:
        """Drop the calls for other steps. This rank may skip a `save()` that the first rank makes; nobody needs that call."""
        while self._called and self._called[0][0] != step:
            self._called.popleft()
