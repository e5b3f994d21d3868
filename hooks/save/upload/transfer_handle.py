"""The handle by which the saving thread waits for a transfer. It may do other work meanwhile, and may call the transfer off."""

from __future__ import annotations

import math
from collections.abc import Callable

from ..cancel_scope import Abandoned
from ..plan.throughput import UploadWidth
from .transfer import Transfer


class TransferHandle:
    """A transfer on its way. The thread that started it uses the handle."""

    def __init__(self, work: Transfer, width: UploadWidth | None, nbytes: int) -> None:
        self._work = work
        self._width = width
        self._nbytes = nbytes
        self._began = work.scope.now()

    def wait(self, turn: Callable[[], bool] = lambda: False, until: float = math.inf) -> bool:
        """Wait until all objects are in the store.

        Args:
            turn: returns whether the waiting thread has other work now.
            until: monotonic seconds at which it has other work.

        Returns:
            True if all objects are in the store. False if it is `turn` or `until`; the transfer goes on meanwhile.

        Raises:
            Abandoned, StoreError, StateChanged, CheckpointError: as `ShardWriter.write`. The transfer is over.
        """
        work = self._work
        try:
            work.scope.part(until).wait(lambda: work.over() or turn(), work.changed)
        except Abandoned as why:
            if work.scope.abandoned or work.scope.left() == 0.0:
                self.call_off(why)
        if work.error is None and not work.over():
            return False
        now, error = work.scope.now(), work.error
        work.at_rest(now)
        if error is not None:
            raise error
        work.scope.check()
        if self._width is not None:
            self._width.learn(self._nbytes, now - self._began)
        return True

    def wake(self) -> None:
        """Have the waiting thread check `turn`. Any thread may call this."""
        self._work.changed.set()

    def call_off(self, why: Abandoned) -> None:
        """Call the transfer off: the workers send nothing more, and objects that still arrive do not count."""
        self._work.call_off(why)
        self._work.at_rest(self._work.scope.now())
