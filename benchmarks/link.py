"""A link of a chosen rate between two machines that are network namespaces of this one, gone with whoever made them.

The one side is the store's machine, the other the saver's, a veth pair between them is the link, and a token bucket at
either end is its rate: the saver's end shapes uploads, the store's end downloads. (This kernel may lack netem, so
there is no latency but that of full queues.) **In the saver's namespace 127.0.0.0/8 lies across the link**: it has no
loopback of its own, and routes it to the store's machine. So a server that listens on loopback, as those of the tests
do, is a server on another machine, and nothing of it needs to know.

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
_ADDRESSES: dict[Side, str] = {"store": "10.9.0.1", "saver": "10.9.0.2"}

_libc = ctypes.CDLL(None, use_errno=True)


class Link:
    """Two machines and the link between them, from entering to leaving."""

    def __init__(self) -> None:
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
            for side in _ADDRESSES:
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
        for side in _ADDRESSES:
            with self.on(side):
                if mbit is None:
                    subprocess.run(["tc", "qdisc", "del", "dev", side, "root"], env=_ENV, capture_output=True)
                    continue
                rate = ["rate", f"{mbit}mbit", "burst", str(_BURST[mbit > _FAST]), "latency", "50ms"]
                _run("tc", "qdisc", "replace", "dev", side, "root", "tbf", *rate)

    def _lay(self) -> None:
        far = f"/proc/{os.getpid()}/fd/{self._spaces['saver']}"
        with self.on("store"):
            _run("ip", "link", "set", "lo", "up")
            _run("ip", "link", "add", "store", "type", "veth", "peer", "name", "saver", "netns", far)
        for side, address in _ADDRESSES.items():
            with self.on(side):
                _run("ip", "address", "add", f"{address}/30", "dev", side)
                _run("ip", "link", "set", side, "up")
                # Without it the kernel drops what comes from or goes to 127/8 by a wire (ip-sysctl.rst).
                Path("/proc/sys/net/ipv4/conf/all/route_localnet").write_text("1")
        with self.on("saver"):
            _run("ip", "route", "add", "127.0.0.0/8", "via", _ADDRESSES["store"])


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
