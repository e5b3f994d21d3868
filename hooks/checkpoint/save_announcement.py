"""SAVING.json: until when an emergency save may still complete its checkpoint.

A replacement machine can start while the old one still saves: a Kubernetes Job makes the next pod as soon as the last one is
told to end, and a group of instances can launch before it terminates. Such a start would find no newer checkpoint, train from an
older one, and lose steps that are whole a moment later. The file tells it how long to wait.

The file is a hint and no promise. Its date is the store's own, so the clocks of the two machines do not matter. A start waits no
longer than the file says, and then takes what is whole.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...providers.errors import CheckpointError, NotFoundError
from ...providers.stores.base import BlobStore
from .catalog import CheckpointFolder, ReadableStore
from .format.codec import decode_saving, encode_saving
from .format.keys import SAVING, CheckpointName, checkpoint_prefix


@dataclass(frozen=True, slots=True)
class SaveInFlight:
    """An announced emergency save whose checkpoint is not complete."""

    folder: CheckpointFolder
    #: When the save is over at the latest, in Unix seconds by the store's clock.
    until: float


def put_saving(
    store: BlobStore, run_id: str, name: CheckpointName, left: float, *, timeout: float | None = None
) -> None:
    """Announce a save.

    Args:
        store: the store.
        run_id: the run.
        name: the checkpoint.
        left: seconds until the save's deadline.
        timeout: seconds for the request.
    """
    store.put(checkpoint_prefix(run_id, name) + SAVING, memoryview(encode_saving(left)), timeout=timeout)


def newest_in_flight(store: ReadableStore, folders: list[CheckpointFolder]) -> SaveInFlight | None:
    """Return the newest announced save that is not complete, or None if there is none or a complete checkpoint is newer.

    Args:
        store: the store.
        folders: all checkpoints of a run, newest first.
    """
    for folder in folders:
        if folder.complete:
            return None
        if folder.announced:
            key = folder.prefix + SAVING
            try:
                left = decode_saving(store.get(key), key)
            except (CheckpointError, NotFoundError):  # damaged, or removed together with its save
                continue
            return SaveInFlight(folder, folder.announced + left)
    return None
