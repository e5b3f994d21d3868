"""The helper's process as an agent starts it: lines in, messages and reports out, and its end with its agent."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spotguard.agent.process.memory.kills import VARIABLE
from tests.e2e.processes import eventually
from tests.fakes.answering import Answer, AnsweringServer
from tests.fakes.talk import TIMEOUT
from tests.fakes.webhook import Webhook

BEGIN: dict[str, Any] = {
    "type": "begin",
    "run_id": "gpt",
    "command": "run",
    "rules": None,
    "webhooks": [],
    "on_failure": None,
}
FAILURE = {
    "class": "data",
    "text": "rank 0: bad sample 57",
    "run_id": "gpt",
    "rank": 0,
    "step": 12,
    "reported": True,
}


class Helper:
    """The process, and the test in its agent's place."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, **begin: Any) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "spotguard.alerts"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=self.folder,
            env={**os.environ, VARIABLE: str(self.folder / "kmsg")},
        )
        self._started.append(process)
        self.say({**BEGIN, **begin})
        return process

    def say(self, *lines: dict[str, Any]) -> None:
        stdin = self._started[-1].stdin
        assert stdin is not None
        stdin.write(b"".join(json.dumps(line).encode() + b"\n" for line in lines))
        stdin.flush()

    def incident(self, kind: str, **facts: Any) -> None:
        self.say({"type": "incident", "kind": kind, "facts": facts})

    def report(self) -> dict[str, Any]:
        """The next one."""
        stdout = self._started[-1].stdout
        assert stdout is not None
        body: dict[str, Any] = json.loads(stdout.readline())
        return body

    def ended(self, *, says_so: bool = True) -> tuple[int, str]:
        """End it as an agent does; its exit code and its log."""
        if says_so:
            self.say({"type": "end"})
        _, log = self._started[-1].communicate(timeout=TIMEOUT)
        return self._started[-1].returncode, log.decode()

    def close(self) -> None:
        for process in self._started:
            process.kill()
            process.communicate()


@pytest.fixture
def helper(folder: Path) -> Iterator[Helper]:
    helper = Helper(folder)
    yield helper
    helper.close()


def test_a_failure_goes_to_every_receiver_and_runs_the_command_once(
    helper: Helper, receiver: Webhook, folder: Path
) -> None:
    command = f"cat > {folder}/facts.json; env | grep SPOTGUARD_FAILURE | sort > {folder}/env; echo once >> {folder}/count; exit 3"
    helper.start(webhooks=[receiver.url, f"alertmanager:{receiver.url}"], on_failure=command)
    helper.incident("failure", **FAILURE)
    code, log = helper.ended()
    assert code == 0
    assert sorted(isinstance(body, list) for body in receiver.got) == [False, True]
    assert json.loads((folder / "facts.json").read_text())["text"] == "rank 0: bad sample 57"
    assert (folder / "env").read_text().splitlines() == [
        "SPOTGUARD_FAILURE_CLASS=data",
        "SPOTGUARD_FAILURE_RUN_ID=gpt",
        "SPOTGUARD_FAILURE_STEP=12",
    ]
    assert (folder / "count").read_text() == "once\n"
    assert "failed: exit code 3 [SG110]" in log


def test_it_reports_what_fires_and_what_it_reads(helper: Helper) -> None:
    helper.start()
    helper.incident("stall", text="rank 0 in data", run_id="gpt")
    (alert,) = helper.report()["firing"]
    assert (alert["alert"], alert["severity"], alert["summary"]) == (
        "stall",
        "critical",
        "training stands still: rank 0 in data",
    )
    helper.say({"type": "sample", "values": [["spotguard_agent_seconds", [], 8 * 86400.0]]})
    report = helper.report()
    assert [each["alert"] for each in report["firing"]] == ["stall", "too-long"]
    names = {name for name, _, _ in report["readings"]}
    assert {
        "spotguard_disk_free_ratio",
        "spotguard_memory_used_ratio",
        "spotguard_kernel_errors_total",
    } <= names
    helper.incident("moving", run_id="gpt")
    assert [each["alert"] for each in helper.report()["firing"]] == ["too-long"]
    _, log = helper.ended()
    assert "alert too-long: this start of the run has taken 691200 s" in log
    assert "alert too-long ends with the agent" in log
    assert "gone without a word" not in log


def test_a_line_of_the_kernel_is_an_alert_and_evidence(
    helper: Helper, receiver: Webhook, folder: Path
) -> None:
    os.mkfifo(folder / "kmsg")
    helper.start(webhooks=[receiver.url])
    helper.incident("training", run_id="gpt")
    helper.report()  # from here on it reads the log
    with (folder / "kmsg").open("w") as kernel:
        kernel.write("3,1,1,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=4242, GPU has fallen off the bus.\n")
    (alert,) = helper.report()["firing"]
    assert (alert["alert"], alert["summary"][:44]) == (
        "gpu-error",
        "the GPU's driver reports Xid 79 (machine): N",
    )
    facts = {
        **FAILURE,
        "class": "killed",
        "reported": False,
        "store": folder.as_uri(),
        "attempt": 2,
        "pid": 4242,
        "evidence": ["silence"],
    }
    helper.incident("failure", **facts)
    helper.ended()
    record = json.loads((folder / "gpt" / "failures" / "0002-00000.json").read_text())
    assert (record["kind"], record["confidence"], len(record["evidence"])) == ("gpu", "high", 2)


def test_a_kernel_log_without_a_writer_is_closed_and_costs_no_time(helper: Helper, folder: Path) -> None:
    os.mkfifo(folder / "kmsg")
    process = helper.start()
    helper.incident("training", run_id="gpt")
    helper.report()
    fds = Path(f"/proc/{process.pid}/fd")
    assert str(folder / "kmsg") in {os.path.realpath(fd) for fd in fds.iterdir()}
    with (folder / "kmsg").open("w"):
        pass
    eventually(
        lambda: str(folder / "kmsg") not in {os.path.realpath(fd) for fd in fds.iterdir()}, "it is closed"
    )
    assert helper.ended()[0] == 0


def test_a_file_in_the_kernel_log_s_place_is_read_now_and_then(helper: Helper, folder: Path) -> None:
    """It is not polled, so with each line of the agent's, and every few seconds."""
    (folder / "kmsg").touch()
    helper.start()
    helper.incident("training", run_id="gpt")
    helper.report()
    with (folder / "kmsg").open("a") as kernel:
        kernel.write("3,1,1,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=4242, GPU has fallen off the bus.\n")
    helper.incident("training", run_id="gpt")
    while not (firing := helper.report()["firing"]):
        pass
    assert [alert["alert"] for alert in firing] == ["gpu-error"]


def test_alertmanager_is_asked_once_for_what_an_earlier_agent_has_sent_of_a_run(
    helper: Helper, receiver: Webhook
) -> None:
    """When the run trains for the first time. Nobody else can be asked."""
    with AnsweringServer(lambda _: Answer(body=b"[]")) as manager:
        helper.start(webhooks=[f"alertmanager:{manager.url}", receiver.url])
        for run_id in ("gpt", "gpt", "other"):
            helper.incident("training", run_id=run_id)
        assert helper.ended()[0] == 0
        asked = [(each.method, each.path, each.query["filter"]) for each in manager.asked]
    assert asked == [("GET", "/api/v2/alerts", 'alertname=~"failure|stall"')] * 2
    assert receiver.server.asked == []


@pytest.mark.parametrize("kind", ["json", "slack"])
def test_what_fired_as_the_machine_went_is_resolved_by_the_next_agent_that_trains(
    kind: str, helper: Helper, receiver: Webhook, folder: Path
) -> None:
    """Alertmanager would forget it. The first helper is killed with its machine, so it can send no end."""
    given: dict[str, Any] = {"webhooks": [f"{kind}:{receiver.url}"], "store": folder.as_uri()}
    first = helper.start(**given)
    helper.incident("failure", **FAILURE)
    receiver.until(1)
    eventually(lambda: [*folder.glob("gpt/alerts/*.json")], "it is recorded")
    first.kill()
    first.wait()
    for _ in range(2):  # the third agent has nothing to end
        helper.start(**given)
        helper.incident("training", run_id="gpt")
        code, log = helper.ended()
        assert code == 0
    assert "is over" not in log
    firing, resolved = receiver.got
    if kind == "slack":
        assert resolved["text"].splitlines()[1:] == [
            "resolved failure: training failed (data): rank 0: bad sample 57"
        ]
    else:
        (begun,), (ended,) = firing["alerts"], resolved["alerts"]
        assert (begun["status"], ended["status"]) == ("firing", "resolved")
        assert ended["labels"] == begun["labels"]
        assert ended["endsAt"] is not None


def test_only_the_agent_of_rank_0_ends_what_a_machine_that_is_gone_has_left(
    helper: Helper, receiver: Webhook, folder: Path
) -> None:
    """At a thousand machines, each would read the records of all."""
    given: dict[str, Any] = {"webhooks": [receiver.url], "store": folder.as_uri()}
    first = helper.start(**given)
    helper.incident("stall", text="rank 0 in data", run_id="gpt")
    receiver.until(1)
    eventually(lambda: [*folder.glob("gpt/alerts/*.json")], "it is recorded")
    first.kill()
    first.wait()
    (record,) = folder.glob("gpt/alerts/*.json")
    time, words, random = record.name[:17], record.name[18:35], record.name[36:]
    assert re.fullmatch("[0-9a-f]{8}-[0-9a-f]{8}", words)
    record.rename(record.with_name(f"{time}-00000000-00000000-{random}"))  # of another machine
    for rank in (1, 0):
        assert len(receiver.got) == 1
        helper.start(**given)
        helper.incident("training", run_id="gpt", rank=rank)
        assert helper.ended()[0] == 0
    assert receiver.got[1]["alerts"][0]["status"] == "resolved"
    assert [*folder.glob("gpt/alerts/*-ended.json")]


def test_what_no_receiver_has_taken_has_no_record_and_no_end(
    helper: Helper, receiver: Webhook, folder: Path
) -> None:
    receiver.statuses = [400]
    given: dict[str, Any] = {"webhooks": [receiver.url], "store": folder.as_uri()}
    helper.start(**given)
    helper.incident("failure", **FAILURE)
    receiver.until(1)
    assert helper.ended()[0] == 0
    assert not (folder / "gpt").exists()


def test_a_failure_of_no_known_run_is_of_the_helper_s_own_and_ends_with_it(helper: Helper) -> None:
    helper.start()
    helper.incident("failure", **{**FAILURE, "run_id": ""})
    assert helper.report()["firing"]
    helper.incident("training", run_id="gpt")
    assert helper.report()["firing"] == []


def test_a_service_is_never_too_long_unless_a_file_wants_it(helper: Helper, folder: Path) -> None:
    (folder / "alerts.toml").write_text("[rule.too-long]\nthreshold = 9\n")
    for rules, found in ((None, []), (str(folder / "alerts.toml"), ["too-long"])):
        helper.start(command="agent", rules=rules)
        helper.say({"type": "sample", "values": [["spotguard_agent_seconds", [], 8 * 86400.0]]})
        assert [each["alert"] for each in helper.report()["firing"]] == found


def test_an_agent_that_ends_without_a_word_was_killed(helper: Helper, receiver: Webhook) -> None:
    helper.start(webhooks=[receiver.url])
    code, log = helper.ended(says_so=False)
    assert code == 0
    assert "the agent of run gpt is gone without a word" in log
    (body,) = receiver.got
    assert body["alerts"][0]["alert"] == "agent-lost"


@pytest.mark.slow  # it waits for the limit
def test_it_ends_although_a_receiver_hangs(helper: Helper, receiver: Webhook) -> None:
    """Within its limit: 10 s for messages."""
    receiver.hangs.set()
    process = helper.start(webhooks=[receiver.url])
    helper.incident("failure", **FAILURE)
    receiver.until(1)
    code, _ = helper.ended()
    assert code == 0
    assert process.returncode == 0


def test_signals_do_not_end_it_and_its_command_inherits_none(helper: Helper, folder: Path) -> None:
    """They are for its agent. A command that ignored SIGTERM could not be ended by anybody else."""
    process = helper.start(on_failure=f"grep SigIgn /proc/self/status > {folder}/ignored")
    helper.incident("training", run_id="gpt")
    helper.report()
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        process.send_signal(signum)
    helper.incident("failure", **FAILURE)
    assert helper.ended()[0] == 0
    ignored = int((folder / "ignored").read_text().split()[1], 16)
    assert ignored & (1 << signal.SIGTERM - 1) == 0


def test_a_line_that_is_no_json_costs_nothing_else(helper: Helper) -> None:
    process = helper.start()
    assert process.stdin is not None
    process.stdin.write(b"{nonsense\n[1]\n")
    helper.incident("stall", run_id="gpt", text="x")
    assert helper.report()["firing"]
    assert helper.ended()[0] == 0


def test_rules_of_a_file_hold(helper: Helper, folder: Path) -> None:
    (folder / "alerts.toml").write_text(
        '[rule.high]\nmetric = "spotguard_step"\nthreshold = 5\nsummary = "step {value}"\n'
    )
    helper.start(rules=str(folder / "alerts.toml"))
    helper.say({"type": "sample", "values": [["spotguard_step", ["gpt", "0", "0"], 6]]})
    assert "high" in [each["alert"] for each in helper.report()["firing"]]
    assert "WARNING: alert high: step 6" in helper.ended()[1]


def test_by_hand_it_says_whose_part_it_is() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "spotguard.alerts"], input=b"hello\n", capture_output=True, check=False
    )
    assert done.returncode == 2
    assert b"spotguard run and spotguard agent, which start it" in done.stderr


def test_it_loads_no_torch_and_without_a_webhook_no_http_client(helper: Helper) -> None:
    """It stays below 48 MiB beside an agent (benchmarks/README.md)."""
    process = helper.start()
    helper.incident("training", run_id="gpt")
    helper.report()
    eventually(lambda: Path(f"/proc/{process.pid}/maps").read_text(), "it runs")
    loaded = Path(f"/proc/{process.pid}/maps").read_text()
    assert "torch" not in loaded
    assert "_ssl" not in loaded
    helper.ended()
