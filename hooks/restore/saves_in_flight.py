"""The wait of a start for an emergency save that an earlier start of the run has announced and not ended.

Without it, a machine that replaces another one while that one still saves would train from an older checkpoint.
"""

from __future__ import annotations

import logging
import threading
from contextlib import suppress

from ...providers.clock import Clock
from ...providers.errors import StoreError
from ...providers.stores.base import BlobStore
from ..checkpoint.catalog import CheckpointFolder
from ..checkpoint.format.keys import SAVING, CheckpointName, checkpoint_prefix
from ..checkpoint.marker import newest_in_flight
from ..checkpoint.store_probe import StoreProbe

log = logging.getLogger("spotguard")

#: Seconds after a save's deadline in which its last request may still arrive.
_GRACE = 5.0
#: The longest wait in seconds. The other ranks wait for the first one up to `collective_results.PATIENCE`.
_MOST = 240.0
#: Seconds between two listings: the first number, doubled each time up to the second.
_FIRST, _PAUSE = 0.25, 2.0


class SavesInFlight:
    """The saves of a run that a start waits for, each once.

    Args:
        store: the store.
        run_id: the run.
        clock: the time.
    """

    def __init__(self, store: BlobStore, run_id: str, clock: Clock) -> None:
        self._store = store
        self._run_id = run_id
        self._clock = clock
        self._seen: set[CheckpointName] = set()
        self._never = threading.Event()

    def wait(self, folders: list[CheckpointFolder]) -> bool:
        """Wait for the newest save in flight: until it is complete, was given up, or is out of time.

        Args:
            folders: all checkpoints of the run, newest first.

        Returns:
            Whether this has waited, so that the listing is old.

        Raises:
            StoreError: the store failed.
        """
        save = newest_in_flight(self._store, folders)
        if save is None or (name := save.folder.name) in self._seen:
            return False
        self._seen.add(name)
        if (left := min(save.until + _GRACE - self._store_time(), _MOST)) <= 0:
            return False
        log.warning(
            "step %d is being saved by an earlier attempt of run %s: waiting up to %.0f s for it",
            name.step,
            self._run_id,
            left,
        )
        if not self._completes(name, left):
            log.warning(
                "the save of step %d did not complete: spotguard restores an older checkpoint", name.step
            )
        return True

    def _completes(self, name: CheckpointName, seconds: float) -> bool:
        prefix, until = checkpoint_prefix(self._run_id, name), self._clock.monotonic() + seconds
        pause = _FIRST
        while (left := until - self._clock.monotonic()) > 0:
            self._clock.wait(self._never, min(pause, left))
            files = {info.key.removeprefix(prefix): info.size for info in self._store.list(prefix)}
            if CheckpointFolder(self._run_id, name, files).complete:
                return True
            if SAVING not in files:
                return False
            pause = min(2 * pause, _PAUSE)
        return False

    def _store_time(self) -> float:
        probe = StoreProbe(self._store, self._run_id)
        probe.write()
        try:
            return probe.time()
        finally:
            with suppress(StoreError):  # of a store that keeps all objects: what stays means nothing
                probe.remove()
