"""The first message of a peer: whether the agent takes it in, or why it refuses the peer."""

from __future__ import annotations

from collections.abc import Iterable

from ...hooks.ipc import protocol
from ...providers.clock import WEEK
from .connection import Connection
from .process_stat import has_ended, is_exiting


def refusal(
    connection: Connection,
    first: protocol.Register | protocol.Ask | protocol.Watch | protocol.Foreign,
    others: Iterable[Connection],
) -> str:
    """Return why the peer is refused; "" if it is not. The connection of a training process follows that process from now on.

    Args:
        connection: the peer's connection.
        first: its first message.
        others: all connections.
    """
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
