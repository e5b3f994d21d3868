"""Of a store that is a folder: whether it outlives this machine, and has room.

A folder may be somebody else's, and a network's file system may stand still: neither ends the visit.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Generator
from pathlib import Path
from typing import Any

from spotguard.hooks.checkpoint.local_stage import mounted
from spotguard.providers.clock import Clock
from spotguard.providers.stores.names import folder_of
from spotguard.providers.text import amount

from ..finding import Finding, fails, ok, warning
from ..timeouts import within
from .store import FOLDER, STEP

#: File systems that lie on a server. One that is a program's (FUSE) does as well, as buckets are mounted.
_NETWORKS = (
    "nfs",
    "cifs",
    "smb",
    "ceph",
    "lustre",
    "gpfs",
    "beegfs",
    "glusterfs",
    "wekafs",
    "afs",
    "orangefs",
)
#: What a virtual machine's host hands in.
_OF_THE_HOST = ("9p", "virtiofs")

#: Of a file system without a size: some that are programs (FUSE), and /proc.
UNTOLD = 2**62

_DIES = "give a store that outlives it: --store s3://, gs:// or az://, or a folder of a network file system"


def look(
    url: str, cloud: str, nbytes: int, clock: Clock, mounts: Path = Path("/proc/self/mounts")
) -> Generator[Finding, None, int | None]:
    """
    Args:
        url: of a folder.
        nbytes: of the state; 0 where it is not known.
        mounts: what is mounted where, as proc_pid_mounts(5) has it.

    Returns:
        Bytes that are free; None where the folder does not answer.
    """
    path = folder_of(url)
    try:
        (place, kind), room = within(STEP, clock, lambda: (mounted(_there(path), mounts), free(path)), "disk")
    except (TimeoutError, OSError) as error:
        found = f"{path}: {getattr(error, 'strerror', None) or error}"
        yield fails("disk", found, FOLDER, filesystem=None, outlives=None, free_bytes=None)
        return None
    elsewhere = _lies_elsewhere(place, kind)
    told = None if room == UNTOLD else room
    facts: dict[str, Any] = {"filesystem": kind, "outlives": elsewhere, "free_bytes": told}
    much = "nobody says how much is" if told is None else amount(told)
    words = f"{much} free on {kind or 'a file system'}"
    if nbytes and room < nbytes:
        found = f"{words}, and the state has {amount(nbytes)}"
        yield fails("disk", found, "free some room, or use another store", **facts)
    elif nbytes and room < 2 * nbytes:
        found = f"{words}: a new checkpoint of {amount(nbytes)} stands beside the last, which stays until it is whole"
        yield warning("disk", found, "free some room, or say a smaller --keep", **facts)
    elif cloud != "none" and not elsewhere:
        yield warning("disk", f"{words}, a disk of THIS machine: it goes with it", _DIES, **facts)
    else:
        yield ok("disk", words, **facts)
    return room


def free(folder: Path) -> int:
    """Bytes that are free where a folder lies, or will lie; `UNTOLD` where its file system does not say."""
    usage = shutil.disk_usage(_there(folder))
    return usage.free if usage.total else UNTOLD


def _there(folder: Path) -> Path:
    """The folder, or what is there above it: the first put makes the rest."""
    while not os.path.isdir(folder):  # `Path.is_dir` raises where it may not look (up to Python 3.13)
        folder = folder.parent
    return folder


def _lies_elsewhere(place: str, kind: str) -> bool:
    """Whether what is mounted there outlives this machine, as far as its type tells."""
    if kind.startswith("fuse"):  # but a disk (NTFS, exFAT), and the writable layer of a rootless container
        return kind != "fuseblk" and not kind.endswith("overlayfs")
    if kind in _OF_THE_HOST:  # a folder of another, but a sandbox's own root (gVisor, Kata)
        return place != "/"
    return kind.startswith(_NETWORKS)
