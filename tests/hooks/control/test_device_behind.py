"""A device hangs within a step, and the host has passed it: the step that the device still holds is saved, with what the host had then."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from spotguard.hooks.control import quiesce
from spotguard.hooks.guard import Guard
from spotguard.hooks.ipc import protocol
from spotguard.hooks.state import device_boundary
from spotguard.hooks.state.changes.audit import Audit
from spotguard.hooks.state.changes.change_detector import ChangeDetector
from spotguard.hooks.state.device.events import Event, Fence
from spotguard.hooks.state.device.streams import ThreadStreams
from tests.fakes.noticed import Heard, trained
from tests.fakes.training import Job, Make, different, restored, small, step_on, trajectory
from tests.fakes.watched_store import PATIENCE, WatchedStore, is_object

pytestmark = pytest.mark.torch

#: Steps that the device has done when it hangs.
DONE = 5
STALL = protocol.Preempt("n1", 60.0, 3.0, protocol.STALL, "spotguard", True)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A save gives up at once what does not come."""
    monkeypatch.setattr(quiesce, "_PATIENCE", 0.1)


class RecordedEvent:
    """An event, and its place among all that were recorded."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self.number = 0

    def query(self) -> bool:
        return self.number < self._device.ran


class Device:
    """A device as the host sees it: by the events that it has reached.

    The job's tensors are in host memory, and change when the host trains. So each of them must come from the copies.
    """

    def __init__(self) -> None:
        self.recorded = 0
        self.ran = math.inf

    def record(self, device: torch.device, held: Event | None) -> RecordedEvent:
        event = held if isinstance(held, RecordedEvent) else RecordedEvent(self)
        event.number = self.recorded
        self.recorded += 1
        return event

    def hang(self) -> None:
        self.ran = self.recorded

    def go_on(self) -> None:
        self.ran = math.inf


class WithoutStreams:
    """In the place of torch's module for the device, which this machine does not have."""

    def set_stream(self, stream: None) -> None: ...


@contextmanager
def hung(store: WatchedStore, make: Make = small) -> Iterator[tuple[Guard, Job, Heard, Device]]:
    """A training of `DONE` steps. The device runs nothing of the next one."""
    device = Device()
    with trained(store, steps=0, make=make) as (guard, job, heard):
        fence = Fence(device.record, lambda device: "the stream of training")
        fence.cover([torch.device("cuda", 0)])
        guard._state.fence = fence
        guard._saver._streams = ThreadStreams(lambda device: None, lambda device: WithoutStreams())
        step_on(guard, job, *range(DONE))
        idle = threading.Event()  # it has planned: a plan waits for the device, and training for the plan
        guard._saver.in_turn(idle.set)
        assert idle.wait(PATIENCE)
        device.hang()
        yield guard, job, heard, device
        device.go_on()


def launch(guard: Guard, job: Job, where: str) -> None:
    """Have the host launch further work, up to here."""
    if where != "in the step":
        step_on(guard, job, DONE)
    if where == "in the step":
        job.step(DONE)
    elif where == "in the step after it":
        job.step(DONE + 1)
    elif where == "two steps on":
        step_on(guard, job, DONE + 1)


WHERE = ("in the step", "at its boundary", "in the step after it")


@pytest.mark.parametrize("where", WHERE)
def test_the_step_that_the_device_holds_is_committed(where: str) -> None:
    """The generators, the scheduler, the statistics, the notes and Adam's counts are those of that step."""
    store = WatchedStore()
    with hung(store) as (guard, job, heard, _):
        launch(guard, job, where)
        guard._agent.hear(STALL)
        assert heard.wait(protocol.Committed).step == DONE
    step, found = restored(store, small)
    assert step == DONE
    assert different(found, trajectory(small, DONE)[DONE]) == []


@pytest.mark.parametrize("where", WHERE)
def test_training_goes_on_from_where_the_host_stands(where: str) -> None:
    with hung(WatchedStore()) as (guard, job, heard, device):
        launch(guard, job, where)
        guard._agent.hear(STALL)
        heard.wait(protocol.Committed)
        device.go_on()
        guard._agent.hear(protocol.Withdrawn("n1"))
        left = [number for number in range(DONE, DONE + 3) if number >= guard._gate.place.completed]
        if guard._gate.place.dirty:
            guard.step()
            left = left[1:]
        step_on(guard, job, *left)
        assert different(job.bits(), trajectory(small, DONE + 3)[DONE + 3]) == []
        assert guard._state.boundary_only == ""


@pytest.mark.usefixtures("impatient")
def test_a_device_that_is_two_boundaries_behind_leaves_nothing_to_save() -> None:
    store = WatchedStore()
    with hung(store) as (guard, job, heard, _):
        launch(guard, job, "two steps on")
        guard._agent.hear(STALL)
        assert "a device stands in a step before the last guard.step" in heard.wait(protocol.Failed).reason
    assert store.kinds() == {"objects": 0, "manifests": 0, "markers": 0}


def test_a_device_that_goes_on_during_the_save_leaves_no_checkpoint_of_two_steps() -> None:
    """It may have written the next step over what was read. The save begins again, at the host's step."""
    store = WatchedStore()
    with hung(store) as (guard, job, heard, device):
        launch(guard, job, "at its boundary")
        store.hold(is_object)
        guard._agent.hear(STALL)
        assert store.reached.wait(PATIENCE)
        device.go_on()
        store.let_go()
        assert heard.wait(protocol.Committed).step == DONE + 1
    assert store.kinds()["manifests"] == 1
    step, found = restored(store, small)
    assert step == DONE + 1
    assert different(found, trajectory(small, DONE + 1)[DONE + 1]) == []


class CountingSGD(torch.optim.SGD):
    """Keeps a plain number beside its tensors, as some optimizers do."""

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        super().step(closure)
        for state in self.state.values():
            state["step"] = state.get("step", 0) + 1


def counting() -> Job:
    return small(lambda params: CountingSGD(params, lr=0.01, momentum=0.9))


def test_an_optimizer_with_numbers_of_its_own_waits_for_the_device() -> None:
    """The host has changed them, and no boundary copies them."""
    store = WatchedStore()
    with hung(store, counting) as (guard, job, heard, device):
        launch(guard, job, "at its boundary")
        guard._agent.hear(STALL)
        heard.wait(protocol.Progress)
        device.go_on()
        assert heard.wait(protocol.Committed).step == DONE + 1


@pytest.mark.usefixtures("impatient")
def test_a_weight_that_forward_has_changed_is_not_taken_for_that_of_the_boundary(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An embedding with `max_norm` scales rows in forward. The device has run that, and hangs in backward."""
    monkeypatch.setattr(device_boundary, "on_host", lambda tensor: False)  # what is in place, the device has
    monkeypatch.setattr(Audit, "look", lambda self, **how: "")  # a device computes it later
    store = WatchedStore()
    with hung(store) as (guard, job, heard, _):
        weight = job.values["model"][0].weight
        with torch.no_grad():
            weight[0] *= 0.5
        job.step(DONE)
        guard._agent.hear(STALL)
        assert "in the middle of a step" in heard.wait(protocol.Failed).reason
    assert store.kinds() == {"objects": 0, "manifests": 0, "markers": 0}


@pytest.mark.usefixtures("impatient")
def test_bytes_that_differ_from_the_boundary_are_not_saved_again_and_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A second stream writes, and the event says nothing of it. One try is enough."""
    store = WatchedStore()
    with hung(store) as (guard, job, heard, _):
        launch(guard, job, "at its boundary")
        answers = iter(["", ""])
        on_host = ChangeDetector.inconsistency
        monkeypatch.setattr(
            ChangeDetector,
            "inconsistency",
            lambda self, seen=None: on_host(self) if seen is None else next(answers, "other bytes"),
        )
        guard._agent.hear(STALL)
        assert "a device stands in a step before" in heard.wait(protocol.Failed).reason
    assert store.kinds()["manifests"] == 0


def test_a_notice_of_the_machine_waits_for_the_device() -> None:
    """A device that is behind by a moment is no hang, and the newest step is the host's."""
    store = WatchedStore()
    with hung(store) as (guard, job, heard, device):
        launch(guard, job, "at its boundary")
        guard._agent.hear(protocol.Preempt("n1", 60.0, 3.0, "terminate", "test"))
        heard.wait(protocol.Progress)
        device.go_on()
        assert heard.wait(protocol.Committed).step == DONE + 1
