"""`spotguard status` answers whatever the sessions call themselves."""

from __future__ import annotations

import os

import pytest

from spotguard.agent.board import Board
from spotguard.agent.events import Opened
from spotguard.agent.status import Facts, answers
from spotguard.hooks.protocol import Answer, Position, Register, encode
from spotguard.providers.errors import ProtocolError
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


@pytest.mark.xfail(
    strict=True,
    raises=ProtocolError,
    reason="A page of the answer has 100 sessions, and 60 with long non-ASCII names are more than a frame holds.",
)
def test_status_frame_overflow() -> None:
    """Every page fits into a frame, and each session is on one of them, in order."""
    story = crowded()
    facts = Facts("run", os.getpid(), "/run/a.sock", True, 0.0)
    pages = answers(story.machine, Board(), facts, 0, story.now, None)
    for page in pages:
        encode(Answer(page, last=page is pages[-1]))
    assert [each["pid"] for page in pages for each in page["sessions"]] == [*range(1000, 1000 + SESSIONS)]
