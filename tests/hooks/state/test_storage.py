"""Tensors that look like any other and have no bytes where they say: never read, always named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from spotguard.hooks.checkpoints.catalog import find_whole
from spotguard.hooks.state.storage import gap
from spotguard.hooks.state.window import Witness
from spotguard.providers.errors import StateError
from spotguard.providers.localfs import FileStore
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
    assert gap(tensor) == ""
    assert gap(nn.Parameter(tensor)) == ""


def test_what_has_no_bytes_is_told_from_what_has() -> None:
    """A wrapper is named by its class, a freed tensor by its bytes."""
    assert "Hollow" in gap(Hollow(torch.ones(3)))
    assert "needs 12 bytes of a storage that holds 0" in gap(freed(3))
    short = torch.ones(4)
    short.untyped_storage().resize_(8)
    assert "needs 16 bytes" in gap(short)
    assert gap(torch.ones(3, device="meta"))


def test_what_has_no_bytes_is_refused_at_register(folder: Path) -> None:
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
    assert caplog.text.count("no save is possible") == 1
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
        assert "resized" in guard._state.broken()
        guard.step()
        with pytest.raises(StateError, match="model/weight is a tensor that needs"):
            guard.save()
        assert "model/weight" in caplog.text
        storage.resize_(nbytes)
        model.weight.data.zero_()
        guard.step()
        assert guard.save().step == 2


def test_a_witness_of_what_moved_in_memory_looks_at_nothing() -> None:
    """Also a storage that grew has left its old block: the witness says that it no longer stands."""
    tensor = torch.zeros(1 << 16)
    witness = Witness([tensor, freed(3)], [], [(freed(3), freed(3))])
    witness.mark()
    assert witness.stands()
    assert witness.broken() == ""
    tensor.untyped_storage().resize_(1 << 20)
    assert not witness.stands()
    assert "resized" in witness.broken()
