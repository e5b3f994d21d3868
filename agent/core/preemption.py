"""One notice on its way to its end: its deadline, its time budget, and what each training process made of it.

Pure: `now` comes in, messages and values go out. The rules of *time* are here, the rules of *ending* are in
`machine`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ...hooks.ipc.protocol import Committed, Delivered, Failed, Preempt, Progress
from ...providers.notice import Notice, NoticeKind, Severity
from ...providers.text import NAME, TEXT, clip
from ..outcome import SIGNALLED, Outcome, SessionOutcome
from .budget import reserve_of
from .participant import SaveProgress
from .session import Session

#: A notice without a window (hibernation, a deadline that is past) gets a try of so many seconds all the same:
#: the machine may freeze at any instant, but where it does not, nothing is gained by giving up.
LAST_TRY = 10.0
#: Two notices of one cloud whose deadlines are this close are one notice under two ids (Azure's mock server gives
#: the same event a new EventId; AWS's `time` has whole seconds).
SAME = 2.0
#: A deadline that moves by less than this has not moved: two readings of one wall-clock time differ a little.
MOVED = 0.1
#: Kinds behind which this machine stays, and the command is started here.
_STAYS = frozenset({NoticeKind.PEER, NoticeKind.ORPHAN})
#: Kinds by which a machine is taken back.
_TAKEN_BACK = frozenset({NoticeKind.TERMINATE, NoticeKind.STOP, NoticeKind.HIBERNATE, NoticeKind.PREEMPT})


def same_notice(a: Notice, b: Notice) -> bool:
    """Whether two sightings are one warning: by id, else by content. One cloud may say it in two places (AWS:
    `spot/instance-action` and `spot/termination-time`)."""
    if a.id == b.id:
        return True
    return (a.kind, _who(a)) == (b.kind, _who(b)) and abs(a.deadline - b.deadline) <= SAME


def one_end(a: Notice, b: Notice) -> bool:
    """Whether two warnings are of one end of this machine: a cloud takes it back once, and the earlier time stands.

    AWS's public mock writes the time of each request into its answers, so that no two of them name one time.
    """
    if (a.kind, _who(a)) != (b.kind, _who(b)) or a.kind not in _TAKEN_BACK:
        return False
    both = a.severity is b.severity is Severity.TERMINAL
    return both and max(a.seen_at, b.seen_at) <= min(a.deadline, b.deadline)


def _who(notice: Notice) -> str:
    """The cloud, of "aws spot/instance-action"."""
    return notice.source.partition(" ")[0]


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
            told=None if self.told_at is None else self.told_at - self.sent_at,
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


class Preemption:
    """The notice in hand, with every other one that stands at the same time."""

    def __init__(
        self,
        notice: Notice,
        now: float,
        reserve: float | None,
        *,
        rehearsal: bool = False,
        uid: int | None = None,
        name: str = "",
    ) -> None:
        """`name` is the id by which the sessions know the notice, where that is not its own."""
        self.notice = notice
        self.id = name or notice.id
        #: Every notice that stands now, and the ids that any of its messages may carry.
        self.standing: dict[str, Notice] = {notice.id: notice}
        self.ids: set[str] = {self.id}
        #: Until when the machine itself may be there, by the cloud's own word: `notice.deadline` may be earlier, as
        #: `--window` has it, and so may the deadline of a drill that it joined.
        self._machine_until: dict[str, float] = {}
        self._wanted = reserve
        self._seen_now = now
        self.left_at_first = max(0.0, notice.deadline - now)
        self.deadline = self.limit = float("inf")
        #: A drill that ends with everybody going on.
        self.rehearsal = rehearsal
        #: Whose sessions take part; None: everybody's.
        self.uid = uid
        #: Of which runs (and whose they are) sessions take part; None: of all.
        self.runs: set[tuple[int, str]] | None = None
        self.asker: int | None = None
        self.parts: dict[int, Participant] = {}
        #: The command was told to go by a signal at once, because nobody was registered.
        self.signalled = False
        #: How it is coming to its end; "" while saves go on.
        self.ending = ""
        self.killed = False
        self.withdrawn = False
        self.published = False
        #: When a TERM follows a `Leave` that was not followed.
        self.term_at: float | None = None
        #: When TERM is said again to who has answered, and is there in spite of the first.
        self.again_at: float | None = None
        #: Until when training processes that live, and have lost their socket, may come back and take part.
        self.return_by: float | None = None
        self.reserve = 0.0
        self.bring_forward(notice, now)

    @property
    def machine_goes(self) -> bool:
        """Whether a machine (and not only this command) was said to go away."""
        return any(n.kind not in {*_STAYS, NoticeKind.SIGNAL} for n in self.standing.values())

    @property
    def stays(self) -> bool:
        """Whether this machine stays: the command is started here when this is over."""
        return all(n.kind in _STAYS for n in self.standing.values() or (self.notice,))

    @property
    def of_orphan(self) -> bool:
        """Whether the command is one that a killed agent left behind."""
        return any(n.kind is NoticeKind.ORPHAN for n in self.standing.values())

    @property
    def drill(self) -> bool:
        """Whether nothing but a drill stands here."""
        return self.rehearsal or (self.notice.kind is NoticeKind.DRILL and len(self.ids) == 1)

    @property
    def machine_deadline(self) -> float:
        """When the machine is to be gone; `deadline` is when everything must be done."""
        said = (until for id, until in self._machine_until.items() if id in self.standing)
        return max((self.deadline, *said))

    def hear_cloud(self, said: Notice) -> None:
        """Keep the cloud's own deadline of a notice that stands here."""
        before = self._machine_until.get(said.id)
        if before is None:
            twins = (n for n in self.standing.values() if n.id != said.id and one_end(n, said))
            self._machine_until[said.id] = min([said.deadline, *(self._until(twin) for twin in twins)])
        else:
            self._machine_until[said.id] = max(before, said.deadline)

    def _until(self, notice: Notice) -> float:
        return self._machine_until.get(notice.id, notice.deadline)

    def knows(self, notice: Notice) -> bool:
        return any(same_notice(notice, known) or one_end(notice, known) for known in self.standing.values())

    def join(self, notice: Notice, name: str = "") -> None:
        if notice.kind is not NoticeKind.DRILL:
            self.uid = None
        self.standing[notice.id] = notice
        self.ids.add(name or notice.id)

    def take_over(self, notice: Notice, now: float) -> None:
        """This machine goes too: its own notice is the one in hand from here on, for everybody on it."""
        self.notice, self.id, self.runs = notice, notice.id, None
        self.left_at_first = max(0.0, notice.deadline - now)
        self._seen_now = min(self._seen_now, now)

    def also_called(self, notice: Notice) -> None:
        """It is known, under this id or another: withdrawn it is when none of them is shown any more."""
        if notice.id not in self.standing:
            self.standing[notice.id] = notice

    def bring_forward(self, notice: Notice, now: float) -> bool:
        """Take an earlier deadline, never a later one. True where it moved enough to tell everybody again."""
        left = notice.deadline - now
        if left < 1.0:
            left = LAST_TRY
        deadline = now + left
        if deadline >= self.deadline:
            return False
        moved = self.deadline - deadline >= MOVED
        self.deadline = deadline
        reserve = 0.0 if notice.kind in _STAYS else reserve_of(left, self._wanted)
        self.limit = min(self.limit, deadline - reserve)
        self.reserve = self.deadline - self.limit
        return moved

    def preempt(self, now: float) -> Preempt:
        left = max(0.0, self.deadline - now)
        return Preempt(
            self.id,
            left,
            min(self.reserve, left),
            str(self.notice.kind),
            self.notice.source,
            drill=self.rehearsal,
        )

    def tell(self, session: Session, now: float) -> Preempt:
        self.parts[session.number] = Participant(session, now, told_as=self.id, left=session.left)
        return self.preempt(now)

    def tell_again(self, part: Participant, now: float) -> Preempt:
        part.told_as = self.id
        return self.preempt(now)

    def takes(self, session: Session) -> bool:
        if self.runs is not None and session.run not in self.runs:
            return False
        return self.uid is None or session.uid == self.uid

    def left_words(self, now: float) -> str:
        """For the log, after a comma: what is left, where anything ends."""
        return "" if self.stays else f", {self.deadline - now:.1f} s left"

    @property
    def all_done(self) -> bool:
        return self.return_by is None and bool(self.parts) and all(p.done for p in self.parts.values())

    @property
    def all_left(self) -> bool:
        """Everybody had said goodbye: the command is on its way out by itself."""
        return bool(self.parts) and all(part.left for part in self.parts.values())

    def then(self, done: str) -> None:
        """What else was done to end it: the outcome says all of it, in order."""
        before = self.ending or (SIGNALLED if self.signalled else "")
        self.ending = f"{before}, then {done}" if before else done

    def end_all(self) -> None:
        """The group is signalled: whoever has not answered by now was ended by us."""
        for part in self.parts.values():
            part.ended_by_us = part.ended_by_us or not part.done

    def groups(self) -> Iterable[list[Participant]]:
        """Sessions that leave together: the ranks of one run of one user."""
        by_run: dict[tuple[int, str], list[Participant]] = {}
        for part in self.parts.values():
            by_run.setdefault(part.session.run, []).append(part)
        return by_run.values()

    def outcome(self, ended: str, returncode: int | None, code: int | None) -> Outcome:
        seen = min(self.notice.seen_at, self._seen_now)
        parts = [part.outcome(seen, ended) for part in self.parts.values()]
        committed = [p.committed for p in parts if p.committed is not None]
        whole = bool(parts) and len(committed) == len(parts)
        last = max(committed) if whole else None
        steps = {p.step for p in parts if p.committed is not None and p.step is not None}
        total = sum(p.bytes for p in parts)
        first = _picked(min, (p.first_byte for p in parts))
        spent = _picked(max, (p.seconds for p in parts))
        return Outcome(
            id=self.id,
            also=tuple(sorted(self.ids - {self.id})),
            kind=str(self.notice.kind),
            source=self.notice.source,
            detail=clip(self.notice.detail, TEXT),
            drill=self.drill,
            seen_at=seen,
            window=self.notice.window,
            left=self.left_at_first,
            reserve=self.reserve,
            told=_picked(max, (p.told for p in parts)),
            step=steps.pop() if len(steps) == 1 else None,
            bytes=total,
            rate=(total / spent if spent and spent > 1e-6 else None) if whole else self._rate_so_far(),
            gate=_picked(max, (p.gate for p in parts)),
            first_byte=first,
            committed=last,
            level=_level(parts) if whole else "",
            less=_said(parts, [p.less for p in parts if p.less]) if whole else "",
            why="" if whole else self._why(parts, ended),
            slack=None if last is None or self.stays else self.deadline - (seen + last),
            ended=ended,
            returncode=returncode,
            code=code,
            sessions=tuple(sorted(parts, key=lambda each: (each.run_id, each.rank))),
        )

    def _rate_so_far(self) -> float | None:
        """How fast what was sent in vain has left: the ranks send beside each other."""
        return sum(part.pace.overall() or 0.0 for part in self.parts.values()) or None

    def _why(self, parts: list[SessionOutcome], ended: str) -> str:
        if not parts:
            return "no process was registered"
        return _said(parts, [p.why for p in parts if p.why])


def _level(parts: list[SessionOutcome]) -> str:
    """The least of them."""
    levels = {p.level for p in parts}
    return "weights" if "weights" in levels else next((level for level in levels if level != "full"), "full")


def _said(parts: list[SessionOutcome], reasons: list[str]) -> str:
    """What some of them say, and how many where there are several."""
    if len(parts) == 1 or not reasons:
        return "".join(reasons)
    return f"{len(reasons)} of {len(parts)}: " + "; ".join(sorted(set(reasons))[:3])


def _picked(pick: Callable[[list[float]], float], values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return pick(known) if known else None
