"""The turn of one process to ask a store that refuses, among the processes of one run on one machine."""

from __future__ import annotations

import fcntl
import logging
import math
import os
import stat
import struct
import tempfile
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

log = logging.getLogger("spotguard")


class MachineTurn:
    """The turn to ask a store that refuses, which the processes of one run on one machine take one after the other.

    It is a lock on a file in the directory for temporary files, which the kernel releases if a process dies. The file holds the
    monotonic seconds at which the store last accepted a request, so that the other processes go on too. Processes that do not
    share the directory (containers) each ask.
    """

    def __init__(self, url: str, run_id: str) -> None:
        name = sha256(f"{os.geteuid()} {url} {run_id}".encode()).hexdigest()[:16]
        self._path = Path(tempfile.gettempdir()) / f"spotguard-refused-{name}"
        #: The open and locked file, while this process has the turn.
        self._file: int | None = None

    def take(self) -> bool:
        """Return whether this process may ask. If there can be no such file, each process asks."""
        try:
            file = self._open()
        except OSError as error:
            log.debug("each process of this machine asks the store: %s", error)
            return True
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(file)
            return not isinstance(error, BlockingIOError)
        self._file = file
        return True

    def end(self) -> None:
        """Give the turn back."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)

    def accept(self, now: float) -> None:
        """Note that the store has accepted a request of this process, if the process has the turn."""
        if self._file is not None:
            os.pwrite(self._file, struct.pack("d", now), 0)

    @property
    def accepted(self) -> float:
        """Monotonic seconds at which the store last accepted such a request of any process."""
        try:
            file = self._open()
        except OSError:
            return -math.inf
        try:
            held = os.pread(file, struct.calcsize("d"), 0)
        finally:
            os.close(file)
        return float(struct.unpack("d", held)[0]) if held else -math.inf

    def close(self) -> None:
        """Remove the file."""
        with suppress(OSError):
            self._path.unlink()

    def _open(self) -> int:
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        status = os.fstat(file)
        if status.st_uid != os.geteuid() or not stat.S_ISREG(status.st_mode):
            os.close(file)
            raise PermissionError(f"{self._path} is another user's")
        return file
