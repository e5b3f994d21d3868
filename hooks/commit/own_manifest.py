"""This rank's manifest in the queue of its save, and what goes before and behind it: a claim, absent ranks' manifests, the marker.

The manifest completes the checkpoint. The marker is a shortcut, which tells listings so. `publish` commits for a job of one rank.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial

from ...providers.clock import Clock
from ...providers.errors import StoreError
from ...providers.stores.base import BlobStore
from ..checkpoint.format.manifest import RankManifest
from ..checkpoint.marker import encoded_manifest, proven_alone
from ..checkpoint.tier import Tier
from .cancel_scope import Abandoned, CancelScope
from .upload.save_queue import EntryState, Put, QueueEntry, SaveQueue
from .upload.workers import B

log = logging.getLogger("spotguard")

#: Seconds for a marker: it is only a shortcut.
MARKING = 2.0


def put_of(store: BlobStore, encoded: Callable[[], tuple[str, bytes]]) -> Put:
    """Return the put of these bytes under this key. They are encoded once, on the thread that puts them."""
    once = cache(encoded)

    def put(left: float | None) -> None:
        key, data = once()
        store.put(key, memoryview(data), timeout=left)

    return put


@dataclass(slots=True, eq=False)
class OwnManifest:
    """This rank's manifest of one checkpoint, in the queue of its save. It is made once, when its turn comes."""

    #: Makes it, when all its objects are in the store.
    make: Callable[[], RankManifest]
    #: The objects that it names.
    tiers: Sequence[Tier] = ()
    #: The ranks whose manifests this rank puts too.
    absent: Sequence[int] = ()
    entry: QueueEntry = None  # type: ignore[assignment]  # made with it
    _made: RankManifest | None = None

    @property
    def manifest(self) -> RankManifest:
        if self._made is None:
            self._made = self.make()
        return self._made

    def retry(self, tolerated: tuple[type[Exception], ...] = ()) -> None:
        """Have what failed tried once more, without a limit."""
        for entry in [*self.entry.after, self.entry]:
            entry.limit, entry.tolerated = None, tolerated
            if entry.state is EntryState.SENDING and entry.scope is not None:
                entry.scope.abandon("it is sent again")  # it may hang
            if entry.state in (EntryState.FAILED, EntryState.SENDING):
                entry.hold_up()

    def dismiss(self) -> None:
        """Do without it: it is not put any more, and its failure does not count."""
        for entry in [*self.entry.after, self.entry]:
            entry.tolerated = (Exception,)
            if not entry.stored:
                entry.fail(why := Abandoned("the save does without it"))
                if entry.scope is not None:
                    entry.scope.abandon(str(why))


def queue_manifest(
    queue: SaveQueue[B],
    make: Callable[[], RankManifest],
    tiers: Sequence[Tier] = (),
    *,
    claim: Callable[[RankManifest], Put] | None = None,
    absent: Callable[[RankManifest, int], RankManifest] = lambda manifest, rank: manifest,
    ranks: Sequence[int] = (),
    limit: float | None = None,
    tolerated: tuple[type[Exception], ...] = (),
) -> OwnManifest:
    """Queue this rank's manifest, and before it what it waits for.

    Args:
        make: makes the manifest, once all objects of `tiers` are in the store.
        claim: returns the request that claims its step, if this rank speaks for absent ranks.
        absent: returns the manifest of an absent rank.
        ranks: the absent ranks.
        limit: seconds for each request.
        tolerated: errors of the requests that the save does without.
    """
    own, store = OwnManifest(make, tiers, ranks), queue.store
    before: list[QueueEntry] = []

    def entry(what: str, put: Callable[[], Put]) -> QueueEntry:
        return queue.add(QueueEntry(what, put, tiers, tuple(before), limit=limit, tolerated=tolerated))

    if claim is not None:
        before.append(entry("claim", lambda: claim(own.manifest)))
    for rank in ranks:
        theirs = partial(
            lambda rank: put_of(store, partial(encoded_manifest, absent(own.manifest, rank))), rank
        )
        before.append(entry(f"manifest of rank {rank}", theirs))
    own.entry = entry("manifest", lambda: put_of(store, partial(encoded_manifest, own.manifest)))
    return own


def publish(queue: SaveQueue[B], own: OwnManifest, scope: CancelScope, clock: Clock) -> float:
    """Commit the objects of a queue, in a job of one rank.

    Between the two requests the checkpoint is complete already: the marker is a shortcut. It is tried once, and not for long.

    Returns:
        Seconds of the two answers. An outage before them is not counted: it tells nothing of the next commit.

    Raises:
        Abandoned: the save is out of time, or was called off.
        StoreError: the store failed.
        CheckpointError: the manifest is no complete checkpoint.
    """
    marker = queue_own_marker(queue, own, clock)
    why: Abandoned | None = None
    try:
        queue.settle(scope.deadline, marker)
    except Abandoned as error:
        if not (own.entry.stored and queue.write_progress.has(own.tiers)):
            raise arrives(error, own) from error
        why = error
    if not marker.stored:
        log.debug(
            "step %d is committed, but its marker could not be uploaded: %s",
            own.manifest.step,
            marker.error or why,
        )
    return own.entry.seconds + marker.seconds


def queue_marker(
    queue: SaveQueue[B],
    after: QueueEntry,
    encoded: Callable[[], tuple[str, bytes]],
    tolerated: tuple[type[Exception], ...] = (Abandoned, StoreError),
) -> QueueEntry:
    return queue.add(
        QueueEntry(
            "marker",
            lambda: put_of(queue.store, encoded),
            after=(after,),
            limit=MARKING,
            tolerated=tolerated,
            again=False,
        )
    )


def queue_own_marker(
    queue: SaveQueue[B],
    own: OwnManifest,
    clock: Clock,
    tolerated: tuple[type[Exception], ...] = (Abandoned, StoreError),
) -> QueueEntry:
    """Queue the marker of a manifest that is a checkpoint by itself, in a job of one rank."""
    return queue_marker(queue, own.entry, lambda: proven_alone(own.manifest, clock.time()), tolerated)


def arrives(error: Abandoned, own: OwnManifest) -> Abandoned:
    """Return the error of a save that ended while its manifest was on its way."""
    if own.entry.begun is None:
        return error
    return Abandoned(
        f"{error}; its manifest was being uploaded: if it arrives, a restore uses step {own.manifest.step}"
    )
