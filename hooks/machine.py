"""This machine, as the job's other ranks know it: whether two ranks share it, and where it is found.

A notice is of a machine. All processes that one agent watches over are on one; what a launcher's rendezvous calls it is
among its names.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import struct
from dataclasses import dataclass
from pathlib import Path

#: `ioctl_netdevice(7)`: an interface's IPv4 address, in bytes 20 to 24 of its `ifreq`.
_SIOCGIFADDR = 0x8915
_LOOPBACK = "127."


@dataclass(frozen=True, slots=True)
class Machine:
    """Two ranks are on one where these are equal."""

    #: A kernel's boot, and the agent's socket on it.
    id: str
    #: By which others may know it: host name, and addresses.
    names: tuple[str, ...]

    @property
    def address(self) -> str:
        """Where others find it; "" where it has loopback only."""
        return next((name for name in reversed(self.names) if name[:1].isdigit()), "")

    def encode(self) -> str:
        return json.dumps([self.id, *self.names])

    @classmethod
    def decode(cls, token: str) -> Machine:
        """
        Args:
            token: `encode`'s, of any rank.
        """
        try:
            id, *names = json.loads(token)
        except ValueError:  # another version's: a name for itself
            return cls(token, ())
        return cls(str(id), tuple(map(str, names)))


def this_machine(agent: str) -> Machine:
    """
    Args:
        agent: the socket of the agent that watches over this process; "" for none.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:  # no Linux, or hidden: a name will do
        boot = ""
    host = os.uname().nodename
    id = f"{boot} {os.path.realpath(agent)}" if agent else f"{boot} {host}"
    return Machine(id, (host, *_addresses()))


def _addresses() -> list[str]:
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(any_socket, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:  # it has none
                continue
            address = socket.inet_ntoa(answer[20:24])
            if not address.startswith(_LOOPBACK):
                found.append(address)
    return found
