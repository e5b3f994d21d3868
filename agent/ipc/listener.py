"""The agent's listening socket, and who could reach it: modes and owners (law 10). `paths` says where it lies.

The folder is the fence: 0700, or 0750 and a group for a service. A folder that somebody else owns, or that
others may write to, is refused: in it the socket could be replaced by another one.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ...providers.errors import UsageError
from .paths import LONGEST, lives_there


@dataclass(slots=True)
class Listener:
    """A listening socket that is ours alone, for as long as `close` is not called."""

    path: Path
    socket: socket.socket
    _lock: int
    _inode: int
    #: What the agent before this one wrote down, if it was killed.
    before: str = ""
    _lives: Callable[[str], object] = bool

    def write_down(self, record: str) -> None:
        """Leave the command's record (`proctree.record_of`) to the agent after this one. An end in order takes it away."""
        with contextlib.suppress(OSError):  # a full disk must not end the guard
            os.ftruncate(self._lock, os.pwrite(self._lock, os.fsencode(record), 0))

    def close(self) -> None:
        """Stop listening; the files go too, unless somebody has put others there."""
        self.socket.close()
        with contextlib.suppress(
            FileNotFoundError
        ):  # the folder was cleaned up under us: what should go is gone
            if os.lstat(self.path).st_ino == self._inode:
                os.unlink(self.path)
        _let_go(self.path, self._lock, self._lives)


def listen(path: Path, *, service: bool = False, lives: Callable[[str], object] = bool) -> Listener:
    """Listen at `path`, with its folder made where it is missing and `lives_there`.

    Args:
        lives: whether the process with a record that was written down is still there (`proctree.recorded`).

    Raises:
        UsageError: the path is too long, its folder is not there or not safe, something else is there, or another agent
            answers there.
    """
    path = _short(path)
    folder = _fenced(path.parent, service)
    lock = _lock(path)
    try:
        return _bind(path, lock, 0o660 if service else 0o600, folder.st_gid if service else -1, lives)
    except BaseException:
        _let_go(path, lock, lives)
        raise


def check(path: Path, env: Mapping[str, str], uid: int) -> None:
    """Refuse what `listen` would refuse this user of the path, its folder and what lies there; nothing is made. Who answers
    there is not asked: it may be the very run that is meant.

    Raises:
        UsageError: as `listen`.
    """
    path = _short(path)
    _check_folder(path.parent, _lock_of(path), env, uid)
    with contextlib.suppress(FileNotFoundError):
        _no_file(path)


def check_folder(folder: Path, env: Mapping[str, str], uid: int) -> None:
    """The same of a folder in which any socket is to lie.

    Raises:
        UsageError: as `listen`.
    """
    _check_folder(folder, folder, env, uid)


def _check_folder(folder: Path, first: Path, env: Mapping[str, str], uid: int) -> None:
    """
    Args:
        first: the file that would be made in it.
    """
    try:
        info = os.lstat(folder)
    except FileNotFoundError as error:
        if not lives_there(folder, env, uid):
            raise _no_folder(folder, error) from error
        made_in = next(parent for parent in folder.parents if os.path.lexists(parent))
        if (no := _unwritable(made_in)) is not None:
            raise _no_folder(folder, no) from error
        return
    except OSError as error:
        raise _no_folder(folder, error) from error
    _private(folder, info, uid)
    if (no := _unwritable(folder)) is not None:
        raise _unmade(first, no)


def _unwritable(folder: Path) -> OSError | None:
    """What the kernel says to a new file in there; None: nothing against it."""
    if os.access(folder, os.W_OK | os.X_OK, effective_ids=True):
        return None
    try:
        fixed = os.statvfs(folder).f_flag & os.ST_RDONLY
    except OSError as error:
        return error
    code = errno.EROFS if fixed else errno.EACCES
    return OSError(code, os.strerror(code))


def _short(path: Path) -> Path:
    path = path.absolute()
    size = len(os.fsencode(path))
    if size > LONGEST:
        raise UsageError(
            f"socket path {path} has {size} bytes and a Unix socket's holds {LONGEST}: "
            "use a shorter --run-id, or --socket with a shorter path"
        )
    return path


def _fenced(folder: Path, service: bool) -> os.stat_result:
    try:
        if lives_there(folder, os.environ, os.geteuid()):
            folder.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                folder.mkdir(mode=0o700)
                if service:
                    folder.chmod(0o750)  # whatever the umask: the group is meant
        info = os.lstat(folder)
    except OSError as error:
        raise _no_folder(folder, error) from error
    _private(folder, info, os.geteuid())
    return info


def _no_folder(folder: Path, error: OSError) -> UsageError:
    if isinstance(error, FileNotFoundError):
        return UsageError(
            f"socket folder {folder} is not there: mkdir -m 700 {folder}, or choose another with --socket"
        )
    return UsageError(f"socket folder {folder}: {error.strerror}; choose another with --socket")


def _private(folder: Path, info: os.stat_result, uid: int) -> None:
    if not stat.S_ISDIR(info.st_mode):
        raise UsageError(f"socket folder {folder} is a link or a file: name a real folder with --socket")
    if info.st_uid != uid:
        raise UsageError(
            f"socket folder {folder} belongs to uid {info.st_uid}, not to {uid}: choose one of your own "
            "with --socket, or set XDG_RUNTIME_DIR"
        )
    if info.st_mode & 0o022:
        mode = stat.S_IMODE(info.st_mode)
        # With the sticky bit it is for everybody, as /tmp: nobody is to take it from them, and one in it is safe.
        advice = (
            f"mkdir -m 700 {folder}/NAME, and say --socket {folder}/NAME/run.sock"
            if mode & stat.S_ISVTX
            else f"chmod go-w {folder}, or choose another with --socket"
        )
        raise UsageError(
            f"socket folder {folder} has mode {mode:04o}, so others could replace the socket: {advice}"
        )


def _lock(path: Path) -> int:
    """One agent for each socket: the kernel gives the lock back when its holder dies, whatever it leaves.

    The file goes with the agent that ends. So whoever opened it before that has locked one that is nobody's any more,
    and asks again.
    """
    name = _lock_of(path)
    while True:
        try:
            fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise _unmade(name, error) from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(fd)
            raise _taken(path) from error
        if _lies_at(name, fd):
            return fd
        os.close(fd)


def _let_go(path: Path, lock: int, lives: Callable[[str], object]) -> None:
    """The file goes while the lock is ours: who comes then finds none, and makes one. It stays beside a command that lives:
    the next agent has to know of that."""
    if _lies_at(_lock_of(path), lock) and not lives(_read(lock)):
        _lock_of(path).unlink(missing_ok=True)
    os.close(lock)


def _read(lock: int) -> str:
    return os.fsdecode(os.pread(lock, 512, 0))


def _unmade(name: Path, error: OSError) -> UsageError:
    return UsageError(f"{name}: {error.strerror}; choose another place with --socket")


def _lock_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.lock")


def _lies_at(name: Path, fd: int) -> bool:
    """Whether this open file is the one of that name, and not one that lay there before."""
    try:
        return os.path.samestat(os.lstat(name), os.fstat(fd))
    except OSError:
        return False


def _taken(path: Path) -> UsageError:
    return UsageError(
        f"another spotguard answers at {path}: give this run its own --run-id (or --socket, where one is said), "
        "or end the other"
    )


def _bind(path: Path, lock: int, mode: int, group: int, lives: Callable[[str], object]) -> Listener:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        try:
            sock.bind(os.fspath(path))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise UsageError(f"socket {path}: {error.strerror}; choose another with --socket") from error
            _remove_stale(path)
            sock.bind(os.fspath(path))
        # Between bind and chmod the folder's fence and the umask hold: nobody else can have connected.
        os.chmod(path, mode)
        if group >= 0:
            os.chown(path, -1, group)
        # Inherited by every accepted connection, so that no byte comes without its sender's credentials.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        sock.listen(socket.SOMAXCONN)
        return Listener(path, sock, lock, os.lstat(path).st_ino, _read(lock), lives)
    except BaseException:
        sock.close()
        raise


def _no_file(path: Path) -> None:
    if not stat.S_ISSOCK(os.lstat(path).st_mode):
        raise UsageError(f"{path} is there and is no socket: it stays; choose another path with --socket")


def _remove_stale(path: Path) -> None:
    """Remove the socket of an agent that was killed; never a live one, never a file that is something else."""
    _no_file(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(os.fspath(path))
        except ConnectionRefusedError:
            os.unlink(path)  # its listener is gone
            return
        except OSError as error:
            raise UsageError(
                f"socket {path} is in use: {error.strerror or error}; use another --socket"
            ) from error
    raise _taken(path)
