"""Saves by hand in a job of several ranks: the first rank's calls, and this rank's `guard.save()`s, each with its own.

A rank may come to its `save()` before it hears the call, or long after the save was made: the outcome waits for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from ...providers.errors import SpotguardError
from ..save.request import SaveRequest


class ManualSaves:
    """Not thread-safe: its owner has a lock.

    Args:
        make: a job with nothing in it.
    """

    def __init__(self, make: Callable[[], SaveRequest]) -> None:
        self._make = make
        #: Called for, and not yet asked for here; and the other way round. With their steps, in order.
        self._called: deque[tuple[int, SaveRequest]] = deque()
        self._asked: deque[tuple[int, SaveRequest]] = deque()

    def called(self, step: int, epoch: int) -> SaveRequest:
        """The first rank has called: what is to be done."""
        if self._asked and self._asked[0][0] == step:
            job = self._asked.popleft()[1]
        else:
            job = self._make()
            self._forget(step)
            self._called.append((step, job))
        job.epoch = epoch
        return job

    def asked(self, step: int) -> SaveRequest:
        """This rank's `save()`: what it waits for, or has missed."""
        self._forget(step)
        if self._called and self._called[0][0] == step:
            return self._called.popleft()[1]
        job = self._make()
        self._asked.append((step, job))
        return job

    def give_up(self, error: SpotguardError, step: int | None = None) -> None:
        """No call will come for who waits, at this step or any."""
        rest = deque[tuple[int, SaveRequest]]()
        for at, job in self._asked:
            if step is not None and at != step:
                rest.append((at, job))
                continue
            job.error = error
            job.done.set()
        self._asked = rest

    def _forget(self, step: int) -> None:
        """Of a rank that saves only where the first one does, the others' calls are for nobody."""
        while self._called and self._called[0][0] != step:
            self._called.popleft()
