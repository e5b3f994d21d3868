"""`spotguard status` answers whatever the sessions call themselves."""

from __future__ import annotations

import os

from spotguard.agent.actions import Action, Finish, Tell
from spotguard.agent.core.machine import Machine
from spotguard.agent.core.state import Policy
from spotguard.agent.events import Asked, Opened
from spotguard.agent.loop import Agent
from spotguard.agent.sources.feed import Feed
from spotguard.agent.telemetry.status import AgentFacts, answers
from spotguard.hooks.ipc.protocol import Answer, Ask, Position, Register, Role, encode
from spotguard.providers.clock import SystemClock
from tests.fakes.hook import FakeHook
from tests.fakes.serving import Events, Serving
from tests.fakes.story import Story

#: Each of them is six bytes in JSON (`\\u8bad`).
LONG = "训" * 400
SESSIONS = 150


def crowded() -> Story:
    """A service with many sessions, all of whose words are as long as they may be, in the middle of a notice."""
    story = Story(command=False)
    for number in range(SESSIONS):
        said = Register(1000 + number, "r" * 64, LONG, "file:///" + LONG, number, SESSIONS)
        story.on(Opened(number, said.pid, 1000, said))
        story.says(number, Position(5, detail=LONG))
    story.notice()
    for number in range(SESSIONS):
        story.fails(number, LONG)
    return story


def test_status_frame_overflow() -> None:
    """Every page fits into a frame, and each session is on one of them, in order."""
    story = crowded()
    facts = AgentFacts("run", os.getpid(), "/run/a.sock", True, 0.0)
    pages = answers(story.machine, Feed(), facts, 0, story.now, None)
    for page in pages:
        encode(Answer(page, last=page is pages[-1]))
    assert [each["pid"] for page in pages for each in page["sessions"]] == [*range(1000, 1000 + SESSIONS)]
    assert len(pages) <= 5


def test_status_frame_overflow_by_the_last_outcome() -> None:
    """It has a part for each session too: as many are told as fit beside the rest, and the line is whole."""
    story = crowded()
    story.until(300)
    (outcome,) = story.outcomes
    facts = AgentFacts("run", os.getpid(), "/run/a.sock", True, 0.0)
    first, *_ = pages = answers(story.machine, Feed(), facts, 0, story.now, outcome.summary())
    for page in pages:
        encode(Answer(page, last=page is pages[-1]))
    assert first["last_outcome"]["line"] == outcome.line()
    assert 20 <= len(first["last_outcome"]["sessions"]) < SESSIONS
    assert sum(len(page["sessions"]) for page in pages) == SESSIONS


def test_status_frame_overflow_at_the_end_of_a_drill(serve: Serving, events: Events) -> None:
    """Whoever asked for it hears the outcome."""
    story = crowded()
    story.until(300)
    outcome = story.outcomes[0].summary()

    class Drilled(Machine):
        def begin(self, now: float, orphan: int | None = None) -> list[Action]:
            return [Tell(asked.session, {"outcome": outcome}, True), Finish(0)]

    server = serve()
    with FakeHook(server.path, Role.ANSWERER) as asker:
        asker.say(Ask("drill"))
        asked = events.next(Asked)
        facts = AgentFacts("run", os.getpid(), "/run/a.sock", True, 0.0)
        assert Agent(Drilled(Policy()), server, SystemClock(), events.queue, facts).run() == 0
        assert asker.hear(Answer).body["outcome"]["line"] == outcome["line"]


def test_an_answer_that_is_not_large_has_one_page() -> None:
    """As many ranks as a machine has."""
    story = Story()
    for rank in range(16):
        story.opens(501 + rank, rank=rank, world=16)
    facts = AgentFacts("run", os.getpid(), "/run/a.sock", False, 0.0)
    assert len(answers(story.machine, Feed(), facts, 0, story.now, None)) == 1
