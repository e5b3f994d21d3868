"""How a loss comes from the script to the detector: never late by a wait, never changed, and never holding a graph."""

from __future__ import annotations

import gc
import logging
import math
import threading
import weakref
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode

from spotguard.hooks.control.losses import readback
from spotguard.hooks.control.losses.detector import LEAST, QUIET
from spotguard.hooks.control.losses.watch import LossWatch
from spotguard.providers.errors import UsageError
from tests.fakes.device import Device

pytestmark = pytest.mark.torch


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
            r"loss is a tensor of shape \(3,\): pass one number, as in loss.mean\(\) \[SG422\]",
        ),
        (torch.zeros(0), r"of shape \(0,\)"),
        (torch.tensor(1j), r"loss is a tensor of torch.complex64 on cpu: pass one real number"),
        (torch.tensor(True), r"torch.bool"),
        (torch.zeros((), device="meta"), r"on meta"),
        ("nan", r"loss is str 'nan': pass a number, or a tensor of one element \[SG422\]"),
        (True, r"loss is bool True"),
        ({"loss": 1.0}, r"loss is dict: pass"),
        (np.zeros(3), r"loss is ndarray: pass"),
        (1j, r"loss is complex 1j: pass"),
        (10**400, r"loss is int that is too large for a float: pass"),
        pytest.param(10**5000, r"loss is int that is too large for a float: pass", id="long"),
        pytest.param(
            [0.5] * 10**5, r"^loss is list: pass a number, or a tensor of one element \[SG422\]$", id="list"
        ),
        ("high" * 100, r"^loss is str .{40}: pass"),
        (torch.ones(1).to_sparse(), r"and layout torch.sparse_coo on cpu: pass"),
    ],
)
def test_anything_else_is_refused_at_once(loss: Any, message: str) -> None:
    losses = of_host()
    with pytest.raises(UsageError, match=message):
        losses.take(1, loss)
    assert losses.loss is None


def test_a_loss_on_a_device_is_read_once_the_device_has_it(caplog: pytest.LogCaptureFixture) -> None:
    """At a later boundary, or by a save, which has waited for the device anyway; by no other thread. The script's tensor may be gone
    by then.
    """
    device = Device()
    losses = of_device(device)
    loss = torch.tensor(math.nan)
    losses.take(1, loss)
    loss.fill_(1.0)
    del loss
    for step in (2, 3):
        losses.take(step, torch.tensor(2.0))
        assert (losses.loss, losses.why(step, read=True)) == (None, "")
    assert caplog.records == []
    device.reached = 1
    assert losses.why(3) == ""
    assert losses.why(3, read=True) == losses.why(3) == "the loss is nan since step 1"
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
    assert len(behind.events) == readback._WAITING
    behind.reached = 10**6
    losses.take(1000, torch.tensor(3.0))
    losses.take(1001, torch.tensor(3.0))
    assert losses.loss == 3.0


def test_memory_of_the_inference_mode_is_used_outside_of_it() -> None:
    device = Device()
    losses = of_device(device)
    with torch.inference_mode():
        losses.take(1, torch.tensor(1.0))
    device.reached = 10**6
    for step, loss in ((2, 2.0), (3, 3.0), (4, 4.0)):
        losses.take(step, torch.tensor(loss))
    assert losses.loss == 3.0
    assert len(device.events) == 1


#: Calls of a tensor that wait for its device.
WAITS = {"item", "tolist", "numpy", "cpu", "equal", "__float__", "__bool__", "__int__", "__array__"}


class RefusesWaits(TorchFunctionMode):
    """A device with these tensors, where every call that waits for it is an error: a copy that blocks, and `item`."""

    def __init__(self, *tensors: torch.Tensor) -> None:
        self.there = {each.data_ptr() for each in tensors}
        self.copies = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunction():
            touched = any(isinstance(each, torch.Tensor) and each.data_ptr() in self.there for each in args)
        name = getattr(func, "__name__", "")
        if touched:
            assert name not in WAITS, name
            if name in ("copy_", "to"):
                assert kwargs.get("non_blocking"), name
                self.copies += 1
        return func(*args, **kwargs)


def test_training_never_waits_for_the_device() -> None:
    loss = torch.tensor([2.5])
    device = Device()
    losses = of_device(device)
    with RefusesWaits(loss) as refuses:
        for step in range(1, 5):
            losses.take(step, loss)
            losses.why(step, read=True)
            device.reached = step
    assert refuses.copies == 4
    assert losses.loss == 2.5
    with RefusesWaits(loss), pytest.raises(AssertionError):
        torch.zeros(1).copy_(loss)
    with RefusesWaits(loss), pytest.raises(AssertionError):
        loss.item()


class Failed:
    """An event of a device that has failed: every call raises."""

    def query(self) -> bool:
        raise RuntimeError("CUDA error: device-side assert triggered")


def test_a_device_that_has_failed_reads_no_loss_and_raises_nothing() -> None:
    """The error is training's own, and its save must be as without losses."""
    losses = LossWatch(0, 1, "ls", record=lambda device, held: Failed(), at_once=False)
    losses.take(1, torch.tensor(math.nan))
    losses.take(2, torch.tensor(math.nan))
    assert (losses.why(2, read=True), losses.loss, losses.high) == ("", None, "")


def test_other_threads_wait_for_nobody() -> None:
    """While a device call or a log line of training lasts, a reader has its answer."""
    losses, answers = of_host(), list[str]()

    def ask() -> None:
        answers.append(losses.why(1, read=True) + losses.high + str(losses.loss) + str(losses.bad_loss_steps))

    def asked() -> None:
        thread = threading.Thread(target=ask)
        thread.start()
        thread.join(100)
        assert not thread.is_alive()

    class Slow:
        def query(self) -> bool:
            asked()
            return True

    def record(device: torch.device, held: object) -> Slow:
        asked()
        return Slow()

    losses = LossWatch(0, 1, "ls", record=record, at_once=False)

    class Asking(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            asked()

    handler = Asking()
    logger = logging.getLogger("spotguard")
    logger.addHandler(handler)
    try:
        losses.take(1, torch.tensor(math.nan))
        losses.take(2, 2.0)
    finally:
        logger.removeHandler(handler)
    assert len(answers) == 3
    assert answers[0] == "None0"
    assert answers[-1] == "the loss is nan since step 1nan1"


def test_a_loss_of_a_device_without_events_is_left_out(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To read it, training would have to wait for the device."""
    monkeypatch.setattr(readback, "unordered", lambda device: "and torch 9 has no streams and events there")
    losses = of_device(Device())
    for step in (1, 2):
        losses.take(step, torch.tensor(math.nan))
    assert [record.message for record in caplog.records] == [
        "loss on cpu is not read, and torch 9 has no streams and events there: pass a number instead"
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
        f"the losses of {QUIET} steps in a row are finite. Training continues. If losses stay bad, go back to a checkpoint before it: "
        "`spotguard ls` lists them, guard.restore(step=…) loads one",
        f"the loss is finite again, 1.25 at step {7 + QUIET}: checkpoints count for --keep again",
    ]


def test_spikes_are_logged_once_with_the_first_of_them(caplog: pytest.LogCaptureFixture) -> None:
    losses = of_host()
    for step in range(1, 400):
        losses.take(step, 1.0 if step < 100 else 9.0 + (step > 100))
    assert [record.message.partition(" [")[0] for record in caplog.records] == [
        "the loss is 9 since step 100, and was 1: far above the usual losses for 10 steps. Training continues, and its checkpoints "
        "count for --keep. If it has diverged, go back to a checkpoint before it: `spotguard ls` lists them, "
        "guard.restore(step=…) loads one",
        f"the loss stays at its new level, 10 at step {109 + LEAST}: from now on this is the usual one",
    ]


def test_a_restore_forgets_the_losses_of_the_state_before() -> None:
    """Also those that are on their way from the device."""
    device = Device()
    losses = of_device(device)
    losses.take(1, torch.tensor(math.nan))
    losses.begin(0)
    device.reached = 9
    losses.take(1, torch.tensor(2.0))
    assert (losses.why(1), losses.bad_loss_steps) == ("", 0)
