"""Bit for bit means bits."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from spotguard.demo.compare import Losses, loss_differences, state_differences

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


def losses(**by_step: float) -> Losses:
    return Losses(Path("unread"), by_step={int(name[1:]): loss for name, loss in by_step.items()})


def test_the_same_nest_of_values_has_no_differences() -> None:
    """Tensors of any shape, and plain values, compare equal to copies of themselves."""

    def state() -> dict[str, Any]:
        return {
            "model": {"w": torch.ones(2, 3), "nan": torch.tensor(math.nan), "none": torch.empty(0)},
            "optimizer": {
                "state": {0: {"step": torch.tensor(3.0)}},
                "param_groups": [{"lr": 0.1, "betas": (0.9, 1)}],
            },
        }

    assert list(state_differences(state(), state())) == []


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [
        (torch.tensor([0.0, 1.0]), torch.tensor([-0.0, 1.0]), "x: 1 of 8 bytes differ"),
        (
            torch.tensor([1.0]),
            torch.tensor([1.0], dtype=torch.float64),
            "x: torch.float64 (1,), not torch.float32 (1,)",
        ),
        (torch.zeros(2, 1), torch.zeros(1, 2), "x: torch.float32 (1, 2), not torch.float32 (2, 1)"),
        (0.0, -0.0, "x: -0.0, not 0.0"),
        (1, 1.0, "x: float, not int"),
        (1, True, "x: bool, not int"),
        ([1, 2], [1], "x[1]: only in the uninterrupted run"),
    ],
)
def test_a_difference_is_named(a: Any, b: Any, said: str) -> None:
    """A sign of zero, a type, a shape, a value too few: each is said with its name."""
    assert list(state_differences({"x": a}, {"x": b})) == [said]


def test_a_step_is_compared_on_every_machine_that_took_it() -> None:
    """What machine 1 did after its last commit is done again by machine 2, and both must be right."""
    reference = losses(s1=4.0, s2=3.0, s3=2.0)
    assert list(loss_differences(reference, [losses(s1=4.0, s2=3.0), losses(s2=3.0, s3=2.0)])) == []
    assert list(loss_differences(reference, [losses(s1=4.0, s2=3.5), losses(s2=3.0, s3=2.0)])) == [
        "loss of step 2: 3.5, not 3.0"
    ]


def test_a_step_that_nobody_took_is_a_difference() -> None:
    """A gap between the two machines is found, though every loss that is there is right."""
    found = loss_differences(losses(s1=4.0, s2=3.0, s3=2.0), [losses(s1=4.0), losses(s3=2.0)])
    assert list(found) == ["loss of step 2: there is none"]
