"""Ranks that have just met find tensors that only their names have in common, before any of them trains a step."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest
import torch
from torch import nn
from torch.distributed import HashStore  # type: ignore[attr-defined]
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from spotguard.hooks.consensus.channel import Channel
from spotguard.hooks.consensus.shared_names import refuse_namesakes
from spotguard.hooks.consensus.stores.connection import JobStore
from spotguard.hooks.state.state import State
from spotguard.hooks.state.state_tensor import StateTensor
from spotguard.providers.clock import SystemClock
from spotguard.providers.errors import StateError
from tests.fakes.ranks import rank_of
from tests.fakes.several import mesh_of

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

PATIENCE = 100.0
WEIGHT, OTHER = torch.rand(4, 3), torch.rand(4, 3)


def on(group: tuple[int, ...], tensor: torch.Tensor, name: str = "model/0.weight") -> StateTensor:
    return StateTensor(name, tensor, holders=group, group=group)


def met(held: Sequence[Sequence[StateTensor] | Exception]) -> list[str]:
    """What each rank is refused for, having these leaves; or, having none, this."""

    def collect(rank: int) -> Sequence[StateTensor]:
        found = held[rank]
        if isinstance(found, Exception):
            raise found
        return found

    store = cast(JobStore, HashStore())

    def one(rank: int) -> str:
        channel = Channel.join(store, rank, len(held), "m", SystemClock(), meet=lambda _: b"life")
        try:
            refuse_namesakes(channel, lambda: collect(rank))
        except StateError as error:
            return str(error)
        except NotImplementedError as error:
            return f"NotImplementedError: {error}"
        finally:
            channel.close()
        return ""

    with ThreadPoolExecutor(len(held)) as pool:
        return [each.result(PATIENCE) for each in [pool.submit(one, rank) for rank in range(len(held))]]


def test_one_group_for_all_has_no_namesakes() -> None:
    assert met([[on((0, 1), WEIGHT)], [on((0, 1), OTHER)]]) == ["", ""]


def test_other_names_on_other_ranks_are_well() -> None:
    first, last = on((0, 1), WEIGHT, "model/0.weight"), on((2,), OTHER, "model/1.weight")
    assert met([[first], [first], [last]]) == ["", "", ""]


def test_two_tensors_of_one_name_are_refused_on_all_ranks_by_name() -> None:
    """Also on the rank that has neither."""
    wide = torch.rand(5, 3)
    said = met([[on((0, 1), WEIGHT)], [on((0, 1), WEIGHT)], [on((2,), wide)], []])
    assert len(set(said)) == 1
    assert said[0].startswith(
        "model/0.weight is both float32[4, 3] on ranks 0, 1 and float32[5, 3] on rank 2; in a"
    )
    assert "register each stage under its own name" in said[0]


def test_tensors_of_one_shape_are_told_apart_by_their_values() -> None:
    bias = torch.zeros(3)
    said = met(
        [[on((rank,), bias, "model/0.bias"), on((rank,), w)] for rank, w in enumerate([WEIGHT, OTHER])]
    )
    assert len(set(said)) == 1
    assert said[0].startswith(
        "model/0.weight is on rank 0 and on rank 1 with different values; in a checkpoint"
    )


def test_replicas_that_nobody_declares_may_be_saved_and_it_is_said(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert met([[on((0,), WEIGHT)], [on((1,), WEIGHT.clone())]]) == ["", ""]
    (warning,) = caplog.messages
    assert warning.startswith("model/0.weight and 0 more tensors are on rank 0 and again on rank 1, and no")


def test_a_rank_that_cannot_read_its_own_is_no_riddle_to_the_others() -> None:
    """Out of memory, say: they would wait for it as long as for one that is late."""
    unread = torch.empty(4, 3, device="meta")
    first, second = met([[on((0,), WEIGHT)], [on((1,), unread)]])
    assert first.startswith("rank 1: NotImplementedError: ")
    assert second.startswith("NotImplementedError: ")


def sharded(model: nn.Module, rank: int) -> nn.Module:
    """Two stages of two ranks each."""
    mesh = mesh_of(2, 2)
    return cast(nn.Module, fully_shard(model, mesh=mesh[cast(Any, mesh.mesh_dim_names)[1]]))


def replicated(model: nn.Module, rank: int) -> nn.Module:
    groups = [torch.distributed.new_group([0, 1]), torch.distributed.new_group([2, 3])]
    return DistributedDataParallel(model, process_group=groups[rank // 2])


@pytest.mark.parametrize("way", [sharded, replicated])
def test_stages_that_torch_has_cut_say_on_which_ranks_they_lie(
    way: Callable[[nn.Module, int], nn.Module],
) -> None:
    for rank, group in [(0, (0, 1)), (3, (2, 3))]:
        with rank_of(rank, 4):
            stage = way(nn.Sequential(nn.Linear(4, 4)), rank)
            optimizer = torch.optim.SGD(stage.parameters(), lr=0.1)
            state = State({"model": stage, "optimizer": optimizer}, lambda frame: None, rank=rank, world=4)
            weight = next(
                state_tensor
                for state_tensor in state.collect().state_tensors
                if state_tensor.name == "model/0.weight"
            )
            assert weight.group == group


def test_a_rank_whose_state_cannot_be_had_says_so_to_all() -> None:
    """They would wait for it for minutes."""
    said = met([[on((0, 1), WEIGHT)], StateError("model: 0.weight has no bytes")])
    assert said == ["rank 1: model: 0.weight has no bytes", "model: 0.weight has no bytes"]
