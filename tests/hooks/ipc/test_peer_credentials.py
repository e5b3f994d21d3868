"""Whose word on a socket is believed. Other users are made by root, in a child that becomes one of them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from spotguard.hooks.ipc import peer_credentials

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")

NOBODY = 65534

_LISTENS = """
import os, socket, sys
s = socket.socket(socket.AF_UNIX)
{before}
os.setgroups([]); os.setgid(65534); os.setuid(65534)
{after}
s.listen()
print("there", flush=True)
sys.stdin.read()
"""
_BINDS = "s.bind(sys.argv[1])"
#: Listens as another user; and at a socket that somebody else has put there.
LISTENS = _LISTENS.format(before="", after=_BINDS)
PLACED = _LISTENS.format(before=_BINDS, after="")
#: Asks as a third one, as a job does on a machine of whose service it is in the group.
ASKS = """
import os, socket, sys
sys.path[:0] = [sys.argv[2]]
from spotguard.hooks.ipc import peer_credentials as credentials
os.setgid(65533); os.setuid(65533)
s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])
print(credentials.stranger(s, sys.argv[1]))
"""


@pytest.fixture
def above() -> Iterator[Path]:
    """A folder as /run is: root's, and nobody else may make anything in it."""
    with tempfile.TemporaryDirectory(prefix="sg", dir="/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def asked(path: Path, packaging: Path, listens: str = LISTENS) -> str:
    """What another user makes of who listens there."""
    with subprocess.Popen(
        [sys.executable, "-c", listens, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as listener:
        assert listener.stdout is not None
        assert listener.stdout.readline() == "there\n"
        path.chmod(0o777)
        done = subprocess.run(
            [sys.executable, "-c", ASKS, str(path), str(packaging)],
            capture_output=True,
            text=True,
            timeout=100,
        )
        listener.communicate()
    return done.stdout.strip() or done.stderr


def service_folder(above: Path, owner: int) -> Path:
    folder = above / "spotguard"
    folder.mkdir(mode=0o755)
    os.chown(folder, owner, owner)
    return folder


PACKAGING = Path(peer_credentials.__file__).parents[3]


def test_the_service_whose_folder_root_has_made_is_believed(above: Path) -> None:
    assert asked(service_folder(above, NOBODY) / "a.sock", PACKAGING) == "None"


def test_a_user_in_a_folder_of_his_own_making_is_not(above: Path) -> None:
    """Anybody could have made it, in a place where anybody can."""
    folder = service_folder(above, NOBODY)
    above.chmod(0o1777)
    assert asked(folder / "a.sock", PACKAGING) == str(NOBODY)


def test_a_user_in_somebody_elses_folder_is_not(above: Path) -> None:
    """The folder is root's: who was let in to put a socket there is not the service."""
    folder = service_folder(above, 0)
    folder.chmod(0o777)
    assert asked(folder / "a.sock", PACKAGING) == str(NOBODY)


@pytest.mark.parametrize(("mode", "said"), [(0o755, "None"), (0o775, str(NOBODY)), (0o757, str(NOBODY))])
def test_a_peer_with_an_unmapped_uid_is_believed_in_a_protected_directory(
    above: Path, mode: int, said: str
) -> None:
    """As a pod with users of its own sees the agent of its node: nobody, in the folder of somebody."""
    assert int(Path("/proc/sys/kernel/overflowuid").read_text()) == NOBODY
    folder = service_folder(above, 65532)
    folder.chmod(mode)
    assert asked(folder / "a.sock", PACKAGING, PLACED) == said


def test_root_and_we_ourselves_are(above: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening, socket.socket(socket.AF_UNIX) as asking:
        listening.bind(str(above / "a.sock"))
        listening.listen()
        asking.connect(str(above / "a.sock"))
        assert peer_credentials.stranger(asking, above / "a.sock") is None
