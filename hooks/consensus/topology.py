"""The machines of a job's ranks (which ranks share one, and its address), and the state that several ranks hold.

A notice concerns a machine. All processes that one agent guards are on one machine. The name that a launcher's rendezvous uses
is among its names.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import struct
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..state.state import State
    from .channel import Channel

#: `ioctl_netdevice(7)`: an interface's IPv4 address, in bytes 20 to 24 of its `ifreq`.
_SIOCGIFADDR = 0x8915
_LOOPBACK = "127."
#: `proc_net(5)`: one line for each route; the default route goes to 0.0.0.0/0.
_ROUTES = Path("/proc/net/route")
_ANYWHERE = "00000000"
#: `proc_uptime(5)`: the first number is the seconds since the boot. In most containers it is the host's.
_UPTIME = Path("/proc/uptime")
#: Machines whose names an attempt's record keeps.
_NAMED = 64


@dataclass(frozen=True, slots=True)
class Host:
    """A machine. Two ranks share it if their `Host` values are equal."""

    #: The kernel's boot id, and the place of the agent's socket: its path, and the directory that has this path here.
    id: str
    #: Names by which others may know the machine: its host name, then its addresses, the best one last.
    names: tuple[str, ...]

    @property
    def address(self) -> str:
        """The address at which other machines reach this one; "" if it has loopback only."""
        return next((name for name in reversed(self.names) if name[:1].isdigit()), "")

    def encode(self) -> str:
        return "\0".join([self.id, *self.names])  # no path and no host name contains this character

    @classmethod
    def decode(cls, token: str) -> Host:
        """Return the host of a token.

        Args:
            token: the result of `encode` on any rank.
        """
        id, *names = token.split("\0")
        return cls(id, tuple(names))


def machine_names(tokens: Sequence[str]) -> list[str]:
    """Return the names of machines for people, of the first few: an attempt's record keeps them."""
    hosts = [Host.decode(token) for token in tokens[:_NAMED]]
    return [host.names[0] for host in hosts if host.names]


def booted(now: float) -> int | None:
    """Return when this machine began to run, in wall seconds; None if it is not known.

    Args:
        now: wall seconds.
    """
    try:
        return round(now - float(_UPTIME.read_text().split()[0]))
    except (OSError, ValueError, IndexError):
        return None


def this_machine(agent: str) -> Host:
    """Return this process's machine.

    Args:
        agent: path of the socket of the agent that guards this process; "" for none.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:  # not on Linux, or hidden: the name must do
        boot = ""
    host = os.uname().nodename
    id = f"{boot} {_place(os.path.realpath(agent))}" if agent else f"{boot} {host}"
    return Host(id, (host, *_addresses()))


def _place(agent: str) -> str:
    """Return the path of an agent's socket, with the device and inode of its directory.

    Two containers on one kernel have an agent each, at the same path. If they use the node's network, they have the same names
    too. The directory tells them apart. The socket's own inode would not do, since it changes when the agent restarts.
    """
    try:
        folder = os.stat(os.path.dirname(agent))
    except OSError:  # no agent has made the directory
        return agent
    return f"{agent} {folder.st_dev}:{folder.st_ino}"


def _addresses() -> list[str]:
    """Return this machine's addresses, with that of the interface with the default route last.

    Other machines reach it there. A bridge for containers has the same address on every machine.
    """
    of_interfaces: dict[str, str] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(any_socket, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:  # the interface has no IPv4 address
                continue
            address = socket.inet_ntoa(answer[20:24])
            if not address.startswith(_LOOPBACK):
                of_interfaces[name] = address
    try:
        best = default_interface(_ROUTES.read_text())
    except OSError:  # not on Linux, or hidden
        best = ""
    return [of_interfaces[name] for name in sorted(of_interfaces, key=lambda name: name == best)]


def default_interface(routes: str) -> str:
    """Return the interface of the default route.

    Args:
        routes: text as in /proc/net/route.

    Returns:
        The interface of the default route with the lowest metric; "" if there is no default route.
    """
    default = [
        (int(metric), interface)
        for interface, to, _, _, _, _, metric, mask, *_ in map(str.split, routes.splitlines()[1:])
        if to == mask == _ANYWHERE
    ]
    return min(default)[1] if default else ""


# The state that a rank holds and others may hold too: it shows which ranks a save can do without.
#
# All ranks exchange it once, at `register`, because a rank that has died cannot be asked any more.

#: Seconds in which all ranks must have sent theirs: they have just met.
_PATIENCE = 300.0


#: Machines of which each exchanges heartbeats with every other one. Above that, each does with its neighbours in a tree in which a
#: machine has so many below it. The ranks of those that see a silence tell all others.
MESH, BELOW = 64, 16


def neighbours(index: int, count: int) -> list[int]:
    """Return the machines with which this one exchanges heartbeats.

    Args:
        index: this machine's place among all.
        count: the number of machines.
    """
    if count <= MESH:
        return [each for each in range(count) if each != index]
    above = [(index - 1) // BELOW] if index else []
    return above + [each for each in range(BELOW * index + 1, BELOW * index + 1 + BELOW) if each < count]


def machines_to_watch(tokens: Sequence[str], rank: int, heartbeats: Sequence[str]) -> dict[str, str]:
    """Return the machines whose heartbeats this rank's agent is to watch; none if another rank of this machine says it.

    Args:
        tokens: the machine of each rank.
        rank: this rank.
        heartbeats: of each rank, where its agent answers heartbeats ("PORT SECRET"); "" for nowhere.

    Returns:
        By "ADDRESS PORT SECRET", the name of the machine.
    """
    firsts = sorted({token: number for number, token in reversed([*enumerate(tokens)])}.values())
    if rank not in firsts:
        return {}
    # A rank whose agent was late with its welcome knows no place; another rank of the machine may.
    places = {token: at for token, at in zip(tokens, heartbeats, strict=True) if at}
    others = [tokens[firsts[each]] for each in neighbours(firsts.index(rank), len(firsts))]
    hosts = [(Host.decode(other), places.get(other, "")) for other in others]
    known = Counter(host.names[0] for host, _ in hosts if host.names)
    return {
        f"{host.address} {at}": host.names[0]
        if known[host.names[0]] == 1
        else f"{host.names[0]} {host.address}"
        for host, at in hosts
        if host.address and at
    }


@dataclass(frozen=True, slots=True)
class ReplicationInfo:
    """The state that one rank holds, as far as it shows what other ranks hold too."""

    #: Registered names.
    parts: frozenset[str]
    #: The groups of ranks that share tensors with this rank, each by its ranks.
    groups: frozenset[tuple[int, ...]]
    #: The rank has tensors that no other rank has. Its generators do not count: they are lost with it.
    alone: bool

    def within(self, other: ReplicationInfo) -> bool:
        """Return whether the other rank holds all that this one holds."""
        return not self.alone and self.parts <= other.parts and self.groups <= other.groups


def holding(state: State) -> ReplicationInfo:
    """Return the replication of this rank's state, as it is now."""
    groups = frozenset(state.fingerprint)
    return ReplicationInfo(frozenset(part.name for part in state.parts), groups, state.alone)


def gather_holdings(
    channel: Channel, state: State, heartbeat: str = ""
) -> tuple[list[ReplicationInfo], list[str]]:
    """Return the replication of all ranks, in order, and where the agent of each answers heartbeats.

    The training threads of all ranks call it at once.

    Args:
        heartbeat: where this rank's agent answers heartbeats; "" for nowhere.
    """
    mine = holding(state)
    card = {"parts": sorted(mine.parts), "groups": sorted(mine.groups), "alone": mine.alone}
    card |= {"heartbeat": heartbeat}
    cards = [json.loads(each) for each in channel.meetings.gather(json.dumps(card).encode(), _PATIENCE)]
    found = [
        ReplicationInfo(frozenset(each["parts"]), frozenset(map(tuple, each["groups"])), bool(each["alone"]))
        for each in cards
    ]
    return found, [str(each["heartbeat"]) for each in cards]


def covered(cards: Sequence[ReplicationInfo], mine: ReplicationInfo) -> list[int]:
    """Return the ranks whose whole state this rank holds too.

    Args:
        cards: the replication of all ranks, from `gather_holdings`.
        mine: this rank's, as it is now.
    """
    return [rank for rank, theirs in enumerate(cards) if theirs.within(mine)]
