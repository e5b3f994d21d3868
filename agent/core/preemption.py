"""A preemption: one notice that is being answered, with its deadline, its time budget, its participants and the state of its end.

Pure, like all of `core`: `now` comes in, messages and values go out. The rules of time are here; the rules of ending are in
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

#: Seconds for a try to save at a notice without a window (hibernation, a deadline that is past). The machine may freeze at any
#: instant; if it does not, giving up gains nothing.
LAST_TRY = 10.0
#: Why nothing is committed where nobody could be told.
NOBODY = "no process was registered"
#: The most participants of one user whose connections are closed, each as many as a user may have (`ipc.connection.Limits`).
_GONE = 512
#: Kinds after which this machine stays, and the command starts here again.
_STAYS = frozenset({NoticeKind.PEER, NoticeKind.ORPHAN, NoticeKind.RESTART})


class EndState(enum.Enum):
    """The state of the end of a command that has a notice."""

    #: Its sessions save; or no session is registered, and the command got its signal.
    SAVING = enum.auto()
    #: Every session has answered, and the agent has sent `Leave`.
    LEAVING = enum.auto()
    #: The command got SIGTERM, from the agent or because a person asked twice.
    TERMINATING = enum.auto()
    #: The reserve has begun: the command got SIGKILL.
    KILLED = enum.auto()


class Preemption:
    """The active notice, with every other notice that is active at the same time."""

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
        """Begin with one notice.

        Args:
            notice: the notice.
            now: monotonic seconds.
            reserve: seconds of `--reserve`; None if it is not set.
            rehearsal: the notice is a drill after which training goes on.
            uid: the user whose sessions take part; None: every user's sessions do.
            name: the id by which the sessions know the notice, if that is not its own id.
        """
        self.notice = notice
        self.id = name or notice.id
        #: Every notice that is active now, by id.
        self.standing: dict[str, Notice] = {notice.id: notice}
        #: The users of the calls of other machines that have joined, by the notice's id.
        self.callers: dict[str, int] = {}
        #: The ids that messages about the preemption may carry.
        self.ids: set[str] = {self.id}
        #: The cloud's own deadline of the machine, by notice id. `notice.deadline` may be earlier because of `--window`, and the
        #: deadline of a drill that the notice joined may be earlier too.
        self._machine_until: dict[str, float] = {}
        self._wanted = reserve
        self._seen_now = now
        self.left_at_first = max(0.0, notice.deadline - now)
        self.deadline = self.limit = float("inf")
        #: A drill after which every session goes on training.
        self.rehearsal = rehearsal
        #: The user whose sessions take part; None: every user's sessions do.
        self.uid = uid
        #: The runs, each with its user, whose sessions take part; None: all runs.
        self.runs: set[tuple[int, str]] | None = None
        self.asker: int | None = None
        self.parts: dict[int, Participant] = {}
        #: The command got the signal of `--signal`, because it has no training process that can save for the notice.
        self.signalled = False
        self.end_state = EndState.SAVING
        #: How the command was ended, for the outcome. "" while saves go on.
        self._account = ""
        self.withdrawn = False
        self.published = False
        #: Monotonic seconds at which TERM follows a `Leave` that was not obeyed.
        self.term_at: float | None = None
        #: Monotonic seconds at which the agent sends TERM again to processes that have answered, and still exist after the first.
        self.again_at: float | None = None
        #: Monotonic seconds until which living training processes that have lost their socket may come back and take part.
        self.return_by: float | None = None
        self.reserve = 0.0
        self.bring_forward(notice, now)

    @property
    def machine_goes(self) -> bool:
        """Whether a notice announces the end of a machine, and not only of this command."""
        return any(n.kind not in {*_STAYS, NoticeKind.SIGNAL} for n in self.standing.values())

    @property
    def stays(self) -> bool:
        """Whether this machine stays, so that the command starts here again afterwards."""
        return all(n.kind in _STAYS for n in self.standing.values() or (self.notice,))

    @property
    def restarts(self) -> bool:
        """Whether training that stands still is ended, so that the command starts again (`--recover stall=restart`)."""
        return any(n.kind is NoticeKind.RESTART for n in (*self.standing.values(), self.notice))

    @property
    def of_orphan(self) -> bool:
        """Whether the command is one that a killed agent left behind."""
        return any(n.kind is NoticeKind.ORPHAN for n in self.standing.values())

    @property
    def drill(self) -> bool:
        """Whether the only notice is a drill, or a stall, after which training goes on as after a drill."""
        return self.rehearsal or (self.notice.kind is NoticeKind.DRILL and len(self.ids) == 1)

    @property
    def machine_deadline(self) -> float:
        """Monotonic seconds at which the machine is to be gone; at `deadline`, everything must be done."""
        announced = (until for id, until in self._machine_until.items() if id in self.standing)
        return max((self.deadline, *announced))

    def hear_cloud(self, shown: Notice) -> None:
        """Keep the cloud's own deadline of an active notice.

        Args:
            shown: the notice as its source shows it.
        """
        before = self._machine_until.get(shown.id)
        if before is None:
            twins = (n for n in self.standing.values() if n.id != shown.id and one_end(n, shown))
            self._machine_until[shown.id] = min([shown.deadline, *(self._until(twin) for twin in twins)])
        else:
            self._machine_until[shown.id] = max(before, shown.deadline)

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
        """Make this machine's own notice the active one, for all its sessions: this machine goes too."""
        if self.restarts and not self.ending:
            self.deadline = self.limit = float(
                "inf"
            )  # the notice's own time counts, and the sessions are told of it
        self.notice, self.id, self.runs = notice, notice.id, None
        self.left_at_first = max(0.0, notice.deadline - now)
        self._seen_now = min(self._seen_now, now)

    def also_called(self, notice: Notice) -> None:
        """Add a known notice under another id. The notice is withdrawn only when no source shows any of its ids."""
        if notice.id not in self.standing:
            self.standing[notice.id] = notice

    def bring_forward(self, notice: Notice, now: float) -> bool:
        """Take an earlier deadline, never a later one. Return whether it moved enough to deliver the notice again."""
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
            detail=self.notice.detail if self.notice.kind in (NoticeKind.STALL, NoticeKind.RESTART) else "",
        )

    def tell(self, session: Session, now: float) -> Preempt:
        gone = [n for n, part in self.parts.items() if part.closed and part.session.uid == session.uid]
        if len(gone) >= _GONE:
            del self.parts[gone[0]]
        self.parts[session.number] = Participant(session, now, delivered_as=self.id, left=session.left)
        return self.preempt(now)

    def give_up(self, session: Session, why: str, now: float) -> None:
        """Take in a session that cannot answer."""
        self.parts[session.number] = Participant(session, now, failed=why)

    def tell_again(self, part: Participant, now: float) -> Preempt:
        part.delivered_as = self.id
        return self.preempt(now)

    @property
    def stall(self) -> bool:
        """Whether it is a stall of training, and no notice."""
        return self.notice.kind is NoticeKind.STALL

    def takes(self, session: Session) -> bool:
        if self.stall and not session.store:
            return False  # functions of `on_notice` are for machines that go
        if self.runs is not None and session.run not in self.runs:
            return False
        return self.uid is None or session.uid == self.uid

    def left_words(self, now: float) -> str:
        """Return ", 12.3 s left" for the log; "" if this machine stays."""
        return "" if self.stays else f", {self.deadline - now:.1f} s left"

    @property
    def all_done(self) -> bool:
        return self.return_by is None and bool(self.parts) and all(p.done for p in self.parts.values())

    @property
    def all_left(self) -> bool:
        """Whether every participant has sent `Bye`, so that the command is about to end by itself."""
        return bool(self.parts) and all(part.left for part in self.parts.values())

    @property
    def ending(self) -> bool:
        """Whether the agent has asked the command to end."""
        return self.end_state is not EndState.SAVING

    @property
    def account(self) -> str:
        """How the command is being ended, in order; "" while saves go on."""
        return self._account

    @property
    def ended(self) -> str:
        """How the command ended, for the outcome."""
        return self._account or (SIGNALLED if self.signalled else BY_ITSELF)

    def end(self, end_state: EndState, account: str) -> None:
        """Note how the agent ends the command. The state KILLED is final."""
        self._account = account
        if self.end_state is not EndState.KILLED:
            self.end_state = end_state

    def then(self, account: str, end_state: EndState = EndState.TERMINATING) -> None:
        """Add a further act that ended the command. The outcome reports all acts, in order."""
        before = self._account or (SIGNALLED if self.signalled else "")
        self._account = f"{before}, then {account}" if before else account
        if self.end_state is not EndState.KILLED:
            self.end_state = end_state

    def end_all(self) -> None:
        """Note that the agent has signalled the group, and so ended every participant that has not answered yet."""
        for part in self.parts.values():
            part.ended_by_us = part.ended_by_us or not part.done

    def groups(self) -> Iterable[list[Participant]]:
        """Return the groups of sessions that leave together: the ranks of one run of one user."""
        by_run: dict[tuple[int, str], list[Participant]] = {}
        for part in self.parts.values():
            by_run.setdefault(part.session.run, []).append(part)
        return by_run.values()

    def outcome(self, ended: str, returncode: int | None, code: int | None, nobody: str = NOBODY) -> Outcome:
        """Return how the preemption ended.

        Args:
            ended: how the command ended, in words.
            returncode: the command's return code; None without an end.
            code: the exit code of `run`; None if it continues.
            nobody: why no process answers, if none is registered.
        """
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
            why="" if whole else self._why(parts, nobody),
            slack=None if last is None or self.stays else self.deadline - (seen + last),
            ended=ended,
            returncode=returncode,
            code=code,
            sessions=tuple(sorted(parts, key=lambda each: (each.run_id, each.rank))),
        )

    def _rate_so_far(self) -> float | None:
        """Return the rate of uploads without a commit, in bytes per second: the sum, because the ranks send at the same time."""
        return sum(part.pace.overall() or 0.0 for part in self.parts.values()) or None

    def _why(self, parts: list[SessionOutcome], nobody: str) -> str:
        return _said(parts, [p.why for p in parts if p.why]) if parts else nobody


def _level(parts: list[SessionOutcome]) -> str:
    """Return the lowest level of the sessions."""
    levels = {p.level for p in parts}
    return "weights" if "weights" in levels else next((level for level in levels if level != "full"), "full")


def _said(parts: list[SessionOutcome], reasons: list[str]) -> str:
    """Return the sessions' reasons in one line; with the number of sessions, if there are several."""
    if len(parts) == 1 or not reasons:
        return "".join(reasons)
    return f"{len(reasons)} of {len(parts)}: " + "; ".join(sorted(set(reasons))[:3])


def _picked(pick: Callable[[list[float]], float], values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return pick(known) if known else None
