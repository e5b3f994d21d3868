"""The other ranks' manifests, as one rank sees them in the store: which are there, their merge, and the marker.

Each poll is a few requests, for any number of ranks. Only the rank that merges the manifests reads their content.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from ...providers.errors import NotFoundError, StoreError
from ...providers.stores.base import BlobStore
from ..checkpoint.format.codec import decode_manifest, encode_manifest, read_manifest
from ..checkpoint.format.coverage import coverage
from ..checkpoint.format.keys import MARKER, checkpoint_prefix, manifest_name
from ..checkpoint.format.manifest import CommitMarker, RankManifest
from ..checkpoint.format.packing import PackedCache
from ..checkpoint.index import INDEXED, IndexBuilder
from ..checkpoint.marker import read_marker

#: Ranks whose manifests one poll asks for, with a request for one byte each; and the number of ranks that an error names.
AT_ONCE, _NAMED = 8, 8
#: Manifests whose bytes are in memory at once: as JSON they take more of it than as columns.
_TOGETHER = 256


@dataclass(slots=True)
class PeerManifests:
    """The manifests of the other ranks, as far as this rank has seen them.

    The writer's threads call the methods, one at a time. Only `fetch` may run on several threads at once.

    Args:
        mine: this rank's manifest.
        hopeless: returns why a rank's manifest will never come, or "".
    """

    store: BlobStore
    mine: RankManifest
    hopeless: Callable[[int], str]
    #: The marker of the checkpoint, which is complete; None if it was not seen.
    marker: CommitMarker | None = None
    #: The reason why a missing manifest will never come; "" if there is hope.
    lost: str = ""
    #: Ranks whose manifests are missing, as far as this rank has seen: the next to poll comes first.
    missing: list[int] = field(init=False)
    #: The manifests that were read, by rank, without their state: only a restore needs that.
    _read: dict[int, RankManifest] = field(default_factory=dict)
    _cache: PackedCache = field(default_factory=PackedCache)
    #: The index of all manifests that were read; None if the job is too small for one.
    index: IndexBuilder | None = field(init=False)
    #: Ranks whose manifests are to be fetched.
    _next: deque[int] = field(default_factory=deque)
    #: Fetched manifests that are not merged yet, by rank.
    _data: dict[int, bytes] = field(default_factory=dict)
    #: This rank's own manifest was not there when it was looked for.
    own_is_lost: bool = False
    #: The last listing had the marker.
    _marked: bool = False
    #: Ranks under whose name there was a manifest of another start of the job.
    _strange: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.missing = [rank for rank in range(self.world) if rank != self.mine.rank]
        self.index = IndexBuilder() if self.world >= INDEXED else None

    @property
    def world(self) -> int:
        return self.mine.world

    @property
    def fetched(self) -> bool:
        return len(self._read) == self.world

    def has_read(self, ranks: Sequence[int]) -> bool:
        """Return whether the manifests of these ranks were read."""
        return all(rank in self._read for rank in ranks)

    @property
    def manifests(self) -> list[RankManifest]:
        """The manifests that were read."""
        return [*self._read.values()]

    def whose(self) -> str:
        """Return which ranks are missing, as text for a person."""
        if not self.missing:
            return (
                f"the manifests of all {self.world} ranks are in the store: a restore uses step "
                f"{self.mine.step} if their objects are too"
            )
        few = sorted(self.missing)[:_NAMED]
        ranks = ", ".join(map(str, few)) + (", …" if len(self.missing) > _NAMED else "")
        one = len(self.missing) == 1
        return (
            f"rank{('' if one else 's')} {ranks} of {self.world} {('has' if one else 'have')} uploaded no "
            "manifest [SG503]"
        )

    def begin(self) -> list[int]:
        """List the next manifests to fetch, and return whose they are. Call this before `fetch`."""
        wanted = (rank for rank in range(self.world) if rank not in self._read and rank != self.mine.rank)
        self._next = deque(rank for rank in islice(wanted, _TOGETHER) if rank not in self._data)
        return [*self._next]

    def fetch(self, left: float | None) -> None:
        """Fetch the bytes of the listed manifests, up to one that is missing. Several threads may do this at once."""
        while True:
            try:
                rank = self._next.popleft()
            except IndexError:
                return
            try:
                self._data[rank] = self.store.get(self._key(rank), timeout=left)
            except NotFoundError:
                self._next.clear()  # that rank still writes; it will check the manifests in its turn
            except StoreError:
                self._next.appendleft(rank)
                raise

    def take(self, left: float | None) -> None:
        """Read the fetched manifests in the order of ranks, up to the first that was not fetched. Their bytes are dropped."""
        for rank in range(self.world):
            if rank in self._read:
                continue
            if rank == self.mine.rank:
                # Read like the others': a restore must be able to read this one too.
                self._data[rank] = encode_manifest(self.mine)
            if not self._take(rank):
                self._misses(rank)
                return

    def look(self, left: float | None) -> None:
        """Poll for the marker, and for the next few missing manifests. Set `marker`, `missing` and `lost`."""
        self.marker = read_marker(self.store, self.mine.run_id, self.mine.checkpoint, timeout=left)
        if self.marker is not None:
            return
        for rank in self.missing[:AT_ONCE]:
            why = self.hopeless(rank)  # before the request: a manifest that comes at the last moment counts
            if self._is_there(rank, left):
                self._finds(rank)
                continue
            self._misses(rank)  # from now on it comes after the ranks that this poll did not ask for
            if why:
                self.lost = f"rank {rank} of {self.world} will upload no manifest: {why}"
                return

    def look_at_own(self, left: float | None) -> None:
        """Poll for this rank's own manifest. Set `own_is_lost`."""
        self.own_is_lost = not self._is_there(self.mine.rank, left)

    def check(self, left: float | None) -> None:
        """Check that the manifests that were read make a complete checkpoint.

        Raises:
            CheckpointError: they do not.
        """
        coverage(self._read.values())

    def lost_objects(self, left: float | None) -> dict[int, str]:
        """List what the manifests name. Return the ranks that miss something, each with the key of one thing that it misses."""
        own = checkpoint_prefix(self.mine.run_id, self.mine.checkpoint)
        folders = {own}
        named: list[tuple[int, str, int | None]] = []
        for rank, manifest in self._read.items():
            named.append((rank, self._key(rank), None))
            for index, entry in enumerate(manifest.objects):
                named.append((rank, manifest.object_key(index), entry.size))
                if entry.checkpoint:
                    folders.add(named[-1][1].removesuffix(entry.name))
        sizes = {
            info.key: info.size
            for folder in sorted(folders)
            for info in self.store.list(folder, timeout=left)
        }
        self._marked = own + MARKER in sizes
        return {
            rank: key
            for rank, key, size in reversed(named)
            if key not in sizes or (size is not None and sizes[key] != size)
        }

    def over(self, lost: Collection[int]) -> str:
        """Return why these ranks will not put again what the last listing missed, or ""."""
        if self._marked:
            return "another rank has marked the checkpoint and gone on"
        return next((why for rank in sorted(lost) if (why := self.hopeless(rank))), "")

    def _take(self, rank: int) -> bool:
        if (data := self._data.pop(rank, None)) is None:
            return False
        theirs, raw = read_manifest(data, self._key(rank), self._cache)
        if theirs.incarnation != self.mine.incarnation:
            # Another start of the job got the same attempt number: its manifest is not part of this checkpoint.
            self._strange.add(rank)
            return False
        self._read[rank] = replace(theirs, state={})
        if self.index is not None:
            self.index.add(raw, len(data))
        self._strange.discard(rank)
        self._finds(rank)
        return True

    def _is_there(self, rank: int, left: float | None) -> bool:
        """Return whether the manifest is in the store, from a request for one byte of it."""
        try:
            if rank in self._strange:
                theirs = decode_manifest(self.store.get(self._key(rank), timeout=left), self._key(rank))
                return theirs.incarnation == self.mine.incarnation
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
