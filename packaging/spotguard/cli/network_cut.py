"""A cut of the network for one command: the kernel drops what its processes send and receive, except on loopback.

A program of the kernel (BPF) at a cgroup of the command's own decides on each packet, as systemd's IPAddressDeny does. Nothing
else of the machine is cut, so a shell over the network stays. The kernel removes the program with the process that holds it.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from spotguard.providers.errors import UsageError

#: Numbers of bpf(2) by machine (asm/unistd.h), and its commands, types and places (linux/bpf.h).
_BPF = {"x86_64": 321, "aarch64": 280}
_PROG_LOAD, _LINK_CREATE = 5, 28
_CGROUP_SKB, _INGRESS, _EGRESS = 8, 0, 1
#: What a program returns. On the way out, 2 would drop as a full queue does: TCP then tries again each half second, and gives a
#: connection up after 15 times. With 0 its pauses grow, as with a cut wire. Only a sender by UDP gets an error, EPERM.
_DROP, _PASS = 0, 1
#: The index of loopback in each network namespace, and the offset of `ifindex` in `struct __sk_buff`.
_LOOPBACK, _IFINDEX = 1, 40
#: Looks whether the cgroup is empty, with this pause: the last processes of a command end a moment after it.
_LOOKS, _PAUSE = 50, 0.1

_NEEDS = (
    "it needs root, or CAP_BPF and CAP_NET_ADMIN, and a cgroup v2 in which a group can be made (in a container: "
    "--privileged --cgroupns=host, or run it on the host)"
)


class NetworkCut:
    """A cgroup for a command, and the programs that can cut its network. A context manager.

    Args:
        proc: the directory with the mounts and the cgroup of this process, for tests.

    Raises:
        UsageError: the network cannot be cut here.
    """

    def __init__(self, proc: Path = Path("/proc/self")) -> None:
        around = _own_group(proc)
        self._programs: list[tuple[int, int]] = []
        self._links: list[int] = []
        try:
            self._group = Path(tempfile.mkdtemp(prefix="spotguard-cut-", dir=around))
        except OSError as error:
            raise UsageError(f"cut: no cgroup can be made in {around}: {error.strerror}; {_NEEDS}") from None
        try:
            for place in (_INGRESS, _EGRESS):
                self._programs.append((place, _loaded(place)))
            self.begin()  # a kernel that refuses does so now, and not in the middle of the training
            self.end()
        except OSError as error:
            self.close()
            raise UsageError(
                f"cut: the kernel refuses a program that drops packets: {error.strerror}; {_NEEDS}"
            ) from None

    def __enter__(self) -> NetworkCut:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def inside(self, command: Sequence[str]) -> list[str]:
        """Return the words that start the command in the cgroup."""
        return ["sh", "-c", 'echo 0 >"$0"/cgroup.procs && exec "$@"', str(self._group), *command]

    @contextmanager
    def during(self, _pid: int) -> Iterator[None]:
        """Cut the network, and let it heal behind the block."""
        self.begin()
        yield
        self.end()

    def begin(self) -> None:
        """Cut the network."""
        group = os.open(self._group, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for place, program in self._programs:
                self._links.append(_bpf(_LINK_CREATE, struct.pack("<IIII", program, group, place, 0)))
        finally:
            os.close(group)

    def end(self) -> None:
        """Let the network heal."""
        while self._links:
            os.close(self._links.pop())

    def close(self) -> None:
        """Heal the network, and remove the cgroup once it is empty."""
        self.end()
        while self._programs:
            os.close(self._programs.pop()[1])
        waits = threading.Event()
        for _ in range(_LOOKS):
            with suppress(OSError):  # a process of the command is left
                self._group.rmdir()
                return
            waits.wait(_PAUSE)


def _own_group(proc: Path) -> Path:
    """Return the directory of this process's cgroup v2."""
    mounts = (line.split() for line in (proc / "mounts").read_text().splitlines())
    root = next((words[1] for words in mounts if words[2] == "cgroup2"), None)
    if root is None:
        raise UsageError(f"cut: no cgroup v2 is mounted here; {_NEEDS}")
    lines = (proc / "cgroup").read_text().splitlines()
    own = next((line[3:] for line in lines if line.startswith("0::")), "/")
    return Path(root, own.lstrip("/"))


def _loaded(place: int) -> int:
    """Load a program that drops each packet of another device than loopback; return its descriptor."""
    code = b"".join(
        struct.pack("<BBhi", *words)
        for words in (
            (0x61, 0x12, _IFINDEX, 0),  # r2 = skb->ifindex
            (0xB7, 0x00, 0, _PASS),  # r0 = pass
            (0x15, 0x02, 1, _LOOPBACK),  # if r2 == loopback: leave out the next one
            (0xB7, 0x00, 0, _DROP),  # r0 = drop
            (0x95, 0x00, 0, 0),  # return r0
        )
    )
    kept, licence = ctypes.create_string_buffer(code), ctypes.create_string_buffer(b"Apache-2.0")
    # Type, number of instructions, instructions, licence; log, version, flags, name and device, all zero; the place.
    head = struct.pack(
        "<IIQQ", _CGROUP_SKB, len(code) // 8, ctypes.addressof(kept), ctypes.addressof(licence)
    )
    return _bpf(_PROG_LOAD, head + struct.pack("<IIQII16sII", 0, 0, 0, 0, 0, b"", 0, place))


def _bpf(command: int, words: bytes) -> int:
    """Call bpf(2); return the new descriptor."""
    if (number := _BPF.get(platform.machine())) is None:
        raise OSError(0, f"its number on {platform.machine()} is not known here")
    given = ctypes.create_string_buffer(words.ljust(128, b"\0"), 128)
    libc = ctypes.CDLL(None, use_errno=True)
    if (fd := int(libc.syscall(number, command, given, 128))) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return fd
