"""The commit of several ranks: each puts its manifest, and who sees that all are there marks it. No rank asks another.

Who looks right after its own manifest and finds all others has come last, and merges them. Whoever was earlier waits for
the marker, which costs a request, where each manifest has a million bytes in a large job: a merge for each of 128 ranks
would be six gigabytes on links that are short of time. If the marker does not come though all manifests are there, the
last one has died, and they do it themselves. Two that do so write the same.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from ...providers.clock import Clock
from ...providers.errors import CheckpointError, NotFoundError, StoreError
from ...providers.stores.store import BlobStore
from ..format.codec import decode_marker, open_manifest
from ..format.keys import MARKER, checkpoint_prefix, manifest_name
from ..format.manifest import RankManifest
from ..format.merging import Merging
from .commit import put_marker
from .effort import Abandoned, Effort
from .publish import MARKING, put_own
from .writer import Writer

log = logging.getLogger("spotguard")

#: Seconds between two looks: doubled each time up to the second number.
_FIRST, _MOST = 0.05, 1.0
#: Seconds that the one who came last has for its merge and the marker, and those for each rank that it merges: 128 ranks
#: take 2 s to check, and a fiftieth each to fetch.
_MERGE, _MERGE_EACH = 2.0, 0.05
#: Ranks whose manifests are asked for in one look, each for a byte of it; and how many of them an error names.
_AT_ONCE, _NAMED = 8, 8
#: Seconds that a rank without a deadline waits for a manifest when nobody says that it is hopeless: longer than any share
#: takes that is written beside others of its size.
_PATIENCE = 900.0


class Incomplete(Abandoned):
    """This rank's part is in the store, another's is not, and it is waited for no longer."""


@dataclass(frozen=True, slots=True)
class Published:
    """A checkpoint that is whole."""

    #: Of the store's answers to what this rank had to ask, without the wait for others.
    seconds: float
    #: This rank has marked it: what is done once for all ranks, as the pruning that follows, is for it to do.
    marked: bool


def publish_together(
    writer: Writer,
    manifest: RankManifest,
    effort: Effort,
    clock: Clock,
    hopeless: Callable[[int], str] = lambda rank: "",
) -> Published:
    """Commit what `writer` has put, and see it whole: with the manifests of all other ranks.

    Args:
        hopeless: asked, on another thread, of each rank whose manifest is not there: nothing, or why it will never come.

    Raises:
        Incomplete: out of time, called off, or hopeless; says whose manifests were missing. Should they come after all, it
            is whole without us.
        Abandoned: the same, before this rank's own manifest was there.
        StoreError: the store failed.
        CheckpointError: all manifests are there, and do not make a whole.
    """
    seconds = put_own(writer, manifest, effort)
    others = _Others(writer.store, manifest, hopeless)
    try:
        seconds += writer.ask(others.fetch, effort)
        if others.fetched or _wait(writer, others, effort):
            return _mark(writer, others, effort, clock, seconds)
    except Incomplete:
        raise
    except Abandoned as why:
        raise Incomplete(f"{why}; {others.whose()}") from why
    return Published(seconds, marked=False)


def _wait(writer: Writer, others: _Others, effort: Effort) -> bool:
    """Until it is marked; True: until it is for this rank to do so, and all manifests are fetched."""
    pause, until = _FIRST, effort.now() + _PATIENCE
    complete: float | None = None
    while True:
        effort.pause(pause)
        pause = min(2 * pause, _MOST)
        writer.ask(others.look, effort)
        now = effort.now()
        if others.marked:
            return False
        if others.lost:
            raise Incomplete(f"{others.lost}; {others.whose()}")
        if effort.left() is None and now >= until:
            raise Incomplete(f"waited for {_PATIENCE:.0f} s; {others.whose()}")
        if others.missing:
            complete = None
            continue
        complete = now if complete is None else complete
        merge = _MERGE + _MERGE_EACH * others.world
        left = effort.left()
        if now - complete >= merge or (left is not None and left < 2 * merge):
            writer.ask(others.fetch, effort)
            if others.fetched:
                return True


def _mark(writer: Writer, others: _Others, effort: Effort, clock: Clock, seconds: float) -> Published:
    """All manifests are here: see whether they are a whole, and say so to listings."""
    store, created = writer.store, clock.time()
    seconds += writer.ask(lambda left: others.merge(), effort)
    marking = effort.part(clock.monotonic() + MARKING)
    try:
        seconds += writer.ask(
            lambda left: put_marker(store, others.manifests, created=created, timeout=left),
            marking,
            again=False,
        )
    except (Abandoned, StoreError) as error:
        step = others.mine.step
        log.warning("step %d is committed, and its marker is not there: %s", step, error)
        return Published(seconds, marked=False)
    return Published(seconds, marked=True)


@dataclass(slots=True)
class _Others:
    """What this rank has seen of the others' manifests. Its methods are called one at a time, on the writer's thread."""

    store: BlobStore
    mine: RankManifest
    hopeless: Callable[[int], str]
    #: It is whole, and says so.
    marked: bool = False
    #: What was said of a rank that is not there.
    lost: str = ""
    #: Ranks whose manifests are not in the store, as far as was seen: the next to be looked at first.
    missing: list[int] = field(init=False)
    _merging: Merging = field(default_factory=Merging)
    #: Ranks in whose place another start's manifest was.
    _strange: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.missing = [rank for rank in range(self.world) if rank != self.mine.rank]

    @property
    def world(self) -> int:
        return self.mine.world

    @property
    def fetched(self) -> bool:
        return len(self._merging.manifests) == self.world

    @property
    def manifests(self) -> list[RankManifest]:
        """Without their tensors."""
        return [*self._merging.manifests.values()]

    def whose(self) -> str:
        """Who is missing, for a person."""
        if not self.missing:
            return f"the manifests of all {self.world} ranks are there: a restore takes step {self.mine.step}"
        few = sorted(self.missing)[:_NAMED]
        ranks = ", ".join(map(str, few)) + (", …" if len(self.missing) > _NAMED else "")
        one = len(self.missing) == 1
        return f"rank{'' if one else 's'} {ranks} of {self.world} {'has' if one else 'have'} put no manifest"

    def fetch(self, left: float | None) -> None:
        """Have the others' manifests, up to the first that is not there."""
        for rank in range(self.world):
            if rank in self._merging.manifests:
                continue
            if rank == self.mine.rank:
                self._merging.add(self.mine, self.mine.tensors)
                continue
            there = self._take(rank, left)
            self._forget(rank)
            if not there:
                self.missing.append(rank)
                return

    def look(self, left: float | None) -> None:
        """Whether it is marked, and of the next few that were missing, who is there by now."""
        if self._is_marked(left):
            self.marked = True
            return
        for rank in self.missing[:_AT_ONCE]:
            there = self._take(rank, left) if rank in self._strange else self._is_there(rank, left)
            self._forget(rank)
            if there:
                continue
            self.missing.append(rank)  # behind those that were not looked at
            if why := self.hopeless(rank):
                self.lost = f"rank {rank} of {self.world} will put no manifest: {why}"
                return

    def merge(self) -> None:
        """Raises CheckpointError where they are no whole."""
        self._merging.check()

    def _take(self, rank: int, left: float | None) -> bool:
        key = self._key(rank)
        try:
            found, tensors = open_manifest(self.store.get(key, timeout=left), key)
        except NotFoundError:
            return False  # still writing; it will look in its turn
        if found.incarnation != self.mine.incarnation:
            self._strange.add(
                rank
            )  # of another start of the job that was given the same number: no part of ours
            return False
        self._merging.add(found, tensors)
        return True

    def _is_marked(self, left: float | None) -> bool:
        key = checkpoint_prefix(self.mine.run_id, self.mine.checkpoint) + MARKER
        try:
            decode_marker(self.store.get(key, timeout=left), key)
        except (
            NotFoundError,
            CheckpointError,
        ):  # one that cannot be read is written anew, with the same bytes
            return False
        return True

    def _is_there(self, rank: int, left: float | None) -> bool:
        """For one byte of it."""
        try:
            self.store.read_into(self._key(rank), 0, memoryview(bytearray(1)), timeout=left)
        except NotFoundError:
            return False
        return True

    def _forget(self, rank: int) -> None:
        if rank in self.missing:
            self.missing.remove(rank)

    def _key(self, rank: int) -> str:
        return checkpoint_prefix(self.mine.run_id, self.mine.checkpoint) + manifest_name(rank, self.world)
