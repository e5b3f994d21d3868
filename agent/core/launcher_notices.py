"""Notices that a launcher makes: SIGTERM to its ranks because one of them has died, or because another machine joins.

The ranks tell this agent of it. They save by themselves, and the launcher ends them: the agent ends nothing. It keeps the
outcome, as of every notice.

Pure: words of the ranks and the time come in, outcomes go out.
"""

from __future__ import annotations

from collections.abc import Collection

from ...hooks.ipc.protocol import Delivered
from ...providers.notice import Notice, NoticeKind
from ...providers.text import NAME, TEXT, clip
from ..outcome import Outcome
from .preemption import Preemption
from .session import Session

#: Seconds in which all ranks of a launcher have told of its SIGTERM: one calls the others within milliseconds.
TOLD = 2.0
#: Seconds behind the deadline at which who has not answered is waited for no longer.
LATE = 1.0
#: How such a notice ends.
ENDED = "the launcher ends its ranks"

#: Whose ranks: the user and the run; and the notice's id, which is equal in other runs.
_Key = tuple[tuple[int, str], str]


class LauncherNotices:
    """Those that stand, and what each rank here made of them."""

    def __init__(self) -> None:
        self._standing: dict[_Key, Preemption] = {}

    def told(self, session: Session, said: Delivered, now: float) -> Preemption | None:
        """A rank tells of one; returns it where it is new."""
        key = (session.run, clip(said.id, TEXT))
        new = None
        if key not in self._standing:
            left = max(0.0, said.seconds_left)
            notice = Notice(
                id=key[1],
                kind=NoticeKind.LAUNCHER,
                source=clip(said.source, NAME),
                deadline=now + left,
                seen_at=now,
                window=left,
            )
            new = self._standing[key] = Preemption(notice, now, 0.0)
        if session.number not in self._standing[key].parts:
            self._standing[key].tell(session, now)
        return new

    def of(self, session: Session, id: str) -> Preemption | None:
        """The one that this rank's word is about."""
        return self._standing.get((session.run, clip(id, TEXT)))

    def closed(self, number: int, *, alive: bool) -> None:
        """A rank's socket is closed."""
        for p in self._standing.values():
            if (part := p.parts.get(number)) is not None:
                part.closed, part.dead = True, part.dead or not alive

    def over(self, sessions: Collection[Session], now: float) -> list[Outcome]:
        """The outcomes of those of which every rank here has answered, or whose time is over."""
        return [self._end(key) for key, p in list(self._standing.items()) if _is_over(key, p, sessions, now)]

    def end(self) -> list[Outcome]:
        """The outcomes of all: their ranks are gone."""
        return [self._end(key) for key in list(self._standing)]

    @property
    def wakes(self) -> list[float]:
        """Monotonic seconds at which `over` may have news though nothing happens."""
        return [at for p in self._standing.values() for at in (p.notice.seen_at + TOLD, p.deadline + LATE)]

    def __bool__(self) -> bool:
        return bool(self._standing)

    def _end(self, key: _Key) -> Outcome:
        return self._standing.pop(key).outcome(ENDED, None, None)


def _is_over(key: _Key, p: Preemption, sessions: Collection[Session], now: float) -> bool:
    if now >= p.deadline + LATE:
        return True
    here = [each.number for each in sessions if each.run == key[0] and each.store and not each.left]
    return p.all_done and (now >= p.notice.seen_at + TOLD or all(number in p.parts for number in here))
