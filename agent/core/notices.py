"""The notices that are not being answered (upcoming ones, and those that had their end), and the test whether two are one.

Pure, like all of `core`. `NoticeTracker` knows every notice except those that are being answered, which belong to `Preemption`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from ...providers.notice import Notice, NoticeKind, Severity
from ...providers.text import TEXT, clip, span

#: Two notices of one cloud whose deadlines are this close are one notice under two ids (Azure's mock server gives
#: the same event a new EventId; AWS's `time` has whole seconds).
SAME = 2.0
#: A deadline that moves by less than this has not moved: two readings of one wall-clock time differ a little.
MOVED = 0.1
#: A far-off deadline that moves by less has not moved: its times have whole seconds.
MOVED_FAR_OFF = 1.0
#: Kinds that announce the end of a machine.
_TAKEN_BACK = frozenset({NoticeKind.TERMINATE, NoticeKind.STOP, NoticeKind.HIBERNATE, NoticeKind.PREEMPT})
#: Seconds before a deadline at which the agent asks for a checkpoint. If the last save fails, this checkpoint remains.
NEAR = 300.0
#: Seconds before a deadline at which an upcoming notice becomes a terminal notice, unless `--window` is set. It is AWS's
#: warning, the longest that a spot machine gets. So training that can save on a spot machine can save here.
WINDOW = 120.0
#: Seconds between two checkpoints that mere warnings ask for. 21 of 30 warnings came to nothing, and some clusters
#: saw one every half hour for a day (aws-node-termination-handler#141).
COOL_DOWN = 900.0
#: A checkpoint that the agent asked for within this many seconds is as good as a new one: 30 deadlines at once are one.
FRESH = 60.0
#: The number of upcoming notices, and of warnings, that are kept. A source that gives its events new ids at each poll must not
#: fill the memory.
_KEPT = 64


def same_notice(a: Notice, b: Notice) -> bool:
    """Return whether two notices are one warning: by id, else by content.

    A cloud may show a warning in two places (AWS: `spot/instance-action` and `spot/termination-time`).
    """
    if a.id == b.id:
        return True
    return (a.kind, _who(a)) == (b.kind, _who(b)) and abs(a.deadline - b.deadline) <= SAME


def one_end(a: Notice, b: Notice) -> bool:
    """Return whether two warnings are of one end of this machine. A cloud takes a machine back once; the earlier time counts.

    AWS's public mock writes the time of each request into its answers, so that no two answers have the same time.
    """
    if (a.kind, _who(a)) != (b.kind, _who(b)) or a.kind not in _TAKEN_BACK:
        return False
    both = a.severity is b.severity is Severity.TERMINAL
    return both and max(a.seen_at, b.seen_at) <= min(a.deadline, b.deadline)


def _who(notice: Notice) -> str:
    """Return the cloud: "aws" for "aws spot/instance-action"."""
    return notice.source.partition(" ")[0]


class NoticeTracker:
    """The notices that a source has shown and that are not answered now.

    Args:
        window: seconds of `--window`; None: use the notice's own window.
    """

    def __init__(self, window: float | None) -> None:
        self._window = window
        #: Notices whose deadline is far off, and warnings: training goes on.
        self.upcoming = Upcoming(window)
        #: Notices that had their end. If a source shows one again, nothing changes.
        self._settled: dict[str, Notice] = {}
        #: Ids of upcoming notices that came due, and that no source has shown as begun yet.
        self._came_due: set[str] = set()

    def as_trusted(self, notice: Notice) -> Notice:
        """Return the notice with the window that the user counts on: shorter than the cloud's, never longer."""
        window = self._window
        if window is None or window >= notice.window or notice.kind is NoticeKind.SIGNAL:
            return notice
        return replace(notice, window=window, deadline=min(notice.deadline, notice.seen_at + window))

    def had_its_end(self, notice: Notice) -> bool:
        """Return whether this notice was answered to its end."""
        return any(same_notice(notice, known) or one_end(notice, known) for known in self._settled.values())

    def settle(self, notices: Iterable[Notice]) -> None:
        """Note that these notices had their end."""
        # No source shows a drill or another machine's call, and a service that lives for years meets many.
        own = (NoticeKind.DRILL, NoticeKind.PEER)
        self._settled |= {notice.id: notice for notice in notices if notice.kind not in own}

    def begun(self, notice: Notice) -> None:
        """Note that an upcoming notice begins (Azure: `Started`). If it ended at its planned time, it counts again."""
        self.upcoming.gone(notice.id)
        if notice.id in self._came_due:
            self._came_due.remove(notice.id)
            known = self._settled.get(notice.id)
            if known is not None and not same_notice(replace(known, id=""), notice):
                del self._settled[notice.id]

    def due(self, now: float) -> Iterable[Notice]:
        """Yield each upcoming notice that has come due, once."""
        for notice in self.upcoming.due(now):
            self._came_due.add(notice.id)
            yield notice

    def withdrawn(self, notice_id: str) -> Notice | None:
        """Forget a notice that no source shows any more; return it if it was upcoming. If a source shows it again, it counts."""
        self._settled.pop(notice_id, None)
        self._came_due.discard(notice_id)
        return self.upcoming.gone(notice_id)


@dataclass(slots=True)
class _Later:
    """One event with its earliest deadline, under every id that it has been given."""

    notice: Notice
    ids: set[str]
    #: The agent has asked for a checkpoint because this event is near.
    asked: bool = False


@dataclass(frozen=True, slots=True)
class CheckpointWish:
    """The wish for a checkpoint beside training, with its reason."""

    reason: str
    #: The machine goes for certain, so the wish holds even if background checkpoints are switched off.
    going: bool


class Upcoming:
    """The events during which training goes on. `NoticeTracker` owns it.

    Args:
        window: seconds of `--window`; None if it is not set.
    """

    def __init__(self, window: float | None) -> None:
        self._window = WINDOW if window is None else window
        self._later: list[_Later] = []
        self._advice: dict[str, Notice] = {}
        #: A warning for which the agent has not asked for a checkpoint yet.
        self._news: Notice | None = None
        #: Monotonic seconds of the last checkpoint wish for a deadline, and for a warning. A warning's checkpoint does not
        #: replace a deadline's: if background checkpoints are switched off, no session makes it.
        self._asked_at = self._advised_at = -math.inf

    # --- notices from the sources ---

    def expect(self, notice: Notice, now: float) -> str:
        """Take in a `Severity.LATER` notice. Return the line for the log, "" if the notice is known."""
        known = next((one for one in self._later if _is(one, notice)), None)
        if known is None:
            self._later.append(_Later(notice, {notice.id}))
            self._later = sorted(self._later, key=lambda one: one.notice.deadline)[:_KEPT]
            return f"{_named(notice)} in {span(notice.deadline - now)}: training continues until it is near"
        known.ids.add(notice.id)
        moved = known.notice.deadline - notice.deadline
        if moved > 0:
            known.notice = replace(known.notice, deadline=notice.deadline)
        return (
            f"{_named(notice)} moved earlier: {span(notice.deadline - now)} left"
            if moved >= MOVED_FAR_OFF
            else ""
        )

    def advise(self, notice: Notice, now: float) -> str:
        """Take in a `Severity.ADVISORY` notice. Return the line for the log, "" if there is none."""
        known = notice.id in self._advice
        self._advice[notice.id] = notice
        if known:
            return ""
        if len(self._advice) > _KEPT:
            del self._advice[next(iter(self._advice))]
        if notice.kind is not NoticeKind.MEMORY and now - self._advised_at < COOL_DOWN:
            return ""
        self._news = notice
        return f"{_named(notice)}: an advisory, and not the end of this machine: training continues"

    def gone(self, id: str) -> Notice | None:
        """Forget an id that no source shows any more. Return its notice, if the event has no other id."""
        # Check both: a mere warning may have got a deadline since, under the same id.
        if (advice := self._advice.pop(id, None)) is not None:
            self._news = None if self._news is advice else self._news
        one = next((one for one in self._later if id in one.ids), None)
        if one is None:
            return advice
        one.ids.remove(id)
        if one.ids:
            return advice
        self._later.remove(one)
        return one.notice

    # --- due actions ---

    def terminal(self, notice: Notice, now: float) -> Notice:
        """Return the event as a terminal notice: from now on the cloud takes the machine back."""
        return replace(notice, severity=Severity.TERMINAL, seen_at=now, window=self._window)

    def due(self, now: float) -> list[Notice]:
        """Remove the notices that have come due, and return each once under each of its ids."""
        come = [one for one in self._later if now >= self._due_at(one)]
        self._later = [one for one in self._later if one not in come]
        return [self.terminal(replace(one.notice, id=id), now) for one in come for id in _ids(one)]

    def wish(self, now: float, *, anybody: bool) -> CheckpointWish | None:
        """Return the wish for a checkpoint now; None if there is none.

        Each reason counts once, even if no session can be asked.

        Args:
            anybody: a session can be asked.
        """
        near = [one for one in self._later if not one.asked and now >= one.notice.deadline - NEAR]
        for one in near:
            one.asked = True
        news, self._news = self._news, None
        if not anybody:
            return None
        if near and now - self._asked_at >= FRESH:
            self._asked_at = now
            return CheckpointWish(self._why(min(near, key=self._due_at), now), going=True)
        if news is not None and news.kind is NoticeKind.MEMORY:
            return CheckpointWish(
                _named(news), going=True
            )  # its processes are about to be killed, without a notice
        if news is not None:
            self._advised_at = now
            return CheckpointWish(_named(news), going=False)
        return None

    def near(self, now: float) -> str:
        """Return the reason of a present checkpoint wish, for a session that registers later; "" if there is none."""
        one = next((one for one in self._later if one.asked), None)
        return "" if one is None else self._why(one, now)

    def _why(self, one: _Later, now: float) -> str:
        return f"{_named(one.notice)} in {span(one.notice.deadline - now)}"

    @property
    def wakes(self) -> list[float]:
        """Monotonic seconds at which `due` or `wish` may return something."""
        near = [one.notice.deadline - NEAR for one in self._later if not one.asked]
        return [*near, *(self._due_at(one) for one in self._later)]

    def _due_at(self, one: _Later) -> float:
        return one.notice.deadline - self._window

    # --- for `status` ---

    def status(self, now: float) -> list[dict[str, Any]]:
        """Return each event with its next action and the seconds until then, the soonest first; then the warnings."""
        later = [self._show(one, now) for one in sorted(self._later, key=self._due_at)]
        return later + [_shown(notice, now) | _NOTHING for notice in self._advice.values()]

    def _show(self, one: _Later, now: float) -> dict[str, Any]:
        first = one.notice.deadline - NEAR
        asks = not one.asked and first < self._due_at(one)
        then, at = ("checkpoint", first) if asks else ("terminal notice", self._due_at(one))
        left = round(one.notice.deadline - now, 3)
        return _shown(one.notice, now) | {"seconds_left": left, "then": then, "then_in": round(at - now, 3)}


_NOTHING: dict[str, Any] = {"seconds_left": None, "then": "training continues", "then_in": None}


def _is(one: _Later, notice: Notice) -> bool:
    return notice.id in one.ids or same_notice(one.notice, notice)


def _ids(one: _Later) -> list[str]:
    """Return the ids, the first one first: the agent delivers the notice under that id."""
    return (
        [one.notice.id, *sorted(one.ids - {one.notice.id})] if one.notice.id in one.ids else sorted(one.ids)
    )


def _named(notice: Notice) -> str:
    detail = f" ({clip(notice.detail, TEXT)})" if notice.detail else ""
    return f"{notice.kind} from {notice.source}{detail}"


def _shown(notice: Notice, now: float) -> dict[str, Any]:
    return {
        "id": notice.id,
        "kind": str(notice.kind),
        "severity": str(notice.severity),
        "source": notice.source,
        "detail": clip(notice.detail, TEXT),
        "for_seconds": round(now - notice.seen_at, 1),
    }
