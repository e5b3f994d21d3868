"""Errors of the agent itself: each costs what it is about, and the command is guarded to its end all the same."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spotguard.agent import app, loop
from spotguard.agent.actions import Action, ExcludeMachine, Finish, Launch, Log, ReportEvent
from spotguard.agent.config.resolve import resolve
from spotguard.agent.core.failures.verification import VerificationSchedule
from spotguard.agent.core.machine import Machine
from spotguard.agent.core.state import Policy
from spotguard.agent.events import CommandEnded, Event, Signalled, Watching
from spotguard.agent.loop import Agent
from spotguard.agent.process.supervisor import Supervisor
from spotguard.agent.telemetry import systemd
from spotguard.agent.telemetry.status import AgentFacts
from spotguard.providers.clock import SystemClock
from spotguard.providers.errors import SpotguardError
from tests.fakes.serving import Events, Serving

FACTS = AgentFacts("r", os.getpid(), "r.sock", False, 0.0)


def fails(*_: object, **__: object) -> Any:
    raise RuntimeError("a bug")


class Failing:
    """A helper of the agent whose every method fails."""

    next_beat = next_sign = None
    busy = alive = False

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return fails


class Scripted(Machine):
    """A machine that begins with these actions, and ends when the command has ended."""

    def __init__(self, *first: Action) -> None:
        super().__init__(Policy())
        self._first = first
        self.heard: list[Event | None] = []

    def begin(self, now: float, orphan: int | None = None) -> list[Action]:
        return [*self._first]

    def handle(self, event: Event | None, now: float) -> list[Action]:
        self.heard.append(event)
        return [Finish(7)] if isinstance(event, CommandEnded) else []


def test_an_action_that_fails_does_not_take_the_next_ones_along(
    serve: Serving, events: Events, caplog: pytest.LogCaptureFixture
) -> None:
    """Least of all the end."""
    wrong = Log("loud", "a level is a number")  # type: ignore[arg-type]
    with caplog.at_level(logging.ERROR, "spotguard"):
        assert Agent(Scripted(wrong, Finish(3)), serve(), SystemClock(), events.queue, FACTS).run() == 3
    assert "an error of the agent in Log" in caplog.text


@pytest.mark.parametrize("helper", ["alerts", "meter", "watches", "manager", "memory", "stall_recorder"])
def test_an_error_in_work_beside_an_event_leaves_the_event_to_the_machine(
    helper: str, serve: Serving, events: Events, caplog: pytest.LogCaptureFixture
) -> None:
    """The command's end above all: without it, the agent would wait for ever."""
    machine, broken = Scripted(ReportEvent("failure", {}), ExcludeMachine("n7", "gpu")), Failing()
    given: dict[str, Any] = {helper: (broken,) if helper == "watches" else broken}
    if helper == "memory":
        machine._sessions.open[1] = broken  # type: ignore[assignment]
    if helper == "manager":
        given[helper].ready = given[helper].stopping = lambda *_: None
    ended = CommandEnded(4242, 0)
    events.queue.put(ended)
    with caplog.at_level(logging.ERROR, "spotguard"):
        assert Agent(machine, serve(), SystemClock(), events.queue, FACTS, **given).run() == 7
    assert ended in machine.heard
    assert "an error of the agent in" in caplog.text


def test_a_feed_that_cannot_be_sent_costs_no_event(
    serve: Serving, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, machine = serve(), Scripted()
    monkeypatch.setattr(server, "send_all", fails)
    events.queue.put(Watching(7))
    events.queue.put(CommandEnded(4242, 0))
    assert Agent(machine, server, SystemClock(), events.queue, FACTS).run() == 7
    assert machine.heard[:1] == [Watching(7)]


def test_a_service_hears_sigterm_although_systemd_cannot_be_asked(
    serve: Serving, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(systemd, "going_down", fails)
    events.queue.put(Signalled(signal.SIGTERM))
    assert Agent(Machine(Policy(command=False)), serve(), SystemClock(), events.queue, FACTS).run() == 0


def test_an_end_that_was_asked_for_before_an_error_of_the_machine_comes(
    serve: Serving, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(VerificationSchedule, "advance", fails)
    events.queue.put(Signalled(signal.SIGTERM))
    assert Agent(Machine(Policy(command=False)), serve(), SystemClock(), events.queue, FACTS).run() == 0


def test_an_error_of_the_machine_leaves_due_actions_due_without_an_event(
    serve: Serving, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As is the kill at the reserve."""

    class Erring(Scripted):
        def handle(self, event: Event | None, now: float) -> list[Action]:
            return fails() if not super().handle(event, now) and len(self.heard) < 3 else [Finish(5)]

    monkeypatch.setattr(loop, "_AGAIN", 0.0)
    events.queue.put(Watching(7))
    machine = Erring()
    assert Agent(machine, serve(), SystemClock(), events.queue, FACTS).run() == 5
    assert machine.heard == [Watching(7), None, None]


def test_a_command_is_started_although_its_preparation_fails(serve: Serving, events: Events) -> None:
    """Such as the helper of alerts that is told of the start, or a rendezvous that is moved."""
    machine = Scripted(Launch())
    supervisor = Supervisor(["true"], env={**os.environ}, post=events.queue.put)
    alerts: Any = Failing()
    assert Agent(machine, serve(), SystemClock(), events.queue, FACTS, supervisor, alerts=alerts).run() == 7
    supervisor.close()


def test_a_failure_is_recorded_although_it_cannot_be_told_to_the_helper_of_alerts(
    serve: Serving, events: Events
) -> None:
    recorded = list[object]()

    class Recorder(Failing):
        records = False

        def record(self, action: object) -> None:
            recorded.append(action)

    helpers: Any = {"alerts": Failing(), "stall_recorder": Recorder()}
    machine = Scripted(ReportEvent("failure", {}), Finish(1))
    assert Agent(machine, serve(), SystemClock(), events.queue, FACTS, **helpers).run() == 1
    assert len(recorded) == 1


def test_each_way_to_exclude_a_machine_is_tried(serve: Serving, events: Events) -> None:
    added = list[str]()

    class Excluding(Failing):
        def add(self, machine: str, kind: str, *, broken: bool) -> None:
            added.append(machine)

    ways: Any = (Failing(), Excluding())
    machine = Scripted(ExcludeMachine("n7", "gpu"), Finish(1))
    assert Agent(machine, serve(), SystemClock(), events.queue, FACTS, exclusions=ways).run() == 1
    assert added == ["n7"]


def test_an_agent_without_threads_is_a_line_with_the_way_out(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no command is started that nobody guards."""

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    socket, began = folder / "r.sock", folder / "began"
    options = resolve("run", {"provider": "none", "socket": str(socket), "run-id": "r"}, {})
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(SpotguardError, match=r"can't start new thread; raise the limit of processes"):
        app.run(options, ["touch", str(began)])
    assert not socket.exists()
    assert not began.exists()
