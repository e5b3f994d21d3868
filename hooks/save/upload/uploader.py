"""Objects into a store: one plain put each, from several threads, each from a buffer of its own.

Threads and buffers exist before a notice. Nothing is collective, and no wait outlives the save's own deadline: a thread that
hangs in the store is left behind with its buffer. Near a deadline an idle thread sends a put that lags behind its peers a
second time, from a copy: whichever arrives first counts, and both are the same bytes under the same key.

No torch: the caller fills the buffers.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Generic

from ....providers.errors import CheckpointError, SpotguardError
from ....providers.stores.base import BlobStore
from ...checkpoint.format.crc import combine, crc32
from ...checkpoint.format.keys import CheckpointName, checkpoint_prefix, object_name
from ...state.tensor_item import Tier
from ..cancel_scope import Abandoned, CancelScope, retry
from ..plan.bin_packing import PlannedObject
from ..plan.throughput import StoreLink, UploadWidth
from ..plan.write_plan import ALL, StoredObject, WritePlanCache, WriteProgress
from .buffers import B
from .recheck import look_again
from .transfer import ObjectInFlight, Progress, StoreRequest, Superseded, Transfer, TransferHandle
from .workers import Task, UploadWorker, WorkerPool

log = logging.getLogger("spotguard")

#: Seconds that opening a connection beforehand may take.
_WARMING = 5.0
#: Pieces up to which an object's CRC is combined from theirs. Above it the CRC of the bytes costs less.
_COMBINED = 64

#: Puts the bytes of an object, by its number, into a buffer; returns the CRCs of its pieces.
Fill = Callable[[int, B], list[int]]


class StateChanged(SpotguardError):
    """The state moved while it was read. The message names what moved."""


class Uploader(Generic[B]):
    """Puts the objects of one rank into one store. One thread uses it; it keeps threads of its own.

    Args:
        plans: what earlier saves of this attempt have put, which later ones refer to.
        make: makes a buffer of a size in bytes.
        pool: another uploader's workers, if the two never send at the same time.
    """

    def __init__(
        self,
        store: BlobStore,
        run_id: str,
        rank: int,
        world: int,
        make: Callable[[int], B],
        plans: Callable[[], WritePlanCache],
        pool: WorkerPool[B] | None = None,
    ) -> None:
        self.store = store
        self._run_id = run_id
        self._rank = rank
        self._world = world
        self._plans = plans
        self.pool = pool if pool is not None else WorkerPool(make, self._keep_warm)
        #: For requests that put no object: a manifest does not wait for the puts that it comes after or between.
        self.clerks = WorkerPool(make, self._keep_warm)
        self.width = UploadWidth(store.parallel)
        #: What the link to the store does.
        self.link = StoreLink()
        self._cold = ""

    def warm(self, nbytes: int) -> None:
        """Make the threads and buffers that a state of `nbytes` needs, with every page touched.

        Raises:
            CheckpointError: no memory or no thread is left.
        """
        size = self.object_size(nbytes)
        self.workers(-(-nbytes // size) + 1, size)  # headers, and what does not fit side by side
        self.clerks.ready(1, 1)

    def close(self) -> None:
        """Let the threads end."""
        self.pool.dismiss()
        self.clerks.dismiss()

    def start(
        self,
        draft: WriteProgress,
        name: CheckpointName,
        scope: CancelScope,
        fill: Fill[B],
        moved: Callable[[B], str],
        *,
        tiers: Sequence[Tier] = ALL,
        progress: Progress | None = None,
    ) -> TransferHandle:
        """Begin to put what is missing of these tiers.

        Args:
            draft: what was put before by a part of this save. Objects that land are noted in it.
            fill: puts the bytes of an object into a worker's buffer.
            moved: called after each object was filled; "" or what has moved since the boundary.

        Raises:
            CheckpointError: no memory or no thread is left.
        """
        missing = draft.anew(tiers)
        nbytes = sum(draft.write_plan.objects[index].size for index in missing)
        workers = self.workers(len(missing), draft.write_plan.size, scope)[: len(missing)]
        work = Transfer(draft, missing, name, len(workers), scope, progress, self.link)
        self.link.begin(scope.now())
        task = partial(self._run, work, fill, moved)
        for worker in workers:
            worker.give(task, work.ended)
        return TransferHandle(work, self.width if len(workers) == self.width.count else None, nbytes)

    def ask(
        self,
        what: Callable[[float | None], object],
        scope: CancelScope,
        *,
        again: bool = True,
        workers: int = 1,
    ) -> float:
        """Make another request than an object's on a thread of its own, which is left behind if it hangs.

        Args:
            what: called with the seconds that are left.
            again: retry while the request only fails for now, as for an object.
            hands: threads that make it at once, or as many as there are.

        Returns:
            Seconds of the answer, without those for which the store was away.

        Raises:
            Abandoned: the deadline passed, or the save was called off. Nobody knows whether the request is done after all.
            StoreError: the store refuses, or failed for longer than the save may go on.
            CheckpointError: no thread is left.
        """
        took: list[float] = []

        def task(_: B) -> None:
            try:
                if again:
                    took.append(retry(scope, what, request.hear))
                else:
                    began = scope.now()
                    what(scope.left())
                    took.append(scope.now() - began)
            except BaseException as error:  # noqa: BLE001 - handed to the thread that waits
                request.fail(error)

        try:
            clerks = self.clerks.ready(workers, 1, scope.left())
        except (RuntimeError, MemoryError) as error:
            raise CheckpointError(f"a save needs a thread: {error}") from error
        request = StoreRequest(len(clerks), scope)
        _give(clerks, task, request)
        return max(took, default=0.0)

    def workers(self, objects: int, size: int, scope: CancelScope | None = None) -> list[UploadWorker[B]]:
        """As many workers as `objects` of at most `size` bytes keep busy.

        Raises:
            CheckpointError: no memory or no thread is left.
        """
        left = None if scope is None else scope.left()
        try:
            return self.pool.ready(max(1, min(self.width.count, objects)), size, left)
        except (RuntimeError, MemoryError) as error:
            raise CheckpointError(f"a save needs buffers of {size >> 20} MiB and threads: {error}") from error

    def object_size(self, nbytes: int) -> int:
        """Bytes of an object, for a state of `nbytes`. Whole MiB: a state that grows by a few bytes fits the buffers it has."""
        return min(self.width.object_bytes, (nbytes // 2**20 + 2) * 2**20)

    # --- on a worker's thread ---

    def _keep_warm(self) -> None:
        try:
            self.store.warm(timeout=_WARMING)
            self._cold = ""
        except SpotguardError as error:
            # Logged once: every thread meets the same, every few seconds. The save itself reports it again.
            before, self._cold = self._cold, str(error)
            if not before:
                log.warning("the store cannot be reached, a save would fail now: %s", error)

    def _run(self, work: Transfer, fill: Fill[B], moved: Callable[[B], str], buffer: B) -> None:
        try:
            while True:
                if doubted := work.doubted():
                    look_again(self.store, self._run_id, work, doubted)
                elif (index := work.next()) is not None:
                    self._begin(work, fill, moved, buffer, index)
                elif (flight := work.laggard()) is not None:
                    self.send_again(work, buffer, flight)
                elif not work.more():
                    return
        except BaseException as error:  # noqa: BLE001 - handed to the thread that waits; the others stop
            work.fail(error)

    def _begin(self, work: Transfer, fill: Fill[B], moved: Callable[[B], str], buffer: B, index: int) -> None:
        planned = work.draft.write_plan.objects[index]
        crcs = fill(index, buffer)
        if why := moved(buffer):
            raise StateChanged(why)
        data = buffer.view(0, planned.size)
        stored = StoredObject(crcs, work.name)
        if planned.tier is Tier.FROZEN:
            stored.digest = hashlib.sha256(data).digest()
            if (known := self._plans().as_before(index, stored)) is not None:
                work.spare(index, known)
                return
        self._put(work, work.starts(index, data, _whole_crc(planned, crcs, data), stored), data)

    def send_again(self, work: Transfer, buffer: B, flight: ObjectInFlight) -> None:
        """Send a lagging object a second time, from a copy."""
        copied = buffer.view(0, len(flight.data))
        copied[:] = flight.data
        # The first may have arrived since, and its buffer be in use again: then this copy is of no use.
        if crc32(copied) == flight.crc32:
            log.debug("object %d lags behind, it is sent again", flight.index)
            self._put(work, flight.double(copied, work.scope.now()), copied)

    def _put(self, work: Transfer, flight: ObjectInFlight, data: memoryview) -> None:
        key = checkpoint_prefix(self._run_id, work.name) + object_name(self._rank, self._world, flight.index)

        def put(left: float | None) -> None:
            work.again(flight)
            try:
                self.store.put(key, data, timeout=left, crc32=flight.crc32, sent=partial(work.sent, flight))
            finally:
                work.back()

        try:
            retry(work.scope, put, work.hear)
        except Superseded:
            work.dropped(flight)
            return
        work.done(flight)


def _give(workers: Sequence[UploadWorker[B]], task: Task[B], request: StoreRequest) -> None:
    """Have these workers do it, and wait for them no longer than the save may go on."""
    for worker in workers:
        worker.give(task, request.ended)
    try:
        request.scope.wait(request.over, request.changed)
    except Abandoned as why:
        request.call_off(why)
    if request.error is not None:
        raise request.error


def _whole_crc(planned: PlannedObject, crcs: Sequence[int], data: memoryview) -> int:
    if len(crcs) > _COMBINED:
        return crc32(data)
    sizes = [piece.end - piece.start for piece in planned.pieces]
    return combine([(crc32(planned.header), len(planned.header)), *zip(crcs, sizes, strict=True)])
