"""The list of a store's checkpoints for people, with the status of each. `spotguard ls` prints it.

It reads the marker where that agrees with the listing. The marker is a hint: `catalog` proves what is whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ...providers.errors import CheckpointError, NotFoundError
from ...providers.run_id import is_run_id
from ...providers.stores.base import BlobStore
from ..ipc.threads import side_by_side
from .catalog import CheckpointFolder, PartialCheckpoint, examine, scan
from .format.codec import UnsupportedFormatError, decode_marker
from .format.keys import MARKER, CheckpointName, manifest_name, parse_manifest_name, parse_object_name
from .format.manifest import CommitMarker, Kind, Level

#: "unsupported": another version of spotguard wrote it; the checkpoint may be good.
Status = Literal["complete", "partial", "damaged", "unsupported"]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One line of `spotguard ls`."""

    run_id: str
    name: CheckpointName
    status: Status
    #: Reason why it is not whole, else "".
    reason: str
    #: Bytes of all objects in its directory; for a complete checkpoint, also of those elsewhere that it refers to.
    nbytes: int
    marked: bool
    #: Number of ranks from the names in its directory; None if the names disagree or give no number.
    world: int | None = None
    #: None if no marker and no manifest could be read.
    level: Level | None = None
    kind: Kind | None = None
    created: float | None = None
    #: Ranks whose extras it lacks.
    missing: tuple[int, ...] = ()
    #: Why some rank's losses make it suspect; "" if none do.
    suspect: str = ""
    #: The path and the type of each value that no save could hold.
    left_out: tuple[str, ...] = ()


def list_checkpoints(store: BlobStore, run_id: str, *, deep: bool = False) -> list[Checkpoint]:
    """Return every checkpoint of a run with its status, newest first.

    The list omits what is no checkpoint any more: a directory that holds only objects of newer checkpoints, and one that pruning has
    begun with. A directory without a manifest is that of a save only if no newer checkpoint is complete.

    Args:
        store: the store that holds them.
        run_id: the run.
        deep: whether to read all manifests, and the state in them, even if the marker and the listing agree.
    """
    folders = scan(store, run_id)
    checkpoints = side_by_side(lambda folder: _describe(store, folder, folders, deep), folders)
    bare = [folder for folder in folders if not any(map(parse_manifest_name, folder.files))]
    newest = max((each.name for each in checkpoints if each.status == "complete"), default=None)
    over = {each.name for each in bare if newest is not None and each.name < newest}
    return [each for each in checkpoints if each.name not in over]


def list_runs(store: BlobStore) -> list[str]:
    """Return the ids of all runs in a store."""
    runs: dict[str, None] = {}
    for info in store.list(""):
        run_id, _, rest = info.key.partition("/")
        # A bucket may hold other things, too.
        if is_run_id(run_id) and rest.startswith(("attempts/", "checkpoints/")):
            runs[run_id] = None
    return list(runs)


def _describe(
    store: BlobStore,
    folder: CheckpointFolder,
    folders: list[CheckpointFolder],
    deep: bool,
) -> Checkpoint:
    marked = MARKER in folder.files
    objects, nbytes = _objects(folder)
    status: Status = "complete"
    reason = ""
    try:
        if marked and not deep and (marker := _said(store, folder)) is not None:
            names = [manifest_name(rank, marker.world) for rank in range(marker.world)]
            own = (marker.objects, marker.nbytes) == (objects, nbytes) and folder.files.keys() >= set(names)
            # Only the manifests name the objects that it refers to, and those may be gone.
            if own and not marker.elsewhere:
                return Checkpoint(
                    folder.run_id, folder.name, "complete", "", nbytes, True,
                    marker.world, marker.level, marker.kind, marker.created, marker.missing, marker.suspect,
                    marker.left_out,
                )  # fmt: skip
        whole = examine(store, folder, folders, indexed=not deep)
        if deep:
            whole.prove()
        first = whole.manifests[0]
        return Checkpoint(
            folder.run_id, folder.name, "complete", "", whole.nbytes, marked,
            first.world, first.level, first.kind, first.created, first.missing, whole.suspect,
            whole.left_out,
        )  # fmt: skip
    except (PartialCheckpoint, NotFoundError) as error:
        status, reason = "partial", str(error)
    except CheckpointError as error:
        status = "unsupported" if isinstance(error, UnsupportedFormatError) else "damaged"
        reason = str(error)
    worlds = {
        parsed[1] for name in folder.files if (parsed := parse_manifest_name(name) or parse_object_name(name))
    }
    world = worlds.pop() if len(worlds) == 1 else None
    return Checkpoint(folder.run_id, folder.name, status, reason, nbytes, marked, world)


def _objects(folder: CheckpointFolder) -> tuple[int, int]:
    """Return the number of its objects, and their bytes."""
    sizes = [size for name, size in folder.files.items() if parse_object_name(name)]
    return len(sizes), sum(sizes)


def _said(store: BlobStore, folder: CheckpointFolder) -> CommitMarker | None:
    """Return the marker, or None if it cannot be read. The checkpoint stays valid then: the manifests say more."""
    key = folder.prefix + MARKER
    try:
        return decode_marker(store.get(key), key)
    except CheckpointError:
        return None
