"""A gradient scaler on a device: boundaries read nothing from it, and its saved state is that of its `state_dict`."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from spotguard.hooks.state.parts.registry import build
from spotguard.hooks.state.parts.stateful import ScalerPart
from spotguard.hooks.state.sharding.dtensor import RankOf

pytestmark = pytest.mark.torch


class OnDevice(torch.Tensor):
    """A tensor on the host that says it is on a device, and counts its readings."""

    read = 0

    @property
    def is_cpu(self) -> bool:  # type: ignore[override]
        return False

    def item(self) -> Any:
        OnDevice.read += 1
        return super().item()


def used() -> torch.amp.GradScaler:
    """A scaler behind two steps, on a device."""
    scaler = torch.amp.GradScaler("cpu", init_scale=512.0, growth_interval=7)
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(2):
        scaler.scale((weight * 2).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    assert scaler._scale is not None
    assert scaler._growth_tracker is not None
    scaler._scale = scaler._scale.as_subclass(OnDevice)
    scaler._growth_tracker = scaler._growth_tracker.as_subclass(OnDevice)
    return scaler


def test_a_boundary_reads_nothing_from_the_device() -> None:
    scaler = used()
    part = ScalerPart("scaler", scaler)
    OnDevice.read = 0
    part.at_boundary()
    assert OnDevice.read == 0
    expected = scaler.state_dict()
    assert (expected["scale"], expected["_growth_tracker"]) == (512.0, 2)
    assert scaler._scale is not None
    scaler._scale.fill_(256.0)
    tree = part.tree()
    assert tree == expected
    assert [type(each) for each in tree.values()] == [type(each) for each in expected.values()]
    fresh = torch.amp.GradScaler("cpu")
    ScalerPart("scaler", fresh).put_back(tree)
    assert fresh.state_dict() == expected


def test_a_scaler_that_was_not_used_yet_has_its_first_state() -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=512.0)
    part = ScalerPart("scaler", scaler)
    part.at_boundary()
    assert part.tree() == scaler.state_dict()


def test_only_scalers_with_a_state_of_torchs_own_are_read_so() -> None:
    class Other(torch.amp.GradScaler):
        def state_dict(self) -> dict[str, Any]:
            return {**super().state_dict(), "more": 1}

    values = {
        "scaler": torch.amp.GradScaler("cpu"),
        "other": Other("cpu"),
        "off": torch.amp.GradScaler("cpu", enabled=False),
    }
    parts = {part.name: part for part in build(values, RankOf()).parts}
    assert {name: type(parts[name]) is ScalerPart for name in values} == {
        "scaler": True,
        "other": False,
        "off": True,
    }
