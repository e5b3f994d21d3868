"""The record of a failure that only the agent saw: what it says, from what evidence, and that it takes no rank's place."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from spotguard.alerts.readings.kernel_log import KernelFinding
from spotguard.alerts.records.failure_record import diagnosed, job_of, needs_record, record_of
from spotguard.alerts.records.writer import StoreJob, StoreProcesses
from spotguard.providers.clock import SystemClock
from tests.e2e.processes import eventually

KILLED: dict[str, Any] = {
    "class": "killed",
    "text": "rank 1 (pid 4242): its process vanished",
    "evidence": ["its process vanished"],
    "confidence": "low",
    "run_id": "gpt",
    "rank": 1,
    "pid": 4242,
    "step": 12,
    "attempt": 3,
    "newest_checkpoint": 10,
    "reported": False,
    "returncode": -9,
}


def facts(folder: Path, **more: Any) -> dict[str, Any]:
    return {**KILLED, "store": folder.as_uri(), **more}


def job(folder: Path, **more: Any) -> StoreJob:
    return job_of(facts(folder, **more), time.time())


def test_a_kill_for_memory_in_the_kernel_s_log_names_the_class() -> None:
    """If it is of this process; another one's is no evidence."""
    found = diagnosed(KILLED, [KernelFinding("oom", "Killed process 4242 (python)", pid=4242)])
    assert (found["class"], found["confidence"]) == ("host-memory", "high")
    assert found["evidence"][-1] == "the kernel's log: Killed process 4242 (python)"
    other = diagnosed(KILLED, [KernelFinding("oom", "Killed process 7 (cc1)", pid=7)])
    assert (other["class"], other["confidence"], other["evidence"]) == ("killed", "low", KILLED["evidence"])


def test_an_xid_makes_a_silent_death_one_of_the_gpu_and_no_other_class() -> None:
    xid = KernelFinding("xid", "Xid 79", xid=79, scope="machine")
    assert diagnosed(KILLED, [xid])["class"] == "gpu"
    assert diagnosed({**KILLED, "confidence": "high"}, [xid])["confidence"] == "medium"
    of_it = KernelFinding("xid", "Xid 31", pid=4242, xid=31, scope="program")
    assert (diagnosed(KILLED, [of_it])["class"], diagnosed(KILLED, [of_it])["confidence"]) == ("gpu", "high")
    for other in (KernelFinding("xid", "Xid 31", pid=7, scope="program"), KernelFinding("xid", "Xid 13")):
        assert diagnosed(KILLED, [other]) == KILLED
    own = diagnosed({**KILLED, "class": "data"}, [xid])
    assert (own["class"], len(own["evidence"])) == ("data", 2)


def test_a_failure_recorded_by_its_rank_or_without_a_store_is_not_recorded() -> None:
    assert not needs_record(KILLED)
    assert needs_record({**KILLED, "store": "file:///s"})
    assert not needs_record({**KILLED, "store": "file:///s", "reported": True})


def test_the_record_of_an_error_that_its_rank_could_not_write_is_the_rank_s() -> None:
    """The next start compares its error with it."""
    of_error = {"error": "ValueError", "message": "bad sample", "fingerprint": "f1", "stays": True}
    record = record_of({**KILLED, "class": "data", **of_error}, 0.0)
    assert {name: record[name] for name in of_error} == of_error
    assert (record_of(KILLED, 0.0)["message"], record_of(KILLED, 0.0)["stays"]) == (KILLED["text"], False)


def written(writer: StoreProcesses) -> None:
    eventually(lambda: not writer.busy(), "the record is written")


def test_the_record_is_in_the_run_s_folder_in_the_form_of_a_rank_s(folder: Path) -> None:
    writer = StoreProcesses(SystemClock())
    writer.start(job(folder))
    written(writer)
    (path,) = (folder / "gpt" / "failures").iterdir()
    assert path.name == "0003-00001.json"
    record = json.loads(path.read_text())
    assert record.pop("ended") > 1.7e9
    assert record == {
        "kind": "killed",
        "evidence": ["its process vanished"],
        "confidence": "low",
        "error": "",
        "message": KILLED["text"],
        "phase": "",
        "where": "",
        "stack": [],
        "fingerprint": "",
        "stays": False,
        "says": "a process was killed",
        "advice": "see dmesg, and the log of the scheduler",
        "step": 12,
        "newest_checkpoint": 10,
        "returncode": -9,
        "rank": 1,
        "by": "agent",
    }


def test_a_record_that_the_rank_wrote_stays(folder: Path) -> None:
    own = folder / "gpt" / "failures" / "0003-00001.json"
    own.parent.mkdir(parents=True)
    own.write_text("its own")
    writer = StoreProcesses(SystemClock())
    writer.start(job(folder))
    written(writer)
    assert own.read_text() == "its own"


@pytest.mark.parametrize("kind", ["loader-worker", "host-memory"])
def test_a_record_of_a_dead_worker_gets_the_kernel_s_kill_as_its_cause(folder: Path, kind: str) -> None:
    """The rank cannot know it, and the next start counts the classes of records."""
    own = folder / "gpt" / "failures" / "0003-00001.json"
    own.parent.mkdir(parents=True)
    written_by_rank = {
        "kind": kind,
        "evidence": ["text"],
        "stack": ["train.py:4 in main"],
        "confidence": "medium",
    }
    own.write_text(json.dumps(written_by_rank))
    of_kernel = ["the kernel's counter of kills for memory rose"]
    writer = StoreProcesses(SystemClock())
    for _ in range(2):
        writer.start(job(folder, **{"class": "host-memory"}, evidence=of_kernel, confidence="high"))
        written(writer)
    record = json.loads(own.read_text())
    assert (record["kind"], record["stack"]) == ("host-memory", ["train.py:4 in main"])
    if kind == "host-memory":
        assert record == written_by_rank
    else:
        assert (record["confidence"], record["evidence"]) == ("high", ["text", *of_kernel])
        assert record["advice"].startswith("use fewer loader workers")


def test_an_attempt_that_was_not_told_is_the_newest_of_the_store(folder: Path) -> None:
    attempts = folder / "gpt" / "attempts"
    attempts.mkdir(parents=True)
    for number in (1, 2):
        (attempts / f"{number:04d}.json").write_text("{}")
    writer = StoreProcesses(SystemClock())
    writer.start(job(folder, attempt=None, **{"class": "host-memory"}))
    written(writer)
    record = json.loads((folder / "gpt" / "failures" / "0002-00001.json").read_text())
    assert record["advice"].startswith("use fewer loader workers")


def test_a_store_that_refuses_is_one_line(
    folder: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    (folder / "file").write_text("")
    writer = StoreProcesses(SystemClock())
    writer.start(job(folder / "file"))
    written(writer)
    assert caplog.messages == ["the record of a failure was not written to the store [SG113]"]
    assert capfd.readouterr().err.startswith("spotguard: ")
