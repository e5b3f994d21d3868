"""What ranks say of what they share: the same of the same, and which of them have drifted apart."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

import pytest
import torch
from torch import nn

from spotguard.hooks.state.sharding.fingerprint import alone, digests, drifted
from spotguard.hooks.state.state import State
from spotguard.hooks.state.state_tensor import StateTensor
from tests.fakes.ranks import rank_of
from tests.fakes.several import WAYS, Model

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]


def plain() -> nn.Module:
    model = Model()
    model.norm = nn.Identity()  # type: ignore[assignment]
    return model


def asked(way: str, what: Callable[[State], Any], make: Callable[[], nn.Module] = plain) -> list[Any]:
    """Of each rank of four."""
    answers = []
    for rank in range(4):
        with rank_of(rank, 4):
            answers.append(
                what(State({"model": WAYS[way](make(), 4)}, lambda frame: None, rank=rank, world=4))
            )
    return answers


def test_ranks_that_hold_the_same_have_one_fingerprint_for_it() -> None:
    first, *others = asked("ddp", attrgetter("fingerprint"))
    assert list(first) == [(0, 1, 2, 3)]
    assert all(each == first for each in others)
    copies = asked("hsdp", attrgetter("fingerprint"))
    assert [list(each) for each in copies] == [[(0, 2)], [(1, 3)]] * 2
    assert copies[:2] == copies[2:]
    assert asked("fsdp", attrgetter("fingerprint")) == [{}] * 4


def test_a_fingerprint_changes_with_the_model_and_not_with_a_step() -> None:
    with rank_of(1, 2):
        model: Any = WAYS["ddp"](plain(), 2)
        state = State({"model": model}, lambda frame: None, rank=1, world=2)
        before = state.fingerprint
        state.at_boundary()
        assert state.fingerprint == before
        model.module.last = nn.Linear(8, 4)
        state.take_again()
        assert state.fingerprint != before


def test_ranks_with_private_state_are_known() -> None:
    """Nobody under DDP, but the one whose buffers are the job's; shards' holders only where nothing else is private."""
    assert asked("ddp", attrgetter("alone")) == [False] * 4
    assert asked("ddp", attrgetter("alone"), Model) == [True, False, False, False]
    assert asked("hsdp", attrgetter("alone")) == [False] * 4
    assert asked("hsdp", attrgetter("alone"), Model) == [True] * 4
    assert asked("fsdp", attrgetter("alone")) == [True] * 4
    assert not alone([StateTensor("empty", torch.empty(0))], 1)


def test_replicas_that_drifted_apart_have_names() -> None:
    def held(*values: float) -> list[StateTensor]:
        return [
            StateTensor("same", torch.ones(3), holders=(0, 1)),
            StateTensor("other", torch.tensor(values), holders=(0, 1)),
            StateTensor("shard", torch.tensor(values), offsets=(4,), shape=(9,), holders=(0, 1)),
            StateTensor("alone", torch.tensor(values)),
            StateTensor("buffer", torch.tensor(values), holders=(0,)),
        ]

    one, other = digests(held(1.0, 2.0), 0), digests(held(1.0, -2.0), 1)
    assert sorted(one) == sorted(other) == ["other", "same", "shard at [4]"]
    assert drifted([one, one]) == []
    assert drifted([one, other]) == ["other", "shard at [4]"]


def test_a_digest_is_of_the_values_however_they_lie() -> None:
    turned = torch.arange(6.0).reshape(2, 3).mT
    state_tensor, straight = (
        StateTensor("it", each, holders=(0, 1)) for each in (turned, turned.contiguous())
    )
    assert digests([state_tensor], 0) == digests([straight], 0)
