"""The last entries of a save: the manifest, which completes the checkpoint, and the marker, which tells listings so.

`publish` commits for a job of one rank, `publish_together` for a job of several.

In a job of several ranks each rank puts its manifest. A rank that sees all manifests merges them and marks the checkpoint. No
rank asks another. The last rank checks right after its own manifest, finds all others, and merges them. An earlier rank waits
for the marker, which costs one small request. A manifest of a large job has a million bytes: a merge by each of 128 ranks
would be six gigabytes on links that are short of time. If the marker does not come although all manifests are there, the last
rank has died, or does not trust the store. Then the waiting ranks merge and mark themselves. Two ranks that do so write the same
marker.

A store that has failed may have lost what other ranks put, and they need not have met the failure. So the rank that marks lists the
checkpoint first, and looks whether every object of every rank is there. A rank that misses its own puts them again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial

from ....providers.clock import Clock
from ....providers.errors import CheckpointError, StoreError, UnavailableError
from ....providers.stores.base import BlobStore
from ...checkpoint.format.manifest import RankManifest, suspicion
from ...checkpoint.marker import encoded_index, encoded_manifest, encoded_marker, proven_alone
from ...state.state_tensor import Tier
from ..cancel_scope import Abandoned, CancelScope
from ..upload.queue_entry import EntryState, Put, QueueEntry
from ..upload.save_queue import SaveQueue
from ..upload.workers import B
from .peer_manifests import PeerManifests

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
                entry.state, entry.error = EntryState.WAITING, None

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
    if own.entry.state is EntryState.WAITING:
        return error
    return Abandoned(
        f"{error}; its manifest was being uploaded: if it arrives, a restore uses step {own.manifest.step}"
    )


# --- several ranks ---

#: Seconds between two polls for manifests: the share `_PART` of the wait so far, at least `_FIRST` and at most `_MOST`.
_FIRST, _MOST, _PART = 0.05, 1.0, 0.1
#: Seconds that the last rank has for its merge and the marker, and more seconds for each rank that it merges: 128 ranks
#: take 2 s to check, and a fiftieth of a second each to fetch.
_MERGE, _MERGE_EACH = 2.0, 0.05
#: Number of manifests that justify one more thread with its connection to fetch them.
_FOR_EACH = 8
#: The most of these threads. 1,024 manifests in 30 ms each then take 2 s.
_FETCHERS = 16
#: Seconds that a rank without a deadline waits for a manifest that is not hopeless: longer than the upload of any share
#: takes beside other shares of its size.
_PATIENCE = 900.0
#: Seconds between two looks of a rank that waits for manifests whether its own is still there.
_OWN = 5.0
#: Ranks that take turns to merge for a rank that has died; and ranks that merge at once if time is short.
_TURNS, _HURRIED = 8, 8
#: Seconds before the deadline from which a full set of manifests counts as complete without a merge.
_LAST = 1.0
#: Seconds for the index: 20 MB of 1,024 ranks take 2 s on a link of 100 Mbit/s.
_INDEXING = 10.0
#: Tries of a marker: a failure at the marker puts in doubt what it marks.
_MARKS = 2


class IncompleteError(Abandoned):
    """This rank's part is in the store, another rank's part is not, and the wait for it is over.

    Args:
        missing: the ranks whose manifests were not seen.
    """

    def __init__(self, why: str, missing: Sequence[int]) -> None:
        super().__init__(why)
        self.missing = tuple(sorted(missing))


@dataclass(frozen=True, slots=True)
class Published:
    """A complete checkpoint, as this rank has seen it."""

    #: Seconds of the store's answers to this rank's requests, without the wait for other ranks.
    seconds: float
    #: This rank has marked the checkpoint. So it does the work that is done once for all ranks, such as the pruning.
    marked: bool
    #: The digests of replicated tensors in each rank's manifest; () on a rank that has not marked the checkpoint.
    digests: Sequence[Mapping[str, int]] = ()
    #: Why some rank's losses make it suspect, "" if none do; None if this rank has seen neither all manifests nor the marker.
    suspect: str | None = None


def publish_together(
    queue: SaveQueue[B],
    own: OwnManifest,
    scope: CancelScope,
    clock: Clock,
    hopeless: Callable[[int], str] = lambda rank: "",
) -> Published:
    """Commit the objects of a queue, and wait until the manifests of all other ranks complete the checkpoint.

    Args:
        scope: a part of the queue's scope, or all of it.
        hopeless: called on another thread with a rank whose manifest is missing. It returns "", or why the manifest will
            never come.

    Raises:
        IncompleteError: the save is out of time, was called off, or is hopeless. The error names the ranks whose manifests are
            missing. If these come after all, the checkpoint is complete without this rank's doing.
        Abandoned: the save ended in this way before this rank's own manifest was in the store.
        StoreError: the store failed.
        CheckpointError: all manifests are there, and do not make a complete checkpoint.
    """
    try:
        queue.settle(scope.deadline, own.entry)
    except Abandoned as error:
        raise arrives(error, own) from error
    others = PeerManifests(queue.store, own.manifest, hopeless)
    try:
        seconds = own.entry.seconds + _fetch(queue, others, scope)
        if others.fetched or _wait(queue, others, scope):
            return _mark(queue, own, others, scope, clock, seconds)
    except IncompleteError:
        raise
    except Abandoned as why:
        raise IncompleteError(f"{why}; {others.whose()}", others.missing) from why
    return Published(seconds, marked=False, suspect=None if others.marker is None else others.marker.suspect)


def _wait(queue: SaveQueue[B], others: PeerManifests, scope: CancelScope) -> bool:
    """Wait until the checkpoint is complete. Return True if all manifests are fetched and this rank must mark it."""
    began = scope.now()
    until, look_at_own = began + _PATIENCE, began + _OWN
    complete: float | None = None
    while True:
        scope.pause(min(max(_FIRST, _PART * (scope.now() - began)), _MOST))
        queue.ask(others.look, scope)
        now = scope.now()
        if others.marker is not None:
            return False
        if others.lost:
            raise IncompleteError(f"{others.lost}; {others.whose()}", others.missing)
        if scope.left() is None and now >= until:
            raise IncompleteError(f"waited for {_PATIENCE:.0f} s; {others.whose()}", others.missing)
        if others.missing:
            complete = None
            if now >= look_at_own:
                # The store may have lost this rank's part without a failure that this rank met; the others wait for it.
                look_at_own = now + _OWN
                queue.ask(others.look_at_own, scope)
                if others.own_is_lost:
                    queue.hear(UnavailableError("its manifest is not in the store any more"))
                    queue.settle(scope.deadline)
            continue
        complete = now if complete is None else complete
        merge = _MERGE + _MERGE_EACH * others.world
        left = scope.left()
        # The ranks take turns: each merge of a large job is hundreds of requests, and one merge is enough.
        turn = merge * (1 + min(others.mine.rank, _TURNS))
        hurry = left is not None and left < 2 * merge and others.mine.rank < _HURRIED
        if left is not None and left < _LAST and not hurry:
            return False  # all manifests are there, so it counts; a restore checks whether they tile
        if now - complete >= turn or hurry:
            _fetch(queue, others, scope)
            if others.fetched:
                return True


def _fetch(queue: SaveQueue[B], others: PeerManifests, scope: CancelScope) -> float:
    """Fetch and read the others' manifests, up to the first that is missing. Return the seconds of the answers."""
    workers = min(queue.store.parallel, -(-others.world // _FOR_EACH), _FETCHERS)
    seconds = 0.0
    while True:
        if listed := others.begin():
            seconds += queue.ask(others.fetch, scope, workers=workers)
        seconds += queue.ask(others.take, scope)
        if others.fetched or not listed or not others.has_read(listed):
            return seconds


def _mark(
    queue: SaveQueue[B],
    own: OwnManifest,
    others: PeerManifests,
    scope: CancelScope,
    clock: Clock,
    seconds: float,
) -> Published:
    """Check that the fetched manifests make a complete checkpoint that is there, and put the marker and the index.

    Raises:
        CheckpointError: they do not.
        IncompleteError: the store has lost objects that they name.
    """
    seconds += queue.ask(others.check, scope)
    created, step, marks = clock.time(), others.mine.step, 0
    published = Published(seconds, marked=False, suspect=suspicion(others.manifests))
    while True:
        met = queue.failures
        seconds += _look_at_all(queue, own, others, scope)
        if marks == _MARKS:
            return published
        marks += 1
        marker = queue_marker(queue, own.entry, lambda: encoded_marker(others.manifests, created))
        last = marker if others.index is None else queue.add(_index_entry(queue, others, marker))
        queue.settle(scope.deadline, last)
        if queue.failures == met:
            break
    if not marker.stored:
        log.debug("step %d is committed, but its marker could not be uploaded: %s", step, marker.error)
        return published
    if not last.stored:
        log.debug("step %d has no index: a restore reads its manifests one by one: %s", step, last.error)
    seconds += marker.seconds
    digests = [each.digests for each in others.manifests]
    return Published(seconds, marked=True, digests=digests, suspect=published.suspect)


def _index_entry(queue: SaveQueue[B], others: PeerManifests, marker: QueueEntry) -> QueueEntry:
    """Return the entry of a large job's index. It is a shortcut: nothing waits for it for long, and it may fail."""
    mine, index = others.mine, others.index
    assert index is not None
    return QueueEntry(
        "index",
        lambda: put_of(queue.store, partial(encoded_index, mine.run_id, mine.checkpoint, index)),
        after=(marker,),
        limit=_INDEXING,
        tolerated=(Abandoned, StoreError, CheckpointError),
        again=False,
    )


def _look_at_all(queue: SaveQueue[B], own: OwnManifest, others: PeerManifests, scope: CancelScope) -> float:
    """Wait until every object and manifest of the checkpoint is in the store. This rank puts its own again.

    Returns:
        Seconds of the last answer.

    Raises:
        IncompleteError: another rank does not, and the time is over.
    """
    until, lost = scope.now() + _PATIENCE, dict[int, str]()

    def look(left: float | None) -> None:
        lost.clear()
        lost.update(others.lost_objects(left))

    try:
        while True:
            seconds = queue.ask(look, scope)
            if not lost:
                return seconds
            key = min(lost.items())[1]
            if mine := [rank for rank in lost if rank == others.mine.rank or rank in own.absent]:
                queue.hear(UnavailableError(f"{lost[mine[0]]} is not in the store any more"))
                queue.settle(scope.deadline)
            elif why := others.over(lost):
                raise Abandoned(why)
            if scope.left() is None and scope.now() >= until:
                raise Abandoned(f"waited for {_PATIENCE:.0f} s")
            scope.pause(_MOST)
    except Abandoned as why:
        if not lost:
            raise
        raise IncompleteError(
            f"{why}; the store has lost objects of rank{'' if len(lost) == 1 else 's'} "
            f"{', '.join(map(str, sorted(lost)))}: {key} is the first",
            list(lost),
        ) from why
