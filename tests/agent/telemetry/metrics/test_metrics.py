"""The whole way of a metric: a hook's words on the socket, the loop, a scrape by HTTP."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("prometheus_client")

from prometheus_client import CollectorRegistry

from spotguard.agent import app
from spotguard.agent.config.options import Options
from spotguard.agent.config.resolve import resolve
from spotguard.agent.core.machine import Machine
from spotguard.agent.core.state import Policy
from spotguard.agent.events import Event, Signalled
from spotguard.agent.loop import Agent
from spotguard.agent.process.supervisor import Supervisor
from spotguard.agent.telemetry.metrics.processes import ExpectedWindow
from spotguard.agent.telemetry.metrics.recorder import MetricsFacts, MetricsRecorder
from spotguard.agent.telemetry.status import AgentFacts
from spotguard.providers.clock import SystemClock
from spotguard.providers.errors import UsageError
from spotguard.providers.simulator.gcp.service import GcpSimulator
from tests.fakes.serving import Events, Serving

ROOT = Path(__file__).parents[4]

#: A training process that registers, takes what its guardian says of itself, and answers a notice.
HOOK = """
import os, signal, sys, time, urllib.request
sys.path[:0] = [{root!r}]
from pathlib import Path
from tests.e2e.processes import eventually
from tests.fakes.hook import FakeHook
from spotguard.hooks.ipc.protocol import *
url = "http://127.0.0.1:{port}/metrics"
opener = urllib.request.build_opener(urllib.request.ProxyHandler({{}}))
def has(line):
    eventually(lambda: line in opener.open(url, timeout=100).read().decode(), line)
hook = FakeHook(Path(os.environ["SPOTGUARD_SOCKET"]))
hook.say(Register(os.getpid(), "r", "train.py", "file:///s", rank=3, nbytes=1000))
hook.hear(Welcome)
who = '{{rank="3",run_id="r",uid="%d"}}' % os.geteuid()
{body}
"""


@pytest.fixture
def port() -> Iterator[int]:
    """One that stays ours: bound and not listening, so that whoever sets SO_REUSEADDR may listen (socket(7))."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


@pytest.fixture
def options(folder: Path, tmp_path: Path, port: int) -> Options:
    flags = {"provider": "none", "socket": str(folder / "r.sock"), "store": f"file://{tmp_path}"}
    # A long warning: a busy machine answers late.
    return resolve("run", {**flags, "run-id": "r", "window": "100", "metrics-port": str(port)}, {})


@pytest.fixture
def training(port: int) -> Callable[[str], list[str]]:
    return lambda body: [sys.executable, "-c", HOOK.format(root=str(ROOT), port=port, body=body)]


def test_a_process_s_numbers_its_notice_and_its_outcome_are_scraped(
    options: Options, training: Callable[[str], list[str]]
) -> None:
    """Where it stands, whether it fits, the notice, and in the next agent of this name how that ended."""
    body = """
has("spotguard_sessions 1.0")
has("spotguard_state_bytes" + who + " 1000.0")
has('spotguard_outcomes_total{drill="false",result="committed",run_id="r"} 0.0')
hook.say(Position(7, checkpoint_step=5, checkpoint_age=9.0, restored_age=50.0, save_seconds=2.0, rate=500.0, interval=60.0))
has("spotguard_step" + who + " 7.0")
has("spotguard_fits_window" + who + " 1.0")
has("spotguard_expected_slack_seconds" + who + " 88.0")  # of 100 s, 10 in reserve
has("spotguard_checkpoint_step" + who + " 5.0")
os.kill(os.getppid(), signal.SIGTERM)
notice = hook.hear(Preempt)
hook.say(Delivered(notice.id, time.monotonic()))
has("spotguard_notice_left_seconds ")
has('spotguard_agent_phase{phase="saving"} 1.0')
has('spotguard_notices_total{kind="signal",severity="terminal",source="SIGTERM"} 1.0')
has('spotguard_stage_left_seconds_bucket{drill="false",le="120.0",stage="delivered"} 1.0')
hook.say(Committed(notice.id, 8, 1000, 0.5, "file:///s/8", time.monotonic()))
sys.exit(hook.hear(Leave).code)
"""
    assert app.run(options, training(body)) == 75
    afterwards = """
has('spotguard_outcomes_total{drill="false",result="committed",run_id="r"} 1.0')
has('spotguard_outcomes_total{drill="false",result="missed",run_id="r"} 0.0')
has('spotguard_commit_slack_seconds_count{drill="false",run_id="r"} 1.0')
has('spotguard_agent_phase{phase="watching"} 1.0')
hook.say(Bye("done"))
"""
    assert app.run(options, training(afterwards)) == 0
    # At the same port, with the same socket's folder: what came of other runs is no history of this one's.
    assert options.socket is not None
    other = dataclasses.replace(
        options, run_id="other", socket=str(Path(options.socket).with_name("other.sock"))
    )
    body = """
has('spotguard_outcomes_total{drill="false",result="committed",run_id="other"} 0.0')
outcomes = [line for line in opener.open(url, timeout=100).read().decode().splitlines() if line.startswith("spotguard_outcomes")]
assert all('run_id="other"' in line and line.endswith(" 0.0") for line in outcomes), outcomes
hook.say(Bye("done"))
"""
    assert app.run(other, training(body)) == 0


def test_the_window_is_what_gce_itself_says_of_the_vm(
    options: Options, training: Callable[[str], list[str]], gcp: GcpSimulator
) -> None:
    """Where nobody has said one: a VM with a notice duration has more than the usual 30 s, and so fits what would not."""
    gcp.put("instance/scheduling/preemption-notice-duration", b"120s")
    here = dataclasses.replace(options, provider="gcp", metadata_endpoint=gcp.endpoint, window=None)
    body = """
hook.say(Position(7, save_seconds=100.0, rate=500.0))
has("spotguard_window_seconds 120.0")
has('spotguard_source_polls_total{source="gcp ')
has("spotguard_reserve_seconds 12.0")
has("spotguard_fits_window" + who + " 1.0")
hook.say(Bye("done"))
"""
    assert app.run(here, training(body)) == 0


def test_the_helper_s_state_is_scraped(options: Options, training: Callable[[str], list[str]]) -> None:
    body = """
has("spotguard_helper_up 1.0")
has("spotguard_helper_starts_total 1.0")
hook.say(Bye("done"))
"""
    assert app.run(dataclasses.replace(options, on_failure="true"), training(body)) == 0


def test_hung_scrapes_delay_neither_the_notice_nor_the_end(
    options: Options, training: Callable[[str], list[str]]
) -> None:
    """More than are answered at a time, each in the middle of its question."""
    body = """
import socket
hung = [socket.create_connection(("127.0.0.1", int(url.split(":")[2].split("/")[0])), 30) for _ in range(8)]
for each in hung:
    each.sendall(b"GET /metrics HTTP/1.1\\r\\nHost:")
os.kill(os.getppid(), signal.SIGTERM)
notice = hook.hear(Preempt)
hook.say(Delivered(notice.id, time.monotonic()), Committed(notice.id, 8, 1000, 0.5, "file:///s/8", time.monotonic()))
sys.exit(hook.hear(Leave).code)
"""
    assert app.run(options, training(body)) == 75
    assert options.socket is not None
    record = json.loads(Path(options.socket).with_suffix(".outcome.json").read_text())
    assert record["committed"] is not None
    assert record["ended"] == "left when asked"


def test_a_taken_port_is_refused_before_the_command_is_started(
    options: Options, port: int, tmp_path: Path
) -> None:
    started = tmp_path / "started"
    with (
        socket.create_server(("127.0.0.1", port)),
        pytest.raises(UsageError, match=f"--metrics-port {port}: cannot listen"),
    ):
        app.run(options, ["touch", str(started)])
    assert not started.exists()
    assert options.socket is not None
    assert not Path(options.socket).exists()


class Broken(MetricsRecorder):
    """A recorder that fails at each call."""

    def __init__(self) -> None:
        facts = MetricsFacts("1", "run", "r", ExpectedWindow(30.0, False, None))
        super().__init__(CollectorRegistry(), facts, SystemClock().monotonic)

    def take(self, event: Event | None, machine: Machine, now: float) -> None:
        raise RuntimeError("a bug")

    def launched(self, crashes: int, failure: str = "") -> None:
        raise RuntimeError("a bug")

    def ended(self, record: Mapping[str, Any]) -> None:
        raise RuntimeError("a bug")


def test_a_mistake_in_the_metrics_costs_nobody_the_guard(
    serve: Serving, events: Events, caplog: pytest.LogCaptureFixture
) -> None:
    """The command is started and ended, and the outcome is said and written."""
    server, clock = serve(), SystemClock()
    events.queue.put(Signalled(signal.SIGTERM))
    supervisor = Supervisor(["sleep", "100"], env={**os.environ}, post=events.queue.put)
    facts = AgentFacts("r", os.getpid(), "r.sock", False, 0.0)
    machine = Machine(Policy())
    agent = Agent(machine, server, clock, events.queue, facts, supervisor, meter=Broken())
    assert agent.run() == 75
    supervisor.close()
    assert json.loads(server.path.with_suffix(".outcome.json").read_text())["kind"] == "signal"
    assert "an error of the agent in Signalled" in caplog.text
    assert "an error of the agent in Launch" in caplog.text
    assert "an error of the agent in the metrics of an outcome" in caplog.text


def test_numbers_of_the_agent_are_not_among_those_of_a_command_with_several_workers(
    options: Options, training: Callable[[str], list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prometheus's library reads `PROMETHEUS_MULTIPROC_DIR` when it is first imported: a process of its own."""
    folder = tmp_path / "workers"
    folder.mkdir()
    body = f"""
assert os.environ["PROMETHEUS_MULTIPROC_DIR"] == {str(folder)!r}
has("spotguard_sessions 1.0")
hook.say(Position(7, restored_age=1.0, metrics={{"validation_loss": "2.5"}}))
has('spotguard_metric{{name="validation_loss",' + who[1:] + " 2.5")
hook.say(Position(8, restored_age=2.0))
eventually(lambda: 'name="validation_loss"' not in opener.open(url, timeout=30).read().decode(), "it is gone")
hook.say(Bye("done"))
"""
    flags = {
        "provider": "none",
        "socket": options.socket,
        "run-id": "r",
        "metrics-port": str(options.metrics_port),
    }
    program = "import json, sys; from spotguard.agent import app; from spotguard.agent.config.resolve import resolve; "
    program += "sys.exit(app.run(resolve('run', json.loads(sys.argv[1]), {}), sys.argv[2:]))"
    done = subprocess.run(
        [sys.executable, "-c", program, json.dumps(flags), *training(body)],
        env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "multi-process" not in done.stderr
    assert list(folder.iterdir()) == []


#: What is loaded by an agent that guards a command to its end.
LOADED = """
import json, os, sys
from spotguard.agent.config.resolve import resolve
from spotguard.agent import app
flags = {"provider": "none", "socket": sys.argv[1], "run-id": "r", **json.loads(sys.argv[2])}
assert app.run(resolve("run", flags, {}), ["true"]) == 0
print(json.dumps(sorted(sys.modules)))
"""


def test_without_metrics_nothing_of_them_is_loaded(options: Options, port: int) -> None:
    """And with them nothing that opens a way out."""

    def loaded(**flags: str) -> list[str]:
        words = [sys.executable, "-c", LOADED, str(options.socket), json.dumps(flags)]
        done = subprocess.run(words, capture_output=True, text=True, check=True)
        modules: list[str] = json.loads(done.stdout)
        return modules

    bare, measured = loaded(), loaded(**{"metrics-port": str(port)})
    assert not [
        m for m in bare if m.startswith(("prometheus_client", "spotguard.agent.telemetry.metrics", "http"))
    ]
    assert "prometheus_client" in measured
    assert not [m for m in measured if m.split(".")[0] in ("requests", "urllib3", "asyncio", "twisted")]


def test_a_run_listens_on_loopback_alone(options: Options, training: Callable[[str], list[str]]) -> None:
    body = """
has("spotguard_sessions 1.0")
inodes = {line.split()[9]: line.split()[1] for line in open("/proc/net/tcp").readlines()[1:] if line.split()[3] == "0A"}
def link(fd):
    try:
        return os.readlink(f"/proc/{os.getppid()}/fd/{fd}")
    except FileNotFoundError:  # the connection of the scrape, which closes now
        return ""
links = [link(fd) for fd in os.listdir(f"/proc/{os.getppid()}/fd")]
mine = [inodes[link[8:-1]] for link in links if link[8:-1] in inodes]
# (A set: the run's process is the test's own, in which an earlier test's server may still listen.)
assert {address.partition(":")[0] for address in mine} == {"0100007F"}, mine
hook.say(Bye("done"))
"""
    assert app.run(options, training(body)) == 0
