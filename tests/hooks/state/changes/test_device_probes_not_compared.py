"""A change between two boundaries that no hook announced is reported for tensors on a device as for those on the host.

No test here needs a GPU: the tensors lie on the host, and the witness is told that it cannot read them by address. The same
comparison then runs as on a device. When the device gets there, the test says.
"""

from __future__ import annotations

import pytest
import torch

from spotguard.hooks.state.changes.change_detector import ChangeDetector
from spotguard.hooks.state.device.events import Event

pytestmark = pytest.mark.torch


class Point:
    """An event in a device's queue."""

    def __init__(self, queue: Queue, number: int) -> None:
        self._queue, self._number = queue, number

    def query(self) -> bool:
        return self._number <= self._queue.reached


class Queue:
    """The events of a device, reached as far as the test says."""

    def __init__(self, reached: int) -> None:
        self.reached = reached
        self.recorded = 0

    def record(self, device: torch.device, held: object) -> Event:
        self.recorded += 1
        return Point(self, self.recorded)


ALWAYS = 2**30


def detector(
    tensors: list[torch.Tensor], queue: Queue, others: list[torch.Tensor] | None = None
) -> ChangeDetector:
    """One whose tensors are all on a device."""
    return ChangeDetector(tensors, others or [], [], readable=lambda tensor: False, record=queue.record)


def parameters() -> list[torch.Tensor]:
    """Of several dtypes, one that is NaN all over, and one view into the middle of another's memory."""
    made = [torch.zeros(8), torch.zeros(3, 4, dtype=torch.bfloat16), torch.full((5,), float("nan"))]
    return [*made, torch.zeros(4, 6)[:, 2:4], torch.zeros(2, dtype=torch.complex128), torch.zeros(())]


def replay(tensors: list[torch.Tensor]) -> None:
    """What a captured graph's optimizer does: no hook, no `_version`."""
    for tensor in tensors:
        tensor.data.add_(1)


@pytest.mark.parametrize("which", range(len(parameters())))
def test_a_change_of_one_tensor_is_seen_by_mark_and_by_broken(which: int) -> None:
    """Of any dtype, in any layout; NaN that became NaN of other bits too."""
    tensors = parameters()
    device = detector(tensors, Queue(ALWAYS))
    assert not device.mark()
    assert not device.mark(), "nothing moved"
    assert device.inconsistency() == ""
    middle = tuple(size // 2 for size in tensors[which].shape)
    tensors[which].data[middle].view(-1).view(torch.uint8)[0] ^= 1
    assert device.inconsistency() == "a parameter on the device was changed after guard.step()"
    assert device.mark()
    assert not device.mark(), "said once"
    assert device.inconsistency() == ""


def test_nobody_waits_for_the_device_and_nothing_is_forgotten() -> None:
    """The verdict comes at a later boundary, also one before which an optimizer stepped."""
    tensors, queue = parameters(), Queue(0)
    device = detector(tensors, queue)
    device.mark()
    replay(tensors)
    assert not device.mark(), "the device has not reached it"
    assert not device.mark(), "and another comparison is under way"
    replay(tensors)
    assert not device.mark(stepped=True)
    queue.reached = ALWAYS
    assert device.mark(stepped=True)
    assert not device.mark(stepped=True), "said once"


def test_tensors_of_an_optimizers_step_are_not_compared() -> None:
    """Usual training launches no comparison and records no event for it."""
    tensors, queue = parameters(), Queue(ALWAYS)
    device = detector(tensors, queue)
    for _ in range(3):
        replay(tensors)
        assert not device.mark(stepped=True)
    assert queue.recorded == 0


def test_tensors_of_no_optimizer_may_change_at_a_boundary() -> None:
    """An EMA, frozen weights: between two boundaries they stand still, at one they may move."""
    owned, ema = [torch.zeros(8)], [torch.zeros(8), torch.zeros(8)]
    device = detector(owned, Queue(ALWAYS), ema)
    device.mark()
    replay(ema)
    assert device.inconsistency() != ""
    assert not device.mark()
    replay(owned)
    assert device.mark()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_change_on_a_gpu_is_reported() -> None:
    """With CUDA's own events, and beside a tensor on the host."""
    tensors = [torch.zeros(8, device="cuda"), torch.zeros(8)]
    both = ChangeDetector(tensors, [], [])
    both.mark()
    replay(tensors[:1])
    assert both.inconsistency() != ""
    said = both.mark()
    torch.cuda.synchronize()
    assert said or both.mark()
