"""Tensors that look like any other and have no bytes where they say: never read, always named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from spotguard.hooks.checkpoint.catalog import find_whole
from spotguard.hooks.state.changes.change_detector import ChangeDetector
from spotguard.hooks.state.memory_access import unreadable
from spotguard.providers.errors import StateError
from spotguard.providers.stores.file import FileStore
from tests.fakes.clock import ManualClock
from tests.fakes.training import guarded

pytestmark = pytest.mark.torch


class Hollow(torch.Tensor):
    """A tensor that keeps its bytes in another one, as torchao's 8-bit moments do."""

    codes: torch.Tensor

    @staticmethod
    def __new__(cls, codes: torch.Tensor) -> Hollow:
        made: Hollow = torch.Tensor._make_wrapper_subclass(cls, codes.shape, dtype=torch.float32)
        made.codes = codes
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        if func is torch.ops.aten.detach.default:
            return cls(args[0].codes)
        raise NotImplementedError(str(func))


class Compressing(torch.optim.Optimizer):
    """Its moments are hollow from the first step on."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for param in group["params"]:
                if not self.state[param]:
                    self.state[param]["exp_avg"] = Hollow(torch.zeros_like(param, dtype=torch.uint8))
                param.add_(param.grad, alpha=-0.1)


def stepped(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model(torch.ones(3, 64)).sum().backward()
    optimizer.step()


def freed(*shape: int) -> torch.Tensor:
    tensor = torch.zeros(shape)
    tensor.untyped_storage().resize_(0)
    return tensor


@pytest.mark.parametrize(
    "tensor", [torch.ones(3), torch.ones(0), torch.ones(4, 4).mT[1:], torch.ones(1).expand(9)]
)
def test_plain_tensors_have_their_bytes(tensor: torch.Tensor) -> None:
    """Views, expanded ones and ones of no elements are as good as any."""
    assert unreadable(tensor) == ""
    assert unreadable(nn.Parameter(tensor)) == ""


def test_tensors_without_bytes_are_told_from_others() -> None:
    """A wrapper is named by its class, a freed tensor by its bytes."""
    assert "Hollow" in unreadable(Hollow(torch.ones(3)))
    assert "needs 12 bytes of a storage that holds 0" in unreadable(freed(3))
    short = torch.ones(4)
    short.untyped_storage().resize_(8)
    assert "needs 16 bytes" in unreadable(short)
    assert unreadable(torch.ones(3, device="meta"))


def test_tensors_without_bytes_are_refused_at_register(folder: Path) -> None:
    """By name; and nothing is put on the optimizer of who was refused."""
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with (
        pytest.raises(StateError, match="gathered is a tensor that needs"),
        guarded(folder, {"model": model, "optimizer": optimizer, "gathered": freed(3, 3)}),
    ):
        pass
    assert not optimizer._optimizer_step_pre_hooks


def test_moments_without_bytes_do_not_end_training(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """They appear at the first step: said once, each save refused by name, training goes on, nothing is committed."""
    model = nn.Linear(64, 64)
    optimizer = Compressing(model.parameters())
    with guarded(folder, {"model": model, "optimizer": optimizer}) as guard:
        guard.restore()
        for _ in range(6):
            stepped(model, optimizer)
            guard.step()
        assert "exp_avg" in guard._state.boundary_only
        with pytest.raises(StateError, match=r"optimizer/state/model/weight/exp_avg is a .*Hollow"):
            guard.save()
    assert caplog.text.count("spotguard cannot save while it is") == 1
    assert find_whole(FileStore(folder), "run") is None


def test_a_freed_storage_is_not_read(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Memory that is given back between two boundaries is noticed before it is looked at, and saved once it is back."""
    model = nn.Linear(1024, 1024)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with guarded(folder, {"model": model, "optimizer": optimizer}) as guard:
        guard.restore()
        storage = model.weight.untyped_storage()
        nbytes = storage.nbytes()
        storage.resize_(0)
        assert "resized" in guard._state.inconsistency()
        guard.step()
        with pytest.raises(StateError, match="model/weight is a tensor that needs"):
            guard.save()
        assert "model/weight" in caplog.text
        storage.resize_(nbytes)
        model.weight.data.zero_()
        guard.step()
        assert guard.save().step == 2


class Keeps:
    """An object with a tensor in its state."""

    def __init__(self) -> None:
        self.tensor = torch.ones(500)

    def state_dict(self) -> dict[str, Any]:
        return {"inside": [self.tensor]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.tensor.copy_(state["inside"][0])


def everything() -> dict[str, Any]:
    """A value of each kind, each with a tensor that is copied at boundaries."""
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return {
        "model": model,
        "optimizer": optimizer,
        "mean": torch.ones(500),
        "keeps": Keeps(),
        "notes": {"a": torch.ones(500)},
    }


SMALL: dict[str, tuple[Callable[[dict[str, Any]], torch.Tensor], str]] = {
    "buffer": (
        lambda values: values["model"][1].running_mean,
        "model/1.running_mean is a tensor that needs 16",
    ),
    "tensor": (lambda values: values["mean"], "mean is a tensor that needs 2000 bytes"),
    "state-dict": (lambda values: values["keeps"].tensor, "keeps holds a tensor that needs 2000 bytes"),
    "dict": (lambda values: values["notes"]["a"], "notes holds a tensor that needs 2000 bytes"),
}


@pytest.mark.parametrize("kind", SMALL)
def test_small_tensors_are_checked_before_each_copy(kind: str, folder: Path) -> None:
    """A step later its memory is gone, and reading it would end the process: refused by name instead. What is part of
    the module or stands alone is left out of the copies, and no save holds it until its memory is back."""
    values = everything()
    pick, said = SMALL[kind]
    with guarded(folder, values) as guard:
        guard.restore()
        for _ in range(5):
            guard.step()
        storage = pick(values).untyped_storage()
        nbytes = storage.nbytes()
        storage.resize_(0)

        def step_and_save() -> None:
            guard.step()
            guard.save()

        with pytest.raises(StateError, match=said):
            step_and_save()
        assert find_whole(FileStore(folder), "run") is None
        storage.resize_(nbytes)
        pick(values).fill_(7)
        guard.step()
        for _ in range(2):
            pick(values).add_(1)
            guard.step()
        saved = guard.save()
    fresh = everything()
    with guarded(folder, fresh) as guard:
        assert guard.restore() == saved.step
    assert set(pick(fresh).tolist()) == {9.0}


def test_a_lost_buffer_is_named_at_a_boundary(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Within a second, not at the notice; once, and training goes on."""
    values, clock = everything(), ManualClock()
    with guarded(FileStore(folder), values, clock=clock) as guard:
        guard.restore()
        values["model"][1].running_mean.untyped_storage().resize_(0)
        for _ in range(6):
            clock.advance(1)
            guard.step()
    lost = "model/1.running_mean is a tensor that needs 16 bytes of a storage that holds 0"
    assert caplog.text.count(f"from now on a save waits for the next guard.step(): {lost}") == 1
    assert caplog.text.count(f"{lost}: spotguard cannot save while it is") == 1


def test_a_buffer_without_bytes_of_its_own_is_not_copied(folder: Path) -> None:
    """A wrapper that takes a plain buffer's place."""
    values = everything()
    with guarded(folder, values) as guard:
        guard.restore()
        values["model"][1].running_mean = Hollow(torch.ones(4))
        guard.step()
        with pytest.raises(StateError, match=r"model/1\.running_mean is a .*Hollow"):
            guard.save()


@pytest.mark.parametrize("which", ["0.weight", "1.running_mean"])
def test_tensors_without_bytes_are_not_restored_into(which: str, folder: Path) -> None:
    """Named, and every other tensor stands as it stood."""
    with guarded(folder, everything()) as guard:
        guard.restore()
        guard.save()
    values = everything()
    with guarded(folder, values) as guard:
        {**values["model"].state_dict(keep_vars=True)}[which].untyped_storage().resize_(0)
        before = values["model"][0].bias.tolist()
        with pytest.raises(StateError, match=f"model.{which} is a tensor that needs .* restored into"):
            guard.restore()
        assert values["model"][0].bias.tolist() == before


def test_a_witness_of_what_moved_in_memory_looks_at_nothing() -> None:
    """Also a storage that grew has left its old block: the witness says that it no longer stands."""
    tensor = torch.zeros(1 << 16)
    detector = ChangeDetector([tensor, freed(3)], [], [(freed(3), freed(3))])
    detector.mark()
    assert detector.stands()
    assert detector.inconsistency() == ""
    tensor.untyped_storage().resize_(1 << 20)
    assert not detector.stands()
    assert "resized" in detector.inconsistency()


# --- elements that share memory --------------------------------------------------------------------------------


class Masked(nn.Module):
    """As masks are made: one row, seen many times."""

    def __init__(self, mask: torch.Tensor) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.register_buffer("mask", mask)


@pytest.mark.parametrize("where", ["a buffer", "a parameter", "a tensor"])
def test_tensors_that_no_restore_can_fill_are_refused_at_register(where: str, folder: Path) -> None:
    """It could be saved, and no restore would ever work."""
    expanded = torch.ones(1, 4).expand(4, 4)
    values: dict[str, Any] = {"model": nn.Linear(4, 4)}
    name = "held"
    if where == "a tensor":
        values["held"] = expanded
    else:
        name = r"model\.mask"
        values["model"] = Masked(expanded)
        if where == "a parameter":
            del values["model"].mask
            values["model"].mask = nn.Parameter(expanded, requires_grad=False)
    with (
        pytest.raises(StateError, match=rf"{name} is expanded: .* with \.clone\(\)"),
        guarded(FileStore(folder), values),
    ):
        pass
    assert find_whole(FileStore(folder), "run") is None


@pytest.mark.parametrize(
    "mask",
    [
        torch.ones(1, 4).expand(4, 4).clone(),
        torch.ones(1, 4).expand(1, 4),
        torch.arange(16.0).reshape(4, 4).t(),
        torch.arange(40.0)[::10],
        torch.empty(0, 4).expand(0, 4),
    ],
    ids=["clone", "one row", "transposed", "strided", "empty"],
)
def test_other_views_come_back(mask: torch.Tensor, folder: Path) -> None:
    """As a buffer and as a tensor of their own."""
    model = Masked(mask)
    values = {"model": model, "held": mask.detach()}
    expected = mask.clone()
    with guarded(FileStore(folder), values) as guard:
        guard.restore()
        guard.save()
        with torch.no_grad():
            mask.zero_()
        assert guard.restore(step=0) == 0
    assert torch.equal(mask, expected)


def test_a_buffer_that_became_expanded_is_named_before_a_byte_is_written(folder: Path) -> None:
    """By the restore: what is in memory stands."""
    model = Masked(torch.ones(4, 4))
    with guarded(FileStore(folder), {"model": model}) as guard:
        guard.restore()
        guard.save()
        model.mask = torch.zeros(1, 4).expand(4, 4)
        before = model.inner.weight.clone()
        with pytest.raises(StateError, match=r"model\.mask is expanded"):
            guard.restore(step=0)
        assert guard._state.poisoned == ""
    assert torch.equal(model.inner.weight, before)
