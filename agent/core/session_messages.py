"""The messages of registered training processes: their answers to a notice, their positions and errors, and notices of a launcher.

Pure, like all of `core`: events and the time come in, actions go out.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Collection
from dataclasses import replace
from typing import Any

from ...hooks.ipc import protocol
from ...providers.notice import Notice, NoticeKind
from ...providers.text import NAME, TEXT, clip
from ..actions import FollowMachines, ReportEvent, Tell
from ..events import Closed, Heard, MachineSeen, Opened, ProcessSeen
from ..ipc.peer_liveness import place_of
from ..outcome import Outcome, as_level
from .command import CommandGroup
from .delivery import Delivery
from .ending.sigterm import RunSignals
from .failures.errors import FailureLog, cause_of
from .failures.stall import StallWatch
from .failures.verification import damage_line
from .notices import NoticeTracker
from .peers import PATIENCE, Peers
from .preemption import Preemption
from .session import Participant, Session, Sessions
from .state import Turn

#: The most machines with which a run's agents exchange heartbeats here. A hook names 63 at most.
_MACHINES = 64
#: Seconds in which all ranks of a launcher report its SIGTERM: one rank calls the others within milliseconds.
TOLD = 2.0
#: The most launcher's notices of one run at once, and of one user: a launcher has one, and a failing rank another one.
_OF_A_RUN, _OF_A_USER = 2, 64
#: Seconds after the deadline at which the agent stops waiting for ranks that have not answered.
LATE = 1.0
#: The outcome's account of how a launcher's notice ended.
ENDED = {NoticeKind.LAUNCHER: "the launcher ends its ranks", NoticeKind.FAILURE: "the failed rank ends"}

#: The user and the run of the ranks, and the notice's id. The id is the same in other runs.
_Key = tuple[tuple[int, str], str]


class LauncherNotices:
    """Notices from a launcher, which sends SIGTERM to its ranks because one has died, or because another machine joins.

    The ranks report the notice and save by themselves, and the launcher ends them. The agent ends nothing, and keeps the outcome.
    """

    def __init__(self) -> None:
        self._standing: dict[_Key, Preemption] = {}
        #: Users of whom a notice was too many.
        self.refused: set[int] = set()

    def told(self, session: Session, message: protocol.Delivered, now: float) -> Preemption | None:
        """Take in a launcher's notice that a rank reports; return it if it is new."""
        key = (session.run, clip(message.id, TEXT))
        new = None
        if key not in self._standing:
            runs = [run for run, _ in self._standing if run[0] == session.uid]
            if len(runs) >= _OF_A_USER or runs.count(session.run) >= _OF_A_RUN:
                return None
            left = min(max(0.0, message.seconds_left), PATIENCE)
            notice = Notice(
                id=key[1],
                kind=NoticeKind(message.kind),
                source=clip(message.source, NAME),
                deadline=now + left,
                seen_at=now,
                window=left,
            )
            new = self._standing[key] = Preemption(notice, now, 0.0)
        if session.number not in self._standing[key].parts:
            self._standing[key].tell(session, now)
        return new

    def of(self, session: Session, id: str) -> Preemption | None:
        """Return the notice that this rank's message is about; None if there is none."""
        return self._standing.get((session.run, clip(id, TEXT)))

    def closed(self, number: int, *, alive: bool) -> None:
        """Note that a rank's socket is closed."""
        for p in self._standing.values():
            if (part := p.parts.get(number)) is not None:
                part.closed, part.dead = True, part.dead or not alive

    def over(self, sessions: Collection[Session], now: float) -> list[Outcome]:
        """End the notices that every rank here has answered, or whose time is over; return their outcomes."""
        return [self._end(key) for key, p in list(self._standing.items()) if _is_over(key, p, sessions, now)]

    def end(self) -> list[Outcome]:
        """End all notices, because their ranks are gone; return their outcomes."""
        return [self._end(key) for key in list(self._standing)]

    @property
    def wakes(self) -> list[float]:
        """Monotonic seconds at which `over` may return something although no event comes."""
        return [at for p in self._standing.values() for at in (p.notice.seen_at + TOLD, p.deadline + LATE)]

    def __bool__(self) -> bool:
        return bool(self._standing)

    def _end(self, key: _Key) -> Outcome:
        p = self._standing.pop(key)
        return p.outcome(ENDED[p.notice.kind], None, None)


def _is_over(key: _Key, p: Preemption, sessions: Collection[Session], now: float) -> bool:
    if now >= p.deadline + LATE:
        return True
    if not p.all_done or now >= p.notice.seen_at + TOLD:
        return p.all_done
    here = (each.number for each in sessions if each.run == key[0] and each.store and not each.left)
    return all(number in p.parts for number in here)


# --- registration, position, save progress and outcome ---

#: Messages of a session about a notice that was delivered to it.
_ABOUT_A_NOTICE = (protocol.Delivered, protocol.Progress, protocol.Committed, protocol.Failed)


def _machines(message: protocol.WatchMachines) -> dict[str, str]:
    """Return the machines that a rank names, with those left out that no agent can be at: any process may write to the socket."""
    found = {}
    for where, name in list(message.machines.items())[:_MACHINES]:
        address, _, place = where.partition(" ")
        try:
            at = ipaddress.IPv4Address(address)
        except ValueError:
            continue
        # No process here may have the agent ask a metadata service, or a program of its own machine.
        elsewhere = not (at.is_loopback or at.is_link_local or at.is_multicast or at.is_unspecified)
        if elsewhere and place_of(place) is not None:
            found[where] = clip(str(name), NAME)
    return found


def _checkpoints(session: Session, failing: str) -> dict[str, Any]:
    """Return whether a process's background checkpoints fail, and why, for the helper of alerts."""
    facts = {"run_id": session.run_id, "rank": session.rank, "over": not failing}
    return {**facts, "text": clip(failing, TEXT)}


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
        signals: RunSignals,
        stalls: StallWatch,
        failures: FailureLog,
    ) -> None:
        self._turn = turn
        self._sessions = sessions
        self._notices = notices
        self._command = command
        self._delivery = delivery
        self._peers = peers
        self._launchers = launchers
        self._signals = signals
        self._stalls = stalls
        self._failures = failures

    def opened(self, event: Opened) -> None:
        """Take in a training process that has registered. If a notice is active, deliver it."""
        session = self._sessions.add(event, self._turn.now)
        self._command.joined(session)
        self._failures.opened(session)
        p = self._delivery.active
        if p is None and (reason := self._notices.upcoming.near(self._turn.now)):
            self._delivery.checkpoint(session, reason, going=True)
        if p is None or not p.takes(session):
            return
        # A process that lost its socket and is back: do not wait for an answer on its old connection.
        parts = [(n, part) for n, part in p.parts.items() if part.closed and not part.done]
        lost = [n for n, part in parts if part.session.same_client(session)]
        for number in lost:
            del p.parts[number]
        if lost or not p.rehearsal:
            self._delivery.deliver(p, session)

    def closed(self, event: Closed) -> None:
        """Note that a socket is closed, or that its process has died since."""
        p = self._delivery.active
        part = p.parts.get(event.session) if p is not None else None
        if part is not None:
            part.closed = True
            part.dead = part.dead or not event.alive
        self._launchers.closed(event.session, alive=event.alive)
        self._stalls.forget(event.session)
        session = self._sessions.open.get(event.session) or self._sessions.lost.get(event.session)
        if session is not None:
            self._command.parted(session)
            if session.failing:  # a process that comes back says it again
                self._turn.do(ReportEvent("checkpoints-failing", _checkpoints(session, "")))
            if event.alive:
                self._failures.closed(session)
            elif (line := self._failures.died(session)) and self._turn.policy.launcher_restarts:
                self._turn.log(line, logging.ERROR)  # the command, at whose end a cause is named, goes on
        if not self._turn.policy.command:
            self._failures.begin()  # it meets no command's end, at which the gone processes would count
        self._sessions.close(event)
        if session is not None and all(other.run != session.run for other in self._sessions.every()):
            self._turn.do(ReportEvent("gone", {"run_id": session.run_id}))
            self._stalls.over(session.run)
            self._turn.do(FollowMachines(session.run, None))

    def heard(self, event: Heard) -> None:
        """Handle a message of a session."""
        session, message = self._sessions.open.get(event.session), event.message
        if isinstance(message, protocol.Unattached) and self._command.current is not None:
            self._command.current.unattached = clip(message.why, TEXT)
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
        elif isinstance(message, protocol.TrainingFailed):
            if self._turn.policy.command:
                self._failures.told(session, message)
            else:  # a service sees no command fail
                self._turn.do(ReportEvent("failure", cause_of(session, message).facts()))
        elif isinstance(message, protocol.CheckpointDamaged):
            self._damaged(session, message)
        elif isinstance(message, protocol.WatchMachines):
            machines = _machines(message)
            self._stalls.follow(session.run)
            self._turn.do(FollowMachines(session.run, machines))
        elif isinstance(message, protocol.Bye):
            session.left = True
            self._stalls.forget(event.session)
            p = self._delivery.active
            if p is not None and (part := p.parts.get(event.session)) is not None:
                part.left = True
        elif isinstance(message, _ABOUT_A_NOTICE):
            self._about_a_notice(session, message)

    def machine(self, event: MachineSeen) -> None:
        """Take in that another machine of a job is heard, or silent."""
        for line in self._stalls.machine(event, self._turn.now):
            self._turn.log(line, logging.WARNING)

    def process(self, event: ProcessSeen) -> None:
        """Take in whether the process of a session that sends nothing may run."""
        if line := self._stalls.looked(event.session, self._turn.now, runs=event.runs):
            self._turn.log(line, logging.WARNING)

    def _position(self, session: Session, message: protocol.Position) -> None:
        if session.step < 0 <= message.step:  # it has restored; people look for this line after a restart
            at = "begins at step 0" if message.step == 0 else f"continues at step {message.step}"
            line = f"{session.who}: training {at} of run {session.run_id} in {session.store}"
            if session.attached:
                line = f"{line}, attached to {session.attached}"
            if session.rank == 0 and message.attempt == 1 and session.proof[:6] not in ("", "EXACT "):
                line = f"{line}; {session.proof}: type spotguard prove -- COMMAND"
            self._turn.log(line)
            self._turn.do(
                ReportEvent(
                    "training", {"run_id": session.run_id, "rank": session.rank, "store": session.store}
                )
            )
        if bool(message.failing) != bool(session.failing):
            self._turn.do(ReportEvent("checkpoints-failing", _checkpoints(session, message.failing)))
        session.stands(message, self._turn.now)
        self._failures.heard(session, message)
        if line := self._stalls.hear(session, message, self._turn.now):
            self._turn.log(line)

    def _damaged(self, session: Session, message: protocol.CheckpointDamaged) -> None:
        damage = replace(
            message, checkpoint=clip(message.checkpoint, NAME), reason=clip(message.reason, TEXT)
        )
        if self._sessions.damaged(session, damage):
            self._turn.log(damage_line(session.run_id, session.store, damage), logging.ERROR)

    def _about_a_notice(
        self,
        session: Session,
        message: protocol.Delivered | protocol.Progress | protocol.Committed | protocol.Failed,
    ) -> None:
        if isinstance(message, protocol.Delivered) and message.kind in protocol.OF_A_RANK:
            self._told_by_launcher(session, message)
        elif isinstance(message, protocol.Delivered) and message.kind == protocol.SIGNAL:
            self._signals.held(session.pid, message.source)
        p = self._delivery.active
        if p is None or message.id not in p.ids:
            p = self._launchers.of(session, message.id)
        part = p.parts.get(session.number) if p is not None else None
        if p is not None and part is not None:
            phase = part.phase
            part.hear(message, self._turn.now)
            if p.notice.kind is NoticeKind.LAUNCHER:
                self._failures.launcher_ends(session)
            news = not isinstance(message, protocol.Progress) or part.phase != phase
            self._report(p, part, message, news)

    def _told_by_launcher(self, session: Session, message: protocol.Delivered) -> None:
        if (p := self._launchers.told(session, message, self._turn.now)) is not None:
            if message.kind == protocol.FAILURE:
                text = f"{session.who} saves with all ranks for an error: {p.notice.source}"
            else:
                left = f"{p.left_at_first:.1f} s left for the save of the other ranks"
                text = f"{p.notice.kind} notice from {p.notice.source}: {left}"
            self._turn.log(text, logging.WARNING)
        elif self._launchers.of(session, message.id) is None and session.uid not in self._launchers.refused:
            self._launchers.refused.add(session.uid)
            text = f"{session.who} reports more {message.kind} notices than are kept: this one has no outcome"
            self._turn.log(text, logging.WARNING)

    def _report(self, p: Preemption, part: Participant, message: protocol.Message, news: bool) -> None:
        """Log the news of one session, and send it to the person who asked for a drill."""
        now = self._turn.now
        spent = now - p.notice.seen_at
        who = part.session.who
        if isinstance(message, protocol.Progress):
            at = f" at step {message.step}" if message.step >= 0 else ""
            text, level = f"{who}: {part.phase}{at}", logging.DEBUG
        elif isinstance(message, protocol.Committed):
            least = as_level(clip(message.level, NAME), ", ")
            own = message.step < 0  # from `on_notice`, which reports only that its function returned
            did = "saved by a function of its own" if own else f"committed step {message.step}{least}"
            text, level = f"{who}: {did}", logging.INFO
        elif isinstance(message, protocol.Failed):
            text, level = f"{who}: will not commit: {part.failed}", logging.ERROR
        else:
            text, level = f"{who}: has the notice", logging.DEBUG
        if news:
            self._turn.log(f"{text}; {spent:.2f} s after the notice{p.left_words(now)}", level)
        if p.asker is not None:
            body = {"phase": message.type, "pid": part.session.pid, "after": round(spent, 6), "text": text}
            self._turn.do(Tell(p.asker, body, False))
