"""Any events in any order: what must hold in every story that the pure machine is told."""

from __future__ import annotations

import math
import signal
from dataclasses import replace

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from spotguard.agent.actions import Action, Finish, KillGroup, Send, SignalGroup, SignalSession
from spotguard.agent.core.preemption import EndState, Preemption
from spotguard.agent.events import NoticeSeen
from spotguard.hooks.ipc.protocol import Bye, Committed, Failed, Leave, Preempt, Resume
from spotguard.providers.notice import Notice, NoticeKind, Severity
from tests.agent.core.random_stories import asked
from tests.fakes.story import START, Story

SECONDS = st.floats(min_value=-5, max_value=130, allow_nan=False)
CLOUD_KINDS = [NoticeKind.TERMINATE, NoticeKind.STOP, NoticeKind.HIBERNATE, NoticeKind.UNKNOWN]


class AnyStory(RuleBasedStateMachine):
    """`spotguard run` among notices, sessions, signals, drills and ends."""

    @initialize(
        restarts=st.integers(0, 2),
        outlive=st.booleans(),
        signum=st.sampled_from([signal.SIGTERM, None]),
        reserve=st.sampled_from([None, 0.0, 10.0, 500.0]),
    )
    def begin(self, restarts: int, outlive: bool, signum: int | None, reserve: float | None) -> None:
        self.story = Story(max_restarts=restarts, outlive=outlive, signal=signum, reserve=reserve)
        self.alive = True
        self.asked_to_stop = 0
        self.open: dict[int, int] = {}
        self.notices: dict[str, Notice] = {}
        self.gone: set[str] = set()
        self.told: dict[tuple[str, int], float] = {}
        self.checked = 0
        self.pid = self.story.pid
        self.watched: tuple[Preemption, float, float] | None = None

    # --- events ---

    @rule(left=SECONDS, window=st.sampled_from([0.0, 30.0, 120.0]), kind=st.sampled_from(CLOUD_KINDS))
    def notice(self, left: float, window: float, kind: NoticeKind) -> None:
        number = f"n{len(self.notices)}"
        now = self.story.now
        seen = Notice(number, kind, number, now + min(left, window), now, window=window)
        self.notices[number] = seen
        self.step(lambda: self.story.on(NoticeSeen(seen)))

    @rule(left=st.floats(-5, 600, allow_nan=False), window=st.sampled_from([60.0, 900.0]))
    def later(self, left: float, window: float) -> None:
        number = f"n{len(self.notices)}"
        now = self.story.now
        seen = Notice(
            number, NoticeKind.REBOOT, number, now + left, now, severity=Severity.LATER, window=window
        )
        self.notices[number] = seen
        self.step(lambda: self.story.on(NoticeSeen(seen)))

    @rule()
    def advisory(self) -> None:
        now = self.story.now
        seen = Notice("warning", NoticeKind.FREEZE, "warning", now, now, severity=Severity.ADVISORY)
        self.step(lambda: self.story.on(NoticeSeen(seen)))

    @precondition(lambda self: self.notices)
    @rule(data=st.data(), moved=SECONDS)
    def again(self, data: st.DataObject, moved: float) -> None:
        old = self.notices[data.draw(st.sampled_from(sorted(self.notices.keys() - self.gone) or ["n0"]))]
        if old.id in self.gone:
            return
        now = self.story.now
        again = replace(old, deadline=old.deadline + moved, seen_at=now)
        self.step(lambda: self.story.on(NoticeSeen(again)))

    @precondition(lambda self: self.notices)
    @rule(data=st.data())
    def withdrawn(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.notices)))
        self.gone.add(number)
        self.step(lambda: self.story.gone(number))

    @precondition(lambda self: self.alive)
    @rule(child=st.booleans(), store=st.sampled_from(["file:///s", ""]))
    def opens(self, child: bool, store: str) -> None:
        pid = self.story.pid if child else 500 + len(self.open)
        self.step(lambda: self.open.__setitem__(self.story.opens(pid, store=store), pid))

    @precondition(lambda self: self.open)
    @rule(data=st.data(), what=st.sampled_from(["commit", "fail", "bye", "background"]))
    def speaks(self, data: st.DataObject, what: str) -> None:
        session = data.draw(st.sampled_from(sorted(self.open)))
        p, now = self.story.machine.preemption, self.story.now
        number = p.id if p is not None else "n0"
        said = {
            "commit": Committed(number, 3, 10, 0.1, "u", now),
            "background": Committed("", 3, 10, 0.1, "u", now),
            "fail": Failed(number, "no"),
            "bye": Bye(),
        }[what]
        self.step(lambda: self.story.says(session, said))

    @precondition(lambda self: self.open)
    @rule(data=st.data(), call=st.sampled_from(["x", "y"]), drill=st.booleans(), void=st.booleans())
    def called(self, data: st.DataObject, call: str, drill: bool, void: bool) -> None:
        session = data.draw(st.sampled_from(sorted(self.open)))
        if void:
            self.step(lambda: self.story.uncalled(session, call))
        else:
            self.step(lambda: self.story.called(session, call, drill=drill))

    @precondition(lambda self: self.open)
    @rule(data=st.data(), alive=st.booleans())
    def closes(self, data: st.DataObject, alive: bool) -> None:
        session = data.draw(st.sampled_from(sorted(self.open)))
        del self.open[session]
        self.step(lambda: self.story.closes(session, alive=alive))

    @precondition(lambda self: self.story.now > START + 50)  # or most stories would be short
    @rule(signum=st.sampled_from([signal.SIGTERM, signal.SIGINT, signal.SIGHUP]))
    def signalled(self, signum: int) -> None:
        # The first SIGTERM is a notice; a second, or a SIGINT, is an order.
        self.asked_to_stop += 2 * (signum == signal.SIGINT) + (signum == signal.SIGTERM)
        self.step(lambda: self.story.signal(signum))

    @rule(preempt=st.booleans())
    def drill(self, preempt: bool) -> None:
        self.step(lambda: self.story.asks(preempt=preempt))

    @rule(seconds=st.floats(0, 200))
    def time_passes(self, seconds: float) -> None:
        self.step(lambda: self.story.until(self.story.now - START + seconds))

    @precondition(lambda self: self.alive)
    @rule(returncode=st.sampled_from([0, 1, 75, -9, -15]), leaves=st.booleans())
    def ends(self, returncode: int, leaves: bool = False) -> None:
        self.alive, self.story.group_left = False, leaves
        self.step(lambda: self.story.ends(returncode))
        self.open = {s: pid for s, pid in self.open.items() if s in self.story.machine.sessions}

    @precondition(lambda self: self.story.group_left)
    @rule()
    def the_last_of_the_group_ends(self) -> None:
        self.story.group_left = False

    def step(self, happen: object) -> None:
        if self.story.code is None:
            happen()  # type: ignore[operator]
        for at, action in self.story.log[self.checked :]:
            self.check(START + at, action)
        self.checked = len(self.story.log)
        if self.story.pid != self.pid:
            self.pid, self.alive = self.story.pid, True

    # --- what must hold ---

    def check(self, now: float, action: Action) -> None:
        p = self.story.machine.preemption
        if p is not None and now < p.notice.seen_at:
            p = None  # it was done before this notice came
        if isinstance(action, KillGroup) and self.asked_to_stop < 2 and p is not None:
            assert now >= p.limit, "killed before the reserve"
        if isinstance(action, SignalGroup) and action.signum == signal.SIGTERM and self.asked_to_stop < 2:
            assert p is None or p.signalled or all(part.done for part in p.parts.values()), "law 11"
        if isinstance(action, SignalSession) and action.signum == signal.SIGTERM and self.asked_to_stop < 2:
            part = p.parts.get(action.session) if p is not None else None
            assert part is None or part.done, "law 11"
        if isinstance(action, Finish):
            assert not self.alive or self.story.pid != self.pid or self.story.machine.command is None
        if isinstance(action, Send):
            if isinstance(action.message, Leave):
                done = p is None or all(part.done for part in p.parts.values())  # None: it is over since
                assert done, "told to leave before all had answered"
                mine = self.open.get(action.session) == self.story.pid
                gone = not self.alive and not self.story.group_left
                assert mine or gone, "a worker was told to leave before its launcher"
            if isinstance(action.message, Preempt):
                key = (action.message.id, action.session)
                deadline = now + action.message.seconds_left
                assert deadline <= self.told.get(key, deadline) + 1e-6, "a deadline moved later"
                assert 0 <= action.message.reserve <= action.message.seconds_left + 1e-6
                self.told[key] = deadline
            if isinstance(action.message, Resume):  # a drill is over: a real call may have its name
                self.told[action.message.id, action.session] = math.inf

    @invariant()
    def deadlines_never_move_later(self) -> None:
        p = self.story.machine.preemption if hasattr(self, "story") else None
        if p is not None and self.watched is not None and self.watched[0] is p:
            assert p.deadline <= self.watched[1]
            assert p.limit <= self.watched[2]
        self.watched = None if p is None else (p, p.deadline, p.limit)

    @invariant()
    def a_notice_never_waits_past_its_limit(self) -> None:
        story = getattr(self, "story", None)
        if story is None or story.code is not None or story.machine.preemption is None:
            return
        p, wake = story.machine.preemption, story.machine.next_wake
        assert p.end_state is EndState.KILLED or (wake is not None and wake <= p.limit)

    def teardown(self) -> None:
        """Everything that began comes to one end, however silent everybody is."""
        if not hasattr(self, "story"):
            return
        for _ in range(20):
            if self.story.code is not None:
                break
            self.time_passes(400)
            if self.alive and self.story.code is None:
                self.ends(0)
        assert self.story.code is not None
        assert self.story.machine.next_wake is None
        named = [id for outcome in self.story.outcomes for id in (outcome.id, *outcome.also)]
        for number in self.notices.keys() - self.gone:
            assert named.count(number) <= 1, f"{number} has two outcomes"
        accepted = {key[0] for key in self.told}
        assert "warning" not in named
        assert accepted <= set(named)
        assert all(outcome.ended for outcome in self.story.outcomes)


class TestAnyStory(AnyStory.TestCase):  # type: ignore[valid-type,misc]
    settings = asked(150)


@pytest.mark.slow
class TestMoreAnyStories(AnyStory.TestCase):  # type: ignore[valid-type,misc]
    settings = asked(600)
