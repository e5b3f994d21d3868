"""file:///path: a directory as a blob store, atomic on any POSIX file system.

An object appears complete or not at all. The store writes its bytes to a temporary name in the same directory, and flushes them.
Then it renames the file. (For `put_if_absent` it makes a link instead, which fails if the name exists.) Last it flushes the
directory, because a name is durable only with its directory (fsync(2)).

A temporary file begins with "." and so is not a key. Its writer holds a lock on it (flock(2)), which the kernel releases when
the process dies for any reason. So the store can tell a leftover from a file in progress. `delete` sweeps leftovers near the
keys that it deletes, and directories that are then empty.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import stat
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..clock import Clock, SystemClock
from ..errors import (
    CorruptError,
    DeniedError,
    FullError,
    NotFoundError,
    NotSupportedError,
    StoreError,
    UnavailableError,
)
from .base import ObjectInfo, Sent, StoreMovement, check_key, check_prefix, is_segment

#: Bytes of one write(2), which releases the GIL. The store checks the deadline between two writes.
_PIECE = 16 * 2**20

_TEMPORARY = ".put-"

_ADVICE: dict[type[StoreError], str] = {
    FullError: "; free some room there, or use another store [SG312]",
    DeniedError: "; make the directory writable for this user, or use another store [SG302]",
}

_NO_FOLDER = "; something in this path is a file: name a directory, or another store"

_LEAVES: dict[int, type[StoreError]] = {
    errno.ENOSPC: FullError,
    errno.EDQUOT: FullError,
    errno.EFBIG: FullError,
    errno.EACCES: DeniedError,
    errno.EPERM: DeniedError,
    errno.EROFS: DeniedError,
    errno.ENOENT: NotFoundError,
    errno.ENOTDIR: NotFoundError,
    errno.EISDIR: NotFoundError,
}


#: Errors of link(2) on a file system without hard links: the documented one, and those of FAT, of SMB, of FUSE.
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS}

#: Errors of unlink(2) for a key without an object.
_NOT_THERE = (FileNotFoundError, NotADirectoryError, IsADirectoryError)


@contextmanager
def _mapped(doing: str) -> Iterator[None]:
    """Translate every OSError into the error that its errno means, so that none leaves this module."""
    try:
        yield
    except OSError as error:
        leaf = _LEAVES.get(error.errno or 0, UnavailableError)
        advice = _NO_FOLDER if error.errno == errno.ENOTDIR else _ADVICE.get(leaf, "")
        code = errno.errorcode.get(error.errno or 0, "")
        raise leaf(f"{doing}: {error.strerror or error}{advice}", code) from error


class FileStore:
    """A `BlobStore` in a directory of this machine, or of a file system that several machines share.

    Args:
        root: the directory; the first `put` makes it.
        url: the URL as the user wrote it.
        clock: the clock for timeouts, which are checked between two pieces of a large object.
    """

    def __init__(self, root: Path | str, url: str | None = None, clock: Clock | None = None) -> None:
        self._root = os.path.abspath(root)
        self.url = url if url is not None else Path(self._root).as_uri()
        #: A thread copies and checksums while another waits for the disk; more threads than cores would only take turns.
        self.parallel = min(4, os.cpu_count() or 1)
        self._clock = clock or SystemClock()
        #: Directories whose names are known to be durable, so that only the first object in a directory flushes its parents.
        self._durable: set[str] = set()
        self._lock = threading.Lock()

    # --- the six verbs ---

    def warm(self, *, timeout: float | None = None) -> None:
        """Do nothing: a directory needs no preparation."""

    def put(
        self,
        key: str,
        data: memoryview,
        *,
        timeout: float | None = None,
        crc32: int | None = None,
        sent: Sent | None = None,
    ) -> None:
        """Write the whole object; on return, the bytes are durable and visible under `key`."""
        self._put(key, data, timeout, _rename, sent)

    def put_if_absent(self, key: str, data: memoryview, *, timeout: float | None = None) -> bool:
        """Write as `put` does, unless the key exists: then change nothing and return False."""
        path = self._path(key)
        if not os.path.lexists(path):
            return self._put(key, data, timeout, _link)
        # A probe creates an object that is there, and must learn all the same that the file system has no hard links.
        with _mapped(f"put {self._named(key)}"), self._temporary(os.path.dirname(path)) as (_, temporary):
            if _link(temporary, other := f"{temporary}-other"):
                os.unlink(other)
        return False

    def get(self, key: str, *, timeout: float | None = None) -> bytes:
        """Return the whole object."""
        with _mapped(f"get {self._named(key)}"), _opened(self._path(key)) as fd:
            data = bytearray(os.fstat(fd).st_size)
            self._fill(fd, key, 0, memoryview(data), self._deadline(timeout))
            return bytes(data)

    def read_into(self, key: str, start: int, buffer: memoryview, *, timeout: float | None = None) -> None:
        """Fill `buffer` with the object's bytes from `start` on; raise `CorruptError` if the object has too few."""
        with _mapped(f"read {self._named(key)}"), _opened(self._path(key)) as fd:
            self._fill(fd, key, start, buffer.cast("B"), self._deadline(timeout))

    def list(self, prefix: str, *, timeout: float | None = None) -> Iterator[ObjectInfo]:
        """Return every object whose key starts with `prefix`, in order of keys."""
        folder, _, name = check_prefix(prefix).rpartition("/")
        with _mapped(f"list {self._named(prefix)}"):
            objects = sorted(self._walk(folder, name))
        return iter([ObjectInfo(*each) for each in objects])

    def delete(self, keys: Iterable[str], *, timeout: float | None = None) -> None:
        """Delete objects, and directories that are then empty; a missing key is not an error."""
        deadline = self._deadline(timeout)
        folders: dict[str, None] = {}
        for key in keys:
            path = self._path(key)
            self._check(deadline, f"delete {self._named(key)}")
            with _mapped(f"delete {self._named(key)}"), suppress(*_NOT_THERE):
                os.unlink(path)
            folders[os.path.dirname(path)] = None
        self._tidy(folders)

    # --- writing ---

    def _put(
        self,
        key: str,
        data: memoryview,
        timeout: float | None,
        publish: Callable[[str, str], bool],
        sent: Sent | None = None,
    ) -> bool:
        path, deadline = self._path(key), self._deadline(timeout)
        folder, doing = os.path.dirname(path), f"put {self._named(key)}"
        with _mapped(doing), self._temporary(folder) as (fd, temporary):
            view = data.cast("B")
            while view:
                self._check(deadline, doing)
                count = os.write(fd, view[:_PIECE])
                view = view[count:]
                if sent is not None:
                    sent(count)
            os.fsync(fd)
            # Opened while the temporary file protects the directory from a sweep: the object itself may be deleted at once.
            with _folder(folder) as names:
                published = publish(temporary, path)
                _flush(names)
            return published

    @contextmanager
    def _temporary(self, folder: str) -> Iterator[tuple[int, str]]:
        """Make a new locked file in `folder`, and remove it at the end unless it was renamed."""
        fd, path = self._create(folder)
        try:
            yield fd, path
        finally:
            # After a rename the path is gone already; after a failure the bytes are useless.
            with suppress(OSError):
                os.unlink(path)
            os.close(fd)

    def _create(self, folder: str) -> tuple[int, str]:
        # A sweep may remove the directory, or the file before its lock. Then try again, with a new name.
        for _ in range(100):
            path = os.path.join(folder, f"{_TEMPORARY}{os.getpid()}-{secrets.token_hex(8)}")
            try:
                self._make_folder(folder)
                fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            except FileNotFoundError:
                with self._lock:
                    self._durable.clear()
                continue
            if _locked(fd) is not False and os.fstat(fd).st_nlink:
                return fd, path
            os.close(fd)
        raise FileNotFoundError(
            errno.ENOENT, "no directory can be made there, or it disappears at once", folder
        )

    def _make_folder(self, folder: str) -> None:
        """Make the directory and its parents, and flush each name, once per directory and process."""
        with self._lock:
            if folder in self._durable:
                return
        parent, ours = os.path.dirname(folder), len(folder) > len(self._root)
        if ours or not os.path.isdir(parent):
            self._make_folder(parent)
        try:
            os.mkdir(folder)
            ours = True
        except FileExistsError:
            pass  # perhaps another process made it a moment ago: its name is flushed below as well
        if ours:
            with _folder(parent) as names:
                _flush(names)
        with self._lock:
            self._durable.add(folder)

    # --- reading ---

    def _fill(self, fd: int, key: str, start: int, buffer: memoryview, deadline: float | None) -> None:
        at = 0
        while at < len(buffer):
            self._check(deadline, f"read {self._named(key)}")
            got = os.preadv(fd, [buffer[at : at + _PIECE]], start + at)
            if got == 0:
                raise CorruptError(
                    f"read {self._named(key)}: {start + at} bytes are there, {start + len(buffer)} were expected"
                )
            at += got
            StoreMovement.add()

    def _walk(self, folder: str, name: str) -> Iterator[tuple[str, int, float]]:
        """Yield (key, size, date) of all objects in `folder` whose next segment begins with `name`."""
        path = os.path.join(self._root, folder) if folder else self._root
        try:
            entries = os.scandir(path)
        except (FileNotFoundError, NotADirectoryError):
            return  # nothing was put there yet, or a sweep has removed it
        with entries:
            for entry in entries:
                if not entry.name.startswith(name) or not is_segment(entry.name):
                    continue
                key = f"{folder}/{entry.name}" if folder else entry.name
                # Links are followed: a run that was moved to a larger disk must not look like a missing run.
                if entry.is_dir():
                    yield from self._walk(key, "")
                elif entry.is_file():
                    with suppress(FileNotFoundError):  # deleted since scandir
                        status = entry.stat()
                        yield key, status.st_size, status.st_mtime

    # --- sweeping ---

    def _tidy(self, folders: Iterable[str]) -> None:
        """Remove the files that dead writers left in these directories, then the directories and their parents if they are empty.

        The deepest directories come first, so that a common parent is read once, not once for each of them. This only tidies
        up, so an error here fails no operation: a later sweep removes the rest.
        """
        #: By depth below the root: each directory, and whether a directory directly below it was removed.
        due: dict[int, dict[str, bool]] = {}
        for folder in folders:
            due.setdefault(self._depth(folder), {})[folder] = False
        for depth in range(max(due, default=0), -1, -1):
            for folder, emptier in due.get(depth, {}).items():
                if emptier:
                    with suppress(OSError):
                        _sweep_hollow(folder)
                if depth and self._remove_if_empty(folder):
                    due.setdefault(depth - 1, {})[os.path.dirname(folder)] = True

    def _depth(self, folder: str) -> int:
        """Return the directory's depth. 0 is the root itself, which stays."""
        return folder.removeprefix(self._root.rstrip("/")).count("/")

    def _remove_if_empty(self, folder: str) -> bool:
        """Sweep the directory and remove it if it is empty; return whether it is gone."""
        with suppress(OSError):
            _sweep(folder)
        try:
            os.rmdir(folder)
        except FileNotFoundError:
            pass  # another process removed it first: its parent may still be empty
        except OSError:
            return False  # not empty, or this process may not remove it
        with self._lock:
            self._durable.discard(folder)
        return True

    # --- small things ---

    def _path(self, key: str) -> str:
        return os.path.join(self._root, check_key(key))

    def _named(self, key: str) -> str:
        return f"{self.url.rstrip('/')}/{key}"

    def _deadline(self, timeout: float | None) -> float | None:
        return None if timeout is None else self._clock.monotonic() + timeout

    def _check(self, deadline: float | None, doing: str) -> None:
        if deadline is not None and self._clock.monotonic() >= deadline:
            raise UnavailableError(f"{doing}: out of time")


@contextmanager
def _opened(path: str) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise IsADirectoryError(errno.EISDIR, "is no object", path)
        yield fd
    finally:
        os.close(fd)


def _rename(temporary: str, path: str) -> bool:
    os.replace(temporary, path)
    return True


def _link(temporary: str, path: str) -> bool:
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        raise NotSupportedError(
            f"{os.path.dirname(path)}: this file system has no hard links, which create an object exactly once; use a directory "
            "on another [SG315]"
        ) from error
    return True


@contextmanager
def _folder(path: str) -> Iterator[int]:
    """Open the directory for `_flush`: fsync(2) on it makes the names in it durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def _flush(folder: int) -> None:
    try:
        os.fsync(folder)
    except OSError as error:
        # Some network and user-space file systems cannot flush a directory, and need not: fsync(2), EINVAL.
        if error.errno != errno.EINVAL:
            raise


def _locked(fd: int) -> bool | None:
    """Take the lock if it is free, and return whether this process holds it; None if the file system has no locks."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return (
            None  # no locks (some network file systems): then no leftover is ever taken for a dead writer's
        )
    return True


def _sweep(folder: str) -> None:
    """Remove the temporaries in `folder` whose writers are dead."""
    with os.scandir(folder) as entries:
        names = [entry.path for entry in entries if entry.name.startswith(_TEMPORARY)]
    for path in names:
        with suppress(FileNotFoundError), _opened(path) as fd:
            if _locked(fd):
                os.unlink(path)


def _sweep_hollow(folder: str) -> None:
    """Remove directories directly below that hold only leftovers of a writer killed in its very first put."""
    with os.scandir(folder) as entries:
        below = [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    for path in below:
        with suppress(OSError):  # most are not empty, which rmdir reports
            _sweep_hollow(path)
            _sweep(path)
            os.rmdir(path)
