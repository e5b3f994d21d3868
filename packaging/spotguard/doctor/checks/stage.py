"""The check of `--stage`: whether background checkpoints can go to this machine's disk first, by the probe of `register`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from spotguard.hooks.checkpoint.local_stage import MEMORY, file_system, usable
from spotguard.providers.clock import Clock
from spotguard.providers.errors import UsageError
from spotguard.providers.stores.file import FileStore
from spotguard.providers.text import amount

from ..cleanup import Leftovers
from ..finding import Finding, fails, ok, parted, warning
from ..timeouts import Aside
from .disk import UNTOLD, free
from .store import FOLDER, STEP

_MEMORY = "each checkpoint there takes host memory: name a directory on a disk"


def look(folder: Path, run_id: str, nbytes: int, clock: Clock) -> Iterator[Finding]:
    """Yield the finding about the stage.

    Args:
        folder: the directory of `--stage`.
        run_id: the run that would use it.
        nbytes: bytes of the state; 0 if they are not known.
        clock: times the probe.
    """
    facts: dict[str, Any] = {"folder": str(folder), "filesystem": None, "free_bytes": None}
    litter = Leftovers(FileStore(folder), clock)
    with litter, litter:  # twice, as in `run._store`
        litter.look_once()
        aside = Aside(lambda: _probe(folder, run_id), "stage")
        litter.putting(aside)
        if not aside.ended(clock, clock.monotonic() + STEP):
            yield fails("stage", f"{folder}: no answer in {STEP:g} s", FOLDER, **facts)
            return
    try:
        kind, room = aside.value()
    except UsageError as error:
        found, advice = parted(error)
        yield fails("stage", found, advice or FOLDER, **facts)
        return
    facts |= {"filesystem": kind, "free_bytes": None if room == UNTOLD else room}
    words = f"{folder}, on {kind or 'a file system'}" + (f": {amount(room)} free" if room != UNTOLD else "")
    if kind in MEMORY:
        yield warning("stage", f"{words}, which is memory", _MEMORY, **facts)
    elif room < 2 * nbytes:
        found = f"{words}, and two checkpoints take {amount(2 * nbytes)}"
        yield warning("stage", found, "free some room: else they are copied to host memory instead", **facts)
    else:
        yield ok("stage", words, **facts)


def _probe(folder: Path, run_id: str) -> tuple[str, int]:
    """Return the file system's type, and its free bytes."""
    usable(folder, run_id)
    return file_system(folder), free(folder)
