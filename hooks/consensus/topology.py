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
from typing import TYPE_CHECKING

from .channel import Channel

if TYPE_CHECKING:
    from ..state.state import State

#: `ioctl_netdevice(7)`: an interface's IPv4 address, in bytes 20 to 24 of its `ifreq`.
_SIOCGIFADDR = 0x8915
_LOOPBACK = "127."
#: `proc_net(5)`: a line for each route, of which the default one goes to 0.0.0.0/0.
_ROUTES = Path("/proc/net/route")
_ANYWHERE = "00000000"


@dataclass(frozen=True, slots=True)
class Host:
    """Two ranks are on one where these are equal."""

    #: A kernel's boot, and the agent's socket on it: its path, and the folder that has this path here.
    id: str
    #: By which others may know it: host name, and addresses, the best one last.
    names: tuple[str, ...]

    @property
    def address(self) -> str:
        """Where others find it; "" where it has loopback only."""
        return next((name for name in reversed(self.names) if name[:1].isdigit()), "")

    def encode(self) -> str:
        return json.dumps([self.id, *self.names])

    @classmethod
    def decode(cls, token: str) -> Host:
        """
        Args:
            token: `encode`'s, of any rank.
        """
        try:
            id, *names = json.loads(token)
        except ValueError:  # another version's: a name for itself
            return cls(token, ())
        return cls(str(id), tuple(map(str, names)))


def this_machine(agent: str) -> Host:
    """
    Args:
        agent: the socket of the agent that watches over this process; "" for none.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:  # no Linux, or hidden: a name will do
        boot = ""
    host = os.uname().nodename
    id = f"{boot} {_place(os.path.realpath(agent))}" if agent else f"{boot} {host}"
    return Host(id, (host, *_addresses()))


def _place(agent: str) -> str:
    """Two containers of one kernel have an agent each, at the same path, and with the node's network the same names. The socket
    itself is another one when its agent starts again, its folder is not."""
    try:
        folder = os.stat(os.path.dirname(agent))
    except OSError:  # nobody has been there
        return agent
    return f"{agent} {folder.st_dev}:{folder.st_ino}"


def _addresses() -> list[str]:
    """That of the interface with the default route last: others find a machine there, and not on its own bridge of
    containers, which every machine has under one address."""
    found: dict[str, str] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(any_socket, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:  # it has none
                continue
            address = socket.inet_ntoa(answer[20:24])
            if not address.startswith(_LOOPBACK):
                found[name] = address
    try:
        best = default_interface(_ROUTES.read_text())
    except OSError:  # no Linux, or hidden
        best = ""
    return [found[name] for name in sorted(found, key=lambda name: name == best)]


def default_interface(routes: str) -> str:
    """
    Args:
        routes: as in /proc/net/route.

    Returns:
        Where packets for anywhere go, by the cheapest route; "" for nowhere.
    """
    default = [
        (int(metric), interface)
        for interface, to, _, _, _, _, metric, mask, *_ in map(str.split, routes.splitlines()[1:])
        if to == mask == _ANYWHERE
    ]
    return min(default)[1] if default else ""


# What a rank holds that others may hold too: who can be done without, and who not.
#
# Told once, at register, by all to all: of a rank that has died nobody can ask any more.

#: Seconds in which all ranks come to it: they have just met.
_PATIENCE = 300.0


@dataclass(frozen=True, slots=True)
class ReplicationInfo:
    """Of one rank."""

    #: Registered names.
    parts: frozenset[str]
    #: The groups of ranks with whom it holds the same, each by its ranks.
    groups: frozenset[tuple[int, ...]]
    #: It has tensors that nobody else has. (Its generators do not count: they are lost with it.)
    alone: bool

    def within(self, other: ReplicationInfo) -> bool:
        """Whether the other has all that this one has."""
        return not self.alone and self.parts <= other.parts and self.groups <= other.groups


def holding(state: State) -> ReplicationInfo:
    """This rank's, as it is now."""
    groups = frozenset(state.fingerprint())
    return ReplicationInfo(frozenset(part.name for part in state.parts), groups, state.alone())


def gather_holdings(channel: Channel, state: State) -> list[ReplicationInfo]:
    """Everybody's. On the training thread, of all ranks at once."""
    mine = holding(state)
    card = {"parts": sorted(mine.parts), "groups": sorted(mine.groups), "alone": mine.alone}
    cards = [json.loads(each) for each in channel.gather(json.dumps(card).encode(), _PATIENCE)]
    return [
        ReplicationInfo(frozenset(each["parts"]), frozenset(map(tuple, each["groups"])), bool(each["alone"]))
        for each in cards
    ]
