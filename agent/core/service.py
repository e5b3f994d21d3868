"""The machine as a service: it tells the processes of many users, and ends none of them.

Pure, as all of it: events and the time come in, actions go out.
"""

from __future__ import annotations

import logging
import signal

from ...hooks.ipc import protocol
from ...providers.notice import Notice, NoticeKind
from ..actions import Finish, Publish, Send
from .budget import SIGTERM_WINDOW
from .ending import Ending
from .hearing import OUTLIVED, Policy
from .preemption import Participant, Preemption


class MachineService(Ending):
    """A notice where no command is ours, and this agent's own end."""

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy)
        self.finished = False
        self._terms = 0

    def _sigterm(self) -> Notice:
        window = SIGTERM_WINDOW if self.policy.window is None else self.policy.window
        return Notice(
            id=f"sigterm-{self._now:.6f}",
            kind=NoticeKind.SIGNAL,
            source="SIGTERM",
            deadline=self._now + window,
            seen_at=self._now,
            window=window,
        )

    def _finish(self, code: int, until: float = 0.0) -> None:
        self._do(*map(Publish, self.launchers.end()))
        self.finished = True
        self._do(Finish(code, 0.0 if self._stopping else until))

    def _serve_no_more(self, signum: int, going_down: bool) -> None:
        """A SIGTERM ends a service at once, so that it can be started anew: not while somebody saves, nor where the whole
        machine goes down, which is a notice to whoever is still there. A second one does, and so does a SIGINT."""
        first = signum == signal.SIGTERM and not self._terms
        self._terms += 1
        if first and going_down and self.sessions:  # a drill, or another machine's notice, is a smaller thing
            self._noticed(self._sigterm())
        if first and self._somebody_saves():
            self._log(
                "ending when all who save have come to their end; a second SIGTERM ends this agent at once"
            )
        else:
            self._end_service()

    def _end_service(self) -> None:
        if self.pending is not None and not self.pending.published:
            self._publish(self.pending, "the agent was stopped", None, None)
        self._finish(0)

    def _somebody_saves(self) -> bool:
        p = self.pending
        if p is None or p.published:
            return False
        return any(part.open and not part.done for part in p.parts.values())

    def _serve(self, p: Preemption) -> None:
        for group in p.groups():
            if p.return_by is None and all(part.done for part in group):
                self._dismiss(p, group)
        if not p.published and (p.all_done or self._now >= p.deadline):
            ended = "everybody was told to leave" if p.all_done else "the deadline came"
            self._publish(p, ended, None, None)
            if p.drill or p.stays:  # no machine goes: who registers next has nothing to fear
                self._forget(p)
        elif p.published and self._now >= p.machine_deadline + OUTLIVED:
            self._log("this machine has outlived its notice: training may go on", logging.WARNING)
            self._forget(p)
            self._release(p, "outlived")

    def _dismiss(self, p: Preemption, group: list[Participant]) -> None:
        for part in group:
            if part.open and not part.leave_sent:
                part.leave_sent = True
                self._do(Send(part.session.number, protocol.Leave(part.told_as, self.policy.exit_code)))
