"""Incidents end to end: a real run, its helper, a real receiver and a real Alertmanager; and a helper that dies, hangs or is orphaned."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

import pytest

from tests.e2e.processes import Running, eventually
from tests.e2e.promql import free_port
from tests.e2e.trainee import Trainee
from tests.fakes.webhook import Webhook, webhook
from tests.servers.alertmanager import Alertmanager
from tests.servers.prometheus import Prometheus

pytestmark = [pytest.mark.torch, pytest.mark.wholepath, pytest.mark.slow]


@pytest.fixture
def receiver() -> Iterator[Webhook]:
    with webhook() as receiver:
        yield receiver


def helper_of(trainee: Trainee) -> int:
    """The pid of the run's helper."""
    eventually(lambda: (trainee.machine.status()["alerts"] or {}).get("pid"), "the helper runs")
    pid: int = trainee.machine.status()["alerts"]["pid"]
    return pid


def is_gone(pid: int) -> bool:
    """Whether it has ended; nobody may have taken its status."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def resolved(behind: Webhook) -> set[str]:
    """The names of the alerts that Alertmanager has sent on as over."""
    alerts = [alert for body in behind.got for alert in body["alerts"]]
    return {alert["labels"]["alertname"] for alert in alerts if alert["status"] == "resolved"}


def names(manager: Alertmanager) -> set[str]:
    """The names of the alerts that fire at Alertmanager."""
    return {alert["labels"]["alertname"] for alert in manager.alerts()}


def fails(trainee: Trainee, running: Running, text: str = "boom") -> None:
    trainee.begun(running)
    running.say("go 4")
    trainee.stepped(running, 4)
    running.say(f"fail {text}")


def test_a_script_that_raises_is_an_incident_everywhere_and_runs_the_command_once(
    trainee: Trainee, receiver: Webhook, require_server: Callable[[str], str]
) -> None:
    """Alertmanager takes it, and sends it on to a receiver of its own; then the next start resolves it."""
    folder = trainee.machine.folder
    (folder / "hook.sh").write_text(
        "cat >> facts.jsonl; echo $SPOTGUARD_FAILURE_CLASS $SPOTGUARD_FAILURE_STEP > class\n"
    )
    with webhook() as behind, Alertmanager(require_server("prometheus-alertmanager"), behind.url) as manager:
        options = (
            f"--every off --webhook {receiver.url} --webhook alertmanager:{manager.endpoint} --max-restarts 1"
        )
        running = trainee.guarded(options, SPOTGUARD_ON_FAILURE="sh hook.sh")
        fails(trainee, running, "the key https://me:swordfish7@host/x is bad")
        (forwarded,) = behind.until(1)
        (alert,) = forwarded["alerts"]
        assert (alert["status"], alert["labels"]["alertname"], alert["labels"]["class"]) == (
            "firing",
            "failure",
            "program",
        )
        assert (alert["labels"]["run_id"], alert["labels"]["rank"]) == ("job", "0")
        assert "rank 0" in alert["annotations"]["summary"]
        assert trainee.begun(running) == 4  # it is started again, and so the failure is over
        assert behind.until(2)[1]["alerts"][0]["status"] == "resolved"
        running.say("free")
        trainee.finished(running)
        assert running.ended() == 0
        assert manager.alerts() == []
    firing, resolved = [each for body in receiver.got for each in body["incidents"]]
    assert (firing["status"], resolved["status"]) == ("firing", "resolved")
    (facts,) = [json.loads(line) for line in (folder / "facts.jsonl").read_text().splitlines()]
    assert (facts["class"], facts["step"], facts["run_id"], facts["attempt"]) == ("program", 4, "job", 1)
    assert (folder / "class").read_text() == "program 4\n"
    said = json.dumps([receiver.got, behind.got, facts])
    assert "swordfish7" not in said


def test_an_incident_whose_agent_died_ends_by_alertmanager_s_own_time_out(
    trainee: Trainee, require_server: Callable[[str], str]
) -> None:
    """Nobody sends its end: each message has one, four minutes ahead for what lasts, or an hour for a failure."""
    with webhook() as behind, Alertmanager(require_server("prometheus-alertmanager"), behind.url) as manager:
        running = trainee.guarded(f"--every off --webhook alertmanager:{manager.endpoint}")
        trainee.begun(running)
        helper = helper_of(trainee)
        began = time.time()
        trainee.machine.kill(running.pid)
        behind.until(1)
        eventually(lambda: is_gone(helper), "the helper is gone")
        (alert,) = manager.alerts()
    assert alert["labels"]["alertname"] == "agent-lost"
    assert began + 3600 <= datetime.fromisoformat(alert["endsAt"]).timestamp() <= time.time() + 3600


def test_an_incident_and_a_rule_on_numbers_arrive_at_one_alertmanager(
    trainee: Trainee, require_server: Callable[[str], str]
) -> None:
    """The agent posts what happened; a real Prometheus evaluates the shipped rules on its metrics. Both end."""
    pytest.importorskip("prometheus_client")
    with (
        free_port() as port,
        webhook() as behind,
        Alertmanager(require_server("prometheus-alertmanager"), behind.url) as manager,
        Prometheus(require_server("prometheus"), {"node": port}, manager.endpoint) as prometheus,
    ):
        options = (
            f"--every off --max-restarts 1 --metrics-port {port} --webhook alertmanager:{manager.endpoint}"
        )
        running = trainee.guarded(options)
        trainee.begun(running)
        zero = 'spotguard_failures_total{class="program"} == 0'
        eventually(lambda: prometheus.query(zero), "the counter is known before it rises")
        running.say("go 4")
        trainee.stepped(running, 4)
        running.say("fail boom")
        assert trainee.begun(running) == 4  # the next start: the failure is over
        eventually(lambda: "failure" in resolved(behind), "its end arrives")
        eventually(lambda: names(manager) == {"SpotguardFailed"}, "the shipped rule fires at Alertmanager")
        found = prometheus.query('ALERTS{alertname="SpotguardFailed",alertstate="firing"}')
        assert [each["metric"]["class"] for each in found] == ["program"]
        running.say("free")
        trainee.finished(running)
        assert running.ended() == 0


def test_the_last_failure_is_sent_before_the_run_exits(trainee: Trainee, receiver: Webhook) -> None:
    running = trainee.guarded(f"--every off --webhook {receiver.url}")
    fails(trainee, running)
    helper = helper_of(trainee)
    assert running.ended() == 1
    assert [each["incident"] for body in receiver.got for each in body["incidents"]] == ["failure"]
    assert is_gone(helper)


@pytest.mark.parametrize("helper", [True, False])
def test_a_rank_that_is_killed_has_a_record(trainee: Trainee, receiver: Webhook, helper: bool) -> None:
    """The helper of alerts writes it. Without one the agent has it written, and waits for that before it exits."""
    running = trainee.guarded(f"--every off --webhook {receiver.url}" if helper else "--every off")
    trainee.begun(running)
    running.say("go 3")
    trainee.stepped(running, 3)
    eventually(lambda: trainee.machine.status()["sessions"][0]["step"] == 3, "the agent knows the step")
    trainee.machine.kill(trainee.machine.status()["sessions"][0]["pid"])
    assert running.ended() == 128 + signal.SIGKILL
    (path,) = (trainee.machine.store / "job" / "failures").iterdir()
    assert path.name == "0001-00000.json"
    record = json.loads(path.read_text())
    assert (record["kind"], record["by"], record["step"], record["returncode"]) == ("killed", "agent", 3, -9)
    assert record["evidence"] == ["the command was ended by SIGKILL", "its process vanished"]
    assert record["confidence"] == "high"


def test_a_helper_that_is_killed_is_told_and_training_goes_on(trainee: Trainee, receiver: Webhook) -> None:
    running = trainee.guarded(f"--every off --webhook {receiver.url}")
    trainee.begun(running)
    os.kill(helper_of(trainee), signal.SIGKILL)
    running.err.until(r"ERROR: the helper of alerts has ended \(SIGKILL\): it is started again in 5 s")
    assert trainee.machine.status()["alerts"]["returncode"] == -signal.SIGKILL
    running.say("go 2")
    trainee.stepped(running, 2)
    helper_of(trainee)  # the next one, five seconds later
    assert trainee.machine.status()["alerts"]["starts"] == 2
    running.say("free")
    trainee.finished(running)
    assert running.ended() == 0
    assert receiver.got == []


def test_a_helper_that_does_not_read_stops_nobody(trainee: Trainee, receiver: Webhook) -> None:
    running = trainee.guarded(f"--every off --webhook {receiver.url}")
    trainee.begun(running)
    helper = helper_of(trainee)
    os.kill(helper, signal.SIGSTOP)
    running.say("free")
    trainee.finished(running)
    assert running.ended() == 0
    eventually(lambda: is_gone(helper), "the helper is gone")


def test_the_helper_of_an_agent_that_is_killed_says_so_and_ends(trainee: Trainee, receiver: Webhook) -> None:
    running = trainee.guarded(f"--every off --webhook {receiver.url}")
    trainee.begun(running)
    helper = helper_of(trainee)
    trainee.machine.kill(running.pid)
    (body,) = receiver.until(1)
    assert [each["incident"] for each in body["incidents"]] == ["agent-lost"]
    eventually(lambda: is_gone(helper), "the helper is gone")
