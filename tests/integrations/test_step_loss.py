"""The loss of a step from its micro-batches."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch

from spotguard.integrations.binding import StepLoss
from spotguard.providers.errors import UsageError

pytestmark = pytest.mark.torch


def test_micro_batches_are_summed_or_averaged_as_the_framework_left_them() -> None:
    """Numbers or tensors; None is no loss, and no step has another's."""
    for mean, expected in ((True, 2.5), (False, 5.0)):
        losses = StepLoss(mean=mean)
        for _ in range(2):
            assert losses.take() is None
            for each in (2.0, None, torch.tensor(3.0, requires_grad=True)):
                losses.add(each)
            whole = losses.take()
            assert whole.item() == expected
            assert not whole.requires_grad


def test_memory_that_the_script_writes_again_changes_no_loss() -> None:
    losses, loss = StepLoss(mean=False), torch.tensor(2.0)
    losses.add(loss)
    losses.add(loss.fill_(3.0))
    loss.fill_(float("nan"))
    assert losses.take().item() == 5.0


@pytest.mark.parametrize(("dtype", "number", "each"), [("float16", 64, 1200.0), ("bfloat16", 512, 2.5)])
def test_many_micro_batches_of_low_precision_neither_overflow_nor_stand_still(
    dtype: str, number: int, each: float
) -> None:
    for mean in (True, False):
        losses = StepLoss(mean=mean)
        for _ in range(number):
            losses.add(torch.tensor([each], dtype=getattr(torch, dtype)))
        assert losses.take().item() == (each if mean else each * number)


@pytest.mark.parametrize("wrong", [{"loss": 1}, "high", torch.zeros(3), [1.0]])
def test_a_wrong_type_is_refused_at_its_own_micro_batch(wrong: object) -> None:
    losses = StepLoss(mean=True)
    losses.add(1.0)
    with pytest.raises(UsageError, match="SG422"):
        losses.add(wrong)
    assert losses.take() == 1.0


@pytest.mark.parametrize("value", [None, 2.0, "loss", torch.zeros(3), torch.tensor(1j), {"loss": 1}])
def test_a_frameworks_other_values_are_no_losses(value: object) -> None:
    """A script may return what it likes from its step: that is no error of its own."""
    losses = StepLoss(mean=False)
    losses.add_of_framework(value)
    assert losses.take() is None
