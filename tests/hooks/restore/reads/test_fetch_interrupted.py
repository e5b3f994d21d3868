"""After Ctrl-C nobody writes: who hands bytes on is waited for, and who hangs in the store is left behind."""

from __future__ import annotations

import threading
import time

import pytest

from tests.fakes.clock import ManualClock
from tests.fakes.reads import PATIENCE, Reads, ctrl_c_as_usual
from tests.hooks.restore.reads.many_reads import (
    Strict,
    hanging,
    in_background,
    nobody_stays,
    pass_time,
    readers,
    reading,
    stored,
)

__all__ = ["nobody_stays"]


def test_after_ctrl_c_nobody_writes() -> None:
    """It waits for who hands bytes on, leaves behind who hangs in the store, and what comes later goes nowhere."""
    store, clock = Reads(), ManualClock()
    wanted, _ = stored(store)
    store.hold = lambda number, key, start: number >= 20
    taker = Strict()
    handing, may = threading.Event(), threading.Event()

    def during() -> None:
        handing.set()
        assert may.wait(PATIENCE)

    taker.during = during

    def ctrl_c(done: int, total: int) -> None:
        if handing.is_set():
            raise KeyboardInterrupt

    run = reading(store, wanted, taker, progress=ctrl_c, clock=clock)
    with hanging(store):
        thread, errors = in_background(run)
        assert handing.wait(PATIENCE)
        pass_time(clock, lambda: run._over)
        thread.join(0.05)
        assert thread.is_alive(), "somebody still hands bytes on"
        may.set()
        thread.join(PATIENCE)
        assert [type(error) for error in errors] == [KeyboardInterrupt]
        before = dict(taker.bytes)
        assert store.held.wait(PATIENCE)
    for each in readers():
        each.join(PATIENCE)
    assert taker.bytes == before


def test_bytes_verified_after_ctrl_c_are_handed_to_nobody() -> None:
    """It was read once more when it was all over."""
    store, clock = Reads(), ManualClock()
    wanted, _ = stored(store, objects=1)
    wanted = [min(wanted, key=lambda each: each.chunk.end - each.chunk.start)]
    store.spoil = lambda number, key, start: number == 0
    store.hold = lambda number, key, start: number == 1
    taker = Strict()

    def ctrl_c(done: int, total: int) -> None:
        if store.held.is_set():
            raise KeyboardInterrupt

    run = reading(store, wanted, taker, progress=ctrl_c, clock=clock)
    with hanging(store):
        thread, errors = in_background(run)
        pass_time(clock, lambda: not thread.is_alive())
        assert [type(error) for error in errors] == [KeyboardInterrupt]
    for each in readers():
        each.join(PATIENCE)
    assert len(store.reads) == 2
    assert taker.bytes == {}


def test_a_second_ctrl_c_waits_as_well() -> None:
    """Real signals on the main thread: impatience writes into no tensor."""
    store = Reads()
    wanted, _ = stored(store)
    taker = Strict()
    handing, ended, returned = threading.Event(), threading.Event(), threading.Event()
    seen: list[bool] = []

    def during() -> None:
        if handing.is_set():
            return
        handing.set()
        for _ in range(3):
            interrupt()
            end = time.monotonic() + PATIENCE
            while not run._over and time.monotonic() < end:
                threading.Event().wait(0.001)
        seen.append(run._over and not returned.wait(0.1))
        ended.set()

    taker.during = during
    run = reading(store, wanted, taker)

    def to_its_end() -> None:
        try:
            run.run()
        finally:
            returned.set()

    with ctrl_c_as_usual() as interrupt, pytest.raises(KeyboardInterrupt):
        to_its_end()
    assert seen == [True]
    assert ended.is_set()
