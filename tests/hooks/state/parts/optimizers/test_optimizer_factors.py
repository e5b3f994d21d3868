"""What an optimizer keeps in a shape of its own goes to who has the same shard, or to nobody, and by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate

from spotguard.hooks.checkpoint.format.coverage import MergedTensor
from spotguard.hooks.state.collected import CollectedState
from spotguard.hooks.state.state import State
from spotguard.hooks.state.state_tensor import StateTensor
from spotguard.providers.errors import CheckpointError, StateError
from tests.fakes.ranks import rank_of
from tests.fakes.several import Way, ddp, fsdp, hsdp, tp, tp_fsdp

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

_NUMBER = count()


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, 8, bias=False)
        self.last = nn.Linear(8, 3, bias=False)


class Square(nn.Module):
    """Factors of its weights have the weights' shape."""

    def __init__(self, last: int = 8) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8, bias=False)
        self.last = nn.Linear(8, last, bias=False)


class Rows(torch.optim.Optimizer):
    """Keeps a number for each row that lies here, and a whole matrix of its own making."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.1})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for parameter in self.param_groups[0]["params"]:
            here = parameter.to_local() if isinstance(parameter, DTensor) else parameter
            self.state[parameter] = {"row": here.detach().mean(1), "step": torch.tensor(1.0)}


class Declared(torch.optim.Optimizer):
    """Keeps its factors as torch's Adafactor would (which cannot step a DTensor: 2.13), where they say how they lie."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.1})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for parameter in self.param_groups[0]["params"]:
            rows = len(parameter)
            copies = parameter.detach().new_full((rows, 1), 2.0)
            cut = (
                torch.ones_like(parameter.detach()).mean(1)
                if isinstance(parameter, DTensor)
                else copies[:, 0]
            )
            self.state[parameter] = {"copies": copies, "cut": cut, "step": torch.tensor(1.0)}


class Kronecker(torch.optim.Optimizer):
    """Keeps factors of what lies here, as Shampoo does, beside a moment; and something under a key of its own."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.1})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for number, parameter in enumerate(self.param_groups[0]["params"]):
            here = parameter.to_local() if isinstance(parameter, DTensor) else parameter
            rows, columns = (torch.arange(float(n * n)).reshape(n, n) + number for n in here.shape)
            moment = torch.ones_like(parameter.detach())
            self.state[parameter] = {"rows": rows, "columns": columns, "moment": moment}
        self.state["all"] = {"plain": torch.ones(8, 8)}  # type: ignore[index]


class Moments(torch.optim.Optimizer):
    """Nobody knows it, and it keeps what lies as its parameters do."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.1})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter] = {"mean": torch.ones_like(parameter.detach())}


class Whole(torch.optim.Optimizer):
    """Keeps of each shard a factor that all of its ranks have, and that says so."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.1})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for parameter in self.param_groups[0]["params"]:
            factor = torch.full(parameter.shape, 2.0)
            placed = [Replicate()] * parameter.device_mesh.ndim
            self.state[parameter] = {
                "factor": DTensor.from_local(factor, parameter.device_mesh, placed, run_check=False)
            }


class Pieces(torch.optim.Optimizer):
    """Keeps a number for each row of its first weight, where that lies."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.1})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        parameter = self.param_groups[0]["params"][0]
        rows = torch.arange(float(len(parameter.to_local()))) + 10 * torch.distributed.get_rank()
        mesh, shape = parameter.device_mesh, parameter.shape[:1]
        kept = DTensor.from_local(rows, mesh, parameter.placements, run_check=False, shape=shape, stride=(1,))
        self.state[parameter] = {"rows": kept}


def stage(name: str, *ranks: int) -> Way:
    """Of two pipeline stages the one that has this layer, on these ranks."""

    def way(model: nn.Module, world: int) -> nn.Module:
        delattr(model, "last" if name == "first" else "first")
        mesh = DeviceMesh("cpu", [*ranks], mesh_dim_names=(f"stage{next(_NUMBER)}",))
        return fully_shard(model, mesh=mesh)  # type: ignore[return-value]

    return way


def alone(model: nn.Module, world: int) -> nn.Module:
    return model


def job(
    way: Way, rank: int, world: int, optimizer: Any, *, steps: int = 1, of: Callable[[], nn.Module] = Model
) -> tuple[State, Any, list[Any]]:
    torch.manual_seed(1)
    model = way(of(), world)
    made = optimizer(model.parameters())
    for _ in range(steps):
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        made.step()
    state = State({"model": model, "optimizer": made}, lambda frame: None, rank=rank, world=world)
    state.at_boundary()
    return state, made, list(model.parameters())


def where(state_tensor: StateTensor) -> tuple[Any, ...]:
    return state_tensor.offsets, state_tensor.shape, state_tensor.tensor.shape


@dataclass
class Saved:
    ranks: list[CollectedState]

    @property
    def state_tensors(self) -> list[StateTensor]:
        return [state_tensor for each in self.ranks for state_tensor in each.state_tensors]

    @property
    def entries(self) -> dict[str, MergedTensor]:
        found = {}
        for state_tensor in self.state_tensors:
            dtype = str(state_tensor.tensor.dtype).removeprefix("torch.")
            found[state_tensor.name] = MergedTensor(
                state_tensor.name, dtype, tuple(state_tensor.shape or state_tensor.tensor.shape), "", []
            )
        return found

    def fill(self, state: State) -> None:
        """Restore it, with the bytes of what is whole, or cut as it was."""
        restoring = state.targets([each.trees for each in self.ranks], self.entries)
        for into in restoring.into.values():
            for state_tensor in self.state_tensors:
                if state_tensor.name == into.name and where(state_tensor) == where(into):
                    into.tensor.copy_(state_tensor.tensor)
                elif (
                    state_tensor.name == into.name
                    and state_tensor.offsets is None
                    and into.offsets is not None
                ):
                    rows = zip(into.offsets, into.tensor.shape, strict=True)
                    into.tensor.copy_(state_tensor.tensor[tuple(slice(at, at + size) for at, size in rows)])
        state.put_back(restoring)


def save(way: Way | Sequence[Way], world: int, optimizer: Any, of: Callable[[], nn.Module] = Model) -> Saved:
    """Of all ranks, each in its own way or all in one."""
    ranks = []
    for rank in range(world):
        each = way[rank] if isinstance(way, Sequence) else way
        with rank_of(rank, world):
            ranks.append(job(each, rank, world, optimizer, of=of)[0].collect())
    return Saved(ranks)


def goes_on(
    saved: Saved, way: Way, rank: int, world: int, optimizer: Any, of: Callable[[], nn.Module] = Model
) -> Sequence[dict[str, Any]]:
    """What it keeps of each parameter then; last, what it keeps under keys of its own."""
    with rank_of(rank, world):
        state, made, parameters = job(way, rank, world, optimizer, steps=0, of=of)
        saved.fill(state)
        others = [kept for key, kept in made.state.items() if not isinstance(key, torch.Tensor)]
        return [*(made.state[parameter] for parameter in parameters), *others]


@pytest.mark.parametrize(
    ("new", "world", "rank", "came_from"),
    [(fsdp, 2, 0, 0), (fsdp, 2, 1, 1), (hsdp, 4, 2, 0), (hsdp, 4, 3, 1)],
    ids=["the first", "the second", "the first's copy", "the second's copy"],
)
def test_a_rank_with_the_same_shard_gets_its_state_back(
    new: Way, world: int, rank: int, came_from: int
) -> None:
    kept = goes_on(save(fsdp, 2, Rows), new, rank, world, Rows)
    with rank_of(came_from, 2):
        _, before, parameters = job(fsdp, came_from, 2, Rows)
        assert [each["row"].tolist() for each in kept] == [
            before.state[p]["row"].tolist() for p in parameters
        ]


@pytest.mark.parametrize(
    ("old", "before", "new", "now"),
    [(fsdp, 2, fsdp, 4), (fsdp, 4, fsdp, 2), (fsdp, 2, tp, 2), (fsdp, 2, ddp, 2), (ddp, 2, fsdp, 2)],
    ids=["more", "fewer", "another mesh", "whole", "from whole"],
)
def test_state_of_another_shard_is_refused_by_name(old: Way, before: int, new: Way, now: int) -> None:
    saved = save(old, before, Rows)
    with pytest.raises(
        StateError, match=r"^optimizer keeps state of 'model/(first|last).weight' that cannot be resharded"
    ):
        goes_on(saved, new, 1, now, Rows)


def test_state_that_is_whole_on_both_sides_continues() -> None:
    kept = goes_on(save(ddp, 2, Rows), ddp, 2, 3, Rows)
    assert [tuple(each["row"].shape) for each in kept] == [(8,), (3,)]


@pytest.mark.parametrize(("way", "rank", "world"), [(fsdp, 1, 2), (fsdp, 3, 4)])
def test_a_factor_that_says_how_it_lies_lies_so_again(way: Way, rank: int, world: int) -> None:
    """A plain tensor among DTensors is an error at the next step."""
    kept = goes_on(save(fsdp, 2, Declared), way, rank, world, Declared)
    with rank_of(rank, world):
        _, fresh, parameters = job(way, rank, world, Declared)
        for each, parameter in zip(kept, parameters, strict=True):
            for word in ("copies", "cut"):
                expected = fresh.state[parameter][word]
                assert type(each[word]) is DTensor
                assert each[word].shape == expected.shape
                assert each[word].to_local().shape == expected.to_local().shape
                assert each[word].placements == expected.placements
            assert type(each["step"]) is torch.Tensor


@pytest.mark.parametrize("rank", [0, 1])
def test_a_factor_of_its_weights_own_shape_is_what_it_was(rank: int) -> None:
    """It looks like a moment, and half of it, cut like the weight, would be another factor."""
    first, last, others = goes_on(save(fsdp, 2, Kronecker, Square), fsdp, rank, 2, Kronecker, Square)
    for number, kept in enumerate((first, last)):
        for word, size in (("rows", 4), ("columns", 8)):
            assert type(kept[word]) is torch.Tensor
            assert torch.equal(kept[word], torch.arange(float(size * size)).reshape(size, size) + number)
        assert type(kept["moment"]) is DTensor
        assert torch.equal(kept["moment"].to_local(), torch.ones(4, 8))
    assert type(others["plain"]) is torch.Tensor
    assert torch.equal(others["plain"], torch.ones(8, 8))


@pytest.mark.parametrize(
    ("old", "new", "now"),
    [(fsdp, fsdp, 4), (fsdp, ddp, 2), (ddp, fsdp, 2), (tp, fsdp, 2)],
    ids=["more", "whole", "from whole", "another cut"],
)
def test_a_factor_of_its_weights_own_shape_is_cut_for_nobody(old: Way, new: Way, now: int) -> None:
    saved = save(old, 2, Kronecker, Square)
    with pytest.raises(
        StateError, match=r"^optimizer keeps state of 'model/(first|last).weight' that cannot be resharded"
    ):
        goes_on(saved, new, 1, now, Kronecker, Square)


def test_a_factor_of_its_weights_own_shape_goes_on_whole() -> None:
    first, _, _ = goes_on(save(ddp, 2, Kronecker, Square), ddp, 2, 3, Kronecker, Square)
    assert torch.equal(first["columns"], torch.arange(64.0).reshape(8, 8))


def test_moments_of_square_weights_are_cut_where_others_show_what_they_are() -> None:
    """Those of torch's own optimizers need nothing that shows it."""

    def taller() -> nn.Module:
        return Square(last=3)

    for optimizer, word, of in (
        (Moments, "mean", taller),
        (lambda params: torch.optim.SGD(params, 0.1, 0.9), "momentum_buffer", Square),
    ):
        first, _ = goes_on(save(ddp, 2, optimizer, of), fsdp, 1, 2, optimizer, of)
        assert type(first[word]) is DTensor
        assert torch.equal(first[word].to_local(), torch.ones(4, 8))


def test_a_factor_of_its_weights_own_shape_lies_as_it_says() -> None:
    first, _ = goes_on(save(fsdp, 2, Whole, Square), fsdp, 1, 2, Whole, Square)
    assert type(first["factor"]) is DTensor
    assert first["factor"].placements == (Replicate(),)
    assert torch.equal(first["factor"].to_local(), torch.full((8, 8), 2.0))


@pytest.mark.parametrize("rank", range(4))
def test_a_factor_that_is_cut_in_pieces_as_its_weight_is_lies_so_again(rank: int) -> None:
    """By tensor parallel first, and then by fully_shard."""
    first, _ = goes_on(save(tp_fsdp, 4, Pieces), tp_fsdp, rank, 4, Pieces)
    with rank_of(rank, 4):
        _, fresh, parameters = job(tp_fsdp, rank, 4, Pieces)
        expected = fresh.state[parameters[0]]["rows"]
        assert expected.placements[0].split_factor == 2
        assert first["rows"].placements == expected.placements
        assert torch.equal(first["rows"].to_local(), expected.to_local())


@pytest.mark.parametrize("optimizer", [Rows, Kronecker, Declared])
def test_stages_may_change_their_ranks(optimizer: Any) -> None:
    """What was made of a shard goes to who has that shard now, also where his place was another stage's."""
    saved = save([*[stage("first", 0, 1)] * 2, *[stage("last", 2, 3)] * 2], 4, optimizer)
    swapped = goes_on(saved, stage("last", 0, 1), 1, 4, optimizer)
    same = goes_on(saved, stage("last", 2, 3), 3, 4, optimizer)
    for word, kept in swapped[0].items():
        expected = same[0][word]
        assert type(kept) is type(expected)
        if isinstance(kept, DTensor):
            kept, expected = kept.to_local(), expected.to_local()
        assert torch.equal(kept, expected)


def test_it_becomes_whole_for_one_process() -> None:
    saved = save(fsdp, 2, Declared)
    state, made, parameters = job(alone, 0, 1, Declared, steps=0)
    saved.fill(state)
    assert [tuple(made.state[p]["copies"].shape) for p in parameters] == [(8, 1), (3, 1)]


@pytest.mark.parametrize(
    "more",
    [
        {"shards": 1},
        {"shards": {"a": [[1]]}},
        {"shards": {"a": [[1], ["b"]]}},
        {"placed": {"a": [-2]}},
        {"placed": {"a": [[0, 1]]}},
        {"placed": {"a": [["b"]]}},
        {"plain": "a"},
        {"plain": [1]},
    ],
)
def test_words_that_nobody_writes_are_no_checkpoint(more: dict[str, Any]) -> None:
    saved = save(fsdp, 2, Rows)
    for each in saved.ranks:
        trees: Any = each.trees
        trees["optimizer"] |= more
    with pytest.raises(CheckpointError, match=r"'(shards|plain)' is not in the form that spotguard writes"):
        goes_on(saved, fsdp, 0, 2, Rows)
