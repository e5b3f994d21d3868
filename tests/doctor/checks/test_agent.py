"""Who watches already: what the doctor says of runs, of the machine's service, and of one that this user may not ask."""

from __future__ import annotations

import os
import queue
import signal
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from spotguard.agent.core.machine import Machine
from spotguard.agent.core.state import Policy
from spotguard.agent.events import Event, Signalled
from spotguard.agent.ipc.server import Server
from spotguard.agent.loop import Agent
from spotguard.agent.telemetry.status import AgentFacts
from spotguard.doctor.checks import agent as agents
from spotguard.doctor.checks.window import Counted
from spotguard.doctor.finding import Finding, fails, ok
from spotguard.providers.clock import SystemClock
from tests.cli.status.test_view import HOP_LIMIT, a_body, a_session, a_source
from tests.fakes.hook import FakeHook
from tests.fakes.patient import options


def one(**more: Any) -> list[Finding]:
    return list(agents.of(a_body(socket="/run/user/1/spotguard/gpt-small-7.sock", **more)))


def asked(folder: Path, run_id: str = "", **said: str) -> agents.Agents:
    (folder / "spotguard").mkdir(parents=True, exist_ok=True)
    env = {"XDG_RUNTIME_DIR": str(folder)}
    service = folder / "service" / "agent.sock"
    return agents.ask(options(**said), env, os.geteuid(), run_id=run_id, service=service)


@pytest.fixture
def short() -> Iterator[Path]:
    """A Unix socket's path holds 107 bytes."""
    with tempfile.TemporaryDirectory(dir=os.environ["XDG_RUNTIME_DIR"]) as folder:
        yield Path(folder)


def test_a_run_that_sees_is_well() -> None:
    (found,) = one()
    assert (found.state, found.found) == (
        "ok",
        "run gpt-small-7 (pid 26810), watching, 1 training process (train.py)",
    )


def test_a_service_counts_its_training_processes() -> None:
    (found,) = one(service=True, sessions=[a_session(), a_session(pid=2)])
    assert found.found == "the machine's service (pid 26810), watching, 2 training processes (train.py)"


def test_a_run_of_which_nobody_registered_is_a_warning() -> None:
    """A service has jobs that come and go."""
    (found,) = one(sessions=[])
    assert (found.state, found.found) == (
        "warning",
        "run gpt-small-7 (pid 26810), watching, no training process",
    )
    assert "spotguard.register" in found.advice
    assert one(service=True, sessions=[])[0].state == "ok"


def test_a_run_that_has_attached_nothing_is_a_warning_with_why() -> None:
    (found,) = one(sessions=[], unattached="its train() was not called yet")
    assert (found.state, found.found) == (
        "warning",
        "run gpt-small-7 (pid 26810), watching, no training process: --attach has attached nothing: its train() was not called "
        "yet",
    )
    assert "docs/how-to/training-script.md" in found.advice


def test_a_run_that_is_blind_fails_once_for_all_its_keys() -> None:
    found = one(sources=[a_source("one", **HOP_LIMIT), a_source("two", **HOP_LIMIT), a_source("three")])
    assert [each.state for each in found] == ["fails"]
    assert "run gpt-small-7 is BLIND (hop-limit): one: PUT" in found[0].found
    assert found[0].advice == HOP_LIMIT["advice"]


def test_a_run_with_a_notice_fails_and_with_a_drill_does_not() -> None:
    notice = {"kind": "preempt", "drill": False}
    assert [each.state for each in one(notice=notice)] == ["fails", "ok"]
    assert [each.state for each in one(notice={**notice, "drill": True})] == ["ok"]


def test_nobody_is_no_failure(short: Path) -> None:
    (found,) = asked(short).findings
    assert (found.state, "none runs here yet" in found.found) == ("ok", True)
    assert "spotguard run" in found.advice


def test_a_socket_left_by_a_killed_run_guards_nothing(short: Path) -> None:
    (short / "spotguard").mkdir()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(short / "spotguard" / "job.sock"))
    assert "none runs here yet" in asked(short).findings[0].found


def test_an_agent_that_does_not_answer_fails(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is stopped, or something else listens there."""
    monkeypatch.setattr("spotguard.agent.ipc.control.ANSWERS_IN", 0.2)
    (short / "spotguard").mkdir()
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(str(short / "spotguard" / "job.sock"))
        mute.listen()
        (found,) = asked(short).findings
        assert asked(short, run_id="another").findings[0].state == "ok", "it is not the one that is meant"
        where = str(short / "spotguard" / "job.sock")
        assert asked(short, run_id="another", socket=where).findings[0].state == "fails", "it was said"
    assert found.state == "fails"
    assert "stopped answering" in found.found
    assert "start it again" in found.advice


def test_a_service_that_was_killed_fails(short: Path) -> None:
    """Runs look for themselves then, and training processes that were given its socket hear nothing."""
    (short / "service").mkdir()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(short / "service" / "agent.sock"))
    (found,) = asked(short).findings
    assert (found.state, "nobody listens" in found.found) == ("fails", True)
    assert "systemctl status spotguard-agent" in found.advice


def test_a_stopped_run_of_the_service_s_name_is_no_service(
    short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their sockets are told apart by the whole path."""
    monkeypatch.setattr("spotguard.agent.ipc.control.ANSWERS_IN", 0.2)
    (short / "spotguard").mkdir()
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(str(short / "spotguard" / "agent.sock"))
        mute.listen()
        (found,) = asked(short).findings
    assert (found.state, "start it again; it resumes" in found.advice) == ("fails", True)


def test_a_unit_s_run_that_does_not_answer_is_known_by_its_folder(
    short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has the same socket's name."""
    monkeypatch.setattr("spotguard.agent.ipc.control.ANSWERS_IN", 0.2)
    (short / "spotguard-run-gpt").mkdir()
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(str(short / "spotguard-run-gpt" / "run.sock"))
        mute.listen()
        assert [each.state for each in asked(short, run_id="gpt").findings] == ["fails"]
        assert [each.state for each in asked(short, run_id="other").findings] == ["ok"]


def test_a_socket_that_was_said_and_is_not_there_is_said(short: Path) -> None:
    (found,) = asked(short, socket=str(short / "gone.sock")).findings
    assert (found.state, f"none runs at {short / 'gone.sock'} yet" in found.found) == ("ok", True)


def test_a_file_that_is_no_socket_is_no_agent(short: Path) -> None:
    """Whether `run` would start beside it is another question (`start`)."""
    (short / "mine").write_text("mine")
    (found,) = asked(short, socket=str(short / "mine")).findings
    assert (found.state, "none runs at" in found.found) == ("ok", True)


def test_a_service_of_another_group_is_a_warning(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its folder is 0750: who is not in its group sees not even the socket."""
    service = short / "service"
    service.mkdir()
    plain = os.stat

    def hidden(path: Any, **said: Any) -> os.stat_result:
        if Path(path) == service / "agent.sock":  # as stat(2) answers; the suite may run as root
            raise PermissionError(13, "Permission denied")
        return plain(path, **said)

    monkeypatch.setattr(os, "stat", hidden)
    found = asked(short).findings
    assert [each.state for each in found] == ["warning"]
    assert "you are not in its group" in found[0].found
    assert found[0].advice.startswith("sudo usermod -aG ")


def test_a_folder_of_somebody_elses_sockets_fails(short: Path) -> None:
    """`su` keeps XDG_RUNTIME_DIR: here a file lies where the folder has to be."""
    (short / "spotguard").write_text("")
    found = agents.ask(
        options(), {"XDG_RUNTIME_DIR": str(short)}, os.geteuid(), service=short / "a" / "b.sock"
    )
    assert [each.state for each in found.findings] == ["fails"]
    assert "XDG_RUNTIME_DIR" in found.findings[0].advice


def test_a_source_that_the_service_sees_is_no_failure_here() -> None:
    """A pod's network is not its node's. What stands now, and what is seen from here, is said as it was."""
    blind = fails("notices", "BLIND (unreachable): aws: PUT: no route", "look", sight="blind")
    said = agents.instead(blind)
    assert (said.state, said.advice) == ("ok", "")
    assert said.found == f"seen by the machine's service, which runs here ask; from here {blind.found}"
    for other in (
        ok("notices", "seeing", sight="seeing"),
        fails("notices", "a notice stands NOW"),
        fails("window", ""),
    ):
        assert agents.instead(other) is other


# --- beside other runs ---


@pytest.fixture
def runs(short: Path) -> Iterator[str]:
    """A real agent of another run, with a training process; its run id."""
    (short / "spotguard").mkdir(mode=0o700)
    path, events, clock = short / "spotguard" / "run.sock", queue.SimpleQueue[Event](), SystemClock()
    server = Server(path, events.put, clock)
    with closing(server):
        server.start()
        facts = AgentFacts("run", os.getpid(), str(path), False, clock.monotonic())
        agent = Agent(Machine(Policy(command=False)), server, clock, events, facts)
        thread = threading.Thread(target=agent.run, name="agent of another run")
        thread.start()
        try:
            with FakeHook.registered(path):
                yield "run"
        finally:
            events.put(Signalled(signal.SIGTERM))
            thread.join()


def test_a_run_that_is_not_here_is_told_of_those_that_are(short: Path, runs: str) -> None:
    here = asked(short, run_id="other")
    (found,) = here.findings
    assert found.state == "ok"
    assert found.found.startswith(f"none runs for run other yet, for others one does: {runs};")
    assert (here.sessions, here.running) == ((), ())
    assert [each["run_id"] for each in here.others] == [runs]


@pytest.mark.parametrize("how", ["said", "by its name"])
def test_another_run_that_has_the_socket_is_not_the_one_that_is_meant(
    how: str, short: Path, runs: str
) -> None:
    """`run` would be refused; nothing of the other one is counted for this one."""
    path = short / "spotguard" / "run.sock"
    if how == "by its name":
        path.rename(path.with_name("other.sock"))
        here = asked(short, run_id="other")
        path.with_name("other.sock").rename(path)  # as its agent wants to find it
    else:
        here = asked(short, run_id="other", socket=str(path))
    (found,) = here.findings
    assert (found.state, found.facts["run_id"]) == ("fails", runs)
    assert found.found.startswith(f"run {runs} answers at ")
    assert "another --socket" in found.advice
    assert (here.sessions, here.running, here.counted) == ((), (), None)
    assert [each["run_id"] for each in here.others] == [runs]


def test_a_run_is_known_by_what_it_says_and_not_by_its_socket(short: Path, runs: str) -> None:
    """A unit's run has its socket in a folder of its own, and all units' sockets have one name."""
    path = short / "spotguard" / "run.sock"
    path.rename(path.with_name("x.sock"))
    try:
        assert asked(short, run_id=runs).running == (runs,)
    finally:
        path.with_name("x.sock").rename(path)


def test_a_socket_that_was_said_is_asked_though_the_folder_is_somebody_elses(short: Path, runs: str) -> None:
    """`su` keeps XDG_RUNTIME_DIR, and `run` with a socket of one's own would start: what others have there is not asked."""
    (short / "kept").mkdir()
    (short / "kept" / "spotguard").write_text("")
    for name, running in (("run.sock", (runs,)), ("none.sock", ())):
        said = options(socket=str(short / "spotguard" / name))
        env = {"XDG_RUNTIME_DIR": str(short / "kept")}
        here = agents.ask(said, env, os.geteuid(), service=short / "service" / "agent.sock")
        assert ([each.state for each in here.findings], here.running) == (["ok"], running)


@pytest.mark.parametrize("named", ["", "run"])
def test_the_one_that_is_meant_is_no_other(named: str, short: Path, runs: str) -> None:
    here = asked(short, run_id=named)
    assert (here.running, here.others) == ((runs,), ())
    assert [each["run_id"] for each in here.sessions] == [runs]
    assert here.counted == Counted(runs, 25.0, None)
