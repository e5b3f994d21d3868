"""The handling of a notice by an agent that is a service: it delivers to the processes of many users, and ends none of them.

Pure, like all of `core`: events and the time come in, actions go out.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Sequence

from ...hooks.ipc import protocol
from ...providers.notice import Notice, NoticeKind
from ..actions import Send
from .budget import SIGTERM_WINDOW
from .command import OUTLIVED
from .delivery import Delivery
from .preemption import Preemption
from .session import Participant, Sessions
from .state import Turn


class Service:
    """The service's part of a notice: it lets finished groups of ranks leave, and decides when the agent itself may end."""

    def __init__(self, turn: Turn, sessions: Sessions, delivery: Delivery) -> None:
        self._turn = turn
        self._sessions = sessions
        self._delivery = delivery
        #: The agent was asked to end, and ends when no session saves any more.
        self._ending = False

    def signalled(self, signum: int, *, going_down: bool) -> bool:
        """Return whether the agent ends now.

        A SIGTERM ends a service at once, so that systemd can start it anew. It waits while a session saves. If the whole machine
        goes down, SIGTERM is a notice to every session. A second SIGTERM, or a SIGINT, ends it in any case.
        """
        first = signum == signal.SIGTERM and not self._ending
        self._ending = True
        if (
            first and going_down and self._sessions.open
        ):  # a drill, or another machine's notice, is a smaller thing
            self._delivery.noticed(sigterm(self._turn))
        if not (first and self._somebody_saves()):
            return True
        self._turn.log(
            "ending when all who save have come to their end; a second SIGTERM ends this agent at once"
        )
        return False

    @property
    def over(self) -> bool:
        """Whether the agent was asked to end and no session saves any more."""
        return self._ending and not self._somebody_saves()

    def _somebody_saves(self) -> bool:
        p = self._delivery.active
        if p is None or p.published:
            return False
        return any(part.open and not part.done for part in p.parts.values())

    def stop(self) -> None:
        """Publish the outcome of the active notice, because the agent ends."""
        p = self._delivery.active
        if p is not None and not p.published:
            self._delivery.publish(p, "the agent was stopped", None, None)

    def advance(self, p: Preemption) -> None:
        """Let each group leave that is done, publish at the deadline, and forget a notice that the machine has outlived."""
        now = self._turn.now
        for group in p.groups():
            if p.return_by is None and all(part.done for part in group):
                self._dismiss(group)
        if not p.published and (p.all_done or now >= p.deadline):
            ended = "everybody was told to leave" if p.all_done else "the deadline came"
            self._delivery.publish(p, ended, None, None)
            if p.drill or p.stays:  # no machine goes: a session that registers later must not get this notice
                self._delivery.forget(p)
        elif p.published and now >= p.machine_deadline + OUTLIVED:
            self._turn.log("this machine has outlived its notice: training may go on", logging.WARNING)
            self._delivery.forget(p)
            self._delivery.release(p, "outlived")

    def _dismiss(self, group: Sequence[Participant]) -> None:
        for part in group:
            if part.open and not part.leave_sent:
                part.leave_sent = True
                leave = protocol.Leave(part.told_as, self._turn.policy.exit_code)
                self._turn.do(Send(part.session.number, leave))


def sigterm(turn: Turn) -> Notice:
    """Return the notice for a SIGTERM to the agent."""
    window = SIGTERM_WINDOW if turn.policy.window is None else turn.policy.window
    return Notice(
        id=f"sigterm-{turn.now:.6f}",
        kind=NoticeKind.SIGNAL,
        source="SIGTERM",
        deadline=turn.now + window,
        seen_at=turn.now,
        window=window,
    )
