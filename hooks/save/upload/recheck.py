"""A second check of a save's objects after the store was away: a store that went back to an earlier state has lost objects.

One of the writer's threads makes the check as soon as the store answers again, so that no manifest names a lost object.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from ....providers.stores.base import BlobStore
from ...checkpoint.format.keys import checkpoint_prefix, object_name
from ..cancel_scope import retry
from ..plan.write_plan import StoredObject
from .transfer import Transfer

log = logging.getLogger("spotguard")

#: Seconds for one listing. A listing that hangs is tried again.
_LISTING = 5.0


def look_again(store: BlobStore, run_id: str, work: Transfer, doubted: Mapping[int, StoredObject]) -> None:
    """List the `doubted` objects, and have the save put those again that are gone or have another size."""
    write_plan = work.draft.write_plan
    keys = {
        index: checkpoint_prefix(run_id, stored.at) + object_name(write_plan.rank, write_plan.world, index)
        for index, stored in doubted.items()
    }
    sizes: dict[str, int] = {}
    outages = 0

    def look(left: float | None) -> None:
        nonlocal outages
        outages = work.outages
        sizes.clear()
        for folder in {key.rpartition("/")[0] + "/" for key in keys.values()}:
            listed = store.list(folder, timeout=_LISTING if left is None else min(left, _LISTING))
            sizes.update((info.key, info.size) for info in listed)

    retry(work.scope, look, work.hear)
    lost = [index for index, key in keys.items() if sizes.get(key) != write_plan.objects[index].size]
    if lost:
        log.warning(
            "the store was away and has lost %d objects of this save: they are uploaded again", len(lost)
        )
    work.looked(outages, lost)
