"""The process that reads stacks from outside: what it logs and keeps, and that nothing waits for it."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from spotguard.agent.actions import ReadStacks
from spotguard.agent.ipc.process_stat import may_run
from spotguard.agent.process.stack_reader import StackReader
from tests.e2e.processes import eventually
from tests.fakes.talk import TIMEOUT

HERE = {os.getpid(): (0, 2)}


@pytest.fixture
def reader() -> Iterator[StackReader]:
    reader = StackReader({**os.environ, "PATH": "/nowhere"})
    yield reader
    reader.close()


def ended(reader: StackReader) -> None:
    assert reader._thread is not None
    reader._thread.join(TIMEOUT)
    assert not reader._thread.is_alive()


def test_what_is_read_is_logged_and_kept(
    reader: StackReader, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "spotguard.agent")
    reader.start(ReadStacks("gpt", tmp_path.as_uri(), 7, HERE))
    ended(reader)
    (record,) = (json.loads(each.read_text()) for each in (tmp_path / "gpt" / "stalls").iterdir())
    assert (record["pid"], record["step"], record["by"]) == (os.getpid(), 7, "agent")
    assert f"rank 0 (pid {os.getpid()}) stands still in native code" in caplog.text


def test_a_store_that_cannot_be_used_is_logged(
    reader: StackReader, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    reader.start(ReadStacks("gpt", (tmp_path / "file").as_uri(), 7, HERE))
    ended(reader)
    assert "the stacks are not kept: " in caplog.text


def test_one_reader_works_at_a_time_and_ends_at_the_close(
    reader: StackReader, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    os.mkfifo(tmp_path / "store")  # a store that never answers
    reader.start(ReadStacks("gpt", (tmp_path / "store").as_uri(), 7, HERE))
    reader.start(ReadStacks("other", tmp_path.as_uri(), 7, HERE))
    assert "the stacks of run other are not read: others are being read" in caplog.text
    reader.close()
    ended(reader)
    assert not (tmp_path / "other").exists()


def test_a_reader_that_takes_too_long_is_killed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    reader = StackReader(dict(os.environ), patience=0.01)
    reader.start(ReadStacks("gpt", tmp_path.as_uri(), 7, HERE))
    ended(reader)
    assert "the stacks are not kept: reading them took more than 0 s" in caplog.text
    assert not (tmp_path / "gpt").exists()


def test_a_py_spy_that_hangs_is_killed_with_its_reader(tmp_path: Path) -> None:
    fake, said = tmp_path / "py-spy", tmp_path / "pid"
    fake.write_text(f"#!/bin/sh\necho $$ > {said}.new\nmv {said}.new {said}\nexec sleep 600\n")
    fake.chmod(0o755)
    reader = StackReader({**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"})
    reader.start(ReadStacks("gpt", tmp_path.as_uri(), 7, HERE))
    eventually(said.exists, "py-spy is not started")
    reader.close()
    ended(reader)
    eventually(lambda: not may_run(int(said.read_text())), "py-spy is left")
    assert not (tmp_path / "gpt").exists()
