"""One event and one stream for each device: what is recorded or copied on one orders nothing on another."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, cast

import pytest
import torch

from spotguard.hooks.checkpoints.effort import Abandoned, Effort
from spotguard.hooks.checkpoints.frames import Frame
from spotguard.hooks.state.device import Fence, SideStreams, host_tensor
from tests.fakes.clock import ManualClock

pytestmark = pytest.mark.torch

HOST, FIRST, SECOND = torch.device("cpu"), torch.device("cuda", 0), torch.device("cuda", 1)
needs_two = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")


class Event:
    """Reached when the test says so."""

    def __init__(self) -> None:
        self.reached = False
        self.records = 0

    def query(self) -> bool:
        return self.reached


class Events:
    """The events of a fence, by device."""

    def __init__(self) -> None:
        self.made: dict[torch.device, Event] = {}

    def record(self, device: torch.device, held: object) -> Event:
        event = held if isinstance(held, Event) else Event()
        event.records += 1
        self.made[device] = event
        return event


def test_a_boundary_is_recorded_on_every_device_that_holds_state() -> None:
    """Not on the host, and with the same event each time."""
    events = Events()
    fence = Fence(events.record)
    fence.cover([HOST, SECOND, FIRST, SECOND])
    fence.record()
    fence.record()
    assert {device: event.records for device, event in events.made.items()} == {FIRST: 2, SECOND: 2}


def test_a_save_waits_for_the_last_device() -> None:
    """The one that has reached its boundary does not stand for the other."""
    events = Events()
    fence = Fence(events.record)
    fence.cover([FIRST])
    fence.cover([SECOND])  # the model was moved: the first device may still be at it
    fence.record()
    events.made[FIRST].reached = True
    clock = ManualClock()
    effort = Effort(clock, clock.monotonic())
    with pytest.raises(Abandoned):
        fence.wait(effort.pause)
    events.made[SECOND].reached = True
    fence.wait(effort.pause)


def test_state_on_the_host_is_waited_for_by_nobody() -> None:
    """Without CUDA nothing happens."""
    fence = Fence()
    fence.follow([torch.zeros(3)])
    fence.record()
    assert fence.devices == ()
    fence.wait(Effort(ManualClock()).pause)


class Stream:
    """Says what was done with it."""

    def __init__(self, device: torch.device, log: list[str]) -> None:
        self._name, self._log = str(device), log

    def synchronize(self) -> None:
        self._log.append(f"sync {self._name}")

    @contextmanager
    def current(self) -> Iterator[None]:
        self._log.append(f"on {self._name}")
        yield


def test_each_device_is_copied_from_on_its_own_stream_and_waited_for() -> None:
    """One stream a device, made once; only those that were used since are waited for."""
    log: list[str] = []

    def under(stream: Any) -> AbstractContextManager[object]:
        return cast(Stream, stream).current()

    streams = SideStreams(lambda device: Stream(device, log), under)
    for device in (FIRST, SECOND, HOST, SECOND):
        with streams.on(device):
            pass
    streams.finish()
    streams.finish()
    with streams.on(SECOND):
        pass
    streams.finish()
    first = ["on cuda:0", "on cuda:1", "on cuda:1", "sync cuda:0", "sync cuda:1"]
    assert log == [*first, "on cuda:1", "sync cuda:1"]


def test_host_memory_is_host_memory_whatever_the_default_device() -> None:
    """A script that says `torch.set_default_device` changes nothing."""
    torch.set_default_device("meta")
    try:
        frame = Frame(64)
        copy = host_tensor(torch.ones(3, device="cpu"))
        assert frame.copy_in(torch.arange(4, dtype=torch.uint8, device="cpu"), 0) != 0
    finally:
        torch.set_default_device(None)
    assert copy.device == HOST
    assert bytes(frame.view(0, 4)) == bytes(range(4))


@needs_two
def test_a_copy_from_another_device_than_the_current_one_is_whole() -> None:
    """Bytes are there when `copy_in` returns."""
    source = torch.arange(2**22, dtype=torch.int32, device=SECOND)
    torch.cuda.synchronize(SECOND)
    frame = Frame(source.nbytes)
    frame.copy_in(source, 0)
    assert bytes(frame.view(0, source.nbytes)) == bytes(source.cpu().numpy())
