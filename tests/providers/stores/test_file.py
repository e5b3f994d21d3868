"""The folder as a store: atomic, durable, and honest about what the file system says."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from spotguard.providers.errors import (
    CorruptError,
    DeniedError,
    FullError,
    NotFoundError,
    NotSupportedError,
    StoreError,
    UnavailableError,
)
from spotguard.providers.stores.base import StoreMovement
from spotguard.providers.stores.factory import open_store
from spotguard.providers.stores.file import FileStore, _mapped

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="mounting a tmpfs needs root")


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path / "store")


def files(folder: Path) -> list[str]:
    """All that lies in a folder, hidden or not."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """One MiB of disk, and not a byte more."""
    folder = tmp_path / "disk"
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {done.stderr.decode().strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["mount", "-o", "remount,rw", folder], check=False, capture_output=True)
        subprocess.run(["umount", "-l", folder], check=True)


# --- durable, in order -----------------------------------------------------------------------------------------------


class Disk:
    """Notes what a store asks of the disk, in order, by path: each call is made all the same."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self.done: list[tuple[str, str]] = []
        self._root = root
        for name in ("write", "fsync"):
            patch.setattr(os, name, self._by_number(name, getattr(os, name)))
        for name in ("replace", "link"):
            patch.setattr(os, name, self._by_names(name, getattr(os, name)))
        patch.setattr(os, "mkdir", self._makes(os.mkdir))

    def _note(self, what: str, path: str) -> None:
        name = os.path.relpath(path, self._root)
        self.done.append((what, "temporary" if ".put-" in name else name))

    def _by_number(self, what: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def noted(fd: int, *rest: Any) -> Any:
            self._note(what, os.readlink(f"/proc/self/fd/{fd}"))
            return call(fd, *rest)

        return noted

    def _by_names(self, what: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def noted(source: str, target: str) -> None:
            self._note(what, target)
            call(source, target)

        return noted

    def _makes(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def noted(path: str, *rest: Any) -> None:
            call(path, *rest)
            self._note("mkdir", path)

        return noted


@pytest.mark.parametrize("publish", ["replace", "link"])
def test_bytes_are_flushed_before_their_name_and_the_name_before_the_answer(
    publish: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that dies at any instant leaves no name without its bytes, and loses nothing that was answered."""
    store = FileStore(tmp_path / "store")
    disk = Disk(tmp_path, monkeypatch)
    put = store.put if publish == "replace" else store.put_if_absent
    put("run/checkpoints/one", memoryview(b"bytes"))
    folders = [
        ("mkdir", "store"),
        ("fsync", "."),
        ("mkdir", "store/run"),
        ("fsync", "store"),
        ("mkdir", "store/run/checkpoints"),
        ("fsync", "store/run"),
    ]
    one = [
        ("write", "temporary"),
        ("fsync", "temporary"),
        (publish, "store/run/checkpoints/one"),
        ("fsync", "store/run/checkpoints"),
    ]
    assert disk.done == [*folders, *one]
    disk.done.clear()
    put("run/checkpoints/two", memoryview(b"bytes"))
    assert disk.done == [*one[:2], (publish, "store/run/checkpoints/two"), one[3]]


@pytest.mark.parametrize("fails", ["temporary", "store/run"])
def test_an_object_that_cannot_be_flushed_is_not_put(
    fails: str, store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of fsync(2) is the put's: of the bytes, no name appears; of the folder, nobody is told that it is there."""
    store.put("run/before", memoryview(b"bytes"))
    flush = os.fsync

    def fsync(fd: int) -> None:
        name = os.readlink(f"/proc/self/fd/{fd}")
        if ".put-" in name if fails == "temporary" else name.endswith(fails):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        flush(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(UnavailableError, match="Input/output error"):
        store.put("run/one", memoryview(b"bytes"))
    assert (fails != "temporary") == ("run/one" in [info.key for info in store.list("")])


# --- the disk says no ----------------------------------------------------------------------------------------------


@ROOT_ONLY
def test_a_full_disk_is_full(small_disk: Path) -> None:
    """The error says so, what was there stays, and no bytes of the failed put take room."""
    store = FileStore(small_disk / "store")
    store.put("run/good", memoryview(bytes(300_000)))
    with pytest.raises(FullError, match="No space left on device; free some room"):
        store.put("run/large", memoryview(bytes(900_000)))
    with pytest.raises(FullError):
        store.put_if_absent("run/large", memoryview(bytes(900_000)))
    assert [info.key for info in store.list("")] == ["run/good"]
    assert files(small_disk / "store") == ["run", "run/good"]
    store.put("run/small", memoryview(bytes(300_000)))


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_hard_links_is_named(
    number: int, store: FileStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FAT says that the operation is not permitted: not of this user's rights, and not for now. A claim by put is left."""

    def link(*args: object, **kwargs: object) -> None:
        raise OSError(number, os.strerror(number))

    store.put("run/good", memoryview(b"x"))
    monkeypatch.setattr(os, "link", link)
    for key in ("run/claim", "run/good"):
        with pytest.raises(NotSupportedError, match="no hard links"):
            store.put_if_absent(key, memoryview(b"y"))
    assert files(tmp_path / "store") == ["run", "run/good"]
    assert store.get("run/good") == b"x"


@ROOT_ONLY
def test_a_read_only_disk_denies(small_disk: Path) -> None:
    """Writing and deleting are denied, reading goes on."""
    store = FileStore(small_disk / "store")
    store.put("run/a", memoryview(b"x"))
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    with pytest.raises(DeniedError, match="Read-only file system"):
        store.put("run/b", memoryview(b"x"))
    with pytest.raises(DeniedError):
        store.put("other/b", memoryview(b"x"))
    with pytest.raises(DeniedError):
        store.delete(["run/a"])
    assert store.get("run/a") == b"x"
    assert [info.key for info in store.list("")] == ["run/a"]


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
def test_a_folder_of_somebody_else_denies(tmp_path: Path) -> None:
    """Whoever may not write is told, with the folder's URL; nothing appears."""
    store = FileStore(tmp_path / "store")
    store.put("run/a", memoryview(b"x"))
    for path in (tmp_path, *tmp_path.parents):
        if path.stat().st_uid == 0 and path != Path("/"):
            path.chmod(path.stat().st_mode | 0o055)
    # Everything is loaded first: the Python that runs this may be closed to other users.
    program = (
        "import os, sys\n"
        "from spotguard.providers.stores.file import FileStore\n"
        "from spotguard.providers.errors import DeniedError\n"
        f"store = FileStore({str(tmp_path / 'store')!r})\n"
        "os.setgid(65534)\nos.setuid(65534)\n"
        "assert store.get('run/a') == b'x'\n"
        "for call in (lambda: store.put('run/b', memoryview(b'y')), lambda: store.delete(['run/a'])):\n"
        "    try:\n        call()\n"
        "    except DeniedError as error:\n        print(error)\n"
        "    else:\n        sys.exit('not denied')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Permission denied; make the directory writable") == 2
    assert files(tmp_path / "store") == ["run", "run/a"]


@pytest.mark.parametrize(
    ("number", "leaf"),
    [
        (errno.ENOSPC, FullError),
        (errno.EDQUOT, FullError),
        (errno.EACCES, DeniedError),
        (errno.EPERM, DeniedError),
        (errno.EROFS, DeniedError),
        (errno.ENOENT, NotFoundError),
        (errno.EIO, UnavailableError),
        (errno.ESTALE, UnavailableError),
        (errno.ETIMEDOUT, UnavailableError),
    ],
)
def test_an_errno_becomes_one_of_ours(number: int, leaf: type[StoreError]) -> None:
    """Decided by number, with the cause kept."""
    with pytest.raises(leaf) as caught, _mapped("put file:///x/run/a"):
        raise OSError(number, os.strerror(number))
    assert type(caught.value) is leaf
    assert caught.value.code == errno.errorcode[number]
    assert isinstance(caught.value.__cause__, OSError)
    assert str(caught.value).startswith("put file:///x/run/a: ")


def test_a_file_where_the_store_should_be(tmp_path: Path) -> None:
    """No traceback of the operating system's, and the file is left alone."""
    (tmp_path / "store").write_text("mine")
    store = FileStore(tmp_path / "store")
    with pytest.raises(StoreError):
        store.put("run/a", memoryview(b"x"))
    assert list(store.list("")) == []
    assert (tmp_path / "store").read_text() == "mine"


def test_an_object_that_shrank_is_corrupt(store: FileStore, tmp_path: Path) -> None:
    """As a disk that lost its last blocks leaves it."""
    store.put("run/a", memoryview(b"0123456789"))
    os.truncate(tmp_path / "store/run/a", 4)
    with pytest.raises(CorruptError, match="4 bytes are there, 10 were expected"):
        store.read_into("run/a", 0, memoryview(bytearray(10)))


# --- killed in the middle --------------------------------------------------------------------------------------------

#: Puts the same large object over and over, saying so before each; reads its own end from a pipe.
_PUTTER = """
import sys
from spotguard.providers.stores.file import FileStore
store, data = FileStore(sys.argv[1]), memoryview(bytearray(48 << 20))
for number in range(1000):
    print(number, flush=True)
    store.put(f"run/{sys.argv[2]}/{number}", data)
"""


@pytest.mark.parametrize("puts", [0, 1, 2, 3])
def test_killed_in_the_middle_of_put(tmp_path: Path, puts: int) -> None:
    """SIGKILL leaves whole objects and nothing else to be seen; the next delete sweeps the rest."""
    store = FileStore(tmp_path / "store")
    with subprocess.Popen(
        [sys.executable, "-c", _PUTTER, tmp_path / "store", "x"], stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        for _ in range(puts + 1):
            child.stdout.readline()
        leftovers: list[Path] = []
        poll = threading.Event()
        while (
            not leftovers and child.poll() is None
        ):  # in the middle: its temporary is there and not yet renamed
            leftovers = list((tmp_path / "store").glob("run/x/.put-*"))
            poll.wait(0.001)
        child.send_signal(signal.SIGKILL)
    for info in store.list(""):
        assert info.size == 48 << 20
    seen = [info.key for info in store.list("run/x/")]
    store.delete([*seen, "run/x/none"])
    assert files(tmp_path / "store") == []


def test_a_dead_writers_leftovers_are_swept_by_its_neighbours(tmp_path: Path) -> None:
    """A folder that never got an object has no key to delete: the sweep of another folder finds it."""
    store = FileStore(tmp_path / "store")
    store.put("run/checkpoints/1/a", memoryview(b"x"))
    store.put("run/checkpoints/2/a", memoryview(b"x"))
    dead = tmp_path / "store/run/checkpoints/0/00000-of-00001"
    dead.mkdir(parents=True)
    (dead / ".put-1-dead").write_bytes(b"half")
    store.delete(["run/checkpoints/1/a"])
    assert files(tmp_path / "store/run/checkpoints") == ["2", "2/a"]


def test_a_living_writer_is_not_swept(tmp_path: Path) -> None:
    """Its temporary is locked; the sweep beside it leaves it, and the put succeeds."""
    store = FileStore(tmp_path / "store")
    store.put("run/x/a", memoryview(b"x"))
    with store._temporary(str(tmp_path / "store/run/x")) as (_, temporary):
        FileStore(tmp_path / "store").delete(["run/x/a"])
        assert os.path.exists(temporary)
        assert list(store.list("")) == []
    assert not os.path.exists(temporary)


def test_writers_and_sweepers_do_not_meet(folder: Path) -> None:
    """Folders vanish under writers all the time; every put succeeds all the same."""
    stop = threading.Event()

    def sweep() -> None:
        while not stop.is_set():
            other = FileStore(folder / "store")
            other.delete([info.key for info in other.list("run/")])

    sweeper = threading.Thread(target=sweep, name="sweeper")
    sweeper.start()
    try:
        store = FileStore(folder / "store")
        for number in range(1000):
            store.put(f"run/{number % 7}/deep/{number}", memoryview(b"x"))
    finally:
        stop.set()
        sweeper.join(100)
    store.delete([info.key for info in store.list("")])
    assert files(folder / "store") == []


_CLAIMER = """
import sys
from spotguard.providers.stores.file import FileStore
store, mine = FileStore(sys.argv[1]), sys.argv[2]
sys.stdin.readline()  # all start at once
print(*[n for n in range(50) if store.put_if_absent(f"run/{n}", memoryview(mine.encode()))])
"""


def test_one_of_many_processes_wins(tmp_path: Path) -> None:
    """As when several machines start at once on one shared folder."""
    children = [
        subprocess.Popen(
            [sys.executable, "-c", _CLAIMER, tmp_path / "store", str(mine)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for mine in range(4)
    ]
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    wins = [child.communicate(timeout=100)[0].split() for child in children]
    assert sorted(int(number) for won in wins for number in won) == list(range(50))
    store = FileStore(tmp_path / "store")
    for mine, won in enumerate(wins):
        assert all(store.get(f"run/{number}") == b"%d" % mine for number in won)


# --- a good guest ----------------------------------------------------------------------------------------------------


def test_opening_touches_nothing(tmp_path: Path) -> None:
    """Listing, reading and deleting do not make the folder; the first put does, with its parents."""
    store = open_store((tmp_path / "deep/store").as_uri())
    assert list(store.list("run/")) == []
    store.delete(["run/a"])
    with pytest.raises(NotFoundError):
        store.get("run/a")
    assert files(tmp_path) == []
    store.put("run/a", memoryview(b"x"))
    assert files(tmp_path / "deep/store") == ["run", "run/a"]


def test_the_store_itself_is_never_removed(tmp_path: Path, store: FileStore) -> None:
    """Only folders below it go when they are empty."""
    store.put("run/a/b", memoryview(b"x"))
    store.delete(["run/a/b"])
    assert files(tmp_path) == ["store"]


def test_foreign_files_are_left_alone(tmp_path: Path, store: FileStore) -> None:
    """What is no key is not listed, and its folder is not removed."""
    store.put("run/a", memoryview(b"x"))
    (tmp_path / "store/run/.mine").write_text("mine")
    (tmp_path / "store/run/my notes").write_text("mine")
    store.delete(["run/a"])
    assert list(store.list("")) == []
    assert files(tmp_path / "store") == ["run", "run/.mine", "run/my notes"]


def test_objects_have_the_users_own_mode(tmp_path: Path, store: FileStore) -> None:
    """As the umask says: a checkpoint that a colleague cannot read is no use to the team."""
    before = os.umask(0o027)
    try:
        store.put("run/a", memoryview(b"x"))
    finally:
        os.umask(before)
    assert (tmp_path / "store/run/a").stat().st_mode & 0o777 == 0o640


def test_a_run_behind_a_link_is_seen(tmp_path: Path, store: FileStore) -> None:
    """Somebody moved the run to a larger disk and left a link."""
    store.put("run/a", memoryview(b"x"))
    (tmp_path / "store/run").rename(tmp_path / "moved")
    (tmp_path / "store/run").symlink_to(tmp_path / "moved")
    assert [info.key for info in store.list("")] == ["run/a"]


def test_memory_is_not_taken_for_large_reads(store: FileStore) -> None:
    """read_into fills the caller's buffer in place, across the seams of its pieces."""
    data = os.urandom(1 << 20) * 40
    store.put("run/a", memoryview(data))
    buffer, moved = bytearray(len(data) - 3), StoreMovement.count
    store.read_into("run/a", 3, memoryview(buffer))
    assert buffer == data[3:]
    assert StoreMovement.count > moved + 1  # a long read of one object moves
