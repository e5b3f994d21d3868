"""What a save taught is made ready at once, and not at the notice (law 8)."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from spotguard.hooks.commit.plan.throughput import UploadWidth
from spotguard.hooks.state.device.host_buffer import HostBuffer
from tests.hooks.save.narrow_saves import OBJECT, Saving, saving

pytestmark = pytest.mark.torch
__all__ = ["saving"]


def learning(saving: Any) -> Saving:
    """Its state keeps eight threads busy, so its next save tries twelve."""
    one: Saving = saving(width=4 * 8192)
    one.writer.uploads.width = UploadWidth(12)
    one.writer.uploads.width.object_bytes = OBJECT
    one.checkpointer.rehearse(one.state)
    assert one.writer.uploads.width.count == 8
    one.train()
    return one


def test_after_a_save_that_asks_for_more_the_notice_makes_no_thread_and_no_frame(
    saving: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = learning(saving)
    one.background()
    workers = list(one.writer.uploads.pool.workers)
    buffers = [worker.buffer for worker in workers]
    assert len(workers) == one.writer.uploads.width.count == 12
    monkeypatch.setattr(
        HostBuffer, "__init__", lambda self, size: pytest.fail("a frame is made at the notice")
    )
    one.train()
    saved = one.save(600.0)
    assert saved is not None
    assert (saved.step, saved.level) == (one.done, "full")
    assert one.writer.uploads.pool.workers == workers
    assert [worker.buffer for worker in workers] == buffers


def test_without_memory_for_the_next_save_the_commit_stays(
    saving: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    one = learning(saving)
    make = HostBuffer.__init__

    def none(self: HostBuffer, size: int) -> None:
        if size > 1:  # the clerk's own
            raise MemoryError
        make(self, size)

    monkeypatch.setattr(HostBuffer, "__init__", none)
    with caplog.at_level(logging.WARNING, "spotguard"):
        assert one.background().step == one.done
    assert "the next save uses fewer threads and buffers" in caplog.text
    monkeypatch.undo()
    one.train()
    assert one.background().step == one.done
    assert one.markers() == 1  # of the newest: --keep 1
