"""The script's own numbers: which names and values are taken, and when a device's are read."""

from __future__ import annotations

import math
import threading
from typing import Any

import pytest
import torch

from spotguard.hooks.control.losses.metrics import ScriptMetrics
from spotguard.hooks.ipc.protocol import MOST_METRICS
from spotguard.providers.errors import UsageError
from tests.fakes.device import Device

pytestmark = pytest.mark.torch


def test_the_newest_number_of_each_name_counts() -> None:
    metrics = ScriptMetrics()
    assert metrics.texts == {}
    metrics.take("validation_loss", torch.tensor([2.5], requires_grad=True), 1)
    metrics.take("accuracy", 1, 1)
    metrics.take("validation_loss", math.nan, 2)
    assert metrics.texts == {"validation_loss": "nan", "accuracy": "1.0"}
    metrics.begin()
    assert metrics.texts == {}


@pytest.mark.parametrize(
    "name", ["", "Loss", "1st", "val-loss", "val_loss\n", "_loss", "verlust_ü", "a" * 65, None, ["loss"]]
)
def test_another_name_is_refused(name: Any) -> None:
    metrics = ScriptMetrics()
    with pytest.raises(
        UsageError, match="expected a small letter, then at most 63 small letters, digits and _"
    ):
        metrics.take(name, 1.0, 1)
    assert metrics.texts == {}
    metrics.take("a" * 64, 1.0, 1)


def test_one_name_too_many_is_refused_and_the_known_ones_are_taken() -> None:
    metrics = ScriptMetrics()
    for number in range(MOST_METRICS):
        metrics.take(f"m{number}", 0.0, 1)
    with pytest.raises(
        UsageError, match=r"got 'one_more', and has 16 names already, .*: m0, m1, .*, m15; leave one"
    ):
        metrics.take("one_more", 0.0, 1)
    metrics.take("m3", 7.0, 2)
    assert (len(metrics.texts), metrics.texts["m3"]) == (16, "7.0")


def test_a_value_that_is_no_number_is_refused_by_its_name_and_takes_no_place() -> None:
    metrics = ScriptMetrics()
    for _ in range(2 * MOST_METRICS):
        with pytest.raises(UsageError, match=r"accuracy is str 'high': pass a number"):
            metrics.take("accuracy", "high", 1)
    with pytest.raises(
        UsageError, match=r"per_class is a tensor of shape \(3,\): .* as in per_class.mean\(\)"
    ):
        metrics.take("per_class", torch.zeros(3), 1)
    for number in range(MOST_METRICS):
        metrics.take(f"m{number}", 0.0, 1)
    assert [*metrics.texts] == [f"m{number}" for number in range(MOST_METRICS)]


def test_a_number_on_a_device_is_read_at_a_later_boundary() -> None:
    """Nothing waits for it, and a restore drops it."""
    device = Device()
    metrics = ScriptMetrics(record=device.record, at_once=False)
    metrics.take("validation_loss", torch.tensor(2.5), 1)
    metrics.read()
    assert metrics.texts == {}
    device.reached = 1
    assert metrics.texts == {}
    metrics.read()
    assert metrics.texts == {"validation_loss": "2.5"}
    metrics.take("validation_loss", torch.tensor(1.5), 2)
    metrics.begin()
    device.reached = 2
    metrics.read()
    assert metrics.texts == {}


def test_a_thread_that_evaluates_may_give_a_first_number_while_a_boundary_reads() -> None:
    """Else the boundary would fail, and training with it."""
    device = Device()
    metrics = ScriptMetrics(record=device.record, at_once=False)
    for name in ("validation_loss", "accuracy"):
        metrics.take(name, torch.tensor(2.5), 1)
    query = device.events[0].query

    def asked() -> bool:
        giver = threading.Thread(target=metrics.take, args=("perplexity", 9.0, 1))
        giver.start()
        giver.join()
        return query()

    device.events[0].query = asked  # type: ignore[method-assign]
    device.reached = 2
    metrics.read()
    assert metrics.texts == {"perplexity": "9.0", "validation_loss": "2.5", "accuracy": "2.5"}
