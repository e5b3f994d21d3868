"""A notice that the cloud took back is no failure."""

from __future__ import annotations

import logging
import os
import signal

import pytest

from spotguard.agent.core.machine import Machine
from spotguard.agent.core.state import Policy
from spotguard.agent.events import NoticeGone, NoticeSeen, Opened, Signalled
from spotguard.agent.loop import Agent
from spotguard.agent.telemetry.status import AgentFacts
from spotguard.hooks.ipc.protocol import Register
from spotguard.providers.clock import SystemClock
from spotguard.providers.notice import Notice, NoticeKind
from tests.fakes.serving import Events, Serving


def test_withdrawn_logged_as_error(serve: Serving, events: Events, caplog: pytest.LogCaptureFixture) -> None:
    """Its outcome is said, as any notice's is (law 13), and nobody is woken for it."""
    clock = SystemClock()
    now = clock.monotonic()
    training = Register(11, "run", "train.py", store="file:///s")
    notice = Notice("azure/1", NoticeKind.PREEMPT, "azure scheduledevents", now + 3600, now, window=3600.0)
    for event in (
        Opened(1, 11, os.geteuid(), training),
        NoticeSeen(notice),
        NoticeGone(notice.id),
        Signalled(signal.SIGTERM),
    ):
        events.queue.put(event)
    facts = AgentFacts("run", os.getpid(), "a.sock", True, now)
    with caplog.at_level(logging.INFO, "spotguard"):
        assert Agent(Machine(Policy(command=False)), serve(), clock, events.queue, facts).run() == 0
    (outcome,) = [each for each in caplog.records if each.message.endswith("withdrawn before the commit")]
    assert "NOT COMMITTED" not in outcome.message
    assert [each.message for each in caplog.records if each.levelno >= logging.ERROR] == []
