"""The agent's listening socket, and the modes and owners that protect it (law 10). `paths` names its path.

The directory protects the socket: its mode is 0700, or 0750 with a group for a service. The agent refuses a directory that another
user owns or may write to, because that user could replace the socket.
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
    """A listening socket that belongs to this agent alone until `close`."""

    path: Path
    socket: socket.socket
    _lock: int
    _inode: int
    #: The command's record that the agent before this one left, if that agent was killed; else "".
    before: str = ""
    _lives: Callable[[str], object] = bool

    def write_down(self, record: str) -> None:
        """Leave the command's record (`proctree.record_of`) for the next agent. An orderly end removes the record."""
        with contextlib.suppress(OSError):  # a full disk must not end the agent
            os.ftruncate(self._lock, os.pwrite(self._lock, os.fsencode(record), 0))

    def close(self) -> None:
        """Stop listening, and remove the files, unless others have replaced them."""
        self.socket.close()
        with contextlib.suppress(FileNotFoundError):  # another program has already removed the socket
            if os.lstat(self.path).st_ino == self._inode:
                os.unlink(self.path)
        _let_go(self.path, self._lock, self._lives)


def listen(path: Path, *, service: bool = False, lives: Callable[[str], object] = bool) -> Listener:
    """Listen at `path`. A missing directory is created if `lives_there` allows it.

    Args:
        path: the path of the socket.
        service: whether the socket is a service's, which the directory's group may use.
        lives: returns whether the process of a written record still lives (`proctree.recorded`).

    Raises:
        UsageError: the path is too long, its directory is missing or not safe, the path is something else than a socket, or
            another agent answers there.
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
    """Refuse what `listen` would refuse this user: the path, its directory, or a file at the path. Nothing is created.

    No agent that answers there is asked: it may be the very run that is meant.

    Raises:
        UsageError: as `listen`.
    """
    path = _short(path)
    _check_folder(path.parent, _lock_of(path), env, uid)
    with contextlib.suppress(FileNotFoundError):
        _no_file(path)


def check_folder(folder: Path, env: Mapping[str, str], uid: int) -> None:
    """Refuse a directory for sockets of any name, as `check` does.

    Raises:
        UsageError: as `listen`.
    """
    _check_folder(folder, folder, env, uid)


def _check_folder(folder: Path, first: Path, env: Mapping[str, str], uid: int) -> None:
    """Refuse a directory in which this user could not listen safely.

    Args:
        folder: the directory.
        first: the first file that `listen` would create in the directory.
        env: the environment, which names the runtime directory.
        uid: the user.

    Raises:
        UsageError: as `listen`.
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
    """Return the error with which the kernel would refuse a new file in the directory; None if it would not."""
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
                    folder.chmod(0o750)  # the group needs access whatever the umask is
        info = os.lstat(folder)
    except OSError as error:
        raise _no_folder(folder, error) from error
    _private(folder, info, os.geteuid())
    return info


def _no_folder(folder: Path, error: OSError) -> UsageError:
    if isinstance(error, FileNotFoundError):
        return UsageError(
            f"socket directory {folder} is not there: mkdir -m 700 {folder}, or choose another with --socket [SG104]"
        )
    return UsageError(f"socket directory {folder}: {error.strerror}; choose another with --socket [SG104]")


def _private(folder: Path, info: os.stat_result, uid: int) -> None:
    if not stat.S_ISDIR(info.st_mode):
        raise UsageError(
            f"socket directory {folder} is a link or a file: name a real directory with --socket [SG104]"
        )
    if info.st_uid != uid:
        raise UsageError(
            f"socket directory {folder} belongs to uid {info.st_uid}, not to {uid}: choose one of your own "
            "with --socket, or set XDG_RUNTIME_DIR [SG104]"
        )
    if info.st_mode & 0o022:
        mode = stat.S_IMODE(info.st_mode)
        # A directory with the sticky bit is for all users, as /tmp: its mode must stay, and a private directory in it is safe.
        advice = (
            f"mkdir -m 700 {folder}/NAME, and pass --socket {folder}/NAME/run.sock"
            if mode & stat.S_ISVTX
            else f"chmod go-w {folder}, or choose another with --socket"
        )
        raise UsageError(
            f"socket directory {folder} has mode {mode:04o}, so others could replace the socket: {advice} [SG104]"
        )


def _lock(path: Path) -> int:
    """Take the lock that lets only one agent serve a socket. The kernel releases it when its holder dies.

    An agent that ends removes the lock file. Another agent may have opened that file just before. Its lock is then on a
    removed file, so it opens the file again.

    Raises:
        UsageError: another agent holds the lock, or the file cannot be created.
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
    """Remove the lock file while this agent holds the lock, so that the next agent creates a new one.

    The file stays if the command still lives, because the next agent has to know about that command.
    """
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
    """Return whether the open file is the one of that name now, and not a removed one."""
    try:
        return os.path.samestat(os.lstat(name), os.fstat(fd))
    except OSError:
        return False


def _taken(path: Path) -> UsageError:
    return UsageError(
        f"another spotguard answers at {path}: give this run its own --run-id (or --socket, if you pass one), "
        "or end the other [SG103]"
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
        # Between bind and chmod the directory's mode and the umask protect the socket: no other user can have connected.
        os.chmod(path, mode)
        if group >= 0:
            os.chown(path, -1, group)
        # Every accepted connection inherits the option, so that no byte comes without its sender's credentials.
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
    """Remove the socket of a killed agent; never the socket of a live agent, and never another file.

    Raises:
        UsageError: an agent answers there, or the file is not a socket.
    """
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
