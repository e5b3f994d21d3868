"""What systemd is told, on a datagram socket as it opens one itself."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from spotguard.agent.telemetry.systemd import NOBODY, Manager, going_down
from spotguard.hooks.ipc.protocol import Committed, Preempt
from spotguard.providers.simulator.aws.service import AwsSimulator
from tests.fakes.hook import FakeHook
from tests.tiers import few_fast

PATIENCE = 100.0


class Listener:
    """systemd's end of it."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + address[1:] if address.startswith("@") else address)
        self._socket.settimeout(PATIENCE)

    def hears(self) -> str:
        return self._socket.recv(4096).decode()

    def until(self, wanted: str) -> list[str]:
        """What is said, up to a line that begins so."""
        lines = [self.hears()]
        while not lines[-1].startswith(wanted):
            lines.append(self.hears())
        return lines

    def nothing_more(self) -> bool:
        self._socket.setblocking(False)
        try:
            self._socket.recv(4096)
        except BlockingIOError:
            return True
        finally:
            self._socket.settimeout(PATIENCE)
        return False

    def close(self) -> None:
        self._socket.close()


ADDRESSES = ["a path", "an abstract name"]
#: For a test that starts a process: the others have both in the fast tier.
FEW = pytest.mark.parametrize("systemd", few_fast(ADDRESSES), indirect=True)


@pytest.fixture(params=ADDRESSES)
def systemd(request: pytest.FixtureRequest) -> Iterator[Listener]:
    with tempfile.TemporaryDirectory(prefix="sg", dir="/tmp") as folder:
        listener = Listener(f"{folder}/n" if request.param == "a path" else f"@spotguard-{os.getpid()}")
        yield listener
        listener.close()


def test_it_is_told_that_we_are_ready_live_and_end(systemd: Listener) -> None:
    """The sign of life comes at half of what is asked for, at the earliest; a status when it is another."""
    manager = Manager.take({"NOTIFY_SOCKET": systemd.address, "WATCHDOG_USEC": "20000000"}, os.getpid())
    assert manager is not None
    manager.ready(100.0)
    assert [systemd.hears(), systemd.hears()] == ["READY=1", "WATCHDOG=1"]
    assert manager.next_sign == 110.0
    manager.live(109.9)
    manager.live(110.0)
    manager.status("watching, 1 training process")
    manager.status("watching, 1 training process")
    manager.status("two\nlines")
    manager.stopping()
    said = ["WATCHDOG=1", "STATUS=watching, 1 training process", "STATUS=two lines", "STOPPING=1"]
    assert [systemd.hears() for _ in said] == said
    assert systemd.nothing_more()
    manager.close()


def test_no_sign_of_life_where_none_is_asked_for(systemd: Listener) -> None:
    """Nor where it is asked of another process: a container hands its variables to all."""
    for env in ({}, {"WATCHDOG_USEC": "1000", "WATCHDOG_PID": "1"}, {"WATCHDOG_USEC": "soon"}):
        manager = Manager.take({"NOTIFY_SOCKET": systemd.address, **env}, os.getpid())
        assert manager.next_sign is None
        manager.ready(100.0)
        assert systemd.hears() == "READY=1"
        assert systemd.nothing_more()
        manager.close()


@pytest.mark.parametrize("env", [{}, {"NOTIFY_SOCKET": ""}, {"NOTIFY_SOCKET": "vsock:2:1"}])
def test_without_a_manager_nobody_is_told(env: dict[str, str]) -> None:
    """And the loop need not know: it says the same to nobody."""
    manager = Manager.take(dict(env), os.getpid())
    assert manager is NOBODY
    manager.ready(1.0)
    manager.stopping()
    manager.close()
    assert manager.next_sign is None


def test_the_variables_are_taken_away() -> None:
    """A command that inherits them would speak in our name."""
    env = {"NOTIFY_SOCKET": "/run/n", "WATCHDOG_USEC": "1", "WATCHDOG_PID": "7", "PATH": "/bin"}
    Manager.take(env, 7).close()
    assert env == {"PATH": "/bin"}


def test_one_that_is_gone_or_does_not_read_costs_nothing(systemd: Listener) -> None:
    """A full queue: the datagrams are dropped, and nobody waits."""
    manager = Manager(systemd.address, 1.0)
    for number in range(5000):
        manager.status(f"line {number}")
    systemd.close()
    manager.ready(1.0)
    manager.close()


def test_a_machine_without_systemd_is_not_going_down() -> None:
    if not os.path.isdir("/run/systemd/system"):
        assert not going_down()


@FEW
def test_a_service_tells_what_it_does(systemd: Listener, folder: Path, aws: AwsSimulator) -> None:
    """Ready when the socket is there; what it watches; a notice; its end, after who saves has come to an end."""
    path = folder / "agent.sock"
    words = ["--provider", "aws", "--metadata-endpoint", aws.endpoint, "--socket", str(path)]
    env = {"NOTIFY_SOCKET": systemd.address, "WATCHDOG_USEC": "100000"}
    with subprocess.Popen(
        [sys.executable, "-m", "spotguard", "agent", *words],
        env=os.environ | env,
        stderr=subprocess.DEVNULL,
    ) as agent:
        systemd.until("READY=1")
        assert path.is_socket()
        systemd.until("STATUS=watching, 0 training processes")
        with FakeHook.registered(path) as hook:
            systemd.until("STATUS=watching, 1 training process")
            systemd.until("WATCHDOG=1")
            aws.preempt(120)
            systemd.until("STATUS=saving, aws spot/instance-action: 0 of 1 saved")
            agent.send_signal(signal.SIGTERM)
            systemd.until("WATCHDOG=1")
            assert agent.poll() is None, "it ends while somebody saves"
            hook.say(Committed(hook.hear(Preempt).id, 3, 10, 0.1, "u", 1.0))
            systemd.until("STOPPING=1")
        assert agent.wait(PATIENCE) == 0


@FEW
def test_a_command_does_not_speak_in_our_name(systemd: Listener) -> None:
    env = {"NOTIFY_SOCKET": systemd.address}
    words = ["run", "--provider", "none", "--run-id", "n", "--", sys.executable, "-c"]
    code = "import os; print(os.environ.get('NOTIFY_SOCKET'))"
    done = subprocess.run(
        [sys.executable, "-m", "spotguard", *words, code],
        env=os.environ | env,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    assert done.stdout == "None\n"
    assert systemd.until("STOPPING=1")[0] == "READY=1"
