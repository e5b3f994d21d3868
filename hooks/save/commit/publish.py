"""The last two requests of a save: the manifest, with which it is whole, and the marker, which says so to listings.

For a job of one rank. `together` is for several.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ....providers.clock import Clock
from ....providers.errors import StoreError
from ...checkpoint.format.manifest import RankManifest
from ...checkpoint.marker import mark_alone, put_manifest, put_marker
from ..cancel_scope import Abandoned, CancelScope
from ..upload.buffers import B
from ..upload.uploader import Uploader
from .peer_manifests import AT_ONCE, PeerManifests

log = logging.getLogger("spotguard")

#: Seconds for a marker: it is a shortcut only.
MARKING = 2.0


def publish(uploads: Uploader[B], manifest: RankManifest, scope: CancelScope, clock: Clock) -> float:
    """Commit what `uploads` has put. Between the two requests the checkpoint is whole already: the marker is a shortcut.
    Returns the seconds of their answers: that the store was away before says nothing of the next commit.

    Raises:
        Abandoned: out of time, or called off.
        StoreError: the store failed.
    """
    store = uploads.store
    seconds = put_own(uploads, manifest, scope)
    created = clock.time()
    try:
        # It is asked for once, and not for long: what it is worth is one request less for each listing.
        seconds += uploads.ask(
            lambda left: mark_alone(store, manifest, created=created, timeout=left),
            scope.part(clock.monotonic() + MARKING),
            again=False,
        )
    except (Abandoned, StoreError) as error:
        log.warning("step %d is committed, and its marker is not there: %s", manifest.step, error)
    return seconds


def put_own(uploads: Uploader[B], manifest: RankManifest, scope: CancelScope) -> float:
    """This rank's manifest. Returns the seconds of the answer, and raises as `publish`."""
    store = uploads.store
    try:
        return uploads.ask(lambda left: put_manifest(store, manifest, timeout=left), scope)
    except Abandoned as error:
        raise Abandoned(
            f"{error}; its manifest was on the way: if it arrives, a restore takes step {manifest.step}"
        ) from error


# The commit of several ranks: each puts its manifest, and who sees that all are there marks it. No rank asks another.
#
# Who looks right after its own manifest and finds all others has come last, and merges them. Whoever was earlier waits for
# the marker, which costs a request, where each manifest has a million bytes in a large job: a merge for each of 128 ranks
# would be six gigabytes on links that are short of time. If the marker does not come though all manifests are there, the
# last one has died, and they do it themselves. Two that do so write the same.


#: Seconds between two looks: a part of what was waited so far, between these two.
_FIRST, _MOST, _PART = 0.05, 1.0, 0.1
#: Seconds that the one who came last has for its merge and the marker, and those for each rank that it merges: 128 ranks
#: take 2 s to check, and a fiftieth each to fetch.
_MERGE, _MERGE_EACH = 2.0, 0.05
#: Manifests for which a thread is worth having, with its connection, to fetch them beside others.
_FOR_EACH = 16
#: Seconds that a rank without a deadline waits for a manifest when nobody says that it is hopeless: longer than any share
#: takes that is written beside others of its size.
_PATIENCE = 900.0


#: Ranks that wait for one another before they merge for one that has died; and those that merge at once where time is short.
_TURNS, _HURRIED = 8, 8
#: Seconds before the deadline at which a full set that nobody has merged yet is taken for whole.
_LAST = 1.0


class IncompleteError(Abandoned):
    """This rank's part is in the store, another's is not, and it is waited for no longer.

    Args:
        missing: the ranks whose manifests were not seen.
    """

    def __init__(self, why: str, missing: Sequence[int]) -> None:
        super().__init__(why)
        self.missing = tuple(sorted(missing))


@dataclass(frozen=True, slots=True)
class Published:
    """A checkpoint that is whole."""

    #: Of the store's answers to what this rank had to ask, without the wait for others.
    seconds: float
    #: This rank has marked it: what is done once for all ranks, as the pruning that follows, is for it to do.
    marked: bool
    #: What each rank's manifest says of what it holds with others; of the one that has marked it.
    digests: Sequence[Mapping[str, int]] = ()


def publish_together(
    uploads: Uploader[B],
    manifest: RankManifest,
    scope: CancelScope,
    clock: Clock,
    hopeless: Callable[[int], str] = lambda rank: "",
) -> Published:
    """Commit what `uploads` has put, and see it whole: with the manifests of all other ranks.

    Args:
        hopeless: asked, on another thread, of each rank whose manifest is not there: nothing, or why it will never come.

    Raises:
        Incomplete: out of time, called off, or hopeless; says whose manifests were missing. Should they come after all, it
            is whole without us.
        Abandoned: the same, before this rank's own manifest was there.
        StoreError: the store failed.
        CheckpointError: all manifests are there, and do not make a whole.
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
    return Published(seconds, marked=False)


def _wait(uploads: Uploader[B], others: PeerManifests, scope: CancelScope) -> bool:
    """Until it is marked; True: until it is for this rank to do so, and all manifests are fetched."""
    began = scope.now()
    until = began + _PATIENCE
    complete: float | None = None
    while True:
        scope.pause(min(max(_FIRST, _PART * (scope.now() - began)), _MOST))
        uploads.ask(others.look, scope)
        now = scope.now()
        if others.marked:
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
        # Not all at once: each merge of a large job is hundreds of requests, and one is enough.
        turn = merge * (1 + min(others.mine.rank, _TURNS))
        hurry = left is not None and left < 2 * merge and others.mine.rank < _HURRIED
        if left is not None and left < _LAST and not hurry:
            return False  # all are there, so it counts; whether they tile, a restore sees
        if now - complete >= turn or hurry:
            _fetch(uploads, others, scope)
            if others.fetched:
                return True


def _fetch(uploads: Uploader[B], others: PeerManifests, scope: CancelScope) -> float:
    """Have the others' manifests, up to the first that is not there. Returns the seconds."""
    workers = min(uploads.store.parallel, -(-others.world // _FOR_EACH), AT_ONCE)
    others.begin()
    seconds = uploads.ask(others.fetch, scope, workers=workers)
    return seconds + uploads.ask(others.take, scope)


def _mark(
    uploads: Uploader[B], others: PeerManifests, scope: CancelScope, clock: Clock, seconds: float
) -> Published:
    """All manifests are here: see whether they are a whole, and say so to listings."""
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
        log.warning("step %d is committed, and its marker is not there: %s", step, error)
        return Published(seconds, marked=False)
    return Published(seconds, marked=True, digests=[each.digests for each in others.manifests])
