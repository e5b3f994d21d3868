"""What one rank sees of the others' manifests in the store: whose are there, what they say together, and that it is marked.

Each look is a few requests, whatever the number of ranks; what a manifest says is read only by the one who merges them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from ....providers.errors import NotFoundError, StoreError
from ....providers.stores.base import BlobStore
from ...checkpoint.format.codec import open_manifest
from ...checkpoint.format.keys import checkpoint_prefix, manifest_name
from ...checkpoint.format.manifest import RankManifest
from ...checkpoint.format.merging import StreamingCoverage
from ...checkpoint.marker import is_marked

#: Ranks whose manifests are asked for in one look, each for a byte of it; and how many of them an error names.
AT_ONCE, _NAMED = 8, 8


@dataclass(slots=True)
class PeerManifests:
    """What this rank has seen of the others' manifests. Its methods are called one at a time, on the writer's threads, but
    for `fetch`."""

    store: BlobStore
    mine: RankManifest
    hopeless: Callable[[int], str]
    #: It is whole, and says so.
    marked: bool = False
    #: What was said of a rank that is not there.
    lost: str = ""
    #: Ranks whose manifests are not in the store, as far as was seen: the next to be looked at first.
    missing: list[int] = field(init=False)
    _merging: StreamingCoverage = field(default_factory=StreamingCoverage)
    #: To be fetched, and what was.
    _next: deque[int] = field(default_factory=deque)
    _data: dict[int, bytes] = field(default_factory=dict)
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

    def begin(self) -> None:
        """Before `fetch`."""
        held = self._merging.manifests
        self._next = deque(
            rank
            for rank in range(self.world)
            if rank not in held and rank not in self._data and rank != self.mine.rank
        )

    def fetch(self, left: float | None) -> None:
        """Have the bytes of others' manifests, up to one that is not there. Several threads may do this at once."""
        while True:
            try:
                rank = self._next.popleft()
            except IndexError:
                return
            try:
                self._data[rank] = self.store.get(self._key(rank), timeout=left)
            except NotFoundError:
                self._next.clear()  # still writing; it will look in its turn
            except StoreError:
                self._next.appendleft(rank)
                raise

    def take(self, left: float | None) -> None:
        """Merge what was fetched, in the order of ranks, up to the first that was not."""
        for rank in range(self.world):
            if rank in self._merging.manifests:
                continue
            if rank == self.mine.rank:
                self._merging.add(self.mine, self.mine.tensors)
            elif not self._take(rank):
                self._misses(rank)
                return

    def look(self, left: float | None) -> None:
        """Whether it is marked, and of the next few that were missing, who is there by now."""
        if is_marked(self.store, self.mine.run_id, self.mine.checkpoint, timeout=left):
            self.marked = True
            return
        for rank in self.missing[:AT_ONCE]:
            why = self.hopeless(rank)  # before the look: what came at the last moment counts
            if self._is_there(rank, left):
                self._finds(rank)
                continue
            self._misses(rank)  # from now on it is behind those that were not looked at
            if why:
                self.lost = f"rank {rank} of {self.world} will put no manifest: {why}"
                return

    def check(self, left: float | None) -> None:
        """Raises CheckpointError where they are no whole."""
        self._merging.check()

    def _take(self, rank: int) -> bool:
        if (data := self._data.pop(rank, None)) is None:
            return False
        found, tensors = open_manifest(data, self._key(rank), self._merging.known)
        if found.incarnation != self.mine.incarnation:
            # Of another start of the job that was given the same number: no part of ours.
            self._strange.add(rank)
            return False
        self._merging.add(found, tensors)
        self._strange.discard(rank)
        self._finds(rank)
        return True

    def _is_there(self, rank: int, left: float | None) -> bool:
        """For one byte of it."""
        try:
            if rank in self._strange:
                found, _ = open_manifest(self.store.get(self._key(rank), timeout=left), self._key(rank))
                return found.incarnation == self.mine.incarnation
            self.store.read_into(self._key(rank), 0, memoryview(bytearray(1)), timeout=left)
        except NotFoundError:
            return False
        return True

    def _finds(self, rank: int) -> None:
        if rank in self.missing:
            self.missing.remove(rank)

    def _misses(self, rank: int) -> None:
        self._finds(rank)
        self.missing.append(rank)

    def _key(self, rank: int) -> str:
        return checkpoint_prefix(self.mine.run_id, self.mine.checkpoint) + manifest_name(rank, self.world)
