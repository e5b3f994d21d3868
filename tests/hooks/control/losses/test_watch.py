"""How a loss comes from the script to the detector: never late by a wait, never changed, and never holding a graph."""

from __future__ import annotations

import gc
import logging
import math
import weakref
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
import torch

from spotguard.hooks.control.losses import watch
from spotguard.hooks.control.losses.detector import QUIET
from spotguard.hooks.control.losses.watch import LossWatch
from spotguard.providers.errors import UsageError

pytestmark = pytest.mark.torch


class Device:
    """An accelerator whose kernels run when the test says so. A query is an answer at once; a wait is an error."""

    def __init__(self) -> None:
        self.reached = 0
        self.events: list[Event] = []

    def record(self, device: torch.device, held: object) -> Event:
        event = held if isinstance(held, Event) else Event(self)
        event.number = max((each.number for each in self.events), default=0) + 1
        if event not in self.events:
            self.events.append(event)
        return event


class Event:
    def __init__(self, device: Device) -> None:
        self.device = device
        self.number = 0

    def query(self) -> bool:
        return self.number <= self.device.reached


def of_host() -> LossWatch:
    return LossWatch(0, 1, "spotguard ls")


def of_device(device: Device) -> LossWatch:
    """Tensors of the host play those of the device."""
    return LossWatch(1, 2, "spotguard ls file:///x", record=device.record, at_once=False)


@pytest.mark.parametrize(
    "loss",
    [
        2.5,
        np.float32(2.5),
        np.array([2.5]),
        Decimal("2.5"),
        torch.tensor(2.5),
        torch.tensor([[2.5]], requires_grad=True),
        torch.tensor(2.5, dtype=torch.bfloat16),
    ],
)
def test_a_number_of_any_kind_is_a_loss(loss: Any) -> None:
    losses = of_host()
    losses.take(1, loss)
    assert losses.loss == 2.5
    losses.take(2, 3)
    assert losses.loss == 3.0


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (
            torch.zeros(3),
            r"loss is a tensor of shape \(3,\): pass one number, as in loss=loss.mean\(\) \[SG422\]",
        ),
        (torch.zeros(0), r"of shape \(0,\)"),
        (torch.tensor(1j), r"loss is a tensor of torch.complex64 on cpu: pass one real number"),
        (torch.tensor(True), r"torch.bool"),
        (torch.zeros((), device="meta"), r"on meta"),
        ("nan", r"loss is str 'nan': pass a number, or a tensor of one element \[SG422\]"),
        (True, r"loss is bool 'True'"),
        ({"loss": 1.0}, r"loss is dict "),
        (np.zeros(3), r"loss is ndarray "),
        (1j, r"loss is complex "),
        (10**400, r"loss is int "),
    ],
)
def test_anything_else_is_refused_at_once(loss: Any, message: str) -> None:
    losses = of_host()
    with pytest.raises(UsageError, match=message):
        losses.take(1, loss)
    assert losses.loss is None


def test_a_loss_on_a_device_is_read_once_the_device_has_it(caplog: pytest.LogCaptureFixture) -> None:
    """At a later boundary, or by a save, which has waited for the device anyway. The script's tensor may be gone by then."""
    device = Device()
    losses = of_device(device)
    loss = torch.tensor(math.nan)
    losses.take(1, loss)
    loss.fill_(1.0)
    del loss
    for step in (2, 3):
        losses.take(step, torch.tensor(2.0))
        assert (losses.loss, losses.why(step)) == (None, "")
    assert caplog.records == []
    device.reached = 1
    assert losses.why(3) == "the loss is nan since step 1"
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert caplog.records[0].message.startswith(
        "the loss is nan since step 1 on rank 1: checkpoints are suspect from now on, and do not count for --keep"
    )
    device.reached = 3
    losses.take(4, torch.tensor(2.0))
    assert losses.loss == 2.0


def test_memory_and_events_are_used_again() -> None:
    """By the same device and dtype only. A device that is far behind costs no memory without end."""
    device = Device()
    losses = of_device(device)
    for step in range(1, 1000):
        losses.take(step, torch.tensor(2.0))
        device.reached = 10**6
    assert len(device.events) == 1
    losses.take(1000, torch.tensor(2.0, dtype=torch.float64))
    assert len(device.events) == 2
    behind = Device()
    losses = of_device(behind)
    for step in range(1, 1000):
        losses.take(step, torch.tensor(2.0))
    assert len(behind.events) == watch._WAITING
    behind.reached = 10**6
    losses.take(1000, torch.tensor(3.0))
    losses.take(1001, torch.tensor(3.0))
    assert losses.loss == 3.0


def test_a_loss_of_a_device_without_events_is_left_out(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To read it, training would have to wait for the device."""
    monkeypatch.setattr(watch, "unordered", lambda device: "and torch 9 has no streams and events there")
    losses = of_device(Device())
    for step in (1, 2):
        losses.take(step, torch.tensor(math.nan))
    assert [record.message for record in caplog.records] == [
        "losses on cpu are not read, and torch 9 has no streams and events there: pass a number instead"
    ]
    assert losses.why(2) == ""


@pytest.mark.parametrize("host", [True, False])
def test_training_is_as_without_a_watch(host: bool) -> None:
    """No graph is kept, no value is changed, no random number is drawn."""
    losses = of_host() if host else of_device(Device())
    state = torch.get_rng_state()
    weight = torch.ones(3, requires_grad=True)
    inner = weight * 2
    loss = inner.sum()

    def hook(gradient: torch.Tensor) -> None:
        """The graph holds it."""

    inner.register_hook(hook)
    graph = weakref.ref(hook)
    losses.take(1, loss)
    assert loss.item() == 6.0
    loss.backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [2.0] * 3
    del loss, inner, hook
    gc.collect()
    assert graph() is None
    assert torch.equal(state, torch.get_rng_state())


def test_a_suspicion_is_logged_at_its_begin_and_at_its_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    losses = of_host()
    for step in range(1, 100):
        losses.take(step, math.inf if step in (5, 7) else 1.25)
    assert [record.message.partition(" [")[0] for record in caplog.records] == [
        "the loss is inf since step 5: checkpoints are suspect from now on, and do not count for --keep, until "
        f"{QUIET} losses in a row are normal. Training continues. If losses stay bad, go back to a checkpoint before it: "
        "`spotguard ls` lists them, guard.restore(step=…) loads one",
        f"the loss is normal again, 1.25 at step {7 + QUIET}: checkpoints count for --keep again",
    ]


def test_a_restore_forgets_the_losses_of_the_state_before() -> None:
    """Also those that are on their way from the device."""
    device = Device()
    losses = of_device(device)
    losses.take(1, torch.tensor(math.nan))
    losses.begin(0)
    device.reached = 9
    losses.take(1, torch.tensor(2.0))
    assert (losses.why(1), losses.suspect_steps) == ("", 0)
