"""Objects on their way: who started them waits, may do something else meanwhile, and may call them off."""

from __future__ import annotations

import math
from collections.abc import Callable

from .effort import Abandoned
from .width import Width
from .work import Work


class Going:
    """Objects on their way. Used by the thread that started them."""

    def __init__(self, work: Work, width: Width | None, nbytes: int) -> None:
        self._work = work
        self._width = width
        self._nbytes = nbytes
        self._began = work.effort.now()

    def wait(self, turn: Callable[[], bool] = lambda: False, until: float = math.inf) -> bool:
        """Wait until all of them are in the store. False: it is `turn`, or time for something else; they go on meanwhile.

        Raises:
            Abandoned, StoreError, Spoiled, CheckpointError: as `Writer.write`. Nothing goes on.
        """
        work = self._work
        try:
            work.effort.part(until).wait(lambda: work.over() or turn(), work.changed)
        except Abandoned as why:
            if work.effort.abandoned or work.effort.left() == 0.0:
                self.call_off(why)
        if work.error is None and not work.over():
            return False
        now, error = work.effort.now(), work.error
        work.at_rest(now)
        if error is not None:
            raise error
        work.effort.check()
        if self._width is not None:
            self._width.learn(self._nbytes, now - self._began)
        return True

    def wake(self) -> None:
        """Have who waits look whether it is its turn. Any thread."""
        self._work.changed.set()

    def call_off(self, why: Abandoned) -> None:
        """Nothing more of them is sent, and what lands counts for nothing."""
        self._work.call_off(why)
        self._work.at_rest(self._work.effort.now())
