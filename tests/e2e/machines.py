"""Several machines, as they stand in a rack: namespaces of this one, joined by a switch, taken away one by one.

Each node has a network of its own with one wire to the switch, a name, processes with numbers of their own, the firmware
of a cloud's machine, and that cloud's service at 169.254.169.254, which no other node can see. All share the file
system, and so the store. Who is on one node reaches the others by address and by name, and nothing else.

**A node that is taken says nothing any more**: its wire is dead before its processes are, and the others have its address in
their tables for ever, as in a cloud. So nobody is refused, and nobody hears of an end.

Nothing here has a name that outlives the tests. A node ends with its first process, and all that runs on it by the
kernel's own hand (pid_namespaces(7)); that process ends when whoever started it does.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

import pytest

from spotguard.providers.simulator.aws.service import AwsSimulator
from spotguard.providers.simulator.azure.service import AzureSimulator
from spotguard.providers.simulator.gcp.service import GcpSimulator
from tests.caller import servers_required
from tests.e2e.harness import Machine
from tests.e2e.island import say_no_address, write_firmware
from tests.e2e.processes import TIMEOUT, Running, eventually

Cloud = Literal["aws", "gcp", "azure"]
Service = AwsSimulator | GcpSimulator | AzureSimulator

SERVICES: dict[Cloud, Callable[[], Service]] = {
    "aws": AwsSimulator,
    "gcp": GcpSimulator,
    "azure": AzureSimulator,
}
METADATA = "169.254.169.254"

_FIRST = Path(__file__).parent / "programs" / "first.py"
#: As many as a rack holds: each knows where the others are before they are there.
_PLACES = range(1, 17)
_NEW = ("--net", "--mount", "--uts", "--pid")
#: Debian's ip and tc are not on everybody's path.
_PATH = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"


def address(number: int) -> str:
    return f"10.77.0.{number}"


@cache
def _problem() -> str:
    """Why no machines can be made here; "" where they can."""
    if os.geteuid() != 0:
        return "machines of their own are made by root: run these tests as root"
    for program in ("unshare", "nsenter", "ip", "tc"):
        if shutil.which(program, path=_PATH) is None:
            return f"{program} is not installed: apt-get install util-linux iproute2"
    trying = ("unshare", *_NEW, "--fork", "--mount-proc", "true")
    done = subprocess.run(trying, capture_output=True, text=True, timeout=TIMEOUT)
    why = done.stderr.strip()
    return f"no namespaces here ({why}): allow them (in a container: --cap-add=SYS_ADMIN)" if why else ""


def require_machines() -> None:
    """Skip the test where no machines can be made, and say why; in CI it fails instead."""
    if problem := _problem():
        (pytest.fail if servers_required() else pytest.skip)(problem)


class Rack:
    """The switch, the store, and the nodes that were put in. A context manager."""

    def __init__(self, folder: Path) -> None:
        require_machines()
        self.folder = folder
        self.store = folder / "store"
        self.nodes: list[Node] = []
        self._held = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as held:
            holder = Running(["unshare", "--net", "cat"], self.folder, dict(os.environ))
            held.callback(holder.close)
            holder.say("here")
            holder.out.until("^here$")  # so it stands in a network of its own
            self.switch = holder.pid
            self.configure("link add name switch type bridge", "link set switch up")
            self._held = held.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._held.close()

    def add(self, cloud: Cloud = "aws") -> Node:
        """One more node, plugged in."""
        number = len(self.nodes) + 1
        folder = self.folder / f"node{number}"
        folder.mkdir()
        node = Node(self, number, folder, cloud)
        self._held.callback(node.close)
        node.boot()
        self.nodes.append(node)
        return node

    def configure(self, *lines: str) -> None:
        """Commands of `ip` at the switch."""
        _ip(self.switch, *lines)


class Node(Machine):
    """One machine of a rack; what it starts runs there. Its `folder` is its disk, the rack's `store` is everybody's."""

    def __init__(self, rack: Rack, number: int, folder: Path, cloud: Cloud) -> None:
        super().__init__(folder)
        self.number, self.name, self.address = number, f"node{number}", address(number)
        self.store = rack.store
        self.url = self.store.as_uri()
        self.service: Service = SERVICES[cloud]()
        self._rack = rack
        (folder / "tmp").mkdir()
        self.env |= {"TMPDIR": str(folder / "tmp"), "PATH": _PATH}
        say_no_address(self.env)
        write_firmware(folder, cloud)
        names = (f"{address(place)} node{place}\n" for place in _PLACES)
        (folder / "hosts").write_text("127.0.0.1 localhost\n" + "".join(names))

    # --- what runs there ---

    def start(self, *words: str, **env: str) -> Running:
        running = Inside(self._inside(*words), self.folder, {**self.env, **env})
        self._started.append(running)
        return running

    def guarded(self, options: str, *command: str, **env: str) -> Running:
        """`spotguard run` as run "job", or as the options say, into the rack's store; told nothing of the cloud."""
        words = f"--run-id job --store {self.url} {options}".split()
        return self.spotguard("run", *words, "--", *command, **env)

    def everybody(self) -> list[int]:
        """The processes that run there, as they are known here."""
        there = os.stat(f"/proc/{self._first}/ns/pid").st_ino
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):  # it has ended, or is no process
                if os.stat(entry / "ns" / "pid").st_ino == there:
                    found.append(int(entry.name))
        return found

    # --- what becomes of it ---

    def preempt(self, window: float) -> None:
        """Its cloud says that it goes, so many seconds from now. It does not go by itself: `take`."""
        self.service.preempt(window)

    def cut(self) -> None:
        """Pull its wire: nothing arrives and nothing leaves, and nobody is told."""
        self._rack.configure(f"link set {self.name} down")

    def plug(self) -> None:
        """Put the wire back in."""
        self._rack.configure(f"link set {self.name} up")

    def take(self) -> None:
        """It is gone: first from the network, then with all that ran there. Waits for its last process to end."""
        self.cut()
        self.kill(self._first)
        self._holder.ended()

    def stop(self) -> None:
        """All that was started there is killed, and its kernel tells the others so: the machine itself stays."""
        for pid in self.everybody():
            if pid != self._first:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def shape(self, mbit: float | None) -> None:
        """From here on its wire has this rate in either direction; None: as fast as the machine."""
        for pid, device in ((self._first, "eth0"), (self._rack.switch, self.name)):
            if mbit is None:
                _on(pid, "tc", "qdisc", "delete", "dev", device, "root")
            else:
                rate = ("rate", f"{mbit}mbit", "burst", "256kb", "latency", "50ms")
                _on(pid, "tc", "qdisc", "replace", "dev", device, "root", "tbf", *rate)

    def close(self) -> None:
        self.service.stop()
        super().close()

    # --- its making ---

    def boot(self) -> None:
        """Begin its first process, and plug it in."""
        path = self.runtime / "first"
        with socket.socket(socket.AF_UNIX) as door:
            door.bind(os.fspath(path))
            door.listen(1)
            door.settimeout(TIMEOUT)
            first = (sys.executable, "-S", str(_FIRST), str(path), str(self.folder), self.name, METADATA)
            self._holder = super().start("unshare", *_NEW, "--mount-proc", "--kill-child", *first)
            self._holder.out.until("^up$")
            connection, _ = door.accept()
        with connection:
            _, handles, _, _ = socket.recv_fds(connection, 1, 1)
        self.service.adopt(socket.socket(fileno=handles[0]))
        self.service.start()
        #: The machine's process number 1, as it is known here.
        (self._first,) = children(self._holder.pid)
        self._plug_in()

    def _plug_in(self) -> None:
        wire = f"link add name {self.name} type veth peer name eth0 address {_mac(self.number)}"
        self._rack.configure(
            f"{wire} netns {self._first}", f"link set {self.name} master switch", f"link set {self.name} up"
        )
        others = [place for place in _PLACES if place != self.number]
        _ip(
            self._first,
            f"address add {self.address}/24 dev eth0",
            "link set eth0 up",
            *(f"neighbour add {address(n)} lladdr {_mac(n)} dev eth0 nud permanent" for n in others),
        )

    def _inside(self, *words: str) -> list[str]:
        return ["nsenter", f"--target={self._first}", *_NEW, f"--wd={self.folder}", *words]


class Inside(Running):
    """A process in a PID namespace below ours. `pid` is its number here, and not that of the `nsenter` which waits for it.

    That one ends as it does: with its code, or by its signal.
    """

    def __init__(self, words: list[str], cwd: Path, env: dict[str, str]) -> None:
        super().__init__(words, cwd, env)
        self._waiting = self.pid
        eventually(lambda: children(self._waiting) or not self.running, f"{words} did not start")
        self.pid = next(iter(children(self._waiting)), 0)

    def send(self, signum: int) -> None:
        if self.pid in children(self._waiting):
            # It may have come to its end since we looked, and be taken by who waits.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signum)
        if signum in (signal.SIGCONT, signal.SIGKILL):
            super().send(signal.SIGCONT)  # it stops where its child is stopped, and would hear of no end


def children(pid: int) -> list[int]:
    """Of a process that has one thread."""
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def _mac(number: int) -> str:
    return f"02:00:0a:4d:00:{number:02x}"


def _ip(pid: int, *lines: str) -> None:
    _on(pid, "ip", "-batch", "-", said="\n".join(lines))


def _on(pid: int, *words: str, said: str = "") -> None:
    """Run a program in that process's network."""
    command = ["nsenter", f"--target={pid}", "--net", *words]
    env = {**os.environ, "PATH": _PATH}
    done = subprocess.run(command, input=said, env=env, capture_output=True, text=True, timeout=TIMEOUT)
    assert done.returncode == 0, f"{words} {said}: {done.stderr}"
