"""Another machine of the job was noticed: its ranks go, and those here save with them, end, and start again without them.

What a training process heard of the other rank becomes a notice of a kind of its own. No deadline stands behind it,
for this machine stays: who saves here may go on after the other machine is gone. As soon as this machine is noticed
too, its own notice is the one in hand.

Pure, as all of it: events and the time come in, actions go out.
"""

from __future__ import annotations

import logging

from ...hooks.ipc import protocol
from ...providers.notice import Notice, NoticeKind
from ...providers.text import NAME, TEXT, clip, span
from ..actions import Rest, Send
from ..events import Heard
from .delivery import Delivery
from .hearing import OUTLIVED, Command, Policy
from .preemption import Preemption
from .session import Session

#: Seconds from the call to the end of a save that never comes to one: longer than any other machine's warning, and than
#: what its state takes on a slow link.
PATIENCE = 600.0
#: Seconds for which a command that was started again may look for the job's other machines, which are started again too,
#: or are new and still boot: torchrun gives up after 100 s in which nobody answers where its rendezvous was (seen). Kubernetes' Job
#: makes a new pod up to 600 s late (MaxJobPodFailureBackOff), and only then does its node begin to boot.
REJOIN = 1800.0
#: Before it looks again.
PAUSE = 1.0
#: Withdrawn calls that are remembered.
_KEPT = 64


class Peers(Delivery):
    """The calls of the job's other machines."""

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy)
        #: Calls that were withdrawn, and the sessions that have said so.
        self._void: dict[str, set[int]] = {}
        #: By call: the names of the machine that goes, and where those that stay meet instead.
        self._moves: dict[str, tuple[frozenset[str], str]] = {}

    def _heard(self, event: Heard) -> None:
        session = self.sessions.get(event.session)
        if session is not None and isinstance(event.message, protocol.PeerPreempted):
            self._called(session, event.message)
        elif session is not None and isinstance(event.message, protocol.PeerCancelled):
            self._uncalled(session, event.message.id)
        else:
            super()._heard(event)

    def _called(self, session: Session, said: protocol.PeerPreempted) -> None:
        if self._stopping or (self.policy.command and not self._running and self.pending is None):
            return
        if self._is_late(session, said.id):
            return
        if said.gone and said.meet and not said.drill and self.policy.command:
            self._moves[said.id] = (frozenset(said.gone.lower().split()), clip(said.meet, NAME))
        p = self.pending
        if p is not None and p.rehearsal and not said.drill:
            self._rehearsed(p, "broken off: another machine of the job was noticed")
            p = None
        if p is None:
            self._begin_call(session, said)
        elif p.rehearsal or not said.drill:
            self._another_call(p, session, said)

    def _is_late(self, session: Session, id: str) -> bool:
        """Whether others have withdrawn this call, and this one has yet to hear of that. Who had withdrawn it itself calls
        anew."""
        if session.number in (void := self._void.get(id, set())):
            del self._void[id]
            return False
        return bool(void)

    def _begin_call(self, session: Session, said: protocol.PeerPreempted) -> None:
        p = Preemption(
            _notice(session, said, self._now),
            self._now,
            self.policy.reserve,
            rehearsal=said.drill,
            name=clip(said.id, TEXT),
        )
        p.left_at_first = max(0.0, said.seconds_left)
        if not self.policy.command:
            p.runs = {session.run}  # other jobs of this machine have nothing to do with it
        self._start(p)

    def _another_call(self, p: Preemption, session: Session, said: protocol.PeerPreempted) -> None:
        """The same call from another rank of the job, or one of another machine or another job."""
        notice = _notice(session, said, self._now)
        if notice.id not in p.standing and not p.published:
            p.join(notice, clip(said.id, TEXT))
            self._log(f"another machine of the job was noticed: {notice.detail} from {notice.source}")
        if p.runs is not None and session.run not in p.runs:
            p.runs.add(session.run)
            for other in self.sessions.values():
                if p.takes(other) and other.number not in p.parts:
                    self._do(Send(other.number, p.tell(other, self._now)))

    def _uncalled(self, session: Session, id: str) -> None:
        self._void.setdefault(id, set()).add(session.number)
        self._moves.pop(id, None)
        if len(self._void) > _KEPT:
            del self._void[next(iter(self._void))]
        p = self.pending
        if p is not None and p.rehearsal and _key(id) in p.standing:
            self._rehearsed(p, "called off; training goes on")
        elif p is not None and _key(id) in p.standing:
            self._log("the other machine's notice was withdrawn", logging.WARNING)
            self._gone(_key(id))

    def _is_alone(self, command: Command) -> bool:
        """Whether it ended because the others are not there yet: it was started again for a call, and never trained."""
        return not command.joined and self._now < self._rejoin_until

    def _look_again(self, code: int) -> None:
        left = self._rejoin_until - self._now
        self._log(
            f"the command ended with {code} before a training process had registered: the job's other machines may not be "
            f"there yet, so it is started again in {PAUSE:.0f} s, and for {span(left)} more",
            logging.WARNING,
        )
        self.command, self._outlived = None, set()
        self._patience = OUTLIVED if self.policy.outlive else 0.0
        self._again, self.outlive_at = "the job's other machines may be there now", self._now + PAUSE
        self._do(Rest())


def _key(id: str) -> str:
    """No notice of this machine's own has this id: two machines of one cloud may be told with equal ones."""
    return f"peer {clip(id, TEXT)}"


def _notice(session: Session, said: protocol.PeerPreempted, now: float) -> Notice:
    detail = clip(said.kind, NAME) + (f": {clip(said.detail, TEXT)}" if said.detail else "")
    return Notice(
        id=_key(said.id),
        kind=NoticeKind.PEER,
        source=clip(said.source, NAME),
        deadline=now + PATIENCE,
        # One axis for all processes of a machine, and believed as far as it can be true.
        seen_at=min(max(said.monotonic, session.since), now),
        detail=detail,
        window=PATIENCE,
    )
