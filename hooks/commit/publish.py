"""The commit of a checkpoint by several ranks.

Each rank puts its manifest. A rank that sees all manifests merges them and marks the checkpoint. No rank asks another. The last
rank checks right after its own manifest, finds all others, and merges them. An earlier rank waits
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
from dataclasses import dataclass, replace
from functools import partial

from ...providers.clock import Clock
from ...providers.errors import CheckpointError, StoreError, UnavailableError
from ..checkpoint.format.manifest import left_out_of, suspicion
from ..checkpoint.marker import encoded_index, encoded_marker
from .cancel_scope import Abandoned, CancelScope
from .own_manifest import OwnManifest, arrives, put_of, queue_marker
from .peer_manifests import PeerManifests
from .upload.save_queue import QueueEntry, SaveQueue
from .upload.workers import B

log = logging.getLogger("spotguard")

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
    #: Why some rank's losses make it suspect; "" if none do.
    suspect: str = ""
    #: The path and the type of each value that a rank has left out.
    left_out: tuple[str, ...] = ()


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
    marker = others.marker
    assert marker is not None
    return Published(seconds, marked=False, suspect=marker.suspect, left_out=marker.left_out)


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
    published = Published(
        seconds, marked=False, suspect=suspicion(others.manifests), left_out=left_out_of(others.manifests)
    )
    while True:
        met = queue.write_progress.failures
        seconds += _look_at_all(queue, own, others, scope)
        if marks == _MARKS:
            return published
        marks += 1
        marker = queue_marker(queue, own.entry, lambda: encoded_marker(others.manifests, created))
        last = marker if others.index is None else queue.add(_index_entry(queue, others, marker))
        queue.settle(scope.deadline, last)
        if queue.write_progress.failures == met:
            break
    if not marker.stored:
        log.debug("step %d is committed, but its marker could not be uploaded: %s", step, marker.error)
        return published
    if not last.stored:
        log.debug("step %d has no index: a restore reads its manifests one by one: %s", step, last.error)
    seconds += marker.seconds
    digests = [each.digests for each in others.manifests]
    return replace(published, seconds=seconds, marked=True, digests=digests)


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
