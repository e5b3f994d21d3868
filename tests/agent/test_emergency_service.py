"""The service's half of the machine, told any events in any order."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from spotguard.agent.actions import KillGroup, Launch, Send, SignalGroup
from spotguard.hooks.protocol import Leave, Preempt, Withdrawn
from spotguard.providers.notice import NoticeKind
from tests.fakes.story import START, Story

USERS = st.integers(1, 3)
OPENS = st.tuples(st.just("opens"), USERS, st.sampled_from(["a", "b"]))
STEP = st.one_of(
    OPENS,
    st.tuples(st.just("commits"), st.integers(0, 9)),
    st.tuples(st.just("fails"), st.integers(0, 9)),
    st.tuples(st.just("closes"), st.integers(0, 9), st.booleans()),
    st.tuples(st.just("notice"), st.integers(0, 130)),
    st.tuples(st.just("gone"), st.integers(0, 3)),
    st.tuples(st.just("drill"), USERS, st.booleans()),
    st.tuples(st.just("calls"), st.integers(0, 9), st.booleans()),
    st.tuples(st.just("uncalls"), st.integers(0, 9), st.integers(0, 3)),
    st.tuples(st.just("time"), st.integers(0, 150)),
)


class Service:
    """Carries the steps out, and keeps what must hold beside them."""

    def __init__(self) -> None:
        self.story = Story(command=False)
        self.users: dict[int, int] = {}
        self.shown: list[str] = []
        self.calls: list[str] = []

    def take(self, step: tuple[object, ...]) -> None:
        story, (what, *values) = self.story, step
        mark = len(story.log)
        if what == "opens":
            uid, run = values
            assert isinstance(uid, int)
            self.users[story.opens(pid=10_000 + len(self.users), uid=uid, run=str(run))] = uid
        elif what in ("commits", "fails"):
            if (session := self.session(values[0])) and story.machine.pending is not None:
                _ = story.commits(session) if what == "commits" else story.fails(session)
        elif what == "closes":
            if session := self.session(values[0]):
                story.closes(session, alive=bool(values[1]))
        elif what == "notice":
            assert isinstance(values[0], int)
            self.shown.append(f"n{len(self.shown)}")
            kind = [NoticeKind.STOP, NoticeKind.TERMINATE, NoticeKind.UNKNOWN][len(self.shown) % 3]
            story.notice(values[0], id=self.shown[-1], kind=kind)
        elif what == "gone" and self.shown:
            assert isinstance(values[0], int)
            story.gone(self.shown[values[0] % len(self.shown)])
        elif what == "drill":
            uid, preempt = values
            assert isinstance(uid, int)
            story.asks(uid=uid, preempt=bool(preempt))
        elif what == "calls" and (session := self.session(values[0])):
            self.calls.append(f"c{len(self.calls)}")
            story.called(session, self.calls[-1], drill=bool(values[1]))
        elif what == "uncalls" and self.calls and (session := self.session(values[0])):
            assert isinstance(values[1], int)
            story.uncalled(session, self.calls[values[1] % len(self.calls)])
        elif what == "time":
            assert isinstance(values[0], int)
            story.until(story.now - START + values[0])
        self.check(mark, uid=values[0] if what == "drill" else None)

    def session(self, index: object) -> int | None:
        there = sorted(self.story.machine.sessions)
        assert isinstance(index, int)
        return there[index % len(there)] if there else None

    def check(self, mark: int, uid: object) -> None:
        for _, action in self.story.log[mark:]:
            assert not isinstance(action, SignalGroup | KillGroup | Launch), "a service ends nothing"
            if isinstance(action, Send) and isinstance(action.message, Preempt) and uid is not None:
                assert self.users[action.session] == uid, "a drill reached another user"
            if isinstance(action, Send) and isinstance(action.message, Leave):
                p = self.story.machine.pending
                if p is not None and action.session in p.parts:
                    group = next(g for g in p.groups() if p.parts[action.session] in g)
                    assert all(part.done for part in group), "told to leave before its job was done"


@given(st.lists(OPENS, max_size=6), st.lists(STEP, min_size=3, max_size=40))
@settings(max_examples=300, deadline=None, derandomize=True)
def test_a_service_in_any_story(first: list[tuple[object, ...]], steps: list[tuple[object, ...]]) -> None:
    """It ends nothing, tells each job by itself, and every notice comes to one outcome."""
    service = Service()
    for step in [*first, *steps]:
        service.take(step)
    story = service.story
    story.until(story.now - START + 1000)
    assert story.machine.pending is None
    assert story.machine.next_wake is None
    named = Counter(id for outcome in story.outcomes for id in (outcome.id, *outcome.also))
    told = {message.id for _, message in story.sent(Preempt)}
    assert told <= set(named)
    assert {message.id for _, message in story.sent(Withdrawn)} <= told
    assert all(named[id] >= 1 for id in told)
    assert all(count == 1 for count in named.values())
