"""Where the socket lies, and what is refused: a folder that others could write to, a live socket, a long path."""

from __future__ import annotations

import fcntl
import os
import socket
import stat
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from spotguard.agent.ipc.listener import check, check_folder, listen
from spotguard.agent.ipc.paths import LONGEST, default_socket, is_socket, lives_there, runtime_folder
from spotguard.providers.errors import UsageError
from tests.fakes.nobody import nobody


def test_the_default_lies_in_the_users_runtime_folder(tmp_path: Path) -> None:
    """By the run id."""
    assert default_socket("gpt", {"XDG_RUNTIME_DIR": str(tmp_path)}, 5) == tmp_path / "spotguard" / "gpt.sock"


@pytest.mark.parametrize("env", [{}, {"XDG_RUNTIME_DIR": ""}, {"XDG_RUNTIME_DIR": "/no/such/folder"}])
def test_without_a_runtime_folder_it_lies_in_tmp_by_uid(env: dict[str, str]) -> None:
    """Its owner is checked when it is used."""
    assert runtime_folder(env, 1234) == Path("/tmp/spotguard-1234")


@pytest.mark.parametrize("run_id", ["", "../up", "a/b", ".hidden", "nul\0"])
def test_a_run_id_that_is_no_name_is_refused(run_id: str) -> None:
    """It would put the socket somewhere else."""
    with pytest.raises(UsageError, match="cannot name a socket"):
        default_socket(run_id, {}, 1)


def test_the_folder_is_made_for_us_alone(folder: Path) -> None:
    """0700, the socket 0600; nothing stays of either file."""
    path = folder / "new" / "a.sock"
    listener = listen(path)
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [one.name for one in path.parent.iterdir()] != []
    listener.close()
    assert list(path.parent.iterdir()) == []


def test_a_lock_that_goes_while_somebody_asks_for_it_is_nobodys(folder: Path) -> None:
    """Who opened the file before it went has locked what nobody else will find: two would listen in one place."""
    path, name = folder / "a.sock", folder / ".a.sock.lock"
    first = listen(path)
    early = os.open(name, os.O_RDWR)
    first.close()
    fcntl.flock(early, fcntl.LOCK_EX | fcntl.LOCK_NB)  # gone, and so it keeps nobody out
    second = listen(path)
    with pytest.raises(UsageError, match="another spotguard answers"):
        listen(path)
    name.unlink()  # as a cleaner of old files may
    name.touch()
    second.close()
    assert name.exists(), "what lies there now is another's"
    os.close(early)


def test_agents_that_come_and_go_are_one_at_a_time(folder: Path) -> None:
    """Threads that open, lock and remove the same file: whoever has it is alone."""
    path, inside, most = folder / "a.sock", list[int](), list[int]()

    def come_and_go(number: int) -> None:
        for _ in range(200):
            try:
                listener = listen(path)
            except UsageError:
                continue
            inside.append(number)
            most.append(len(inside))
            inside.remove(number)
            listener.close()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(come_and_go, range(4)))
    assert set(most) == {1}
    assert list(folder.iterdir()) == []


def test_a_service_lets_its_group_in(folder: Path) -> None:
    """0750 and 0660, with the folder's group."""
    path = folder / "new" / "a.sock"
    listener = listen(path, service=True)
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o750
    assert stat.S_IMODE(path.stat().st_mode) == 0o660
    assert path.stat().st_gid == path.parent.stat().st_gid
    listener.close()


def test_a_path_of_107_bytes_is_the_longest(folder: Path) -> None:
    """One byte more is a clear error, not the kernel's."""
    room = LONGEST - len(os.fsencode(folder)) - 1
    listen(folder / ("x" * room)).close()
    with pytest.raises(UsageError, match=rf"has {LONGEST + 1} bytes.*--run-id"):
        listen(folder / ("x" * (room + 1)))
    assert not (folder / ("x" * (room + 1))).exists()


def test_whether_a_socket_lies_there(folder: Path) -> None:
    """A file is none, nothing is none, and neither is what lies below a file."""
    listener = listen(folder / "a.sock")
    (folder / "file").touch()
    found = [is_socket(folder / name) for name in ("a.sock", "file", "nothing", "file/a.sock")]
    listener.close()
    assert found == [True, False, False, False]


#: As somebody outside the service's group. Everything is imported first: the interpreter's own files may be closed too.
OUTSIDER = """
import logging, os, random, sys
from pathlib import Path
from spotguard.agent.config.resolve import resolve
from spotguard.agent.ipc import control
from spotguard.agent import app
from spotguard.providers.clock import SystemClock
if os.geteuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
logging.basicConfig(level=logging.INFO, format="%(message)s")
options = resolve("run", {}, {})
service = Path(sys.argv[1])
print(app._watches(options, list, None, print, SystemClock(), random.Random(), service, ()))
print(control.find_sockets({"XDG_RUNTIME_DIR": "/nowhere"}, os.getpid(), service))
"""


def test_outside_the_services_group_we_look_ourselves(folder: Path) -> None:
    """A folder that is closed to us is no error: most users of a machine are in no group of ours."""
    listener = listen(folder / "a.sock", service=True)
    folder.chmod(0o000)
    done = subprocess.run(
        [sys.executable, "-c", OUTSIDER, str(listener.path)], capture_output=True, text=True, timeout=100
    )
    folder.chmod(0o700)
    listener.close()
    assert done.stdout == "[]\n[]\n", done.stderr
    (line,) = done.stderr.splitlines()
    assert line == f"not in the group of {folder}, the service agent's: looking for notices here"


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o777])
def test_a_folder_that_others_may_write_to_is_refused(folder: Path, mode: int) -> None:
    """Its socket could be replaced by another's."""
    folder.chmod(mode)
    with pytest.raises(UsageError, match="chmod go-w"):
        listen(folder / "a.sock")
    assert os.listdir(folder) == []


def test_a_folder_that_is_shared_on_purpose_is_not_to_be_taken_from_the_others(folder: Path) -> None:
    """Of /tmp, say: what root copies from a message must not close it. With the sticky bit a folder of ours in it is safe."""
    folder.chmod(0o1777)
    advice = f"mkdir -m 700 {folder}/NAME, and pass --socket {folder}/NAME/run.sock [SG104]"
    assert (
        refused(folder / "a.sock")
        == f"socket directory {folder} has mode 1777, so others could replace the socket: {advice}"
    )
    assert os.listdir(folder) == []
    (folder / "NAME").mkdir(mode=0o700)
    listen(folder / "NAME" / "run.sock").close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_somebody_else_is_refused(folder: Path) -> None:
    """In /tmp anybody may have made it before us."""
    os.chown(folder, 65534, -1)
    with pytest.raises(UsageError, match="belongs to uid 65534"):
        listen(folder / "a.sock")
    assert os.listdir(folder) == []


def test_a_link_to_a_folder_is_refused(folder: Path) -> None:
    """It may point elsewhere tomorrow."""
    (folder / "real").mkdir(mode=0o700)
    (folder / "link").symlink_to(folder / "real")
    with pytest.raises(UsageError, match="is a link or a file"):
        listen(folder / "link" / "a.sock")
    assert os.listdir(folder / "real") == []


def test_a_folder_that_cannot_be_made_is_a_clear_error(folder: Path) -> None:
    """A file is in the way."""
    (folder / "file").touch()
    with pytest.raises(UsageError, match="is a link or a file"):
        listen(folder / "file" / "a.sock")


@pytest.mark.parametrize("service", [False, True])
def test_a_folder_that_is_missing_elsewhere_is_not_made(tmp_path: Path, service: bool) -> None:
    """It is a slip of the pen, and root's would be in the file system's root."""
    path = tmp_path / "nonexist" / "s.sock"
    with pytest.raises(
        UsageError, match=r"socket directory .*/nonexist is not there: mkdir -m 700 .*/nonexist"
    ):
        listen(path, service=service)
    assert not path.parent.exists()
    with pytest.raises(UsageError, match="is not there"):
        check(path, {}, os.geteuid())


def test_a_folder_in_the_users_runtime_folder_is_made(folder: Path) -> None:
    env = {"XDG_RUNTIME_DIR": str(folder)}
    assert lives_there(folder / "mine", env, 5)
    assert not lives_there(folder / "mine", {"XDG_RUNTIME_DIR": str(folder / "elsewhere")}, 5)
    check(folder / "mine" / "a.sock", env, os.geteuid())
    assert not (folder / "mine").exists()


# --- what is said beforehand is what `listen` says ---


def refused(path: Path) -> str:
    """By both, in the same words."""
    with pytest.raises(UsageError) as listening:
        listen(path).close()
    with pytest.raises(UsageError) as checking:
        check(path, os.environ, os.geteuid())
    assert str(checking.value) == str(listening.value)
    return str(listening.value)


def test_a_missing_folder_that_may_not_be_made_is_refused_beforehand() -> None:
    """In /run only root makes folders."""
    folder = Path(f"/run/spotguard-{os.urandom(4).hex()}")
    with nobody():
        words = refused(folder / "deeper" / "a.sock")
        assert words.startswith(f"socket directory {folder / 'deeper'}: Permission denied; ")
    assert not folder.exists()


def test_a_folder_of_ones_own_that_may_not_be_written_to_is_refused_beforehand() -> None:
    with nobody(), tempfile.TemporaryDirectory(dir="/tmp") as made:  # the suite's own is closed to nobody
        folder, uid = Path(made), os.geteuid()
        folder.chmod(0o500)
        words = refused(folder / "a.sock")
        assert words.startswith(f"{folder / '.a.sock.lock'}: Permission denied; choose another place with ")
        with pytest.raises(UsageError, match="Permission denied"):
            check_folder(folder, os.environ, uid)
        assert os.listdir(folder) == []
        folder.chmod(0o700)
        check(folder / "a.sock", os.environ, uid)
        listen(folder / "a.sock").close()


def test_a_file_in_the_way_is_refused_beforehand_and_a_stale_socket_is_not(folder: Path) -> None:
    (folder / "a.sock").write_text("precious")
    assert "is there and is no socket: it stays" in refused(folder / "a.sock")
    (folder / "a.sock").unlink()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(os.fspath(folder / "a.sock"))
    check(folder / "a.sock", os.environ, os.geteuid())
    listen(folder / "a.sock").close()
    assert os.listdir(folder) == []


def test_the_folder_is_judged_for_whom_it_is_asked(folder: Path) -> None:
    """Not by the environment and the user of who asks."""
    with pytest.raises(UsageError, match="is not there"):
        check_folder(folder / "mine", {"XDG_RUNTIME_DIR": "/nowhere"}, os.geteuid())
    with pytest.raises(UsageError, match="not to 4242"):
        check_folder(folder, os.environ, 4242)


@pytest.mark.parametrize(
    ("path", "made"),
    [
        ("/run/spotguard", True),  # the service's
        ("/run/spotguard/agent", True),  # in a volume of a pod, whose own folder others may write to
        ("/run/spotguard-run-gpt", True),
        ("/run/user/5/spotguard", True),
        ("/run/user/5/mine", True),
        ("/tmp/spotguard-5", True),
        ("/tmp/spotguard-6", False),
        ("/nonexist", False),
        ("/runs/spotguard", False),
        ("/home/me/run/spotguard", False),
    ],
)
def test_folders_are_made_where_sockets_live(path: str, made: bool) -> None:
    """What is made there is never litter: a boot or a logout empties them."""
    assert lives_there(Path(path), {}, 5) == made


def test_a_stale_socket_is_replaced(folder: Path) -> None:
    """Its agent was killed: nobody answers, and nobody holds the lock."""
    path = folder / "a.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(os.fspath(path))
    listener = listen(path)
    with socket.socket(socket.AF_UNIX) as caller:
        caller.connect(os.fspath(path))
    listener.close()


def test_a_live_agents_socket_is_left_alone(folder: Path) -> None:
    """A second run of the same name says so; the first goes on."""
    first = listen(folder / "a.sock")
    with pytest.raises(UsageError, match=r"own --run-id \(or --socket, if you pass one\), or end the other"):
        listen(folder / "a.sock")
    with socket.socket(socket.AF_UNIX) as caller:
        caller.connect(os.fspath(first.path))
    first.close()


def test_a_live_socket_of_another_program_is_left_alone(folder: Path) -> None:
    """It holds no lock of ours, but it answers."""
    path = folder / "a.sock"
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(os.fspath(path))
        other.listen()
        with pytest.raises(UsageError, match="another spotguard answers"):
            listen(path)
        assert path.is_socket()
        assert os.listdir(folder) == ["a.sock"]


def test_a_file_in_the_way_stays(folder: Path) -> None:
    """Somebody's data is not ours to remove."""
    path = folder / "a.sock"
    path.write_text("precious")
    with pytest.raises(UsageError, match="is no socket"):
        listen(path)
    assert path.read_text() == "precious"
    assert os.listdir(folder) == ["a.sock"], "and no lock beside it"


def test_closing_leaves_anothers_socket(folder: Path) -> None:
    """Our file was replaced meanwhile."""
    path = folder / "a.sock"
    listener = listen(path)
    path.unlink()
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(os.fspath(path))
        listener.close()
        assert path.is_socket()
