"""The deletions that a pruning has planned, as the cleanup of a save makes them, in one request for each group."""

from __future__ import annotations

from spotguard.hooks.checkpoint.format.keys import CheckpointName
from spotguard.hooks.checkpoint.retention import plan_pruning
from spotguard.providers.stores.base import BlobStore


def prune(
    store: BlobStore, run_id: str, *, keep: int, every: int = 0, attempt: int | None = None
) -> list[CheckpointName]:
    """Delete the checkpoints that `plan_pruning` selects, and return their names."""
    pruning = plan_pruning(store, run_id, keep=keep, every=every, attempt=attempt)
    for keys in pruning.steps():
        store.delete(keys)
    return [folder.name for folder in pruning.departing]
