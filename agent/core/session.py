"""Registered training processes: what each last said about itself, and what it made of a notice.

Pure, like all of `core`. Text from a peer is clipped on the way in: it ends in logs and in status answers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from ...hooks.ipc.protocol import Committed, Delivered, Failed, Position, Progress, Register
from ...providers.text import NAME, TEXT, clip
from ..events import Closed, Opened
from ..outcome import SessionOutcome

#: Seconds that count: long beside the words (four a second), short beside a window.
_SPAN = 2.0
#: Of a save that brought bytes for less than so many nothing is said afterwards: two of its words, and no rate.
_LEAST = 0.2


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
    #: It makes a checkpoint when it is asked to.
    checkpoints: bool = False
    position: Position | None = None
    heard_at: float = 0.0
    #: It said goodbye: its training has come to its end by itself.
    left: bool = False

    @classmethod
    def of(cls, number: int, pid: int, uid: int, said: Register, now: float) -> Session:
        return cls(
            number=number,
            pid=pid,
            uid=uid,
            run_id=clip(said.run_id, NAME),
            name=clip(said.name, NAME),
            store=clip(said.store, TEXT),
            rank=said.rank,
            world=said.world,
            nbytes=said.nbytes,
            since=now,
            checkpoints=said.checkpoints,
        )

    def same_client(self, other: Session) -> bool:
        """Whether both are one client's connections, one after the other: a process may have several clients
        (a guard, and functions given to `on_notice`, which name no store)."""
        return (self.pid, self.store) == (other.pid, other.store)

    @property
    def run(self) -> tuple[int, str]:
        """Whose ranks leave together: the user's run."""
        return self.uid, self.run_id

    @property
    def step(self) -> int:
        """Below 0: it has not said, has not restored, or is a function of `on_notice`, which counts no steps."""
        return self.position.step if self.position else -1

    def stands(self, position: Position, now: float) -> None:
        self.position, self.heard_at = position, now

    def saved(self, committed: Committed, now: float) -> None:
        """A checkpoint is committed: newer than what the last `Position` told, and so may its step be."""
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
            "step": at.step,
            "checkpoint_step": at.checkpoint_step,
            "checkpoint_age": None if age is None else round(age, 1),
            "checkpoint_level": clip(at.checkpoint_level, NAME) if age is not None else None,
            "interval": at.interval or None,
            "save_seconds": round(at.save_seconds, 3) if at.save_seconds >= 0 else None,
            "rate": round(at.rate, 1) or None,
            "mode": clip(at.mode, NAME),
            "detail": clip(at.detail, TEXT),
            "unmarked_steps": at.unmarked_steps if at.unmarked_steps >= 0 else None,
            "marked": at.marked,
            "misuse": clip(at.misuse, 2 * TEXT),  # with its advice at the end
        }


class Sessions:
    """All registered training processes, by the number of their connection."""

    def __init__(self) -> None:
        self.open: dict[int, Session] = {}
        #: Processes that live and have lost their socket: each may come back under another number.
        self.lost: dict[int, Session] = {}
        #: Connections of `spotguard run`s that follow this agent's feed. What they guard is not known here.
        self.watching: set[int] = set()

    def add(self, event: Opened, now: float) -> Session:
        """Take in a process that has registered. If it had lost its socket, the old connection is forgotten."""
        session = Session.of(event.session, event.pid, event.uid, event.register, now)
        self.open[session.number] = session
        self.lost = {number: lost for number, lost in self.lost.items() if not lost.same_client(session)}
        return session

    def close(self, event: Closed) -> None:
        """Take out a closed connection. A process that lives on stays among `lost`."""
        self.watching.discard(event.session)
        session = self.open.pop(event.session, None)
        if not event.alive:
            self.lost.pop(event.session, None)
        elif session is not None:
            self.lost[event.session] = session

    def every(self) -> Iterator[Session]:
        """With and without a socket."""
        yield from self.open.values()
        yield from self.lost.values()


class SaveProgress:
    """Pure: told how far a save is and when that was true. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._step: int | None = None
        #: When, and how many bytes had left by then: those of the last two seconds, and the one before them.
        self._heard: deque[tuple[float, int]] = deque()
        self._first: tuple[float, int] = (0.0, 0)
        #: Bytes that have left for the store, and all. 0 where nobody has said.
        self.done = self.total = 0

    def hear(self, step: int, done: int, total: int, at: float) -> None:
        """A save of another step begins anew. Fewer bytes than before (an object is sent again) is time without bytes."""
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
        """Bytes a second. It falls while nothing is heard. None: too early to say."""
        if len(self._heard) < 2:
            return None
        (since, before), (last, done) = self._heard[0], self._heard[-1]
        until = now if now - last > _SPAN / 2 else last  # the next word is due only now and then
        return (done - before) / (until - since) if until > since else None

    def overall(self) -> float | None:
        """Bytes a second of the whole save, from its first word to its last. None: it was too short to say."""
        if not self._heard or (seconds := self._heard[-1][0] - self._first[0]) < _LEAST:
            return None
        return (self._heard[-1][1] - self._first[1]) / seconds

    def seconds_left(self, now: float) -> float | None:
        """Seconds that the rest needs. None: nobody can say."""
        rate = self.rate(now)
        return (self.total - self.done) / rate if rate and self.total else None


@dataclass(slots=True)
class Participant:
    """What one training process made of this notice. The first answer counts, except that a commit always does."""

    session: Session
    sent_at: float
    #: Under which name it was told of the notice, the last time.
    told_as: str = ""
    told_at: float | None = None
    phase: str = ""
    gate_at: float | None = None
    first_byte_at: float | None = None
    step: int | None = None
    pace: SaveProgress = field(default_factory=SaveProgress)
    committed: Committed | None = None
    committed_at: float | None = None
    failed: str = ""
    #: Said goodbye: training had come to its end by itself.
    left: bool = False
    #: Its socket is closed.
    closed: bool = False
    #: Its process is gone.
    dead: bool = False
    #: We ended it: that it died says nothing.
    ended_by_us: bool = False
    leave_sent: bool = False

    @property
    def done(self) -> bool:
        """Nothing more is to be waited for."""
        return self.committed is not None or bool(self.failed) or self.left or self.dead

    @property
    def open(self) -> bool:
        """Whether words still reach it."""
        return not (self.closed or self.dead)

    def hear(self, message: Delivered | Progress | Committed | Failed, now: float) -> None:
        if isinstance(message, Failed):
            self.failed = self.failed or clip(message.reason, TEXT) or "no reason given"
            return
        # CLOCK_MONOTONIC is one axis for all processes of a machine, but the peer's word is only believed as far
        # as it can be true.
        at = min(max(message.monotonic, self.sent_at), now)
        if isinstance(message, Delivered):
            self.told_at = self.told_at or at
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
            delivered=None if self.told_at is None else self.told_at - self.sent_at,
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
        )
