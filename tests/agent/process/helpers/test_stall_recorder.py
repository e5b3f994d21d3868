"""The process that reads stacks from outside: what it logs and keeps, and that nothing waits for it."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from spotguard.agent.actions import ReadStacks, RecordFailure
from spotguard.agent.ipc.process_stat import may_run
from spotguard.agent.process.helpers.stall_recorder import StallRecorder
from tests.e2e.processes import eventually
from tests.fakes.talk import TIMEOUT

HERE = {os.getpid(): (0, 2)}


@pytest.fixture
def recorder() -> Iterator[StallRecorder]:
    recorder = StallRecorder({**os.environ, "PATH": "/nowhere"})
    yield recorder
    recorder.close()


def ended(recorder: StallRecorder) -> None:
    for process in recorder._running.values():
        process._thread.join(TIMEOUT)
        assert not process.works


def test_stacks_that_are_read_are_logged_and_kept(
    recorder: StallRecorder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "spotguard.agent")
    recorder.read(ReadStacks("gpt", tmp_path.as_uri(), 7, HERE))
    ended(recorder)
    (record,) = (json.loads(each.read_text()) for each in (tmp_path / "gpt" / "stalls").iterdir())
    assert (record["pid"], record["step"], record["by"]) == (os.getpid(), 7, "agent")
    assert f"rank 0 (pid {os.getpid()}) stands still in native code" in caplog.text


def test_a_store_that_cannot_be_used_is_logged(
    recorder: StallRecorder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    recorder.read(ReadStacks("gpt", (tmp_path / "file").as_uri(), 7, HERE))
    ended(recorder)
    assert "the stacks are not kept: " in caplog.text


def test_one_reader_works_at_a_time_and_ends_at_the_close(
    recorder: StallRecorder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    os.mkfifo(tmp_path / "store")  # a store that never answers
    recorder.read(ReadStacks("gpt", (tmp_path / "store").as_uri(), 7, HERE))
    recorder.read(ReadStacks("other", tmp_path.as_uri(), 7, HERE))
    assert "the stacks of run other are not read: others are being read" in caplog.text
    recorder.close()
    ended(recorder)
    assert not (tmp_path / "other").exists()
    assert "it took more than" not in caplog.text


def test_a_reader_that_takes_too_long_is_killed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    recorder = StallRecorder(dict(os.environ), patience=0.01)
    recorder.read(ReadStacks("gpt", tmp_path.as_uri(), 7, HERE))
    ended(recorder)
    assert "the stacks are not kept: it took more than 0 s" in caplog.text
    assert not (tmp_path / "gpt").exists()


KILLED = {
    "class": "stall",
    "text": "rank 1 (pid 4242) was killed, so that its launcher starts the ranks again",
    "run_id": "gpt",
    "rank": 1,
    "attempt": 2,
    "step": 7,
    "newest_checkpoint": 7,
    "where": "train.py:13 in main",
}


def test_a_rank_that_was_killed_is_recorded_in_its_run_s_store(
    recorder: StallRecorder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is not logged: the agent has logged the kill. A run without a store has no record."""
    recorder.record(RecordFailure({**KILLED, "store": ""}))
    recorder.record(RecordFailure({**KILLED, "store": tmp_path.as_uri()}))
    ended(recorder)
    (path,) = tmp_path.rglob("*.json")
    assert path == tmp_path / "gpt" / "failures" / "0002-00001.json"
    record = json.loads(path.read_text())
    assert (record["kind"], record["says"], record["message"]) == (
        "stall",
        "training stood still",
        KILLED["text"],
    )
    assert (record["step"], record["newest_checkpoint"], record["by"]) == (7, 7, "agent")
    assert record["ended"] > 1.7e9
    assert caplog.messages == []


def test_a_second_failure_while_one_is_being_recorded_is_logged(
    recorder: StallRecorder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    os.mkfifo(tmp_path / "store")  # a store that never answers
    recorder.record(RecordFailure({**KILLED, "store": (tmp_path / "store").as_uri()}))
    recorder.record(RecordFailure({**KILLED, "store": tmp_path.as_uri(), "run_id": "other"}))
    assert caplog.messages == ["a failure of run other is not recorded: another one is being recorded"]
    recorder.close()
    ended(recorder)
    assert not (tmp_path / "other").exists()


def test_a_py_spy_that_hangs_is_killed_with_its_reader(tmp_path: Path) -> None:
    fake, said = tmp_path / "py-spy", tmp_path / "pid"
    fake.write_text(f"#!/bin/sh\necho $$ > {said}.new\nmv {said}.new {said}\nexec sleep 600\n")
    fake.chmod(0o755)
    recorder = StallRecorder({**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"})
    recorder.read(ReadStacks("gpt", tmp_path.as_uri(), 7, HERE))
    eventually(said.exists, "py-spy is not started")
    recorder.close()
    ended(recorder)
    eventually(lambda: not may_run(int(said.read_text())), "py-spy is left")
    assert not (tmp_path / "gpt").exists()
