"""The whole agent but the cloud: real command, real socket, real signals; the hook speaks the protocol by hand."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spotguard.agent import app
from spotguard.agent.actions import Action, Finish, Look
from spotguard.agent.config.options import Options
from spotguard.agent.config.parsers import recover
from spotguard.agent.config.resolve import resolve
from spotguard.agent.core.machine import Machine
from spotguard.agent.core.session import Session
from spotguard.agent.core.state import Policy
from spotguard.agent.events import Event, GroupSeen, Signalled
from spotguard.agent.ipc import control
from spotguard.agent.loop import Agent
from spotguard.agent.process.helpers import node_label
from spotguard.agent.process.helpers.alert_helper import AlertHelper
from spotguard.agent.process.program import CommandError
from spotguard.agent.process.supervisor import Supervisor
from spotguard.agent.telemetry.status import AgentFacts
from spotguard.hooks.checkpoint.format.keys import failure_key
from spotguard.hooks.ipc.protocol import Position
from spotguard.providers.clock import SystemClock
from spotguard.providers.errors import UsageError
from tests.fakes.api_server import ApiServer
from tests.fakes.awake import STAYS_AWAKE
from tests.fakes.serving import Events, Serving

ROOT = Path(__file__).parents[2]

#: A training process: registers, and does what BODY says. `agent` is spotguard's pid.
HOOK = """
import os, signal, sys, time
sys.path[:0] = [{root!r}]
from pathlib import Path
from tests.fakes.hook import FakeHook
from spotguard.hooks.ipc.protocol import *
agent = os.getppid()
hook = FakeHook(Path(os.environ["SPOTGUARD_SOCKET"]))
hook.say(Register(os.getpid(), os.environ["SPOTGUARD_RUN_ID"], "train.py", os.environ["SPOTGUARD_STORE"]))
hook.hear(Welcome)
def commit(notice, step=7):
    now = time.monotonic()
    hook.say(Delivered(notice.id, now), Progress(notice.id, "first-byte", now, step),
             Committed(notice.id, step, 1000, 0.5, "file:///s/7", now))
{body}
"""


def training(body: str) -> list[str]:
    return [sys.executable, "-c", HOOK.format(root=str(ROOT), body=body)]


@pytest.fixture
def options(folder: Path, tmp_path: Path) -> Options:
    flags = {
        "provider": "none",
        "socket": str(folder / "r.sock"),
        "store": f"file://{tmp_path}",
        "run-id": "r",
    }
    return resolve("run", flags, {})


@pytest.fixture(autouse=True)
def signals_as_before() -> Iterator[None]:
    """The agent gives every signal back."""
    watched = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGXCPU)
    before = [signal.getsignal(s) for s in watched]
    yield
    assert [signal.getsignal(s) for s in watched] == before


def record(options: Options) -> dict[str, Any]:
    assert options.socket is not None
    loaded: dict[str, Any] = json.loads(Path(options.socket).with_suffix(".outcome.json").read_text())
    return loaded


def test_a_command_that_ends_by_itself(options: Options) -> None:
    """Its own code, no outcome, and the socket is gone."""
    assert app.run(options, [sys.executable, "-c", "raise SystemExit(7)"]) == 7
    assert options.socket is not None
    assert not Path(options.socket).exists()
    assert not Path(options.socket).with_suffix(".outcome.json").exists()


def test_a_machine_that_is_left_is_named_before_the_exit(options: Options, tmp_path: Path) -> None:
    """`--recover CLASS=leave`: 75, and the file says which machine to exclude."""
    left = tmp_path / "left"
    rules = recover("--recover", "killed=leave")
    kills = [sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"]
    assert app.run(replace(options, recover=rules, exclude_file=str(left)), kills) == 75
    assert left.read_text() in (f"{os.environ.get('SLURMD_NODENAME')}\n", f"{os.uname().nodename}\n")
    left.unlink()
    assert app.run(replace(options, recover=rules, exclude_file=str(left)), ["false"]) == 1
    assert not left.exists()


def test_a_failure_is_recorded_although_the_helper_of_alerts_does_not_run(
    options: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has ended, and is not started again, or not yet."""
    monkeypatch.setattr(AlertHelper, "start", lambda _: None)
    killed = training("hook.say(Position(7, attempt=1)); os.kill(os.getpid(), signal.SIGKILL)")
    assert app.run(replace(options, on_failure="true"), killed) == 137
    found = json.loads((tmp_path / failure_key("r", 1, 0)).read_text())
    assert (found["kind"], found["by"], found["step"]) == ("killed", "agent", 7)


def test_the_node_of_a_machine_that_is_left_is_labelled_before_the_exit(
    options: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a pod: the Job makes the next one soon after the exit. An error that a program can make labels nothing."""
    pytest.importorskip("cryptography")
    rules = recover("--recover", "gpu=leave")
    fails = 'hook.say(TrainingFailed("gpu", "RuntimeError", "CUDA error: {}", "t.py:1", "forward", "f", 7)); sys.exit(1)'
    of_program, of_hardware = "device-side assert triggered", "uncorrectable ECC error encountered"
    with ApiServer(tmp_path, "n7") as server:
        monkeypatch.setattr(node_label, "MOUNT", str(server.account))
        for name, value in {**server.env, "NODE_NAME": "n7"}.items():
            monkeypatch.setenv(name, value)
        assert app.run(replace(options, recover=rules), ["false"]) == 1
        assert app.run(replace(options, recover=rules), training(fails.format(of_program))) == 75
        assert server.requests == []
        assert app.run(replace(options, recover=rules), training(fails.format(of_hardware))) == 75
        assert server.labels("n7") == {"kubernetes.io/os": "linux", node_label.LABEL: "gpu"}


def test_notice_commit_leave_75(options: Options) -> None:
    """The one whole path: SIGTERM is a notice, the hook commits, is told to leave, and the record says it all."""
    body = """
os.kill(agent, signal.SIGTERM)
notice = hook.hear(Preempt)
commit(notice)
sys.exit(hook.hear(Leave).code)
"""
    assert app.run(replace(options, window=100.0), training(body)) == 75
    said = record(options)
    assert (said["kind"], said["step"], said["ended"], said["code"]) == ("signal", 7, "left when asked", 75)
    assert said["committed"] is not None
    assert 0 < said["slack"] <= 100
    assert said["sessions"][0]["url"] == "file:///s/7"


def test_under_a_launcher_the_launcher_is_ended_after_the_commit(options: Options) -> None:
    """The worker parks; TERM to the group takes both."""
    body = """
os.kill(int(os.environ["AGENT"]), signal.SIGTERM)
commit(hook.hear(Preempt))
signal.pause()
"""
    launcher = (
        "import os, subprocess, sys; os.environ['AGENT'] = str(os.getppid());"
        f"sys.exit(subprocess.call([sys.executable, '-c', {HOOK.format(root=str(ROOT), body=body)!r}]))"
    )
    assert app.run(options, [sys.executable, "-c", launcher]) == 75
    said = record(options)
    assert (said["ended"], said["returncode"]) == ("TERM after the commit", -signal.SIGTERM)
    assert said["committed"] is not None


def test_out_of_time_it_is_killed(options: Options) -> None:
    """A process that ignores everything is gone at the reserve."""
    body = """
for s in (signal.SIGTERM, signal.SIGINT): signal.signal(s, signal.SIG_IGN)
os.kill(agent, signal.SIGTERM)
while True: signal.pause()
"""
    assert app.run(replace(options, window=1.0, reserve=0.5), training(body)) == 75
    said = record(options)
    assert (said["ended"], said["returncode"]) == ("killed at the reserve", -signal.SIGKILL)
    assert said["committed"] is None


def test_an_unregistered_command_gets_the_signal(options: Options) -> None:
    """And the rest of the window for its own handler."""
    code = f"""{STAYS_AWAKE}
import os, signal, sys
signal.signal(signal.SIGUSR2, lambda *_: sys.exit(3))
os.kill(os.getppid(), signal.SIGTERM)
while True: signal.pause()
"""
    assert app.run(replace(options, signal=signal.SIGUSR2), [sys.executable, "-c", code]) == 75
    assert record(options)["returncode"] == 3


def test_a_crash_is_started_again(options: Options, tmp_path: Path) -> None:
    """In the same place, with the same environment."""
    code = f"import os,sys; p={str(tmp_path / 'n')!r}; n=os.path.exists(p); open(p,'w').close(); sys.exit(0 if n else 9)"
    assert app.run(replace(options, max_restarts=1), [sys.executable, "-c", code]) == 0


def test_a_drill_and_a_status_from_outside(options: Options) -> None:
    """Asked by another process while training runs; training goes on and ends by itself."""
    body = """
import json, subprocess
ask = '''
import json, sys
from pathlib import Path
from spotguard.agent.ipc import control
path = Path(sys.argv[1])
control.ANSWERS_IN = control._ALL_IN = 100.0  # a busy machine is no stuck agent
print(json.dumps([control.status(path), list(control.drill(path, window=100.0)), control.status(path)]))
'''
asker = subprocess.Popen([sys.executable, "-c", ask, os.environ["SPOTGUARD_SOCKET"]], stdout=subprocess.PIPE)
notice = hook.hear(Preempt)
assert notice.drill and 0 < notice.seconds_left <= 100.0, notice
commit(notice, 9)
hook.hear(Resume)
before, drill, after = json.loads(asker.communicate()[0])
assert asker.returncode == 0
assert before["phase"] == "watching" and before["run_id"] == "r", before
assert before["command"]["pid"] == os.getpid()
assert [s["pid"] for s in before["sessions"]] == [os.getpid()]
assert drill[-1]["outcome"]["step"] == 9 and drill[-1]["outcome"]["drill"], drill
assert [b["phase"] for b in drill[:-1]] == ["delivered", "progress", "committed"], drill
assert after["last_outcome"]["step"] == 9
hook.say(Bye("done"))
"""
    assert app.run(options, training(body)) == 0
    assert record(options)["drill"] is True


def test_the_command_is_told_where_everything_is(options: Options, tmp_path: Path) -> None:
    """What `register` reads; what was there before stays."""
    out = tmp_path / "env.json"
    code = f"import json, os; json.dump(dict(os.environ), open({str(out)!r}, 'w'))"
    app.run(options, [sys.executable, "-c", code])
    env = json.loads(out.read_text())
    said = {
        name.removeprefix("SPOTGUARD_"): value for name, value in env.items() if name.startswith("SPOTGUARD_")
    }
    assert len(said.pop("LAUNCH")) == 16, "a text of its own for each start"
    assert said == {
        "SOCKET": options.socket,
        "RUN_ID": "r",
        "STORE": options.store,
        "EVERY": "auto",
        "KEEP": "3",
        "EXTRAS_WORTH": "100",
        "PARENT": f"r:{options.socket}",
    }
    assert env["PATH"] == os.environ["PATH"]


def test_a_command_that_is_not_there(options: Options) -> None:
    """127, and nothing stays behind."""
    with pytest.raises(CommandError) as caught:
        app.run(options, ["no-such-command-here"])
    assert caught.value.exit_code == 127
    assert options.socket is not None
    assert not Path(options.socket).exists()


def test_a_second_run_of_the_same_name_is_refused(options: Options) -> None:
    """Before its command is started."""
    body = """
import subprocess
code = "import sys; from tests.agent.test_loop import second; second(sys.argv[1])"
done = subprocess.run([sys.executable, "-c", code, os.environ["SPOTGUARD_SOCKET"]], cwd={root!r})
sys.exit(done.returncode)
""".replace("{root!r}", repr(str(ROOT)))
    assert app.run(options, training(body)) == 42


def second(socket: str) -> None:
    options = resolve("run", {"provider": "none", "socket": socket, "run-id": "r"}, {})
    try:
        app.run(options, [sys.executable, "-c", "raise SystemExit(1)"])
    except UsageError as error:
        sys.exit(42 if "another spotguard answers" in str(error) else 43)


def test_an_error_of_the_agent_costs_one_event(
    options: Options, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A mistake in handling one message must not cost the command its guard: what follows is heard, and counts."""
    real, failed = Session.stands, list[object]()

    def fail_once(session: Session, position: Position, now: float) -> None:
        if not failed:
            failed.append(position)
            raise RuntimeError("a bug")
        real(session, position, now)

    monkeypatch.setattr(Session, "stands", fail_once)
    body = """
hook.say(Position(1))
os.kill(agent, signal.SIGTERM)
commit(hook.hear(Preempt))
sys.exit(hook.hear(Leave).code)
"""
    with caplog.at_level(logging.ERROR, "spotguard"):
        assert app.run(options, training(body)) == 75
    assert "an error of the agent in Heard" in caplog.text
    assert failed == [Position(1)]
    assert record(options)["committed"] is not None


def test_events_before_a_search_are_handled_before_its_answer(serve: Serving, events: Events) -> None:
    """A look may be slow, and the next one due at once: the second SIGTERM must have its turn."""
    heard = list[object]()

    class Looking(Machine):
        def begin(self, now: float, orphan: int | None = None) -> list[Action]:
            return [Look()]

        def handle(self, event: Event | None, now: float) -> list[Action]:
            heard.append(type(event))
            return [Finish(0)] if isinstance(event, GroupSeen) else []

    events.queue.put(Signalled(signal.SIGTERM))
    facts = AgentFacts("r", os.getpid(), "r.sock", False, 0.0)
    supervisor = Supervisor(["true"], env={}, post=events.queue.put)
    machine = Looking(Policy())
    assert Agent(machine, serve(), SystemClock(), events.queue, facts, supervisor).run() == 0
    assert heard == [Signalled, GroupSeen]


def test_an_outcome_that_cannot_be_written_is_still_said(
    options: Options, caplog: pytest.LogCaptureFixture
) -> None:
    """The folder went away: the line stays, and so does the code."""
    body = """
import shutil
shutil.rmtree(os.path.dirname(os.environ["SPOTGUARD_SOCKET"]))
os.kill(agent, signal.SIGTERM)
commit(hook.hear(Preempt))
sys.exit(hook.hear(Leave).code)
"""
    assert options.socket is not None
    with caplog.at_level(logging.INFO, "spotguard"):
        assert app.run(options, training(body)) == 75
    assert "COMMITTED step" in caplog.text
    assert "the outcome cannot be written" in caplog.text
    Path(options.socket).parent.mkdir()


def test_status_of_nobody(folder: Path) -> None:
    """A socket without an agent is a clear error."""
    with pytest.raises(control.AgentError, match="no spotguard answers"):
        control.status(folder / "none.sock")


# --- the helper of alerts ---


def test_incidents_and_outcomes_reach_the_helper_and_the_agent_ends_after_it(
    options: Options, tmp_path: Path
) -> None:
    """The command of `--on-failure` has run by the time at which the agent returns."""
    said = tmp_path / "said"
    asking = replace(options, on_failure=f"cat > {said}")
    assert app.run(asking, [sys.executable, "-c", "raise SystemExit(7)"]) == 7
    facts = json.loads(said.read_text())
    assert (facts["class"], facts["returncode"], facts["run_id"]) == ("unknown", 7, "r")


def test_a_command_that_ends_well_runs_nothing(options: Options, tmp_path: Path) -> None:
    said = tmp_path / "said"
    asking = replace(options, on_failure=f"cat > {said}")
    assert app.run(asking, [sys.executable, "-c", "pass"]) == 0
    assert not said.exists()
