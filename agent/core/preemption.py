"""One notice that is being answered: its deadline, its time budget, its participants, and how far its end is.

Pure, like all of `core`: `now` comes in, messages and values go out. The rules of time are here, those of ending in
`shutdown`.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable

from ...hooks.ipc.protocol import Preempt
from ...providers.notice import Notice, NoticeKind
from ...providers.text import TEXT, clip
from ..outcome import BY_ITSELF, SIGNALLED, Outcome, SessionOutcome
from .budget import reserve_of
from .notices import MOVED, one_end, same_notice
from .session import Participant, Session

#: A notice without a window (hibernation, a deadline that is past) gets a try of so many seconds all the same:
#: the machine may freeze at any instant, but where it does not, nothing is gained by giving up.
LAST_TRY = 10.0
#: Kinds behind which this machine stays, and the command is started here.
_STAYS = frozenset({NoticeKind.PEER, NoticeKind.ORPHAN})


class EndState(enum.Enum):
    """How far the end of a command is that has a notice."""

    #: Its sessions save, or nobody is registered and it has its signal.
    SAVING = enum.auto()
    #: Every session has answered and was told to leave.
    LEAVING = enum.auto()
    #: The command got SIGTERM, from the agent or because a person asked twice.
    TERMINATING = enum.auto()
    #: The reserve has begun: the command got SIGKILL.
    KILLED = enum.auto()


class Preemption:
    """The active notice, with every other one that stands at the same time."""

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
        self.end_state = EndState.SAVING
        #: For the outcome: how the command was ended. "" while saves go on.
        self._account = ""
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

    @property
    def ending(self) -> bool:
        """Whether the command was asked to end."""
        return self.end_state is not EndState.SAVING

    @property
    def account(self) -> str:
        """How the command is being ended, in order; "" while saves go on."""
        return self._account

    @property
    def ended(self) -> str:
        """For the outcome: how the command came to its end."""
        return self._account or (SIGNALLED if self.signalled else BY_ITSELF)

    def end(self, end_state: EndState, account: str) -> None:
        """The command is ended in this way. What was killed stays killed."""
        self._account = account
        if self.end_state is not EndState.KILLED:
            self.end_state = end_state

    def then(self, account: str, end_state: EndState = EndState.TERMINATING) -> None:
        """Add what else was done to end the command. The outcome reports all of it, in order."""
        before = self._account or (SIGNALLED if self.signalled else "")
        self._account = f"{before}, then {account}" if before else account
        if self.end_state is not EndState.KILLED:
            self.end_state = end_state

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
            delivered=_picked(max, (p.delivered for p in parts)),
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
