"""The handling of messages from registered training processes: registration, position, save progress and outcome.

Pure, like all of `core`: events and the time come in, actions go out.
"""

from __future__ import annotations

import logging

from ...hooks.ipc import protocol
from ...providers.text import NAME, clip
from ..actions import Tell
from ..events import Closed, Heard, Opened
from ..outcome import as_level
from .command import CommandGroup
from .delivery import Delivery
from .notices import NoticeTracker
from .peers import LauncherNotices, Peers
from .preemption import Preemption
from .session import Participant, Session, Sessions
from .state import Turn

#: Messages of a session about a notice that was delivered to it.
_ABOUT_A_NOTICE = (protocol.Delivered, protocol.Progress, protocol.Committed, protocol.Failed)


class Answers:
    """The dispatch of each message to the notice, the session or the peers that it is about."""

    def __init__(
        self,
        turn: Turn,
        sessions: Sessions,
        notices: NoticeTracker,
        command: CommandGroup,
        delivery: Delivery,
        peers: Peers,
        launchers: LauncherNotices,
    ) -> None:
        self._turn = turn
        self._sessions = sessions
        self._notices = notices
        self._command = command
        self._delivery = delivery
        self._peers = peers
        self._launchers = launchers

    def opened(self, event: Opened) -> None:
        """Take in a training process that has registered. If a notice is active, deliver it."""
        session = self._sessions.add(event, self._turn.now)
        self._command.joined(session)
        p = self._delivery.active
        if p is None and (reason := self._notices.upcoming.near(self._turn.now)):
            self._delivery.checkpoint(session, reason, going=True)
        if p is None or p.rehearsal or not p.takes(session):
            return
        # A process that lost its socket and is back: do not wait for an answer on its old connection.
        for number, part in list(p.parts.items()):
            if part.closed and not part.done and part.session.same_client(session):
                del p.parts[number]
        self._delivery.deliver(p, session)

    def closed(self, event: Closed) -> None:
        """Note that a socket is closed, or that its process has died since."""
        p = self._delivery.active
        part = p.parts.get(event.session) if p is not None else None
        if part is not None:
            part.closed = True
            part.dead = part.dead or not event.alive
        self._launchers.closed(event.session, alive=event.alive)
        self._sessions.close(event)

    def heard(self, event: Heard) -> None:
        """Handle a message of a session."""
        session, message = self._sessions.open.get(event.session), event.message
        if session is None:
            return
        if isinstance(message, protocol.PeerPreempted):
            self._peers.preempted(session, message)
            return
        if isinstance(message, protocol.PeerCancelled):
            self._peers.cancelled(session, message.id)
            return
        if isinstance(message, protocol.Committed) and message.step >= 0:  # below 0: saved outside spotguard
            session.saved(message, self._turn.now)
        if isinstance(message, protocol.Position):
            self._position(session, message)
        elif isinstance(message, protocol.Bye):
            session.left = True
            p = self._delivery.active
            if p is not None and (part := p.parts.get(event.session)) is not None:
                part.left = True
        elif isinstance(message, _ABOUT_A_NOTICE):
            self._about_a_notice(session, message)

    def _position(self, session: Session, message: protocol.Position) -> None:
        if session.step < 0 <= message.step:  # it has restored; people look for this line after a restart
            self._turn.log(
                f"rank {session.rank} (pid {session.pid}): training stands at step {message.step} "
                f"of run {session.run_id} in {session.store}"
            )
        session.stands(message, self._turn.now)

    def _about_a_notice(
        self,
        session: Session,
        message: protocol.Delivered | protocol.Progress | protocol.Committed | protocol.Failed,
    ) -> None:
        if isinstance(message, protocol.Delivered) and message.kind == protocol.LAUNCHER:
            self._told_by_launcher(session, message)
        p = self._delivery.active
        if p is None or message.id not in p.ids:
            p = self._launchers.of(session, message.id)
        part = p.parts.get(session.number) if p is not None else None
        if p is not None and part is not None:
            phase = part.phase
            part.hear(message, self._turn.now)
            news = not isinstance(message, protocol.Progress) or part.phase != phase
            self._report(p, part, message, news)

    def _told_by_launcher(self, session: Session, message: protocol.Delivered) -> None:
        if (p := self._launchers.told(session, message, self._turn.now)) is not None:
            left = f"{p.left_at_first:.1f} s left for the save of the other ranks"
            self._turn.log(f"{p.notice.kind} notice from {p.notice.source}: {left}", logging.WARNING)

    def _report(self, p: Preemption, part: Participant, message: protocol.Message, news: bool) -> None:
        """Log the news of one session, and send it to the person who asked for a drill."""
        now = self._turn.now
        spent = now - p.notice.seen_at
        who = f"rank {part.session.rank} (pid {part.session.pid})"
        if isinstance(message, protocol.Progress):
            at = f" at step {message.step}" if message.step >= 0 else ""
            text, level = f"{who}: {part.phase}{at}", logging.INFO
        elif isinstance(message, protocol.Committed):
            least = as_level(clip(message.level, NAME), ", ")
            own = message.step < 0  # from `on_notice`, which reports only that its function returned
            did = "saved by a function of its own" if own else f"committed step {message.step}{least}"
            text, level = f"{who}: {did}", logging.INFO
        elif isinstance(message, protocol.Failed):
            text, level = f"{who}: will not commit: {part.failed}", logging.ERROR
        else:
            text, level = f"{who}: has the notice", logging.INFO
        if news:
            self._turn.log(f"{text}; {spent:.2f} s after the notice{p.left_words(now)}", level)
        if p.asker is not None:
            body = {"phase": message.type, "pid": part.session.pid, "after": round(spent, 6), "text": text}
            self._turn.do(Tell(p.asker, body, False))
