"""Registered training processes: the last position of each, its save progress, and its answer to a notice.

Pure, like all of `core`. The agent clips text from a process when it comes in, because logs and status answers contain that text.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from ...hooks.ipc.protocol import (
    METRIC_NAME,
    MOST_METRICS,
    CheckpointDamaged,
    Committed,
    Delivered,
    Failed,
    Position,
    Progress,
    Register,
)
from ...providers.text import NAME, TEXT, clip
from ..events import Closed, Opened
from ..outcome import SessionOutcome

#: Seconds over which the rate is measured: long compared with the interval of progress messages (four a second), short compared
#: with a window.
_SPAN = 2.0
#: Seconds of progress below which a save has no overall rate: two messages are too few.
_LEAST = 0.2
#: Damaged checkpoints of which the agent knows that it has logged them: every rank of a run tells of them.
_DAMAGED = 64


@dataclass(slots=True)
class Session:
    """One registered training process."""

    number: int
    pid: int
    uid: int
    run_id: str
    name: str
    store: str
    rank: int
    world: int
    nbytes: int
    since: float
    #: It makes a checkpoint when the agent asks for one.
    checkpoints: bool = False
    #: The verdict of `spotguard prove` about its code.
    proof: str = ""
    #: What `--attach` has attached in it.
    attached: str = ""
    position: Position | None = None
    heard_at: float = 0.0
    #: The step at which its training began here; negative before.
    began: int = -1
    #: The attempt in which its process began; negative before its first position. A second restore there begins another one.
    attempt: int = -1
    #: It sent `Bye`: its training has ended by itself.
    left: bool = False
    #: The damaged checkpoint since which it has committed no other; "" if there is none.
    damaged: str = ""

    @classmethod
    def of(cls, number: int, pid: int, uid: int, register: Register, now: float) -> Session:
        return cls(
            number=number,
            pid=pid,
            uid=uid,
            run_id=clip(register.run_id, NAME),
            name=clip(register.name, NAME),
            store=clip(register.store, TEXT),
            rank=register.rank,
            world=register.world,
            nbytes=register.nbytes,
            since=now,
            checkpoints=register.checkpoints,
            proof=clip(register.proof, TEXT),
            attached=clip(register.attached, NAME),
        )

    def same_client(self, other: Session) -> bool:
        """Return whether both are connections of one client, one after the other.

        A process may have several clients: a guard, and functions given to `on_notice`, which have no store.
        """
        return (self.pid, self.store) == (other.pid, other.store)

    @property
    def who(self) -> str:
        """The process as a log line names it."""
        return f"rank {self.rank} (pid {self.pid})"

    @property
    def run(self) -> tuple[int, str]:
        """The user and the run; the ranks of one run of one user leave together."""
        return self.uid, self.run_id

    @property
    def step(self) -> int:
        """The last known step. Below 0: not reported, not restored yet, or a function of `on_notice`, which counts no steps."""
        return self.position.step if self.position else -1

    @property
    def failing(self) -> str:
        """Why its last background checkpoint failed; "" if none failed since the last commit."""
        return self.position.failing if self.position else ""

    def stands(self, position: Position, now: float) -> None:
        if self.began < 0:
            self.began = position.step
        if self.attempt < 0:
            self.attempt = position.attempt
        self.position, self.heard_at = position, now
        if position.checkpoint_step >= 0:
            self.damaged = ""

    def saved(self, committed: Committed, now: float) -> None:
        """Note a committed checkpoint. It is newer than the one in the last `Position`, and its step may be newer too."""
        at = self.position or Position(committed.step)
        step = max(at.step, committed.step)
        self.stands(
            replace(
                at,
                step=step,
                checkpoint_step=committed.step,
                checkpoint_age=0.0,
                checkpoint_level=committed.level,
            ),
            now,
        )

    def lost(self, damage: CheckpointDamaged) -> None:
        """Note that a checkpoint is damaged. A newer one stays what it is, until the process tells more."""
        self.damaged = damage.checkpoint
        if self.position is not None and self.position.checkpoint_step == damage.step:
            self.position = replace(self.position, checkpoint_step=-1, checkpoint_age=0.0)

    @property
    def metrics(self) -> dict[str, float]:
        """The newest metrics of the script's own. A process may send any names and texts: only proper ones count."""
        sent = self.position.metrics if self.position else {}
        found = {name: number_in(text) for name, text in sent.items() if METRIC_NAME.fullmatch(name)}
        proper = [(name, value) for name, value in found.items() if value is not None]
        return dict(proper[:MOST_METRICS])

    def status(self, now: float) -> dict[str, Any]:
        at = self.position or Position(-1)
        age = at.checkpoint_age + (now - self.heard_at) if at.checkpoint_step >= 0 else None
        return {
            "session": self.number,
            "pid": self.pid,
            "uid": self.uid,
            "run_id": self.run_id,
            "name": self.name,
            "store": self.store,
            "rank": self.rank,
            "world": self.world,
            "bytes": self.nbytes,
            "for_seconds": round(now - self.since, 1),
            "proof": self.proof or None,
            "attached": self.attached or None,
            "step": at.step,
            "checkpoint_step": at.checkpoint_step,
            "checkpoint_age": None if age is None else round(age, 1),
            "checkpoint_level": clip(at.checkpoint_level, NAME) if age is not None else None,
            "checkpoint_left_out": clip(at.checkpoint_left_out, TEXT) or None if age is not None else None,
            "damaged_checkpoint": self.damaged or None if age is None else None,
            "failing": clip(self.failing, TEXT) or None,
            "interval": at.interval or None,
            "save_seconds": round(at.save_seconds, 3) if at.save_seconds >= 0 else None,
            "rate": round(at.rate, 1) or None,
            "mode": clip(at.mode, NAME),
            "detail": clip(at.detail, TEXT),
            "unmarked_steps": at.unmarked_steps if at.unmarked_steps >= 0 else None,
            "marked": at.marked,
            "misuse": clip(at.misuse, 2 * TEXT),  # with its advice at the end
            "phase": clip(at.phase, NAME) or None,
            "still": round(at.still, 1) if at.still >= 0 else None,
            "where": clip(at.where, TEXT) or None,
            "unheard": round(now - self.heard_at, 1) if self.position else None,
            "loss": clip(at.loss, NAME) or None,
            "metrics": {name: repr(value) for name, value in self.metrics.items()},
            "suspect": clip(at.suspect, TEXT) or None,
            "high_loss": clip(at.high_loss, TEXT) or None,
            "bad_loss_steps": max(0, at.bad_loss_steps),
        }


def number_in(text: object) -> float | None:
    """Return the number that a process has sent as text, because JSON has no "nan"; None if it is none."""
    try:
        return float(text) if isinstance(text, str) and text else None
    except ValueError:
        return None


class Sessions:
    """All registered training processes, by the number of their connection."""

    def __init__(self) -> None:
        self.open: dict[int, Session] = {}
        #: Processes that live and have lost their socket: each may come back under another number.
        self.lost: dict[int, Session] = {}
        #: The last damaged checkpoints, each with its run and store. Bounded, because a process may send any names.
        self._damaged: deque[tuple[tuple[int, str], str, str]] = deque(maxlen=_DAMAGED)
        #: Connections of `spotguard run`s that follow this agent's feed. The agent does not know which processes they guard.
        self.watching: set[int] = set()

    def add(self, event: Opened, now: float) -> Session:
        """Take in a process that has registered. If it had lost its socket, forget the old connection, but not how it began."""
        session = Session.of(event.session, event.pid, event.uid, event.register, now)
        for each in self.every():
            same_rank = (each.run, each.rank) == (session.run, session.rank)
            if each.same_client(session) and same_rank and not each.left:
                session.attempt, session.began = each.attempt, each.began
        self.open[session.number] = session
        self.lost = {number: lost for number, lost in self.lost.items() if not lost.same_client(session)}
        return session

    def damaged(self, session: Session, damage: CheckpointDamaged) -> bool:
        """Note for all ranks of a session's run that a checkpoint is damaged. Return whether this is news.

        Another job may have the same run in another store.
        """
        for each in self.every():
            if (each.run, each.store) == (session.run, session.store):
                each.lost(damage)
        if (known := (session.run, session.store, damage.checkpoint)) in self._damaged:
            return False
        self._damaged.append(known)
        return True

    def close(self, event: Closed) -> None:
        """Take out a closed connection. A process that lives on stays among `lost`."""
        self.watching.discard(event.session)
        session = self.open.pop(event.session, None)
        if not event.alive:
            self.lost.pop(event.session, None)
        elif session is not None:
            self.lost[event.session] = session

    def beside(self, run: tuple[int, str]) -> list[str]:
        """Return the names of the other runs that train here."""
        others = {each.run_id for each in self.every() if each.run != run and each.store and not each.left}
        return sorted(others)

    def every(self) -> Iterator[Session]:
        """Yield all sessions, with and without a socket."""
        yield from self.open.values()
        yield from self.lost.values()


class SaveProgress:
    """The progress of one save, from its progress messages: bytes, rate, seconds left. Times are monotonic seconds. Pure."""

    def __init__(self) -> None:
        self._step: int | None = None
        #: Pairs of time and bytes sent until then: those of the last two seconds, and the one before them.
        self._heard: deque[tuple[float, int]] = deque()
        self._first: tuple[float, int] = (0.0, 0)
        # Bytes sent to the store, and all bytes. 0 if not reported.
        self.done = self.total = 0

    def hear(self, step: int, done: int, total: int, at: float) -> None:
        """Take in a progress message.

        A save of another step begins anew. If fewer bytes than before are reported (an object is sent again), the time counts,
        but no bytes.
        """
        if step != self._step:
            self._step, self.done = step, 0
            self._heard.clear()
        self.done, self.total = max(self.done, done), max(0, total)
        if not self._heard:
            self._first = (at, self.done)
        self._heard.append((at, self.done))
        while len(self._heard) > 2 and self._heard[1][0] <= at - _SPAN:
            self._heard.popleft()

    def rate(self, now: float) -> float | None:
        """Return bytes per second; None if it is too early. The rate falls while no message comes."""
        if len(self._heard) < 2:
            return None
        (since, before), (last, done) = self._heard[0], self._heard[-1]
        until = now if now - last > _SPAN / 2 else last  # messages come only now and then
        return (done - before) / (until - since) if until > since else None

    def overall(self) -> float | None:
        """Return bytes per second of the complete save, from its first message to its last; None if it was too short."""
        if not self._heard or (seconds := self._heard[-1][0] - self._first[0]) < _LEAST:
            return None
        return (self._heard[-1][1] - self._first[1]) / seconds

    def seconds_left(self, now: float) -> float | None:
        """Return the seconds that the rest needs; None if unknown."""
        rate = self.rate(now)
        return (self.total - self.done) / rate if rate and self.total else None


@dataclass(slots=True)
class Participant:
    """One training process's answer to this notice. The first answer counts, except that a commit always does."""

    session: Session
    sent_at: float
    #: The id under which the agent last delivered the notice to it.
    delivered_as: str = ""
    delivered_at: float | None = None
    phase: str = ""
    gate_at: float | None = None
    first_byte_at: float | None = None
    step: int | None = None
    pace: SaveProgress = field(default_factory=SaveProgress)
    committed: Committed | None = None
    committed_at: float | None = None
    failed: str = ""
    #: It sent `Bye`: training had ended by itself.
    left: bool = False
    #: Its socket is closed.
    closed: bool = False
    #: Its process is gone.
    dead: bool = False
    #: The agent ended it, so its death is no failure of its own.
    ended_by_us: bool = False
    leave_sent: bool = False

    @property
    def done(self) -> bool:
        """Whether the agent need not wait for it any more."""
        return self.committed is not None or bool(self.failed) or self.left or self.dead

    @property
    def open(self) -> bool:
        """Whether messages still reach it."""
        return not (self.closed or self.dead)

    def hear(self, message: Delivered | Progress | Committed | Failed, now: float) -> None:
        if isinstance(message, Failed):
            self.failed = self.failed or clip(message.reason, TEXT) or "no reason given"
            return
        # All processes of a machine share CLOCK_MONOTONIC, but the agent trusts a process's time only within the possible range.
        at = min(max(message.monotonic, self.sent_at), now)
        if isinstance(message, Delivered):
            self.delivered_at = self.delivered_at or at
        elif isinstance(message, Progress):
            self.step = message.step if message.step >= 0 else self.step
            self.phase = clip(message.phase, 20)
            if message.total_bytes > 0:
                self.pace.hear(message.step, message.done_bytes, message.total_bytes, at)
            if message.phase == "gate":
                self.gate_at = self.gate_at or at
            elif message.phase == "first-byte":
                self.first_byte_at = self.first_byte_at or at
        elif self.committed is None:
            self.committed, self.committed_at = message, at
            self.step = message.step if message.step >= 0 else self.step

    def why(self, ended: str) -> str:
        if self.committed is not None:
            return ""
        if self.failed:
            return self.failed
        if self.left:
            return "training ended by itself"
        if self.dead and not self.ended_by_us:
            return "its process died before the commit"
        return f"no commit before the end: {ended}"

    def outcome(self, seen_at: float, ended: str) -> SessionOutcome:
        who, saved = self.session, self.committed
        return SessionOutcome(
            pid=who.pid,
            uid=who.uid,
            run_id=who.run_id,
            name=who.name,
            rank=who.rank,
            world=who.world,
            delivered=None if self.delivered_at is None else self.delivered_at - self.sent_at,
            step=self.step,
            gate=None if self.gate_at is None else self.gate_at - seen_at,
            first_byte=None if self.first_byte_at is None else self.first_byte_at - seen_at,
            committed=None if self.committed_at is None else self.committed_at - seen_at,
            bytes=max(0, saved.nbytes if saved else self.pace.done),
            seconds=saved.seconds if saved else None,
            url=clip(saved.url, TEXT) if saved else "",
            level=clip(saved.level, NAME) if saved else "",
            less=clip(saved.detail, TEXT) if saved else "",
            why=self.why(ended),
            attached=who.attached,
        )
