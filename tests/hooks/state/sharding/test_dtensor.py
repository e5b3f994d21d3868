"""What each rank says it holds, under every wrapper of torch's: as any rank of a job, in one process."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it scripts functions, which torch has deprecated
    from torch.distributed.optim import ZeroRedundancyOptimizer

from spotguard.hooks.checkpoint.tier import Tier
from spotguard.hooks.state.state import State
from spotguard.hooks.state.state_tensor import StateTensor
from spotguard.providers.errors import StateError
from tests.fakes.ranks import rank_of
from tests.fakes.several import Way, ddp, fsdp, hsdp, mesh_of, tp, tp_fsdp

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]


class Model(nn.Module):
    """Seven rows over two ranks: uneven. One row over more: empty shards."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, 7)
        self.norm = nn.BatchNorm1d(7)
        self.last = nn.Linear(7, 1, bias=False)


def stepped(model: nn.Module) -> torch.optim.Optimizer:
    trained = [each for each in model.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(trained)
    for parameter in trained:
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    return optimizer


def state_tensors(make: Way, rank: int, world: int) -> dict[str, StateTensor]:
    with rank_of(rank, world):
        model = make(Model(), world)
        values = {"model": model, "optimizer": stepped(model)}
        state = State(values, lambda frame: None, rank=rank, world=world)
        state.at_boundary()
        assert state.inconsistency() == ""
        return {state_tensor.name: state_tensor for state_tensor in state.collect().state_tensors}


def where(state_tensor: StateTensor) -> tuple[Any, ...]:
    return tuple(state_tensor.tensor.shape), state_tensor.offsets, state_tensor.shape, state_tensor.holders


def test_ddp_holds_replicas_and_one_rank_its_buffers() -> None:

    def partly_frozen(model: Any, world: int) -> nn.Module:
        model.last.weight.requires_grad_(False)
        return ddp(model, world)

    found = state_tensors(partly_frozen, 1, 4)
    assert (found["model/last.weight"].tier, found["model/last.weight"].holders) == (
        Tier.FROZEN,
        (0, 1, 2, 3),
    )
    everyone = (0, 1, 2, 3)
    assert where(found["model/first.weight"]) == ((7, 5), None, None, everyone)
    assert where(found["optimizer/state/model/first.weight/exp_avg"]) == ((7, 5), None, None, everyone)
    assert where(found["optimizer/state/model/first.weight/step"]) == ((), None, None, everyone)
    assert where(found["model/norm.running_mean"]) == ((7,), None, None, (0,))
    assert [name for name in found if name.startswith("@") and "rng" not in name] == []


def test_buffers_that_ddp_does_not_broadcast_are_each_ranks_own() -> None:
    found = state_tensors(lambda model, _: DistributedDataParallel(model, broadcast_buffers=False), 1, 2)
    assert where(found["@00001/model/norm.running_mean"]) == ((7,), None, None, ())

    def ignoring(model: nn.Module, world: int) -> nn.Module:
        ignored = ["norm.running_mean", "last.weight"]
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ignored)
        return DistributedDataParallel(model)

    found = state_tensors(ignoring, 1, 2)
    assert {"@00001/model/norm.running_mean", "model/norm.running_var"} < set(found)
    assert where(found["@00001/model/last.weight"]) == ((1, 7), None, None, ())
    assert "@00001/optimizer/state/model/last.weight/exp_avg" in found


def test_a_hook_of_ddp_whose_state_no_checkpoint_has_is_refused() -> None:
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    def compressed(state: Any, hook: Any) -> Any:
        def wrap(model: nn.Module, world: int) -> nn.Module:
            wrapper = DistributedDataParallel(model)
            wrapper.register_comm_hook(state, hook)
            return wrapper

        return wrap

    assert where(state_tensors(compressed(None, fp16_compress_hook), 1, 2)["model/first.weight"])[-1] == (
        0,
        1,
    )
    errors = powerSGD_hook.PowerSGDState(None)
    with pytest.raises(
        StateError, match=r"communication hook whose state \(PowerSGDState\) no checkpoint has"
    ):
        state_tensors(compressed(errors, powerSGD_hook.powerSGD_hook), 1, 2)


def test_a_wrapper_inside_and_a_compiled_one_declare_as_much() -> None:
    def inside(model: nn.Module, world: int) -> nn.Module:
        model.first = DistributedDataParallel(model.first)
        return model

    found = state_tensors(inside, 1, 2)
    assert where(found["model/first.weight"])[-1] == (0, 1)
    assert "@00001/model/last.weight" in found

    def outside(model: nn.Module, world: int) -> Any:
        return torch.compile(ddp(model, world))

    def within(model: nn.Module, world: int) -> nn.Module:
        return DistributedDataParallel(torch.compile(model))

    for compiled in (outside, within):
        assert where(state_tensors(compiled, 1, 2)["model/first.weight"])[-1] == (0, 1)


@pytest.mark.parametrize("world", [2, 4, 6])
def test_fully_shard_cuts_rows_also_uneven_and_to_nothing(world: int) -> None:
    rows = -(-7 // world)
    for rank in range(world):
        found = state_tensors(fsdp, rank, world)
        at, end = min(7, rank * rows), min(7, (rank + 1) * rows)
        sizes, offsets, shape, holders = where(found["model/first.weight"])
        assert (sizes, shape, holders) == ((end - at, 5), (7, 5), ())
        assert offsets == (at, 0) or end == at
        assert where(found["optimizer/state/model/first.weight/exp_avg"])[:3] == (sizes, offsets, shape)
        assert where(found["optimizer/state/model/first.weight/step"])[-1] == tuple(range(world))
        last = where(found["model/last.weight"])
        assert last[0] == ((1, 7) if rank == 0 else (0, 7))
        assert f"@{rank:05d}/model/norm.running_mean" in found


def test_a_mesh_of_copies_says_who_holds_the_same_shard() -> None:
    holders = [where(state_tensors(hsdp, rank, 4)["model/first.weight"]) for rank in range(4)]
    assert holders == [
        ((4, 5), (0, 0), (7, 5), (0, 2)),
        ((3, 5), (4, 0), (7, 5), (1, 3)),
        ((4, 5), (0, 0), (7, 5), (0, 2)),
        ((3, 5), (4, 0), (7, 5), (1, 3)),
    ]


def test_tensor_parallel_cuts_columns_and_leaves_the_rest_to_each_rank() -> None:
    found = state_tensors(tp, 1, 2)
    assert where(found["model/first.weight"]) == ((3, 5), (4, 0), (7, 5), ())
    assert where(found["model/last.weight"]) == ((1, 3), (0, 4), (1, 7), ())
    assert where(found["@00001/model/norm.weight"]) == ((7,), None, None, ())


def test_both_ways_at_once() -> None:
    """Rows are cut by tensor parallel first: rank 2 of a 2 by 2 mesh has the second half of the first half."""
    found = [state_tensors(tp_fsdp, rank, 4) for rank in range(4)]
    assert [where(each["model/first.weight"])[:2] for each in found] == [
        ((2, 5), (0, 0)),
        ((2, 5), (4, 0)),
        ((2, 5), (2, 0)),
        ((1, 5), (6, 0)),
    ]
    assert all(where(each["model/first.weight"])[-1] == () for each in found)
    assert where(found[0]["optimizer/state/model/first.weight/step"])[-1] == (0, 1, 2, 3)


def test_tensors_on_a_part_of_the_ranks_bear_their_number() -> None:
    """Each tensor rank has a norm of its own, cut among the data ranks: nobody declares that they are the same."""
    names = [
        next(n for n in state_tensors(tp_fsdp, r, 4) if n.endswith("model/norm.weight")) for r in range(4)
    ]
    assert names == [f"@{first:05d}/model/norm.weight" for first in (0, 1, 0, 1)]
    found = state_tensors(tp_fsdp, 3, 4)
    assert where(found["@00001/model/norm.weight"]) == ((3,), (4,), (7,), ())
    assert where(found["@00001/optimizer/state/model/norm.weight/step"])[-1] == (1, 3)


def test_a_bare_dtensor_is_a_shard_small_or_large() -> None:
    with rank_of(1, 2):
        mesh = mesh_of(2)
        small = distribute_tensor(torch.arange(6.0), mesh, [Shard(0)])
        large = distribute_tensor(torch.zeros(8 * 2**20), mesh, [Shard(0)])
        same = distribute_tensor(torch.zeros(3), mesh, [Replicate()])
        state = State({"small": small, "large": large, "same": same}, lambda frame: None, rank=1, world=2)
        state.at_boundary()
        found = {state_tensor.name: state_tensor for state_tensor in state.collect().state_tensors}
        assert where(found["small"]) == ((3,), (3,), (6,), ())
        assert where(found["large"]) == ((4 * 2**20,), (4 * 2**20,), (8 * 2**20,), ())
        assert where(found["same"]) == ((3,), None, None, (0, 1))
        large.to_local().add_(1)
        assert "changed" in state.inconsistency()


def test_a_partial_tensor_is_refused_by_name() -> None:
    with rank_of(1, 2):
        mesh = mesh_of(2)
        partial = DTensor.from_local(torch.zeros(3), mesh, [Partial()], run_check=False)
        with pytest.raises(
            StateError, match=r"^it is a partial sum, of which each rank holds a part \(Partial\)"
        ):
            State({"it": partial}, lambda frame: None, rank=1, world=2)
        wrong = DTensor.from_local(
            torch.zeros(3), mesh, [Shard(0)], run_check=False, shape=torch.Size([7]), stride=(1,)
        )
        wrong._local_tensor = torch.zeros(2)
        with pytest.raises(
            StateError, match=r"^it is a shard of shape \[2\] where its placements give \[3\]"
        ):
            State({"it": wrong}, lambda frame: None, rank=1, world=2)
        with pytest.raises(StateError, match=r"^notes holds a DTensor"):
            State(
                {"notes": {"it": distribute_tensor(torch.zeros(2), mesh)}},
                lambda frame: None,
                rank=1,
                world=2,
            )


def test_fsdp1_is_refused_with_what_to_use() -> None:
    with rank_of(0, 2):
        model = FullyShardedDataParallel(Model(), device_id=torch.device("cpu"))
        with pytest.raises(StateError, match=r"^model is wrapped by FullyShardedDataParallel"):
            State({"model": model}, lambda frame: None, rank=0, world=2)


def test_an_optimizer_that_shards_by_itself_is_refused_with_what_to_use() -> None:
    with rank_of(0, 2):
        model = ddp(Model(), 2)
        optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.AdamW)
        with pytest.raises(StateError, match=r"^optimizer is a ZeroRedundancyOptimizer"):
            State({"model": model, "optimizer": optimizer}, lambda frame: None, rank=0, world=2)


def test_a_module_that_nobody_shares_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """And each rank's copy has the rank's name."""
    with rank_of(1, 2):
        state = State({"model": Model(), "notes": {"a": 1}}, lambda frame: None, rank=1, world=2)
        assert all(state_tensor.name.startswith("@00001/") for state_tensor in state.collect().state_tensors)
        assert caplog.text.count("saves its own copy") == 1
        assert "model.first.weight and 4 more" in caplog.text


def test_one_process_names_nothing_by_its_rank() -> None:
    state = State({"model": Model()}, lambda frame: None)
    assert {
        state_tensor.name for state_tensor in state.collect().state_tensors if "rng" not in state_tensor.name
    } == {f"model/{name}" for name in Model().state_dict()}
