"""The service's half of the machine, told any events in any order."""

from __future__ import annotations

import signal
from collections import Counter

from hypothesis import example, given, settings
from hypothesis import strategies as st

from spotguard.agent.actions import KillGroup, Launch, Publish, Send, SignalGroup
from spotguard.agent.events import Signalled
from spotguard.hooks.ipc.protocol import Leave, Preempt, Resume, Withdrawn
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
        #: Each has a connection of its own, by which two in one instant differ.
        self.drills = 0

    def take(self, step: tuple[object, ...]) -> None:
        story, (what, *values) = self.story, step
        mark = len(story.log)
        if what == "opens":
            uid, run = values
            assert isinstance(uid, int)
            self.users[story.opens(pid=10_000 + len(self.users), uid=uid, run=str(run))] = uid
        elif what in ("commits", "fails"):
            if (session := self.session(values[0])) and story.machine.preemption is not None:
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
            self.drills += 1
            story.asks(uid=uid, preempt=bool(preempt), asker=900 + self.drills)
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
                p = self.story.machine.preemption
                if p is not None and action.session in p.parts:
                    group = next(g for g in p.groups() if p.parts[action.session] in g)
                    assert all(part.done for part in group), "told to leave before its job was done"


@example([("opens", 1, "a")], [("drill", 1, False), ("commits", 0), ("drill", 1, False)])
@given(st.lists(OPENS, max_size=6), st.lists(STEP, min_size=3, max_size=40))
@settings(max_examples=150, deadline=None, derandomize=True)
def test_a_service_in_any_story(first: list[tuple[object, ...]], steps: list[tuple[object, ...]]) -> None:
    """It ends nothing, tells each job by itself, and every notice comes to one outcome."""
    service = Service()
    for step in [*first, *steps]:
        service.take(step)
    story = service.story
    story.until(story.now - START + 1000)
    assert story.machine.preemption is None
    assert story.machine.next_wake is None
    named = Counter(id for outcome in story.outcomes for id in (outcome.id, *outcome.also))
    told = {message.id for _, message in story.sent(Preempt)}
    assert told <= set(named)
    assert {message.id for _, message in story.sent(Withdrawn)} <= told
    assert all(named[id] >= 1 for id in told)
    assert all(count == 1 for count in named.values())


# --- its own end ----------------------------------------------------------------------------------------------


def test_a_service_that_is_told_to_end_does_so_at_once() -> None:
    """To be started anew: training goes on, and finds the new one."""
    story = Story(command=False)
    story.opens()
    story.signal(signal.SIGTERM)
    assert story.code == 0
    assert not story.sent(Preempt)


def test_not_while_somebody_saves() -> None:
    """A unit that is stopped in the middle of a notice: the end comes with the last answer, and with the outcome."""
    story = Story(command=False)
    first, second = story.opens(100), story.opens(101)
    story.notice(120)
    story.signal(signal.SIGTERM)
    story.commits(first)
    assert story.code is None
    story.commits(second)
    assert story.code == 0
    assert [session for session, _ in story.sent(Leave)] == [first, second]


def test_nor_longer_than_the_deadline() -> None:
    story = Story(command=False)
    story.opens()
    story.notice(30, window=30.0)
    story.signal(signal.SIGTERM)
    story.until(31)
    assert story.code == 0


def test_a_second_word_ends_it_whatever_it_does() -> None:
    for signals in ([signal.SIGTERM, signal.SIGTERM], [signal.SIGINT]):
        story = Story(command=False)
        story.opens()
        story.notice(120)
        for signum in signals:
            story.signal(signum)
        assert story.code == 0
        assert story.all(Publish)[-1].outcome.ended == "the agent was stopped"


def test_a_machine_that_is_shut_down_is_a_notice_to_who_is_still_there() -> None:
    """An ACPI shutdown without any word of the cloud's: the service is among the last that systemd stops."""
    story = Story(command=False)
    session = story.opens()
    story.on(Signalled(signal.SIGTERM, going_down=True))
    ((told, said),) = story.sent(Preempt)
    assert (told, said.kind, said.seconds_left) == (session, "signal", 25.0)
    assert story.code is None
    story.commits(session)
    assert story.code == 0


def test_a_shutdown_is_more_than_a_drill() -> None:
    """The drill ends, and everybody saves for good, also who had no part in it."""
    story = Story(command=False)
    mine, other = story.opens(100), story.opens(101, uid=1001)
    story.asks(window=30.0)
    story.on(Signalled(signal.SIGTERM, going_down=True))
    assert {session for session, said in story.sent(Preempt) if said.kind == "signal"} == {mine, other}
    story.commits(mine)
    assert story.code is None
    story.commits(other)
    assert story.code == 0


def test_a_shutdown_is_more_than_another_machines_notice() -> None:
    story = Story(command=False)
    called, other = story.opens(100, run="a"), story.opens(101, run="b")
    story.called(called)
    story.on(Signalled(signal.SIGTERM, going_down=True))
    assert other in {session for session, _ in story.sent(Preempt)}
    story.commits(called)
    assert story.code is None
    story.commits(other)
    assert story.code == 0


def test_a_shutdown_with_nobody_there_ends_at_once() -> None:
    story = Story(command=False)
    story.on(Signalled(signal.SIGTERM, going_down=True))
    assert story.code == 0


def test_a_drill_ends_no_training_though_one_run_has_answered_before_another() -> None:
    """`Leave` would end the training of the run that was faster."""
    story = Story(command=False)
    fast, slow = story.opens(100, uid=1, run="a"), story.opens(101, uid=1, run="b")
    story.asks(uid=1)
    story.commits(fast)
    assert story.sent(Leave) == []
    story.commits(slow)
    assert story.sent(Leave) == []
    assert {session for session, _ in story.sent(Resume)} == {fast, slow}
