"""A source that hangs: nobody waits for it twice, it is named once, and the others are read."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

import pytest

from spotguard.alerts.readings.host import Reading
from spotguard.alerts.readings.source import ReadingSource, read_all
from tests.e2e.processes import eventually

DISK: Reading = ("spotguard_disk_free_ratio", ("store",), 0.5)


def test_a_source_that_hangs_is_named_once_and_read_again_when_it_answers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "spotguard")
    answers, asked = threading.Event(), []

    def hangs() -> Iterator[Reading]:
        asked.append(1)
        answers.wait()
        yield "spotguard_gpu_up", ("0",), 1.0

    sources = [ReadingSource("free disk", lambda: [DISK]), ReadingSource("GPUs", hangs)]
    for _ in range(3):
        assert list(read_all(sources)) == [DISK]
    assert [source.hangs for source in sources] == [False, True]
    assert len(asked) == 1
    assert caplog.messages == ["GPUs cannot be read: it hangs; incidents about it are off [SG113]"]
    answers.set()
    eventually(lambda: len(list(read_all(sources))) == 2, "it is read again")
    assert caplog.messages[1:] == ["GPUs can be read again"]


def test_an_error_of_a_source_is_logged_and_costs_no_other(caplog: pytest.LogCaptureFixture) -> None:
    def fails() -> list[Reading]:
        raise OSError("no")

    assert list(read_all([ReadingSource("memory", fails), ReadingSource("free disk", lambda: [DISK])])) == [
        DISK
    ]
    assert "in reading memory" in caplog.text
