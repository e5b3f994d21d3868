"""The helper's process as an agent starts it: lines in, messages and reports out, and its end with its agent."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spotguard.agent.process.memory.kills import VARIABLE
from spotguard.alerts.process import AlertProcess
from spotguard.alerts.readings.machine import MachineReadings
from tests.e2e.processes import eventually
from tests.fakes.clock import ManualClock
from tests.fakes.talk import TIMEOUT
from tests.fakes.webhook import Webhook

BEGIN: dict[str, Any] = {
    "type": "begin",
    "run_id": "gpt",
    "command": "run",
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

    def event(self, kind: str, **facts: Any) -> None:
        self.say({"type": "event", "kind": kind, "facts": facts})

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
    helper.event("failure", **FAILURE)
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


def test_it_reports_what_lasts_and_resolves_it(helper: Helper, receiver: Webhook) -> None:
    helper.start(webhooks=[receiver.url])
    helper.event("stall", text="rank 0 in data", run_id="gpt", then="nothing is ended")
    (alert,) = helper.report()["firing"]
    assert (alert["alert"], alert["severity"], alert["summary"]) == (
        "stall",
        "critical",
        "training stands still: rank 0 in data; nothing is ended",
    )
    receiver.until(1)
    helper.event("moving", run_id="gpt")
    assert helper.report()["firing"] == []
    _, log = helper.ended()
    assert "gone without a word" not in log
    assert [body["incidents"][0]["status"] for body in receiver.got] == ["firing", "resolved"]


def test_a_line_of_the_kernel_is_an_incident_and_evidence(
    helper: Helper, receiver: Webhook, folder: Path
) -> None:
    os.mkfifo(folder / "kmsg")
    helper.start(webhooks=[receiver.url])
    helper.event("training", run_id="gpt")
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
    helper.event("failure", **facts)
    helper.ended()
    record = json.loads((folder / "gpt" / "failures" / "0002-00000.json").read_text())
    assert (record["kind"], record["confidence"], len(record["evidence"])) == ("gpu", "high", 2)


def test_a_kernel_log_without_a_writer_is_closed_and_costs_no_time(helper: Helper, folder: Path) -> None:
    os.mkfifo(folder / "kmsg")
    process = helper.start()
    helper.event("training", run_id="gpt")
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
    helper.event("training", run_id="gpt")
    helper.report()
    with (folder / "kmsg").open("a") as kernel:
        kernel.write("3,1,1,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=4242, GPU has fallen off the bus.\n")
    helper.event("training", run_id="gpt")
    while not (firing := helper.report()["firing"]):
        pass
    assert [alert["alert"] for alert in firing] == ["gpu-error"]


def test_a_failure_of_no_known_run_is_of_the_helper_s_own_and_ends_with_it(helper: Helper) -> None:
    helper.start()
    helper.event("failure", **{**FAILURE, "run_id": ""})
    assert helper.report()["firing"]
    helper.event("training", run_id="gpt")
    assert helper.report()["firing"] == []


def test_an_agent_that_ends_without_a_word_was_killed(helper: Helper, receiver: Webhook) -> None:
    helper.start(webhooks=[receiver.url])
    code, log = helper.ended(says_so=False)
    assert code == 0
    assert "the agent of run gpt is gone without a word" in log
    (body,) = receiver.got
    assert body["incidents"][0]["incident"] == "agent-lost"


@pytest.mark.slow  # it waits for the limit
def test_it_ends_although_a_receiver_hangs(helper: Helper, receiver: Webhook) -> None:
    """Within its limit: 10 s for messages."""
    receiver.hangs.set()
    process = helper.start(webhooks=[receiver.url])
    helper.event("failure", **FAILURE)
    receiver.until(1)
    code, _ = helper.ended()
    assert code == 0
    assert process.returncode == 0


def test_signals_do_not_end_it_and_its_command_inherits_none(helper: Helper, folder: Path) -> None:
    """They are for its agent. A command that ignored SIGTERM could not be ended by anybody else."""
    process = helper.start(on_failure=f"grep SigIgn /proc/self/status > {folder}/ignored")
    helper.event("training", run_id="gpt")
    helper.report()
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        process.send_signal(signum)
    helper.event("failure", **FAILURE)
    assert helper.ended()[0] == 0
    ignored = int((folder / "ignored").read_text().split()[1], 16)
    assert ignored & (1 << signal.SIGTERM - 1) == 0


def test_a_line_that_is_no_json_costs_nothing_else(helper: Helper) -> None:
    process = helper.start()
    assert process.stdin is not None
    process.stdin.write(b"{nonsense\n[1]\n")
    helper.event("stall", run_id="gpt", text="x")
    assert helper.report()["firing"]
    assert helper.ended()[0] == 0


def test_by_hand_it_says_whose_part_it_is() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "spotguard.alerts"], input=b"hello\n", capture_output=True, check=False
    )
    assert done.returncode == 2
    assert b"spotguard run and spotguard agent, which start it" in done.stderr


def test_it_loads_no_torch_and_without_a_webhook_no_http_client(helper: Helper) -> None:
    """It stays below 48 MiB beside an agent (benchmarks/README.md)."""
    process = helper.start()
    helper.event("training", run_id="gpt")
    helper.report()
    eventually(lambda: Path(f"/proc/{process.pid}/maps").read_text(), "it runs")
    loaded = Path(f"/proc/{process.pid}/maps").read_text()
    assert "torch" not in loaded
    assert "_ssl" not in loaded
    helper.ended()


# --- what it reads of the machine ---

#: One GPU in NVML's place. The files say what it has: each character of `errors` is an error of its memory.
PYNVML = """
from pathlib import Path
HERE = Path(__file__).parent
class NVMLError_GpuIsLost(Exception): ...
def nvmlInit(): ...
def nvmlDeviceGetCount(): return 1
def nvmlDeviceGetHandleByIndex(index): return index
def nvmlDeviceGetTemperature(gpu, sensor):
    if (HERE / "lost").exists(): raise NVMLError_GpuIsLost
    return 50
def nvmlDeviceGetCurrentClocksEventReasons(gpu): return 0
def nvmlDeviceGetTotalEccErrors(gpu, kind, counter): return len((HERE / "errors").read_text())
def nvmlDeviceGetMemoryInfo(gpu): raise NotImplementedError
"""


class Reading:
    """The helper in this process, on a clock that the test moves."""

    def __init__(self, **begin: Any) -> None:
        self.clock, self.reports = ManualClock(), list[Any]()
        self.process = AlertProcess({**BEGIN, **begin}, self.clock, self.reports.append)

    def next(self) -> list[str]:
        """Have it read the machine, and return the incidents that last."""
        self.clock.advance(10.0)
        self.process.tick()
        return [each["alert"] for each in self.reports[-1]["firing"]]


def test_the_machine_is_read_every_ten_seconds_for_the_metrics() -> None:
    reading = Reading()
    reading.process.tick()
    assert reading.reports == []
    assert reading.next() == []
    names = {name for name, _, _ in reading.reports[-1]["readings"]}
    assert {
        "spotguard_disk_free_ratio",
        "spotguard_memory_used_ratio",
        "spotguard_clock_step_seconds_total",
        "spotguard_kernel_errors_total",
    } <= names


def test_a_gpu_that_is_lost_or_has_memory_errors_is_an_incident(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Errors before the first reading are an earlier job's."""
    (folder / "pynvml.py").write_text(PYNVML)
    (folder / "errors").write_text("..")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    reading = Reading()
    eventually(lambda: reading.next() == [] and "spotguard_gpu_up" in str(reading.reports[-1]), "it is read")
    (folder / "errors").write_text("...")
    (folder / "lost").touch()
    eventually(lambda: reading.next() == ["gpu-lost"], "it is lost")
    (folder / "lost").unlink()
    eventually(lambda: reading.next() == ["gpu-memory-error"], "it is back")
    assert (
        "incident gpu-memory-error: GPU 0 has memory errors that ECC could not correct: 1 more" in caplog.text
    )
    monkeypatch.delitem(sys.modules, "pynvml")


def test_a_full_disk_of_the_stage_is_an_incident_and_another_disk_is_none(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    full = {"stage": 0.01, "working directory": 0.0}
    monkeypatch.setattr(
        MachineReadings,
        "read",
        lambda _: iter([("spotguard_disk_free_ratio", (place,), free) for place, free in full.items()]),
    )
    reading = Reading(stage=str(folder))
    assert [reading.next() for _ in range(7)] == [[]] * 6 + [["disk-full"]]
    assert "incident disk-full: the disk of the stage is nearly full: 1.0% is free" in caplog.text
    full["stage"] = 0.5
    assert reading.next() == []


def test_a_clock_that_is_set_by_more_than_seconds_is_an_incident(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    steps = iter([3.0, 6.0, 3606.0, 3606.0])
    monkeypatch.setattr(
        MachineReadings,
        "read",
        lambda _: iter([("spotguard_clock_step_seconds_total", ("back",), next(steps))]),
    )
    reading = Reading()
    assert [reading.next() for _ in range(4)] == [[], [], ["clock-jump"], ["clock-jump"]]
    assert caplog.text.count("incident clock-jump: the wall clock was set back by 3600 s") == 1
