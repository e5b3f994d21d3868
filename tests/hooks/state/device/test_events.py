"""One event and one stream for each device: what is recorded or copied on one orders nothing on another."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, cast

import pytest
import torch

from spotguard.hooks.commit.cancel_scope import Abandoned, CancelScope
from spotguard.hooks.state.device.events import Fence, unordered
from spotguard.hooks.state.device.host_buffer import HostBuffer
from spotguard.hooks.state.device.host_memory import host_tensor
from spotguard.hooks.state.device.streams import CopyStreams, ThreadStreams
from spotguard.hooks.state.parts.rng import RngPart, capture, restore
from spotguard.hooks.state.parts.values import DictPart, StatefulPart
from spotguard.hooks.state.state import State
from spotguard.providers.errors import CheckpointError, StateError
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
    """Not on the host, and with two events in turn."""
    events = Events()
    fence = Fence(events.record)
    fence.cover([HOST, SECOND, FIRST, SECOND])
    for _ in range(4):
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
    scope = CancelScope(clock, clock.monotonic())
    with pytest.raises(Abandoned):
        fence.wait(scope.pause)
    events.made[SECOND].reached = True
    fence.wait(scope.pause)


class Streams:
    """The training thread's current stream, on every device."""

    def __init__(self) -> None:
        self.current = "the first"

    def of(self, device: torch.device) -> str:
        return self.current


def recorded() -> tuple[Fence, list[Event], Streams]:
    """A fence over two devices, its events in the order in which they are made, and the streams."""
    made: list[Event] = []

    def record(device: torch.device, held: object) -> Event:
        made.append(Event())
        return made[-1]

    streams = Streams()
    fence = Fence(record, streams.of)
    fence.cover([FIRST, SECOND])
    return fence, made, streams


def test_a_boundary_is_held_until_the_first_device_begins_to_change_it() -> None:
    """And only where all devices have come to it: a mixture of two steps is held by nobody."""
    fence, made, _ = recorded()
    boundary = fence.record()
    assert not boundary.held(), "the host has launched nothing behind it"
    fence.begin(lambda: True)
    ended, begun = made[:2], made[2:]
    ended[0].reached = True
    assert not boundary.held()
    ended[1].reached = True
    assert boundary.held()
    following = fence.record()
    assert (following.held(), boundary.held(), fence.reached()) == (False, True, False)
    begun[1].reached = True
    assert not boundary.held()


def test_a_boundary_is_not_held_behind_an_earlier_change_or_one_on_another_stream() -> None:
    """No event is in front of those."""
    fence, made, streams = recorded()
    boundary = fence.record()
    for event in made:
        event.reached = True
    fence.begin(lambda: False)
    assert not boundary.held()
    fence.begin(lambda: True)
    fence.join()
    assert boundary.held()
    streams.current = "the second"
    fence.join()
    assert not boundary.held()


def test_state_on_the_host_is_waited_for_by_nobody() -> None:
    """Without CUDA nothing happens."""
    fence = Fence()
    fence.follow([torch.zeros(3)])
    fence.record()
    assert fence.devices == ()
    fence.wait(CancelScope(ManualClock()).pause)


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

    streams = CopyStreams(lambda device: Stream(device, log), under)
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
        frame = HostBuffer(64)
        copy = host_tensor(torch.ones(3, device="cpu"))
        assert frame.copy_in(torch.arange(4, dtype=torch.uint8, device="cpu"), 0) != 0
    finally:
        torch.set_default_device(None)
    assert copy.device == HOST
    assert bytes(frame.view(0, 4)) == bytes(range(4))


# --- what is copied at boundaries -----------------------------------------------------------------------------


def elsewhere(device: torch.device) -> torch.Tensor:
    """A tensor on the host that says it is on a device."""

    class Elsewhere(torch.Tensor):
        @property
        def is_cpu(self) -> bool:  # type: ignore[override]
            return False

        @property
        def device(self) -> torch.device:  # type: ignore[override]
            return device

    return torch.zeros(3).as_subclass(Elsewhere)


class Stateful:
    """Has a tensor in its state."""

    def __init__(self, held: torch.Tensor) -> None:
        self.held = held

    def state_dict(self) -> dict[str, object]:
        return {"held": [self.held]}

    def load_state_dict(self, state: dict[str, object]) -> None: ...


def test_a_device_that_only_a_registered_dict_is_on_is_waited_for() -> None:
    """From the boundary on at which something is copied there."""
    notes: dict[str, object] = {"loss": 0.5}
    part, stateful = DictPart("notes", notes), StatefulPart("meter", Stateful(elsewhere(SECOND)))
    events = Events()
    fence = Fence(events.record)
    fence.watch([part.forms.devices, stateful.forms.devices])
    part.at_boundary()
    fence.record()
    assert fence.devices == ()
    notes["best"] = ({"weights": elsewhere(FIRST)},)
    for each in (part, stateful):
        each.at_boundary()
    fence.record()
    assert {device: event.records for device, event in events.made.items()} == {FIRST: 1, SECOND: 1}
    clock = ManualClock()
    with pytest.raises(Abandoned):
        fence.wait(CancelScope(clock, clock.monotonic()).pause)
    for event in events.made.values():
        event.reached = True
    fence.wait(CancelScope(clock, clock.monotonic()).pause)


def test_all_that_is_copied_at_boundaries_is_watched() -> None:
    """Dicts, states, the numbers of an optimizer's groups (a learning rate), the extra state of a module."""

    class Extra(torch.nn.Linear):
        held: object = 1

        def get_extra_state(self) -> object:
            return self.held

        def set_extra_state(self, state: object) -> None: ...

    model, meter, notes = Extra(2, 2), Stateful(torch.ones(1)), {"a": torch.ones(1)}
    optimizer = torch.optim.SGD(model.parameters(), lr=torch.tensor(0.1))
    events = Events()
    values = {"model": model, "optimizer": optimizer, "notes": notes, "meter": meter}
    state = State(values, lambda frame: None, fence=Fence(events.record))
    state.at_boundary()
    assert events.made == {}
    where = [torch.device("cuda", number) for number in range(4)]
    model.held, meter.held, notes["a"], optimizer.param_groups[0]["lr"] = map(elsewhere, where)
    state.at_boundary()
    state.close()
    assert sorted(events.made, key=str) == where


# --- devices of other kinds -----------------------------------------------------------------------------------

XLA = torch.device("xla", 0)


def test_a_device_that_nothing_orders_is_refused_by_name() -> None:
    """Nothing would say when its bytes are there."""
    assert unordered(HOST) == unordered(FIRST) == unordered(torch.device("meta")) == ""
    assert "has no streams and events there" in unordered(XLA)
    with pytest.raises(StateError, match=r"notes holds a tensor on xla:0, and torch .*; move it to the host"):
        DictPart("notes", {"a": elsewhere(XLA)}).at_boundary()
    with pytest.raises(StateError, match=r"meter holds a tensor on xla:0, and torch"):
        StatefulPart("meter", Stateful(elsewhere(XLA))).at_boundary()


def test_a_thread_gets_a_stream_of_its_own_on_each_device_once() -> None:
    """Also on one that holds state only later."""
    given: list[str] = []

    class Backend:
        def set_stream(self, stream: Stream) -> None:
            given.append(stream._name)

    streams = ThreadStreams(lambda device: Stream(device, []), lambda device: Backend())
    streams.take([FIRST])
    streams.take([FIRST, SECOND])
    streams.take([FIRST, SECOND])
    assert given == ["cuda:0", "cuda:1"]


class Xpu:
    """The generators of two devices, as `torch.xpu` gives them."""

    def __init__(self) -> None:
        self.used = True
        self.states = [torch.arange(4, dtype=torch.uint8), torch.arange(4, 8, dtype=torch.uint8)]

    def is_initialized(self) -> bool:
        return self.used

    def device_count(self) -> int:
        return len(self.states)

    def get_rng_state_all(self) -> list[torch.Tensor]:
        return [state.clone() for state in self.states]

    def set_rng_state_all(self, states: list[torch.Tensor]) -> None:
        self.states = list(states)


def test_generators_of_other_accelerators_are_saved_and_put_back() -> None:
    """Dropout there goes on with the very next number; what never was used has none."""
    xpu = Xpu()
    xpu.used = False
    assert "xpu" not in capture(("xpu", xpu))
    xpu.used = True
    part = RngPart("rng", ("xpu", xpu))
    part.at_boundary()
    tree = part.tree()
    before, xpu.states = xpu.states, [torch.zeros(4, dtype=torch.uint8)] * 2
    part.targets(tree)
    part.put_back(tree)
    assert part.said == []
    assert all(map(torch.equal, xpu.states, before))
    assert restore({"xpu": tree["xpu"]}) == ["xpu"]
    with pytest.raises(CheckpointError, match="the state of xpu's generator is not in its form"):
        part.targets({**tree, "xpu": [torch.zeros(4)]})


@needs_two
def test_a_copy_from_another_device_than_the_current_one_is_whole() -> None:
    """Bytes are there when `copy_in` returns."""
    source = torch.arange(2**22, dtype=torch.int32, device=SECOND)
    torch.cuda.synchronize(SECOND)
    frame = HostBuffer(source.nbytes)
    frame.copy_in(source, 0)
    assert bytes(frame.view(0, source.nbytes)) == bytes(source.cpu().numpy())
