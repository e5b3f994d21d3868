"""Whether the agent takes in a peer by its user's other messages and by its first one, or why it refuses the peer."""

from __future__ import annotations

from collections.abc import Iterable

from ...hooks.ipc import protocol
from ...hooks.ipc.protocol import Role
from ...providers.clock import WEEK, Clock
from .connection import A_CONNECTION, A_FIRST, Allowance, Connection, Limits
from .process_stat import has_ended, is_exiting

#: Why a question is refused whose user has asked too many.
TOO_OFTEN = "your user asks too often: ask again in a second"


#: The first messages of a peer, each of which may be refused.
FIRST = protocol.Register | protocol.Ask | protocol.Watch | protocol.Unattached | protocol.Foreign


class UserAllowances:
    """What all connections of each user together may still send; it outlasts them.

    New connections and registrations (`Role.NEW`), questions (`Role.ASKER`) and messages of training processes (`Role.HOOK`)
    have an allowance each, so that questions leave room for the processes that save.
    """

    def __init__(self, limits: Limits, clock: Clock) -> None:
        self._limits = limits
        self._clock = clock
        self._of: dict[tuple[int, Role], Allowance] = {}

    def spend(self, uid: int, role: Role, count: float) -> bool:
        """Count so many messages; return whether the user may send more."""
        limits, now = self._limits, self._clock.monotonic()
        if (uid, role) not in self._of:
            # All processes of a user may register at once.
            burst = limits.per_user * (A_CONNECTION + 1 + A_FIRST) if role is Role.NEW else limits.user_burst
            self._of[uid, role] = Allowance(limits.user_rate, burst, now)
        return self._of[uid, role].spend(count, now)

    def admit(self, uid: int, *, returns: bool) -> bool:
        """Count a new connection; return whether the user may have it. One too many is let in only if its process `returns`."""
        if self.spend(uid, Role.NEW, 0):
            self.spend(uid, Role.NEW, A_CONNECTION)
            return True
        if not returns or not self.spend(uid, Role.HOOK, 0):
            return False
        self.spend(uid, Role.HOOK, A_CONNECTION + A_FIRST)
        return True

    def admit_first(self, uid: int, *, registers: bool) -> bool:
        """Count a first message; return False for a question too many. An admitted process may always register."""
        role = Role.NEW if registers else Role.ASKER
        if not registers and not self.spend(uid, role, 0):
            return False
        self.spend(uid, role, A_FIRST)
        return True


def refusal(
    connection: Connection,
    first: FIRST,
    others: Iterable[Connection],
    allowances: UserAllowances,
) -> str:
    """Return why the peer is refused; "" if it is not. The connection of a training process follows that process from now on.

    Args:
        connection: the peer's connection.
        first: its first message.
        others: all connections.
        allowances: what each user may still send.
    """
    if not allowances.admit_first(connection.uid, registers=isinstance(first, protocol.Register)):
        return TOO_OFTEN
    if isinstance(first, protocol.Foreign):
        return f"the agent speaks protocol {protocol.VERSION}, you speak {first.version}: install one spotguard for both"
    if isinstance(first, protocol.Register):
        return _of_process(connection, first, others)
    if isinstance(first, protocol.Ask):
        return _of_question(first)
    return ""


def _of_process(connection: Connection, first: protocol.Register, others: Iterable[Connection]) -> str:
    if not connection.follow():
        return "your process cannot be seen from here: share the agent's PID namespace"
    if (holder := _holder(connection, first, others)) is None:
        return ""
    return (
        f"run id {first.run_id[:80]!r} is being saved by pid {holder.pid} already; "
        "give each process its own: register(..., run_id=...)"
    )


def _holder(
    connection: Connection, first: protocol.Register, others: Iterable[Connection]
) -> Connection | None:
    """Return the live process that already saves the rank, run and store that this process wants to save; None if none.

    Two processes that share a run id would each restore the other's checkpoints.
    """
    mine = (connection.uid, first.run_id, first.store, first.rank)
    for other in others:
        theirs = other.register
        if theirs is None or not first.store or other.pid == connection.pid:
            continue
        if (other.uid, theirs.run_id, theirs.store, theirs.rank) == mine and not (
            has_ended(other.pidfd) or is_exiting(other.pid)
        ):
            return other
    return None


def _of_question(first: protocol.Ask) -> str:
    if first.what not in ("status", "drill"):
        return f"unknown question {first.what[:40]!r}: ask for status or drill"
    if first.what == "drill" and not 0 < first.window <= WEEK:
        return f"a drill of {first.window:g} s: expected seconds above 0 up to {WEEK} (a week)"
    return ""
