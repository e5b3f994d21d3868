"""`spotguard agent` as a process of its own, with AWS simulated: its sessions, and the runs that let it poll."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from spotguard.agent.ipc import control
from spotguard.agent.ipc.control import AgentError
from spotguard.hooks.ipc.protocol import (
    Committed,
    Delivered,
    FeedHealth,
    FeedNotice,
    Leave,
    Preempt,
    Role,
    Watch,
    Watched,
)
from spotguard.providers.errors import UsageError
from spotguard.providers.simulator.aws.service import AwsSimulator
from tests.e2e.processes import eventually
from tests.fakes.hook import FakeHook

ROOT = Path(__file__).parents[2]
NEVER = threading.Event()

SERVE = """
import os, sys
from spotguard.agent.config.resolve import resolve
from spotguard.agent import app
from spotguard.agent.telemetry import logs
options = resolve("agent", {"provider": "aws", "metadata-endpoint": sys.argv[1], "socket": sys.argv[2]}, {})
logs.configure(json_log=True)
print("ready", flush=True)
sys.exit(app.serve(options))
"""

#: The keys of AWS's that a service watches.
SOURCES = 5

#: A service of its own mind: it watches nothing.
BLINDFOLDED = SERVE.replace('"provider": "aws", "metadata-endpoint": sys.argv[1]', '"provider": "none"')

#: A run that lets the service poll: its hook commits and leaves.
RUN = """
import os, sys
from pathlib import Path
from spotguard.agent.config.resolve import resolve
from spotguard.agent import app
flags = {"provider": "aws", "socket": sys.argv[2], "run-id": "r", "store": "file:///s"}
hook = '''
import os, sys, time
from pathlib import Path
from tests.fakes.hook import FakeHook
from spotguard.hooks.ipc.protocol import *
hook = FakeHook.registered(Path(os.environ["SPOTGUARD_SOCKET"]))
print("registered", flush=True)
notice = hook.hear(Preempt)
hook.say(Committed(notice.id, 5, 10, 0.1, "u", time.monotonic()))
sys.exit(hook.hear(Leave).code)
'''
options = resolve("run", flags, {})
sys.exit(app.run(options, [sys.executable, "-c", hook], service_socket=Path(sys.argv[1])))
"""


@pytest.fixture
def aws() -> Iterator[tuple[AwsSimulator, str]]:
    simulator = AwsSimulator()
    url = simulator.start()
    yield simulator, url
    simulator.stop()


@pytest.fixture
def service(folder: Path, aws: tuple[AwsSimulator, str]) -> Iterator[tuple[Path, subprocess.Popen[str]]]:
    path = folder / "agent.sock"
    process = subprocess.Popen(
        [sys.executable, "-c", SERVE, aws[1], str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    assert process.stderr is not None
    while "seeing" not in process.stderr.readline():  # its first look: the socket is there by then
        pass
    yield path, process
    if process.poll() is None:
        process.terminate()
    process.communicate(timeout=100)


def test_a_notice_of_the_cloud_reaches_every_session(
    service: tuple[Path, subprocess.Popen[str]], aws: tuple[AwsSimulator, str]
) -> None:
    """Told with the seconds that are left; each leaves when it has committed; the service stays."""
    path, process = service
    with FakeHook.registered(path) as hook:
        aws[0].preempt(120)
        notice = hook.hear(Preempt)
        assert 100 < notice.seconds_left <= 120
        assert notice.kind == "terminate"
        hook.say(Delivered(notice.id, 1.0), Committed(notice.id, 3, 10, 0.1, "u", 1.0))
        assert hook.hear(Leave).code == 75
    body = control.status(path)
    assert body["service"] is True
    assert body["notice"]["id"] == notice.id
    assert len(body["sources"]) == SOURCES
    assert "aws spot/instance-action" in {s["name"] for s in body["sources"]}
    eventually(path.with_suffix(".outcome.json").exists, "no outcome is written")
    assert json.loads(path.with_suffix(".outcome.json").read_text())["step"] == 3
    assert process.poll() is None


def test_an_agent_that_starts_again_tells_the_pending_notice(
    service: tuple[Path, subprocess.Popen[str]], aws: tuple[AwsSimulator, str]
) -> None:
    """Killed, started, and a hook that comes back learns it from the socket."""
    path, process = service
    aws[0].preempt(120)
    with FakeHook.registered(path) as hook:
        first = hook.hear(Preempt)
        process.kill()
        assert hook.hears_the_end()
    process.communicate(timeout=100)
    again = subprocess.Popen(
        [sys.executable, "-c", SERVE, aws[1], str(path)], stdout=subprocess.PIPE, text=True
    )
    assert again.stdout is not None
    again.stdout.readline()
    try:
        with come_back(path) as hook:
            assert hook.hear(Preempt).id == first.id
    finally:
        again.terminate()
        again.communicate(timeout=100)
    assert again.returncode == 0
    assert not path.exists()


def come_back(path: Path) -> FakeHook:
    """As the hook does: again and again until the agent is there."""
    for _ in range(3000):
        with contextlib.suppress(OSError):
            return FakeHook.registered(path)
        NEVER.wait(0.01)
    raise AssertionError("the agent did not come back")


def test_a_watching_agent_is_told_what_stands_and_what_changes(
    service: tuple[Path, subprocess.Popen[str]], aws: tuple[AwsSimulator, str]
) -> None:
    """Health at once, the notice when it comes; one that comes later is told both at once."""
    path, _ = service
    with FakeHook(path, Role.ANSWERER) as poller:
        poller.say(Watch(os.getpid()))
        while poller.hear(FeedHealth).sight != "seeing":
            pass  # "starting", where we were faster than its first look
        aws[0].preempt(120)
        seen = poller.hear(FeedNotice)
        assert (seen.kind, seen.window) == ("terminate", 120.0)
    with FakeHook(path, Role.ANSWERER) as late:
        late.say(Watch(os.getpid()))
        assert late.hear(FeedNotice).id == seen.id


def test_a_run_uses_the_service_and_polls_nothing_itself(
    service: tuple[Path, subprocess.Popen[str]], aws: tuple[AwsSimulator, str], folder: Path
) -> None:
    """One notice, two agents, one save; the run's own watcher would have nothing to ask (port 9 refuses)."""
    path, _ = service
    run = subprocess.Popen(
        [sys.executable, "-c", RUN, str(path), str(folder / "r.sock")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert run.stdout is not None
    assert run.stdout.readline() == "registered\n"
    body = control.status(folder / "r.sock")
    assert {s["name"] for s in body["sources"]} >= {"service agent", "aws spot/instance-action"}
    aws[0].preempt(120)
    _, said = run.communicate(timeout=100)
    assert run.returncode == 75, said
    record = json.loads((folder / "r.outcome.json").read_text())
    assert (record["kind"], record["step"]) == ("terminate", 5)


def test_a_run_beside_a_service_that_watches_nothing_sees_the_notice_itself(
    aws: tuple[AwsSimulator, str], folder: Path
) -> None:
    """The service was told `none`; the run was told `aws`, and AWS notices it."""
    path = folder / "agent.sock"
    with subprocess.Popen(
        [sys.executable, "-c", BLINDFOLDED, aws[1], str(path)], stdout=subprocess.PIPE, text=True
    ) as service:
        while not path.exists():
            NEVER.wait(0.01)
        run = subprocess.Popen(
            [sys.executable, "-c", RUN, str(path), str(folder / "r.sock")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "AWS_EC2_METADATA_SERVICE_ENDPOINT": aws[1]},
            text=True,
            cwd=ROOT,
        )
        assert run.stdout is not None
        assert (
            run.stdout.readline() == "registered\n"
        )  # or it would wait for the deadline: nothing was trained
        aws[0].preempt(120)
        _, said = run.communicate(timeout=100)
        service.terminate()
    assert run.returncode == 75, said
    assert "watches nothing" in said
    assert json.loads((folder / "r.outcome.json").read_text())["kind"] == "terminate"


def test_a_watching_agent_hears_signs_of_life(service: tuple[Path, subprocess.Popen[str]]) -> None:
    """Though nothing happens: silence would be a dead service."""
    with FakeHook(service[0], Role.ANSWERER) as poller:
        poller.say(Watch(os.getpid()))
        assert poller.hear(Watched).sources == SOURCES
        assert poller.hear(Watched).sources == SOURCES


@pytest.mark.parametrize(
    ("program", "watched"),
    [
        (SERVE, "aws spot/instance-action, "),
        (BLINDFOLDED, "nothing (no cloud was named or found): drills still work"),
    ],
)
def test_its_first_line_says_what_it_watches_and_where(
    aws: tuple[AwsSimulator, str], folder: Path, program: str, watched: str
) -> None:
    """Whoever started it sees that it stands, and what it is good for."""
    path = folder / "agent.sock"
    with subprocess.Popen(
        [sys.executable, "-c", program, aws[1], str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        line = json.loads(process.stderr.readline())["message"]
        process.terminate()
    assert line.startswith(f"serving at {path}, watching {watched}")
    assert process.returncode == 0


def test_a_service_ends_with_0_when_it_is_told(service: tuple[Path, subprocess.Popen[str]]) -> None:
    """Its sessions' training goes on: their socket closes without a word."""
    path, process = service
    with FakeHook.registered(path) as hook:
        process.send_signal(signal.SIGTERM)
        assert hook.hears_the_end()
        assert hook.heard == []
    assert process.wait(timeout=100) == 0
    assert not path.exists()


# --- asking ---


def test_asking_finds_the_only_agent(service: tuple[Path, subprocess.Popen[str]], folder: Path) -> None:
    """Sockets lie in one place; a file that is none, and one that nobody answers, are left out."""
    runtime = folder / "spotguard"
    runtime.mkdir(mode=0o700)
    env = {"XDG_RUNTIME_DIR": str(folder)}
    with pytest.raises(AgentError, match="no spotguard runs here"):
        control.choose(None, None, env, os.geteuid())
    (runtime / "a.sock").symlink_to(service[0])
    (runtime / "dead.sock").touch()
    assert control.choose(None, None, env, os.geteuid()) == runtime / "a.sock"
    (runtime / "b.sock").symlink_to(service[0])
    with pytest.raises(UsageError, match=r"several service agents.*--socket .*a.sock or --socket .*b.sock"):
        control.choose(None, None, env, os.geteuid())
    assert control.choose("b", None, env, os.geteuid()) == runtime / "b.sock"
    answers = control.statuses(env, os.geteuid(), service=folder / "none")
    assert ["error" in body for body in answers] == [False, False]


def test_a_drill_with_nobody_there_is_an_error(service: tuple[Path, subprocess.Popen[str]]) -> None:
    """One line, and no drill."""
    with pytest.raises(AgentError, match="no training process is registered"):
        list(control.drill(service[0]))
