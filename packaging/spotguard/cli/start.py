"""What the next start restores, by restore's own rule, as far as can be said without reading every byte."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from spotguard.hooks.arguments import extras_worth
from spotguard.hooks.checkpoint.catalog import WholeCheckpoint, whole_checkpoints
from spotguard.hooks.checkpoint.format.keys import CheckpointName
from spotguard.hooks.checkpoint.format.manifest import LEVELS
from spotguard.hooks.checkpoint.ranking import worth_it
from spotguard.providers.errors import CheckpointError
from spotguard.providers.stores.base import BlobStore


@dataclass(frozen=True, slots=True)
class Start:
    #: None: it begins at step 0.
    taken: WholeCheckpoint | None
    #: Of what was passed over on the way: why it is not whole.
    passed: Mapping[CheckpointName, CheckpointError]


def next_start(store: BlobStore, run_id: str) -> Start:
    """What `guard.restore()` would take, with SPOTGUARD_EXTRAS_WORTH as it is here.

    Raises:
        NewerFormatError: it would refuse.
        UsageError: that variable says no number.
    """
    passed: dict[CheckpointName, CheckpointError] = {}
    found = whole_checkpoints(store, run_id, levels=LEVELS, skipped=passed.__setitem__)
    return Start(next(worth_it(found, extras_worth()), None), passed)
