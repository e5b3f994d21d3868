"""The last two requests of a save: the manifest, with which it is whole, and the marker, which says so to listings.

For a job of one rank. `together` is for several.
"""

from __future__ import annotations

import logging

from ...providers.clock import Clock
from ...providers.errors import StoreError
from ..format.manifest import RankManifest
from .commit import mark_alone, put_manifest
from .effort import Abandoned, Effort
from .writer import Writer

log = logging.getLogger("spotguard")

#: Seconds for a marker: it is a shortcut only.
MARKING = 2.0


def publish(writer: Writer, manifest: RankManifest, effort: Effort, clock: Clock) -> float:
    """Commit what `writer` has put. Between the two requests the checkpoint is whole already: the marker is a shortcut.
    Returns the seconds of their answers: that the store was away before says nothing of the next commit.

    Raises:
        Abandoned: out of time, or called off.
        StoreError: the store failed.
    """
    store = writer.store
    seconds = put_own(writer, manifest, effort)
    created = clock.time()
    try:
        # It is asked for once, and not for long: what it is worth is one request less for each listing.
        seconds += writer.ask(
            lambda left: mark_alone(store, manifest, created=created, timeout=left),
            effort.part(clock.monotonic() + MARKING),
            again=False,
        )
    except (Abandoned, StoreError) as error:
        log.warning("step %d is committed, and its marker is not there: %s", manifest.step, error)
    return seconds


def put_own(writer: Writer, manifest: RankManifest, effort: Effort) -> float:
    """This rank's manifest. Returns the seconds of the answer, and raises as `publish`."""
    store = writer.store
    try:
        return writer.ask(lambda left: put_manifest(store, manifest, timeout=left), effort)
    except Abandoned as error:
        raise Abandoned(
            f"{error}; its manifest was on the way: if it arrives, a restore takes step {manifest.step}"
        ) from error
