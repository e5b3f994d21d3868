"""The uploader: it puts objects into a store from several threads, each with a buffer of its own, with one plain put each.

Threads and buffers exist before a notice. Nothing is collective, and no wait outlives the save's own deadline: the uploader
leaves a thread that hangs in the store behind with its buffer. Near a deadline an idle thread sends a put that lags behind its
peers a second time, from a copy. The first to arrive counts; both are the same bytes under the same key.

This module does not use torch: the caller fills the buffers.
"""

from __future__ import annotations

import hashlib
import logging
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Generic

from ....providers.errors import CheckpointError, SpotguardError, StoreError
from ....providers.stores.base import BlobStore
from ...checkpoint.format.crc import combine, crc32
from ...checkpoint.format.keys import CheckpointName, checkpoint_prefix, object_name
from ...state.state_tensor import Tier
from ..cancel_scope import Abandoned, CancelScope, with_last
from ..plan.bin_packing import PlannedObject
from ..plan.plan_cache import WritePlanCache
from ..plan.throughput import StoreLink, UploadWidth
from ..plan.write_plan import StoredObject
from .object_in_flight import ObjectInFlight, Shift
from .refusals import MachineTurn, Refusals
from .retry import look_again, retry, try_once
from .transfer import Superseded, Transfer
from .workers import B, Task, UploadWorker, WorkerPool

log = logging.getLogger("spotguard")

#: Seconds for opening a connection beforehand.
_WARMING = 5.0
#: Most pieces for which an object's CRC is combined from theirs. With more pieces the CRC of the bytes costs less.
_COMBINED = 64

#: Writes the bytes of the object with this index into a buffer, and returns the CRCs of its pieces.
Fill = Callable[[int, B], list[int]]


class StateChanged(SpotguardError):
    """The state moved during the read. The message names the part that moved."""


class StoreRequest:
    """A request that several workers run for a waiting thread, until it calls the request off."""

    def __init__(self, workers: int, scope: CancelScope, heard: Callable[[StoreError], None] | None) -> None:
        self.scope = scope
        #: The scope of its threads, which ends with the first error too.
        self.part = scope.part(math.inf)
        self.error: BaseException | None = None
        #: Set when the request is `over`.
        self.changed = threading.Event()
        self._lock = threading.Lock()
        self._workers = workers
        self._heard = heard
        self._last_error = ""

    def over(self) -> bool:
        """Return whether every worker is free again."""
        return self._workers == 0

    def call_off(self, why: Abandoned) -> None:
        """Call the request off: no worker begins anything more, and the results of running work do not count."""
        self.fail(with_last(why, self._last_error))

    def fail(self, error: BaseException) -> None:
        with self._lock:
            if self.error is None:
                self.error = error
        self.part.abandon(str(error))

    def hear(self, error: StoreError) -> None:
        """Note a transient failure of the store."""
        self._last_error = str(error)
        if self._heard is not None:
            self._heard(error)

    def ended(self) -> None:
        with self._lock:
            self._workers -= 1
        self.changed.set()


class Uploader(Generic[B]):
    """Puts the objects of one rank into one store. One thread uses it; it keeps threads of its own.

    Args:
        plans: returns the cache with the objects that earlier saves of this attempt have put, and later ones refer to.
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
        #: Workers for requests that put no object, so that a manifest does not wait for the puts before it or around it.
        self.request_pool = WorkerPool(make, self._keep_warm)
        #: One worker for requests that no save waits for.
        self.aside_pool = WorkerPool(make, self._keep_warm)
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
        self.aside_pool.ready(1, 1)

    def close(self) -> None:
        """End the threads."""
        if self.refusals is not None:
            self.refusals.close()
        self.pool.dismiss()
        self.request_pool.dismiss()
        self.aside_pool.dismiss()

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

        def task(_: B) -> None:
            try:
                if again:
                    took.append(retry(request.part, what, request.hear, self.refusals))
                else:
                    took.append(try_once(scope, what, request.hear))
            except BaseException as error:  # noqa: BLE001 - handed to the thread that waits
                request.fail(error)

        request_workers = self._request_workers(workers, scope)
        request = StoreRequest(len(request_workers), scope, heard)
        _give(request_workers, task, request)
        return max(took, default=0.0)

    def request_worker(self, scope: CancelScope) -> UploadWorker[B]:
        """Return a free worker for a request that puts no object.

        Raises:
            CheckpointError: no thread is left.
        """
        return self._request_workers(1, scope)[0]

    def _request_workers(self, count: int, scope: CancelScope) -> list[UploadWorker[B]]:
        try:
            return self.request_pool.ready(count, 1, scope.left())
        except (RuntimeError, MemoryError) as error:
            raise CheckpointError(f"a save needs a thread: {error}") from error

    def aside(
        self, what: Callable[[], object], heard: Callable[[StoreError], None] = lambda error: None
    ) -> None:
        """Make a request that no save waits for, after those that were given before. It may fail, or be dropped.

        Args:
            heard: called if it fails transiently.
        """

        def task(_: B) -> None:
            try:
                what()
            except Exception as error:  # noqa: BLE001 - nothing depends on it
                if isinstance(error, StoreError) and error.transient:
                    heard(error)
                log.debug("a request beside a save: %s", error)

        try:
            (worker,) = self.aside_pool.workers or self.aside_pool.ready(1, 1)
        except (RuntimeError, MemoryError) as error:
            log.debug("a request beside a save: %s", error)
            return
        worker.give(task, lambda: None)

    def workers(self, objects: int, size: int, scope: CancelScope | None = None) -> list[UploadWorker[B]]:
        """Return as many workers as `objects` of at most `size` bytes keep busy.

        Raises:
            CheckpointError: no memory or no thread is left.
        """
        left = None if scope is None else scope.left()
        try:
            return self.pool.ready(max(1, min(self.width.count, objects)), size, left)
        except (RuntimeError, MemoryError) as error:
            raise CheckpointError(
                f"a save needs buffers of {size >> 20} MiB and threads: {error} [SG505]"
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

    # --- on a worker's thread ---

    def _keep_warm(self) -> None:
        if self.refusals is not None and self.refusals.refused:
            return
        try:
            self.store.warm(timeout=_WARMING)
            self._cold = ""
        except SpotguardError as error:
            # Log it once: every thread meets the same error every few seconds. The save itself reports it again.
            before, self._cold = self._cold, str(error)
            if not before:
                log.warning("the store cannot be reached, a save would fail now: %s [SG313]", error)

    def put_objects(
        self, work: Transfer, shift: Shift, fill: Fill[B], moved: Callable[[B], str], buffer: B
    ) -> None:
        """Put objects of a transfer, while there are any."""
        try:
            while work.current(shift):
                if doubted := work.doubted():
                    self._look_again(work, doubted)
                elif (index := work.next(shift)) is not None:
                    self._begin(work, shift, fill, moved, buffer, index)
                elif (flight := work.laggard(shift)) is not None:
                    self.send_again(work, shift, buffer, flight)
                elif not work.more():
                    return
        except BaseException as error:  # noqa: BLE001 - handed to the thread that waits; the others stop
            if work.current(shift):
                work.fail(error)

    def _look_again(self, work: Transfer, doubted: Mapping[int, StoredObject]) -> None:
        try:
            look_again(
                self.store,
                work,
                {index: self._key(index, each.at) for index, each in doubted.items()},
                self.refusals,
            )
        except BaseException:
            work.gave_up_looking()
            raise

    def _begin(
        self, work: Transfer, shift: Shift, fill: Fill[B], moved: Callable[[B], str], buffer: B, index: int
    ) -> None:
        planned = work.write_progress.write_plan.objects[index]
        crcs = fill(index, buffer)
        if why := moved(buffer):
            raise StateChanged(why)
        if not work.filled(index, crcs):
            raise StateChanged(f"object {index} was changed before spotguard could upload it a second time")
        data = buffer.view(0, planned.size)
        stored = StoredObject(crcs, work.place(index))
        if planned.tier is Tier.FROZEN:
            stored.digest = hashlib.sha256(data).digest()
            if (known := self._plans().as_before(index, stored)) is not None:
                work.spare(index, known)
                return
        flight = work.starts(index, data, _whole_crc(planned, crcs, data), stored, shift)
        self._put(work, flight, data)

    def send_again(self, work: Transfer, shift: Shift, buffer: B, flight: ObjectInFlight) -> None:
        """Send a lagging object a second time, from a copy."""
        copied = buffer.view(0, len(flight.data))
        copied[:] = flight.data
        # The first put may have arrived meanwhile, and its buffer may be in use again. Then the copy is useless.
        if crc32(copied) == flight.crc32:
            log.debug("object %d lags behind, spotguard sends it again", flight.index)
            self._put(work, flight.double(copied, work.scope.now(), shift), copied)

    def _key(self, index: int, at: CheckpointName) -> str:
        return checkpoint_prefix(self._run_id, at) + object_name(self._rank, self._world, index)

    def _put(self, work: Transfer, flight: ObjectInFlight, data: memoryview) -> None:
        key = self._key(flight.index, flight.stored.at)

        def put(left: float | None) -> None:
            work.again(flight)
            try:
                self.store.put(key, data, timeout=left, crc32=flight.crc32, sent=partial(work.sent, flight))
            finally:
                work.back(flight)

        try:
            retry(work.part, put, work.hear, self.refusals)
        except Superseded:
            work.dropped(flight)
            return
        work.done(flight)


def _give(workers: Sequence[UploadWorker[B]], task: Task[B], request: StoreRequest) -> None:
    """Have these workers run the task, and wait for them while the save may go on."""
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
