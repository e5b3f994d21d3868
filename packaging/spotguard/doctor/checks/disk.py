"""The check of a store that is a directory: whether it outlives this machine, and has room.

Another user may own the directory, and a network file system may hang. Neither ends the visit.
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

#: File systems that lie on a server. A FUSE file system counts as one too, because buckets are mounted by FUSE.
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
#: File systems that the host of a virtual machine shares with it.
_OF_THE_HOST = ("9p", "virtiofs")

#: Free bytes of a file system without a size, such as some FUSE file systems and /proc.
UNTOLD = 2**62

_DIES = (
    "give a store that outlives it: --store s3://, gs:// or az://, or a directory of a network file system"
)


def look(
    url: str, cloud: str, nbytes: int, clock: Clock, mounts: Path = Path("/proc/self/mounts")
) -> Generator[Finding, None, int | None]:
    """Yield the finding about the directory.

    Args:
        url: the URL of the directory.
        cloud: "aws", "gcp", "azure" or "none".
        nbytes: bytes of the state; 0 if they are not known.
        clock: times the check.
        mounts: the table of mounts, as in proc_pid_mounts(5).

    Returns:
        Free bytes; None if the directory does not answer.
    """
    path = folder_of(url)
    try:
        (place, kind), room = within(STEP, clock, lambda: (mounted(_there(path), mounts), free(path)), "disk")
    except (TimeoutError, OSError) as error:
        found = f"{path}: {getattr(error, 'strerror', None) or error}"
        yield fails("disk", found, FOLDER, filesystem=None, outlives=None, free_bytes=None)
        return None
    elsewhere = _lies_elsewhere(place, kind)
    known = None if room == UNTOLD else room
    facts: dict[str, Any] = {"filesystem": kind, "outlives": elsewhere, "free_bytes": known}
    much = "how much is free is not known, and" if known is None else amount(known)
    words = f"{much} free on {kind or 'a file system'}"
    if nbytes and room < nbytes:
        found = f"{words}, and the state has {amount(nbytes)}"
        yield fails("disk", found, "free some room, or use another store", **facts)
    elif nbytes and room < 2 * nbytes:
        found = f"{words}: a new checkpoint of {amount(nbytes)} stands beside the last, which stays until it is complete"
        yield warning("disk", found, "free some room, or set a smaller --keep", **facts)
    elif cloud != "none" and not elsewhere:
        yield warning("disk", f"{words}, a disk of THIS machine: it goes with it", _DIES, **facts)
    else:
        yield ok("disk", words, **facts)
    return room


def free(folder: Path) -> int:
    """Return the free bytes where a directory lies, or will lie; `UNTOLD` if its file system has no size."""
    usage = shutil.disk_usage(_there(folder))
    return usage.free if usage.total else UNTOLD


def _there(folder: Path) -> Path:
    """Return the directory, or the nearest parent that exists: the first put makes the rest."""
    # Not `Path.is_dir`: up to Python 3.13 it raises on a directory that it may not read.
    while not os.path.isdir(folder):
        folder = folder.parent
    return folder


def _lies_elsewhere(place: str, kind: str) -> bool:
    """Report whether the file system outlives this machine, as far as its type shows."""
    if kind.startswith("fuse"):  # except a disk (NTFS, exFAT), and the writable layer of a rootless container
        return kind != "fuseblk" and not kind.endswith("overlayfs")
    if kind in _OF_THE_HOST:  # a directory of the host, except a sandbox's own root (gVisor, Kata)
        return place != "/"
    return kind.startswith(_NETWORKS)
