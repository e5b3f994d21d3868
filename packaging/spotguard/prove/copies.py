"""Copies of the working directory: one for each series of lives, so that no life reads what another series has written.

A copy shares blocks with the original if the file system can (btrfs, XFS, bcachefs). Such a copy takes no room and no time.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import pickle
import shutil
import stat
import zipfile
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Self

from spotguard.hooks.arguments.names import STORE_FOLDER
from spotguard.hooks.restore import proof_file
from spotguard.providers.errors import UsageError
from spotguard.providers.text import amount

#: `ioctl_ficlone(2)`.
_FICLONE = 0x40049409
#: Directories that a copy links to: a program writes nothing there that it reads again.
_LINKED = frozenset({".git", ".hg", ".tox", "node_modules"})
#: The most bytes of a file whose lines are told apart.
_LOG = 2**24
#: Directories that no life needs.
_LEFT_OUT = frozenset({STORE_FOLDER, proof_file.FOLDER, "__pycache__"})


@dataclass(frozen=True, slots=True)
class Original:
    """The working directory, and which parts of it are copied.

    Args:
        folder: the working directory.
        linked: directories in it that a copy links to, as paths below `folder`.
        without: directories that a copy leaves out, as paths below `folder`: those that hold the copies themselves.
    """

    folder: Path
    linked: frozenset[Path] = frozenset()
    without: frozenset[Path] = frozenset()

    def outside_of(self, folder: Path) -> Original:
        """Return the original without `folder`, if it lies inside: copies of copies would never end."""
        if not folder.is_relative_to(self.folder) or folder == self.folder:
            return self
        return replace(self, without=self.without | {folder.relative_to(self.folder)})

    def files(self) -> Iterator[tuple[Path, os.DirEntry[str]]]:
        """Yield each entry that is not left out, with its path below the directory; a directory before its contents."""
        folders = [Path()]
        while folders:
            below = folders.pop()
            try:
                entries = sorted(os.scandir(self.folder / below), key=lambda entry: entry.name)
            except OSError as error:
                if isinstance(error, FileNotFoundError) and below.parts:
                    continue  # removed meanwhile
                raise UsageError(_unread(self.folder / below, error)) from error
            for entry in entries:
                path = below / entry.name
                if entry.name in _LEFT_OUT or path in self.without:
                    continue
                yield path, entry
                if entry.is_dir(follow_symlinks=False) and not self.is_linked(path):
                    folders.append(path)

    def is_linked(self, path: Path) -> bool:
        """Report whether a copy links to this directory: by its name, by `linked`, or because it is a virtual environment."""
        known = path.name in _LINKED or path in self.linked
        return known or os.path.isfile(self.folder / path / "pyvenv.cfg")

    def size(self) -> int:
        """Return the bytes that a copy holds."""
        return sum(_size(entry) for _, entry in self.files())


def check_size(original: Original, at: Path, most: int, copies: int) -> tuple[int, bool]:
    """Check that the copies may be made.

    Args:
        at: the directory that will hold the copies.
        most: the limit in bytes for one copy that shares no blocks.
        copies: the number of copies at one time.

    Returns:
        The bytes of one copy, and whether the copy shares blocks with the original.

    Raises:
        UsageError: a copy is too large, or the disk has no room for the copies.
    """
    size, shares = original.size(), can_share(original, at)
    if shares:
        return size, True
    ways = (
        "link data that is only read (--link data), run it in a smaller directory, or choose a --folder on this directory's "
        "file system, if that can share blocks"
    )
    if size > most:
        raise UsageError(
            f"the working directory {original.folder} holds {amount(size)}, and each series of runs has a copy of it: more "
            f"than --copy-limit {amount(most)}; {ways}, or raise the limit"
        )
    free = shutil.disk_usage(at).free
    if size * copies > free:
        raise UsageError(
            f"{copies} copies of the working directory {original.folder} need {amount(size * copies)}, and {amount(free)} are "
            f"free in {at}; {ways}"
        )
    return size, False


def can_share(original: Original, at: Path) -> bool:
    """Report whether the file system can clone a file of the directory to `at` without copying its blocks. Clones one to try."""
    first = next((path for path, entry in original.files() if _size(entry)), None)
    if first is None:
        return False
    trial = at / ".shares"
    try:
        with open(original.folder / first, "rb") as source, open(trial, "wb") as target:
            fcntl.ioctl(target, _FICLONE, source.fileno())
    except OSError:  # another file system, or one that cannot
        return False
    finally:
        trial.unlink(missing_ok=True)
    return True


def beside(original: Path, root: Path) -> Path:
    """Make the directories above a copy, and link their other entries to the real ones, so that `../data` still works.

    Args:
        root: a new directory, which stands for `/`.

    Returns:
        The path for the copy; it does not exist yet.
    """
    real, here = Path(original.root), root
    for part in original.parts[1:]:
        here.mkdir(mode=0o700)
        with contextlib.suppress(PermissionError):  # nobody can list this directory
            for name in os.listdir(real):
                if name != part:
                    (here / name).symlink_to(real / name)
        real, here = real / part, here / part
    return here


def copy(original: Original, to: Path) -> None:
    """Copy the directory. Links stay links; anything that is neither a file nor a directory is left out.

    Raises:
        UsageError: a file or directory cannot be read.
        OSError: the disk has no room for the copy.
    """
    to.mkdir(mode=0o700)
    for path, entry in original.files():
        source, target = original.folder / path, to / path
        try:
            if entry.is_symlink():
                named = Path(os.readlink(source))
                inside = named.is_relative_to(original.folder)
                target.symlink_to(to / named.relative_to(original.folder) if inside else named)
            elif entry.is_dir(follow_symlinks=False):
                if original.is_linked(path):
                    target.symlink_to(source)
                else:
                    target.mkdir(mode=0o700)
            elif stat.S_ISREG(entry.stat(follow_symlinks=False).st_mode):
                _copy_file(source, target)
        except FileNotFoundError:  # removed meanwhile
            continue
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise UsageError(_unread(source, error)) from error


def written(original: Original, at: Path) -> dict[str, tuple[str, str]]:
    """Return two digests of each file of a copy that is not as in the original, by its path below the copy.

    Both are of the values of a file of `torch.save`, whose pickle may say the same in other bytes. Else the second digest is
    without the lines that a file repeats, unless it is larger than a log. A file that may not be read is left out.
    """
    found: dict[str, tuple[str, str]] = {}
    with contextlib.suppress(UsageError):  # a directory that may not be read
        for path, entry in Original(at, original.linked).files():
            with contextlib.suppress(OSError):
                if entry.is_file(follow_symlinks=False) and _is_new(entry, original.folder / path):
                    found[str(path)] = _digests(entry.path)
    return found


def _is_new(entry: os.DirEntry[str], source: Path) -> bool:
    now, before = entry.stat(follow_symlinks=False), source.stat() if source.is_file() else None
    return before is None or (before.st_size, before.st_mtime_ns) != (now.st_size, now.st_mtime_ns)


def _digests(path: str) -> tuple[str, str]:
    with open(path, "rb") as file:
        if (values := _values(file)) is not None:
            return values, values
        file.seek(0)
        whole = hashlib.file_digest(file, "sha256").hexdigest()
        if file.tell() > _LOG:
            return whole, whole
        file.seek(0)
        return whole, hashlib.sha256(b"".join(dict.fromkeys(file))).hexdigest()


class _Remade:
    """A stand-in for an object that a pickle has a class or function make: it keeps the parts, and no code of that class runs."""

    def __new__(cls, *given: Any) -> Self:
        made = super().__new__(cls)
        made.parts = [cls.__name__, given]
        return made

    parts: list[Any]

    def __setstate__(self, state: Any) -> None:
        self.parts.append(state)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.parts.append((key, value))

    def append(self, value: Any) -> None:
        self.parts.append(value)


class _Saved(pickle.Unpickler):
    """The pickle of a file of `torch.save`, with a digest in place of each storage."""

    def __init__(self, archive: zipfile.ZipFile, root: str) -> None:
        super().__init__(archive.open(f"{root}data.pkl"))
        self._archive, self._root = archive, root

    def find_class(self, module: str, name: str) -> type[_Remade]:
        return type(f"{module}.{name}", (_Remade,), {})

    def persistent_load(self, pid: Any) -> Any:
        _, kind, key, *place = pid
        digest = hashlib.sha256()
        with self._archive.open(f"{self._root}data/{key}") as storage:
            while piece := storage.read(2**20):
                digest.update(piece)
        return [kind, *place, digest.hexdigest()]


def _values(file: IO[bytes]) -> str | None:
    """Return a digest of the values in a file of `torch.save`; None for any other file."""
    try:
        with zipfile.ZipFile(file) as archive:
            root = next(name for name in archive.namelist() if name.endswith("/data.pkl"))
            text = _text(_Saved(archive, root.removesuffix("data.pkl")).load())
    except Exception:  # noqa: BLE001 - the bytes of another file may raise anything
        return None
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_text(key)}: {_text(item)}' for key, item in value.items())}}}"
    if isinstance(value, (list, tuple)):
        return f"{type(value).__name__}({', '.join(map(_text, value))})"
    if isinstance(value, (set, frozenset)):
        return f"{{{', '.join(sorted(map(_text, value)))}}}"
    if isinstance(value, _Remade):
        return _text(value.parts)
    return value.__name__ if isinstance(value, type) else repr(value)


def _copy_file(source: Path, target: Path) -> None:
    with open(source, "rb") as read, open(target, "wb") as written:
        try:
            fcntl.ioctl(written, _FICLONE, read.fileno())
        except OSError:
            shutil.copyfileobj(read, written, 2**20)
    shutil.copystat(source, target)


def links(folder: Path, given: Collection[str]) -> frozenset[Path]:
    """Return the directories to link to, as paths below the working directory.

    Args:
        given: directories as the user passed them, relative to the working directory.

    Raises:
        UsageError: a directory does not exist, or is not inside the working directory.
    """
    linked = set()
    for word in given:
        path = Path(os.path.normpath(folder / word))
        if not path.is_dir() or not path.is_relative_to(folder) or path == folder:
            raise UsageError(
                f"--link {word!r}: expected a directory inside the working directory {folder}, as in --link data"
            )
        linked.add(path.relative_to(folder))
    return frozenset(linked)


def _size(entry: os.DirEntry[str]) -> int:
    """Return the bytes of a file; 0 for anything else, and for a file that was removed meanwhile."""
    try:
        return entry.stat(follow_symlinks=False).st_size if entry.is_file(follow_symlinks=False) else 0
    except OSError:
        return 0


def _unread(path: Path, error: OSError) -> str:
    return (
        f"{path} cannot be copied: {error.strerror}; link to its directory (--link), or run the command in a directory "
        "without it"
    )
