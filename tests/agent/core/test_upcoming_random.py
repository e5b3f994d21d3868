"""Any far events and warnings in any order, beside a model of what they mean: training goes on until one is due."""

from __future__ import annotations

import math

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from spotguard.agent.actions import Send, SignalGroup
from spotguard.agent.core.notices import COOL_DOWN, NEAR, WINDOW
from spotguard.agent.events import NoticeSeen
from spotguard.hooks.ipc.protocol import CheckpointNow, Preempt
from spotguard.providers.notice import Notice, NoticeKind, Severity
from tests.agent.core.random_stories import asked
from tests.fakes.story import START, Story

#: Each event from a cloud of its own, so that none is another under a second name.
FAR = [f"far{n}" for n in range(4)]
WARNINGS = [f"warning{n}" for n in range(4)]


class FarStory(RuleBasedStateMachine):
    """`spotguard run` among deadlines that are far off and warnings, until the first that is due."""

    @initialize(window=st.sampled_from([None, 0.0, 30.0, 400.0]), every=st.booleans())
    def begin(self, window: float | None, every: bool) -> None:
        self.story = Story(window=window)
        self.window = WINDOW if window is None else window
        self.session = self.story.opens(checkpoints=every)
        self.every = every
        #: The model: what stands and its earliest deadline.
        self.standing: dict[str, float] = {}
        #: When the last warning was followed by a checkpoint.
        self.warned = -math.inf
        self.checked = 0

    @property
    def over(self) -> bool:
        """Something has become a notice: what follows is told in the other stories."""
        return bool(self.story.sent(Preempt))

    # --- events ---

    @precondition(lambda self: not self.over)
    @rule(id=st.sampled_from(FAR), left=st.floats(-10, 4000, allow_nan=False))
    def later(self, id: str, left: float) -> None:
        now = self.story.now
        said = Notice(id, NoticeKind.REBOOT, id, now + left, now, Severity.LATER, window=7200.0)
        self.standing[id] = min(said.deadline, self.standing.get(id, math.inf))
        self.step(lambda: self.story.on(NoticeSeen(said)))

    @precondition(lambda self: not self.over)
    @rule(id=st.sampled_from(WARNINGS), left=st.floats(-10, 4000, allow_nan=False))
    def advisory(self, id: str, left: float) -> None:
        now = self.story.now
        said = Notice(id, NoticeKind.REBALANCE, id, now + left, now, Severity.ADVISORY)
        self.step(lambda: self.story.on(NoticeSeen(said)))

    @precondition(lambda self: not self.over)
    @rule(id=st.sampled_from(FAR + WARNINGS))
    def withdrawn(self, id: str) -> None:
        self.standing.pop(id, None)
        self.step(lambda: self.story.gone(id))

    @precondition(lambda self: not self.over)
    @rule(seconds=st.floats(0, 1500))
    def time_passes(self, seconds: float) -> None:
        self.step(lambda: self.story.until(self.story.now - START + seconds))

    @precondition(lambda self: self.over)
    @rule()
    def the_rest_is_another_story(self) -> None:
        """A machine of rules needs one that it can always follow."""

    def step(self, happen: object) -> None:
        happen()  # type: ignore[operator]
        for at, action in self.story.log[self.checked :]:
            if isinstance(action, Send) and isinstance(action.message, Preempt):
                self.a_notice(action.message, START + at)
            elif isinstance(action, Send) and isinstance(action.message, CheckpointNow):
                self.a_checkpoint(action.message, START + at)
        self.checked = len(self.story.log)

    # --- what must hold ---

    def a_notice(self, said: Preempt, now: float) -> None:
        assert said.id in self.standing, "withdrawn, or a mere warning"
        deadline = self.standing[said.id]
        assert now >= deadline - self.window - 1e-6, "earlier than due"
        assert now + said.seconds_left <= max(deadline, now + 10) + 1e-6, "a deadline moved later"

    def a_checkpoint(self, said: CheckpointNow, now: float) -> None:
        assert self.every, "asked of somebody who does not know the word"
        if said.going:
            assert any(now >= deadline - NEAR - 1e-6 for deadline in self.standing.values())
        else:
            assert now - self.warned >= COOL_DOWN
            self.warned = now

    @invariant()
    def nothing_ends_but_by_what_is_due(self) -> None:
        story = getattr(self, "story", None)
        if story is None:
            return
        due = [at for at in self.standing.values() if story.now >= at - self.window]
        assert self.over == bool(due)
        if not self.over:
            assert story.machine.preemption is None
            assert story.code is None
            assert (story.all(SignalGroup), story.outcomes, story.killed) == ([], [], False)

    @invariant()
    def the_machine_wakes_in_time(self) -> None:
        story = getattr(self, "story", None)
        if story is None or self.over or not self.standing:
            return
        wake = story.machine.next_wake
        assert wake is not None
        assert story.now < wake <= min(self.standing.values()) - self.window

    @invariant()
    def status_shows_what_stands(self) -> None:
        story = getattr(self, "story", None)
        if story is not None and not self.over:
            shown = {
                e["id"]: e["seconds_left"]
                for e in story.machine.upcoming.status(story.now)
                if e["then_in"] is not None
            }
            assert shown.keys() == self.standing.keys()
            assert all(abs(shown[id] - (at - story.now)) < 0.01 for id, at in self.standing.items())


class TestFarStory(FarStory.TestCase):  # type: ignore[valid-type,misc]
    settings = asked(150)


@pytest.mark.slow
class TestMoreFarStories(FarStory.TestCase):  # type: ignore[valid-type,misc]
    settings = asked(600)
