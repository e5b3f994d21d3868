"""A link of a chosen rate between two machines that are network namespaces of this one, gone with whoever made them.

The one side is the store's machine, the other the saver's, a veth pair between them is the link, and a token bucket at
either end is its rate: the saver's end shapes uploads, the store's end downloads. (This kernel may lack netem, so
there is no latency but that of full queues.) **In the saver's namespace 127.0.0.0/8 lies across the link**: it has no
loopback of its own, and routes it to the store's machine. So a server that listens on loopback, as those of the tests
do, is a server on another machine, and nothing of it needs to know.

Several savers, each with a link of its own, reach one store's machine, and each other through it.

The namespaces have no name: they are held by open files, and by the processes inside. A benchmark that is killed leaves
none behind.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from .rows import Unable

Side = Literal["store", "saver"]

_NEWNET = 0x40000000  # CLONE_NEWNET, from linux/sched.h
_OWN = "/proc/thread-self/ns/net"
#: Bytes that may go at once: at 2 Gbit/s and a tick of 4 ms it must hold a megabyte, or the ticks would be the limit.
_BURST = {True: 1_250_000, False: 262_144}
_FAST = 1000  # Mbit/s
_SIDES: tuple[Side, Side] = ("store", "saver")

_libc = ctypes.CDLL(None, use_errno=True)


class Link:
    """Two machines and the link between them, from entering to leaving.

    Args:
        beside: an entered link, to whose store's machine this one goes too; its saver is another machine.
    """

    def __init__(self, beside: Link | None = None) -> None:
        self._beside = beside
        self._number: int = 0 if beside is None else beside._number + 1
        #: What an end of it is called on its machine.
        self._devices: dict[Side, str] = {"store": f"store{self._number}", "saver": "saver"}
        self._addresses: dict[Side, str] = {"store": f"10.9.{self._number}.1", "saver": self.address}
        self._held = ExitStack()
        self._spaces: dict[Side, int] = {}
        self._home = -1

    def __enter__(self) -> Self:
        """Make it.

        Raises:
            Unable: not root, or no `ip` and `tc` here.
        """
        if os.geteuid() != 0:
            raise Unable("network namespaces are made by root: sudo .venv/bin/python -m benchmarks links")
        for program in ("ip", "tc"):
            if shutil.which(program, path=_PATH) is None:
                raise Unable(f"{program} is not here, which shapes the link: apt-get install iproute2")
        with ExitStack() as held:
            self._home = _open(held)
            for side in _SIDES:
                if side == "store" and self._beside is not None:
                    self._spaces[side] = self._beside._spaces[side]
                    continue
                _call("unshare", _libc.unshare(_NEWNET))
                self._spaces[side] = _open(held)
                _call("setns", _libc.setns(self._home, _NEWNET))
            self._lay()
            self._held = held.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._held.close()  # with the last file and process the namespaces go, and the link with them

    @property
    def address(self) -> str:
        """The saver's machine, for other savers."""
        return f"10.9.{self._number}.2"

    @contextmanager
    def on(self, side: Side) -> Iterator[None]:
        """This thread, and every thread, socket and process that it begins, on that machine."""
        _call("setns", _libc.setns(self._spaces[side], _NEWNET))
        try:
            yield
        finally:
            _call("setns", _libc.setns(self._home, _NEWNET))

    def shape(self, mbit: int | None) -> None:
        """From here on the link has this rate in both directions; None: as fast as the machine."""
        for side, device in self._devices.items():
            with self.on(side):
                if mbit is None:
                    words = ["tc", "qdisc", "del", "dev", device, "root"]
                    subprocess.run(words, env=_ENV, capture_output=True)
                    continue
                rate = ["rate", f"{mbit}mbit", "burst", str(_BURST[mbit > _FAST]), "latency", "50ms"]
                _run("tc", "qdisc", "replace", "dev", device, "root", "tbf", *rate)

    def _lay(self) -> None:
        far = f"/proc/{os.getpid()}/fd/{self._spaces['saver']}"
        store, saver = self._devices["store"], self._devices["saver"]
        with self.on("store"):
            _run("ip", "link", "set", "lo", "up")
            _run("ip", "link", "add", store, "type", "veth", "peer", "name", saver, "netns", far)
            Path("/proc/sys/net/ipv4/ip_forward").write_text("1")  # from saver to saver
        for side, address in self._addresses.items():
            with self.on(side):
                _run("ip", "address", "add", f"{address}/30", "dev", self._devices[side])
                _run("ip", "link", "set", self._devices[side], "up")
                # Without it the kernel drops what comes from or goes to 127/8 by a wire (ip-sysctl.rst).
                Path("/proc/sys/net/ipv4/conf/all/route_localnet").write_text("1")
        with self.on("saver"):
            # What it says to itself by its own address goes by this device all the same.
            _run("ip", "link", "set", "lo", "up")
            _run("ip", "address", "flush", "dev", "lo")
            for there in ("127.0.0.0/8", "default"):
                _run("ip", "route", "add", there, "via", self._addresses["store"])


_PATH = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"  # Debian's ip and tc are not on everybody's
_ENV = {**os.environ, "PATH": _PATH}


def _open(held: ExitStack) -> int:
    number = os.open(_OWN, os.O_RDONLY | os.O_CLOEXEC)
    held.callback(os.close, number)
    return number


def _call(name: str, result: int) -> None:
    if result != 0:
        raise Unable(f"{name} is refused here: {os.strerror(ctypes.get_errno())}")


def _run(*words: str) -> None:
    done = subprocess.run(words, env=_ENV, capture_output=True, text=True)
    if done.returncode != 0:
        raise Unable(f"{' '.join(words)}: {done.stderr.strip()}")
