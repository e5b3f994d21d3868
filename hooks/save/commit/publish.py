"""The last two requests of a save: the manifest, which completes the checkpoint, and the marker, which tells listings so.

`publish` commits for a job of one rank, `publish_together` for a job of several.

In a job of several ranks each rank puts its manifest. A rank that sees all manifests merges them and marks the checkpoint. No
rank asks another. The last rank checks right after its own manifest, finds all others, and merges them. An earlier rank waits
for the marker, which costs one small request. A manifest of a large job has a million bytes: a merge by each of 128 ranks
would be six gigabytes on links that are short of time. If the marker does not come although all manifests are there, the last
rank has died. Then the waiting ranks merge and mark themselves. Two ranks that do so write the same marker.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ....providers.clock import Clock
from ....providers.errors import CheckpointError, StoreError
from ...checkpoint.format.manifest import RankManifest, suspicion
from ...checkpoint.marker import mark_alone, put_index, put_manifest, put_marker
from ..cancel_scope import Abandoned, CancelScope
from ..upload.uploader import Uploader
from ..upload.workers import B
from .peer_manifests import PeerManifests

log = logging.getLogger("spotguard")

#: Seconds for a marker: it is only a shortcut.
MARKING = 2.0


def publish(uploads: Uploader[B], manifest: RankManifest, scope: CancelScope, clock: Clock) -> float:
    """Commit the objects that `uploads` has put, in a job of one rank.

    Between the two requests the checkpoint is complete already: the marker is a shortcut.

    Returns:
        Seconds of the two answers. An outage before them is not counted: it tells nothing of the next commit.

    Raises:
        Abandoned: the save is out of time, or was called off.
        StoreError: the store failed.
    """
    store = uploads.store
    seconds = put_own(uploads, manifest, scope)
    created = clock.time()
    try:
        # Try the marker once, and not for long: it only saves one request for each listing.
        seconds += uploads.ask(
            lambda left: mark_alone(store, manifest, created=created, timeout=left),
            scope.part(clock.monotonic() + MARKING),
            again=False,
        )
    except (Abandoned, StoreError) as error:
        log.debug("step %d is committed, but its marker could not be uploaded: %s", manifest.step, error)
    return seconds


def put_own(uploads: Uploader[B], manifest: RankManifest, scope: CancelScope) -> float:
    """Put this rank's manifest. Return the seconds of the answer.

    Raises:
        Abandoned: the save is out of time, or was called off. The manifest may still arrive.
        StoreError: the store failed.
    """
    store = uploads.store
    try:
        return uploads.ask(lambda left: put_manifest(store, manifest, timeout=left), scope)
    except Abandoned as error:
        raise Abandoned(
            f"{error}; its manifest was being uploaded: if it arrives, a restore uses step {manifest.step}"
        ) from error


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
#: Ranks that take turns to merge for a rank that has died; and ranks that merge at once if time is short.
_TURNS, _HURRIED = 8, 8
#: Seconds before the deadline from which a full set of manifests counts as complete without a merge.
_LAST = 1.0


#: Seconds for the index: 20 MB of 1,024 ranks take 2 s on a link of 100 Mbit/s.
_INDEXING = 10.0
#: Share of the time to the deadline that the index may take: the save is committed without it.
_INDEX_SHARE = 0.25


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
    uploads: Uploader[B],
    manifest: RankManifest,
    scope: CancelScope,
    clock: Clock,
    hopeless: Callable[[int], str] = lambda rank: "",
) -> Published:
    """Commit the objects that `uploads` has put, and wait until the manifests of all other ranks complete the checkpoint.

    Args:
        hopeless: called on another thread with a rank whose manifest is missing. It returns "", or why the manifest will
            never come.

    Raises:
        IncompleteError: the save is out of time, was called off, or is hopeless. The error names the ranks whose manifests are
            missing. If these come after all, the checkpoint is complete without this rank's doing.
        Abandoned: the save ended in this way before this rank's own manifest was in the store.
        StoreError: the store failed.
        CheckpointError: all manifests are there, and do not make a complete checkpoint.
    """
    seconds = put_own(uploads, manifest, scope)
    others = PeerManifests(uploads.store, manifest, hopeless)
    try:
        seconds += _fetch(uploads, others, scope)
        if others.fetched or _wait(uploads, others, scope):
            return _mark(uploads, others, scope, clock, seconds)
    except IncompleteError:
        raise
    except Abandoned as why:
        raise IncompleteError(f"{why}; {others.whose()}", others.missing) from why
    return Published(seconds, marked=False, suspect=None if others.marker is None else others.marker.suspect)


def _wait(uploads: Uploader[B], others: PeerManifests, scope: CancelScope) -> bool:
    """Wait until the checkpoint is complete. Return True if all manifests are fetched and this rank must mark it."""
    began = scope.now()
    until = began + _PATIENCE
    complete: float | None = None
    while True:
        scope.pause(min(max(_FIRST, _PART * (scope.now() - began)), _MOST))
        uploads.ask(others.look, scope)
        now = scope.now()
        if others.marker is not None:
            return False
        if others.lost:
            raise IncompleteError(f"{others.lost}; {others.whose()}", others.missing)
        if scope.left() is None and now >= until:
            raise IncompleteError(f"waited for {_PATIENCE:.0f} s; {others.whose()}", others.missing)
        if others.missing:
            complete = None
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
            _fetch(uploads, others, scope)
            if others.fetched:
                return True


def _fetch(uploads: Uploader[B], others: PeerManifests, scope: CancelScope) -> float:
    """Fetch and read the others' manifests, up to the first that is missing. Return the seconds of the answers."""
    workers = min(uploads.store.parallel, -(-others.world // _FOR_EACH), _FETCHERS)
    seconds = 0.0
    while True:
        if listed := others.begin():
            seconds += uploads.ask(others.fetch, scope, workers=workers)
        seconds += uploads.ask(others.take, scope)
        if others.fetched or not listed or not others.has_read(listed):
            return seconds


def _mark(
    uploads: Uploader[B], others: PeerManifests, scope: CancelScope, clock: Clock, seconds: float
) -> Published:
    """Check that the fetched manifests make a complete checkpoint, and put the marker.

    Raises:
        CheckpointError: they do not.
    """
    store, created = uploads.store, clock.time()
    seconds += uploads.ask(others.check, scope)
    marking = scope.part(clock.monotonic() + MARKING)
    try:
        seconds += uploads.ask(
            lambda left: put_marker(store, others.manifests, created=created, timeout=left),
            marking,
            again=False,
        )
    except (Abandoned, StoreError) as error:
        step = others.mine.step
        log.debug("step %d is committed, but its marker could not be uploaded: %s", step, error)
        return Published(seconds, marked=False, suspect=suspicion(others.manifests))
    _put_index(uploads, others, scope)
    digests = [each.digests for each in others.manifests]
    return Published(seconds, marked=True, digests=digests, suspect=suspicion(others.manifests))


def _put_index(uploads: Uploader[B], others: PeerManifests, scope: CancelScope) -> None:
    """Put the index of a large job's checkpoint. It is a shortcut: nothing waits for it for long, and it may fail."""
    if (index := others.index) is None:
        return
    store, name, left = uploads.store, others.mine.checkpoint, scope.left()
    try:
        uploads.ask(
            lambda left: put_index(store, others.mine.run_id, name, index, timeout=left),
            scope.part(scope.now() + min(_INDEXING, _INDEX_SHARE * (math.inf if left is None else left))),
            again=False,
        )
    except (Abandoned, StoreError, CheckpointError) as error:
        log.debug("step %d has no index: a restore reads its manifests one by one: %s", name.step, error)
