"""Preemptions of the job's other machines, which the ranks here report to the agent.

If another machine of the job gets a notice, its ranks go. The ranks here save with them, end, and start again without them. This
machine stays, so such a notice has no deadline. If this machine gets a notice too, that notice becomes the active one.

Pure, like all of `core`: events and the time come in, actions go out.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from ...hooks.ipc import protocol
from ...providers.notice import Notice, NoticeKind
from ...providers.text import NAME, TEXT, clip
from .command import Command, CommandGroup
from .delivery import Delivery
from .preemption import Preemption
from .session import Session, Sessions
from .state import Turn

#: Seconds from the call until the agent gives up on a save: longer than any other machine's warning, and longer than the
#: upload of the state takes on a slow link.
PATIENCE = 600.0
#: Seconds for which a command that was started again may wait for the job's other machines. They are started again too, or are
#: new and still boot. torchrun gives up after 100 s without an answer at its old rendezvous (seen). Kubernetes' Job makes a new
#: pod up to 600 s late (MaxJobPodFailureBackOff), and only then does its node begin to boot.
REJOIN = 1800.0
#: The most withdrawn calls, and moves, that are remembered, and calls of one user's jobs that one answer takes in: a job has at most
#: 64 machines here. The notices of this machine's own sources are no calls.
_KEPT = 64


class Peers:
    """Preemptions of the job's other machines, as the sessions here report them."""

    def __init__(self, turn: Turn, sessions: Sessions, command: CommandGroup, delivery: Delivery) -> None:
        self._turn = turn
        self._sessions = sessions
        self._command = command
        self._delivery = delivery
        #: The sessions that have reported the withdrawal of a call, by the call's id.
        self._void: dict[str, set[int]] = {}
        #: The names of the machine that goes, and the address at which the staying machines meet instead, by the call's id.
        self._moves: dict[str, tuple[frozenset[str], str]] = {}
        #: Monotonic seconds until which a command that ends before a session registers starts again, and no restart is counted.
        self._rejoin_until = 0.0

    def preempted(self, session: Session, call: protocol.PeerPreempted) -> None:
        """A session reports that another machine of its job goes."""
        command, p = self._turn.policy.command, self._delivery.active
        call = replace(call, id=clip(call.id, TEXT), gone=clip(call.gone, 4 * TEXT))
        if self._turn.stopping or (command and not self._command.running and p is None):
            return
        if self._is_late(session, call.id):
            return
        if call.gone and call.meet and not call.drill and call.kind != NoticeKind.RESTART and command:
            self._moves[call.id] = (frozenset(call.gone.lower().split()), clip(call.meet, NAME))
            if len(self._moves) > _KEPT:
                del self._moves[next(iter(self._moves))]
        if p is not None and p.rehearsal and not call.drill:
            self._delivery.rehearsed(p, "broken off: another machine of the job was noticed")
            p = None
        if p is None:
            self._begin(session, call)
        elif p.rehearsal or not call.drill:
            self._join(p, session, call)

    def _is_late(self, session: Session, id: str) -> bool:
        """Return whether other sessions have withdrawn this call, and this session has not read the withdrawal yet.

        A session that has withdrawn the call itself calls anew.
        """
        if session.number in (void := self._void.get(id, set())):
            del self._void[id]
            return False
        return bool(void)

    def _begin(self, session: Session, call: protocol.PeerPreempted) -> None:
        now, policy = self._turn.now, self._turn.policy
        notice = _notice(session, call, now)
        p = Preemption(notice, now, policy.reserve, rehearsal=call.drill, name=call.id)
        p.left_at_first = max(0.0, call.seconds_left)
        if not policy.command:
            p.runs = {session.run}  # other jobs of this machine have nothing to do with it
        self._delivery.start(p)

    def _join(self, p: Preemption, session: Session, call: protocol.PeerPreempted) -> None:
        """Join a call to the active preemption: the same call from another rank, or one of another machine or another job."""
        notice = _notice(session, call, self._turn.now)
        calls = sum(uid == session.uid for uid in p.callers.values())
        if notice.id not in p.standing and not p.published and calls < _KEPT:
            p.callers[notice.id] = session.uid
            p.join(notice, call.id)
            self._turn.log(f"another machine of the job was noticed: {notice.detail} from {notice.source}")
        if p.runs is not None and session.run not in p.runs:
            p.runs.add(session.run)
            self._delivery.deliver_to_newcomers(p)

    def cancelled(self, session: Session, id: str) -> None:
        """A session reports that a call is void."""
        id = clip(id, TEXT)
        self._void.setdefault(id, set()).add(session.number)
        self._moves.pop(id, None)
        if len(self._void) > _KEPT:
            del self._void[next(iter(self._void))]
        p = self._delivery.active
        if p is not None and p.rehearsal and _key(id) in p.standing:
            self._delivery.rehearsed(p, "cancelled; training continues")
        elif p is not None and _key(id) in p.standing:
            self._turn.log("the other machine's notice was withdrawn", logging.WARNING)
            self._delivery.withdrawn(_key(id))

    # --- the next start without the machines that are gone ---

    def rejoin(self) -> None:
        """Begin the time in which a command that starts again for a call may find the job's other machines not there yet."""
        self._rejoin_until = self._turn.now + REJOIN

    def seconds_to_rejoin(self, command: Command) -> float:
        """Return the seconds for which a command may still start again to find the job's other machines.

        0 if the command has trained, or was not started for a call.
        """
        return 0.0 if command.joined else max(0.0, self._rejoin_until - self._turn.now)

    def take_moves(self) -> tuple[tuple[frozenset[str], str], ...]:
        """Remove and return the moves of the machines that have gone since the last start, for the next start."""
        moves = tuple(self._moves.values())
        self._moves.clear()
        return moves


def _key(id: str) -> str:
    """Return an id that no notice of this machine has. Two machines of one cloud may get notices with equal ids."""
    return f"peer {clip(id, TEXT)}"


def _notice(session: Session, call: protocol.PeerPreempted, now: float) -> Notice:
    detail = clip(call.kind, NAME) + (f": {clip(call.detail, TEXT)}" if call.detail else "")
    return Notice(
        id=_key(call.id),
        kind=NoticeKind.PEER,
        source=clip(call.source, NAME),
        deadline=now + PATIENCE,
        # All processes of a machine share this clock. The agent trusts the session's time only within the possible range.
        seen_at=min(max(call.monotonic, session.since), now),
        detail=detail,
        window=PATIENCE,
    )
