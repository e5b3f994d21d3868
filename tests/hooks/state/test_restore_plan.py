"""A checkpoint of so many ranks goes on with so many others: who takes what, and what is left alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.tensor import Shard, distribute_tensor
from torch.utils.data import Sampler

from spotguard.hooks.checkpoint.format.coverage import MergedTensor
from spotguard.hooks.checkpoint.format.manifest import Chunk
from spotguard.hooks.state.sharding.fingerprint import crc_of
from spotguard.hooks.state.state import State
from spotguard.providers.errors import StateError
from tests.fakes.ranks import rank_of
from tests.fakes.several import mesh_of

pytestmark = pytest.mark.torch


class Order(Sampler[int]):
    """A sampler that knows its position."""

    def __init__(self, at: int = 0) -> None:
        self.at = at

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


@dataclass
class Rank:
    """One process: plain values, which are each rank's own."""

    values: dict[str, Any]
    state: State

    def __init__(self, rank: int, world: int, **values: Any) -> None:
        self.values = values
        self.state = State(values, lambda frame: None, rank=rank, world=world)
        self.state.at_boundary()


def chunk(tensor: torch.Tensor) -> Chunk:
    """All of it."""
    return Chunk((0,) * tensor.dim(), tuple(tensor.shape), 0, 0, tensor.nbytes, crc_of(tensor.detach()))


def goes_on(saved: Sequence[Rank], here: Rank, gone: Sequence[int] = ()) -> list[str]:
    """Restore what these ranks have, without those that were gone when the others saved; returns the warnings."""
    collected = [each.state.collect() for each in saved]
    tensors = {
        state_tensor.name: state_tensor.tensor for each in collected for state_tensor in each.state_tensors
    }
    entries = {
        name: MergedTensor(name, str(t.dtype).removeprefix("torch."), tuple(t.shape), "", [(0, chunk(t))])
        for name, t in tensors.items()
    }
    trees = [{} if rank in gone else each.trees for rank, each in enumerate(collected)]
    restoring = here.state.targets(trees, entries)
    for name, state_tensor in restoring.into.items():
        state_tensor.tensor.copy_(tensors[name])
    return here.state.put_back(restoring)


def filled(value: float) -> nn.Linear:
    layer = nn.Linear(2, 2)
    for each in layer.parameters():
        nn.init.constant_(each, value)
    return layer


def value_of(layer: nn.Module) -> float:
    """Of a layer whose every number is this one."""
    value: float
    (value,) = {each.item() for parameter in layer.parameters() for each in parameter.flatten()}
    return value


def stepped(model: nn.Module, times: int = 1) -> torch.optim.Optimizer:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    for _ in range(times):
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
    return optimizer


def momentum(optimizer: torch.optim.Optimizer) -> list[float]:
    return [
        optimizer.state[p]["momentum_buffer"].flatten()[0].item()
        for group in optimizer.param_groups
        for p in group["params"]
    ]


def numbered(model: nn.Module, *numbers: float) -> torch.optim.Optimizer:
    """An optimizer that keeps these of the layers' parameters."""
    optimizer = stepped(model)
    for parameter, number in zip(model.parameters(), numbers, strict=True):
        optimizer.state[parameter]["momentum_buffer"].fill_(number)
    return optimizer


@pytest.mark.parametrize(("old", "new"), [(1, 3), (2, 3), (3, 2), (4, 2), (2, 2), (2, 1)])
def test_private_state_comes_from_the_rank_in_the_same_place(old: int, new: int) -> None:
    """Plain modules, dicts, tensors: from rank mod the ranks that saved."""
    saved = [
        Rank(rank, old, model=filled(rank), notes={"rank": rank}, extra=torch.tensor([rank]))
        for rank in range(old)
    ]
    for rank in range(new):
        here = Rank(rank, new, model=filled(-1), notes={"rank": -1}, extra=torch.tensor([-1]))
        goes_on(saved, here)
        assert value_of(here.values["model"]) == rank % old
        assert here.values["notes"] == {"rank": rank % old}
        assert here.values["extra"].tolist() == [rank % old]


def test_generators_go_on_where_the_rank_did_and_no_two_alike() -> None:
    torch.manual_seed(5)
    saved = [Rank(0, 2), Rank(1, 2)]
    expected = torch.rand(2)
    torch.manual_seed(6)
    assert goes_on(saved, Rank(1, 3)) == []
    assert torch.equal(torch.rand(2), expected)
    torch.manual_seed(6)
    own = torch.rand(2)
    torch.manual_seed(6)
    (warning,) = goes_on(saved, Rank(2, 3))
    assert "rank 2 was not one of them: its random number generators stay as they are" in warning
    assert torch.equal(torch.rand(2), own)


def test_a_position_among_the_samples_is_for_as_many_ranks_alone() -> None:
    saved = [Rank(rank, 2, order=Order(7 + rank)) for rank in range(2)]
    same, more = Rank(1, 2, order=Order()), Rank(1, 3, order=Order())
    assert goes_on(saved, same) == []
    assert same.values["order"].at == 8
    (warning,) = goes_on(saved, more)
    assert "order counts the samples of one of 2 ranks and is not restored for 3" in warning
    assert more.values["order"].at == 0


def test_a_rank_that_was_gone_keeps_its_generators_and_its_position() -> None:
    torch.manual_seed(5)
    saved, here = [Rank(rank, 2, order=Order(7 + rank)) for rank in range(2)], Rank(0, 2, order=Order(3))
    torch.manual_seed(6)
    own = torch.rand(2)
    torch.manual_seed(6)
    warnings = goes_on(saved, here, gone=[0])
    assert [each.partition(" is lost")[0] for each in warnings] == [
        f"rank 0 was gone when the other ranks saved: its own {name}" for name in ("order", "rng")
    ]
    assert here.values["order"].at == 3
    assert torch.equal(torch.rand(2), own)


def stages(*numbers: float) -> list[Rank]:
    """Two pipeline stages of three layers."""
    first = nn.ModuleDict({"a": filled(1)})
    last = nn.ModuleDict({"b": filled(2), "c": filled(3)})
    return [
        Rank(0, 2, model=first, optimizer=numbered(first, *numbers[:2])),
        Rank(1, 2, model=last, optimizer=numbered(last, *numbers[2:])),
    ]


def test_pipeline_stages_become_one_process_and_the_other_way_round() -> None:
    model = nn.ModuleDict({"a": filled(0), "b": filled(0), "c": filled(0)})
    whole = Rank(0, 1, model=model, optimizer=stepped(model))
    assert goes_on(stages(1, 2, 3, 4, 5, 6), whole) == []
    assert [value_of(layer) for layer in model.values()] == [1, 2, 3]
    assert momentum(whole.values["optimizer"]) == [1, 2, 3, 4, 5, 6]
    cut = [nn.ModuleDict({"a": filled(0), "b": filled(0)}), nn.ModuleDict({"c": filled(0)})]
    for rank, (stage, numbers) in enumerate(zip(cut, ([1, 2, 3, 4], [5, 6]), strict=True)):
        here = Rank(rank, 2, model=stage, optimizer=stepped(stage))
        warnings = goes_on([whole], here)
        assert "model has no " in warnings[0]
        assert [value_of(layer) for layer in stage.values()] == [[1, 2], [3]][rank]
        assert momentum(here.values["optimizer"]) == numbers


def test_stages_that_are_cut_elsewhere_find_their_layers() -> None:
    model = nn.ModuleDict({"a": filled(0), "b": filled(0)})
    here = Rank(0, 2, model=model, optimizer=stepped(model))
    goes_on(stages(1, 2, 3, 4, 5, 6), here)
    assert [value_of(layer) for layer in model.values()] == [1, 2]
    assert momentum(here.values["optimizer"]) == [1, 2, 3, 4]


def test_a_name_that_only_another_rank_registered_is_found_there() -> None:
    saved = [Rank(0, 2, model=filled(1)), Rank(1, 2, model=filled(2), head=filled(3))]
    here = Rank(0, 1, model=filled(0), head=filled(0))
    goes_on(saved, here)
    assert (value_of(here.values["model"]), value_of(here.values["head"])) == (1, 3)


def test_state_of_a_parameter_that_its_rank_never_stepped_is_nobody_elses() -> None:
    models = [filled(0), filled(0)]
    saved = [
        Rank(0, 2, model=models[0], optimizer=stepped(models[0])),
        Rank(1, 2, model=models[1], optimizer=stepped(models[1], times=0)),
    ]
    model = filled(1)
    here = Rank(1, 2, model=model, optimizer=stepped(model))
    goes_on(saved, here)
    assert dict(here.values["optimizer"].state) == {}


def test_state_that_does_not_fit_is_refused_by_name_and_changes_nothing() -> None:
    saved = stages(1, 2, 3, 4, 5, 6)

    def refused(match: str, rank: int, world: int, **values: Any) -> None:
        here = Rank(rank, world, **values)
        with pytest.raises(StateError, match=match):
            goes_on(saved, here)

    strange = nn.ModuleDict({"a": filled(7), "d": filled(7)})
    refused(r"^model does not fit the checkpoint: missing there: d.bias, d.weight", 0, 2, model=strange)
    assert value_of(strange) == 7
    part = nn.ModuleDict({"a": filled(7), "b": filled(7)})
    refused(r"unknown here: c.bias, c.weight", 0, 1, model=part)
    turned = nn.ModuleDict({"b": filled(7), "a": filled(7)})
    refused("or in another order", 0, 2, model=turned, optimizer=stepped(turned))
    other = nn.ModuleDict({"a": nn.Linear(3, 2)})
    refused(r"^model.a.weight is \(2, 3\)", 0, 2, model=other)
    model = filled(7)
    refused("^the checkpoint holds no 'else'", 0, 2, **{"else": model})


def pair(tied: bool) -> nn.ModuleDict:
    one = filled(1)
    return nn.ModuleDict({"a": one, "b": one if tied else filled(2)})


def test_parts_of_another_number_of_ranks_are_refused_with_that_number() -> None:
    """ZeRO cuts a flat tensor into as many parts as there are ranks."""
    saved = [Rank(rank, 2, masters=torch.ones(3)) for rank in range(2)]
    here = torch.zeros(6)
    with pytest.raises(
        StateError, match=r"of 2 ranks, and this job has 1: .* part of masters, start 2 again"
    ):
        goes_on(saved, Rank(0, 1, masters=here))
    assert not here.any()


@pytest.mark.parametrize(("old", "new"), [(2, 2), (2, 4), (2, 1), (1, 2)])
def test_groups_that_were_added_later_come_back_on_every_rank(old: int, new: int) -> None:
    def begun(value: float) -> tuple[nn.ModuleDict, torch.optim.Optimizer]:
        model = nn.ModuleDict({"a": filled(value), "b": filled(value)})
        return model, torch.optim.SGD(model["a"].parameters(), lr=0.5, momentum=0.9)

    saved = []
    for rank in range(old):
        model, optimizer = begun(1)
        optimizer.add_param_group({"params": [*model["b"].parameters()], "lr": 0.25})
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        saved.append(Rank(rank, old, model=model, optimizer=optimizer))
    for rank in range(new):
        model, optimizer = begun(2)
        warnings = goes_on(saved, Rank(rank, new, model=model, optimizer=optimizer))
        assert sum("had 2 parameter groups when it was saved" in each for each in warnings) == 1
        assert [group["lr"] for group in optimizer.param_groups] == [0.5, 0.25]
        assert [id(p) for p in optimizer.param_groups[1]["params"]] == [*map(id, model["b"].parameters())]
        assert momentum(optimizer) == [1.0] * 4


def test_one_tensor_into_two_that_are_cut_differently_is_refused() -> None:
    saved = Rank(0, 1, model=pair(tied=True))
    with rank_of(1, 2):
        mesh = mesh_of(2)
        model = pair(tied=False)
        for name, dim in (("a", 0), ("b", 1)):
            for key in ("weight", "bias"):
                cut = distribute_tensor(
                    getattr(model[name], key).detach(), mesh, [Shard(dim if key == "weight" else 0)]
                )
                setattr(model[name], key, nn.Parameter(cut))
        here = Rank(1, 2, model=model)
        with pytest.raises(
            StateError, match=r"^model holds one tensor of the checkpoint .* twice, sharded in two ways"
        ):
            goes_on([saved], here)


def test_parameters_that_were_each_ranks_own_and_differed_are_named_among_another_number() -> None:
    """They may be stages of a pipeline: who is new would silently train another one's."""
    stages = [Rank(rank, 2, model=filled(float(rank))) for rank in range(2)]
    here = Rank(2, 3, model=filled(9.0))
    (warning,) = (each for each in goes_on(stages, here) if "differed" in each)
    assert "model/weight, model/bias differed between the 2 ranks" in warning
    assert "rank 2 of 3 resumes with those of rank 0" in warning
    assert value_of(here.values["model"]) == 0.0


def test_alike_or_among_as_many_ranks_they_are_not() -> None:
    """Replicas, whose statistics are each one's own; and stages that go on where they were."""
    replicas = [Rank(rank, 2, model=nn.BatchNorm1d(2)) for rank in range(2)]
    replicas[1].values["model"].running_mean.fill_(3.0)
    replicas[1].state.at_boundary()
    said = goes_on(replicas, Rank(2, 3, model=nn.BatchNorm1d(2)))
    assert not any("differed" in each for each in said)
    stages = [Rank(rank, 2, model=filled(float(rank))) for rank in range(2)]
    here = Rank(1, 2, model=filled(9.0))
    assert goes_on(stages, here) == []
    assert value_of(here.values["model"]) == 1.0
