"""The uploader: the threads of one rank that send to one store, each with a buffer of its own, and what is known of its link.

Threads and buffers exist before a notice. Nothing is collective, and no wait outlives the save's own deadline: a thread that
hangs in the store is left behind with its buffer.

This module does not use torch: the caller fills the buffers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Generic

from ....providers.errors import CheckpointError, SpotguardError, StoreError
from ....providers.stores.base import BlobStore
from ...ipc.threads import TaskHandle, ThreadPool
from ..cancel_scope import CancelScope
from ..plan.throughput import StoreLink, UploadWidth
from .machine_turn import MachineTurn
from .retry import Refusals, retry
from .workers import IDLE, B, TaskGroup, UploadWorker, WorkerPool

log = logging.getLogger("spotguard")

#: Seconds for opening a connection beforehand.
_WARMING = 5.0


class Uploader(Generic[B]):
    """The threads of one rank for one store. One thread uses it.

    Args:
        make: makes a buffer of a size in bytes.
        pool: another uploader's workers, if the two never send at the same time.
    """

    def __init__(
        self,
        store: BlobStore,
        run_id: str,
        world: int,
        make: Callable[[int], B],
        pool: WorkerPool[B] | None = None,
    ) -> None:
        self.store = store
        self.run_id = run_id
        self.pool = pool if pool is not None else WorkerPool(make, self._keep_warm)
        #: Workers for requests that put no object, so that a manifest does not wait for the puts before it or around it.
        self.request_pool = WorkerPool(make, self._keep_warm)
        #: For requests that no save waits for. None of them waits for one that hangs.
        self._aside = ThreadPool("spotguard-aside", idle=self._keep_warm, every=IDLE)
        turn = MachineTurn(store.url, run_id) if world > 1 else None
        #: How a save with a deadline waits for a store that refuses. A local copy does not: the state is copied to memory instead.
        self.refusals = Refusals(store, run_id, self.aside, turn) if pool is None else None
        self.width = UploadWidth(store.parallel)
        #: The measured link to the store.
        self.link = StoreLink()
        self._cold = ""

    def warm(self, nbytes: int) -> None:
        """Make the threads and buffers that a state of `nbytes` needs, with every page touched.

        Raises:
            CheckpointError: no memory or no thread is left.
        """
        size = self.object_size(nbytes)
        self.workers(-(-nbytes // size) + 1, size)  # one more for headers, and for pieces that leave gaps
        self.request_pool.ready(2, 1)  # the manifests of both levels may be on their way
        self._aside.make()

    def close(self) -> None:
        """End the threads."""
        if self.refusals is not None:
            self.refusals.close()
        self.pool.dismiss()
        self.request_pool.dismiss()
        self._aside.close()

    def ask(
        self,
        what: Callable[[float | None], object],
        scope: CancelScope,
        *,
        again: bool = True,
        workers: int = 1,
        heard: Callable[[StoreError], None] | None = None,
    ) -> float:
        """Make a request that is no put of an object, on a thread of its own. If the thread hangs, it is left behind.

        Args:
            what: the request, called with the seconds until the deadline.
            again: retry while the request fails transiently, as for an object.
            heard: called with each transient failure.
            workers: number of threads that call `what` at once, or fewer if not all are available.

        Returns:
            Seconds of the answer, without those for which the store was away.

        Raises:
            Abandoned: the deadline passed, or the save was called off. The request may be done or not.
            StoreError: the store refuses, or failed for longer than the save may go on.
            CheckpointError: no thread is left.
        """
        took: list[float] = []
        group = TaskGroup(scope)

        def hear(error: StoreError) -> None:
            group.last_error = str(error)
            if heard is not None:
                heard(error)

        def task(_: B) -> None:
            try:
                refusals = self.refusals if again else None
                took.append(retry(group.part, what, hear, refusals, again=again))
            except BaseException as error:  # noqa: BLE001 - handed to the thread that waits
                group.fail(error)

        group.run(self._ready(self.request_pool, workers, 1, scope), task)
        return max(took, default=0.0)

    def request_worker(self, scope: CancelScope) -> UploadWorker[B]:
        """Return a free worker for a request that puts no object.

        Raises:
            CheckpointError: no thread is left.
        """
        return self._ready(self.request_pool, 1, 1, scope)[0]

    def aside(
        self, what: Callable[[], object], heard: Callable[[StoreError], None] = lambda error: None
    ) -> TaskHandle | None:
        """Make a request that no save waits for. It may fail. Any thread may call this.

        Args:
            heard: called if it fails transiently.

        Returns:
            The handle of the request; None if it is dropped, as no thread is left.
        """

        def task() -> None:
            try:
                what()
            except Exception as error:  # noqa: BLE001 - nothing depends on it
                if isinstance(error, StoreError) and error.transient:
                    heard(error)
                log.debug("a request beside a save: %s", error)

        try:
            return self._aside.give(task)
        except RuntimeError as error:
            log.debug("a request beside a save: %s", error)
            return None

    def workers(self, objects: int, size: int, scope: CancelScope | None = None) -> list[UploadWorker[B]]:
        """Return as many workers as `objects` of at most `size` bytes keep busy.

        Raises:
            CheckpointError: no memory or no thread is left.
        """
        return self._ready(self.pool, max(1, min(self.width.count, objects)), size, scope)

    def _ready(
        self, pool: WorkerPool[B], count: int, size: int, scope: CancelScope | None
    ) -> list[UploadWorker[B]]:
        try:
            return pool.ready(count, size, None if scope is None else scope.left())
        except (RuntimeError, MemoryError) as error:
            raise CheckpointError(
                f"a save needs buffers of {max(1, size >> 20)} MiB and threads: {error} [SG505]"
            ) from error

    def object_size(self, nbytes: int) -> int:
        """Return the size of an object in bytes, for a state of `nbytes`.

        A small state is divided too, so that all connections carry it: on a slow path the rate of one decides. Eight of them
        save seven eighths of (state ÷ rate of one connection): a second for 4 MiB at 4 MB/s, or for 30 MiB at 27 MB/s. The
        round trip decides the rate (at most the send buffer's 4 MiB for each), and three of them go with the slow start. The
        size is a whole number of MiB, so that a state that grows by a few bytes still fits its buffers.
        """
        share = nbytes // (self.width.count * 2**20) + 1
        return min(self.width.object_bytes, share * 2**20)

    def _keep_warm(self) -> None:
        if self.refusals is not None and self.refusals.refused:
            return
        try:
            self.store.warm(timeout=_WARMING)
            self._cold = ""
        # Without memory too: a thread that ended here would take its queued tasks along.
        except (SpotguardError, MemoryError) as error:
            # Log it once: every thread meets the same error every few seconds. The save itself reports it again.
            before, self._cold = self._cold, str(error) or "no memory is left"
            if not before:
                log.warning("the store cannot be reached, a save would fail now: %s [SG313]", error)
