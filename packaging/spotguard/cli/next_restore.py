"""The checkpoint that the next start restores, by the rule of restore itself.

The prediction reads the index or the manifests, and not every byte.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from spotguard.hooks.arguments.settings import extras_worth
from spotguard.hooks.checkpoint.catalog import WholeCheckpoint, whole_checkpoints
from spotguard.hooks.checkpoint.format.keys import CheckpointName
from spotguard.hooks.checkpoint.format.manifest import LEVELS
from spotguard.hooks.checkpoint.ranking import worth_it
from spotguard.providers.errors import CheckpointError
from spotguard.providers.stores.base import BlobStore


@dataclass(frozen=True, slots=True)
class NextRestore:
    #: The checkpoint that the next start restores. None: the next start begins at step 0.
    taken: WholeCheckpoint | None
    #: The newer checkpoints that the next start skips, each with the reason why it is not whole.
    passed: Mapping[CheckpointName, CheckpointError]


def next_restore(store: BlobStore, run_id: str) -> NextRestore:
    """Return what `guard.restore()` would restore, with SPOTGUARD_EXTRAS_WORTH of this process's environment.

    Raises:
        UnsupportedFormatError: `guard.restore()` would refuse the checkpoint.
        UsageError: SPOTGUARD_EXTRAS_WORTH is not a number.
    """
    passed: dict[CheckpointName, CheckpointError] = {}
    candidates = whole_checkpoints(store, run_id, levels=LEVELS, indexed=True, skipped=passed.__setitem__)
    return NextRestore(next(worth_it(candidates, extras_worth()), None), passed)
