"""What a save has in the store, what is on its way, and the manifest of either level that can be made from it."""

from __future__ import annotations

import pytest
import torch

from spotguard.hooks.checkpoint.format.keys import CheckpointName
from spotguard.hooks.save.plan.write_plan import ALL, WEIGHTS, StoredObject, WritePlan, WriteProgress
from spotguard.hooks.state.tensor_item import StateTensor, Tier

pytestmark = pytest.mark.torch

SIZE = 16 * 2**10
FIRST, SECOND = CheckpointName(1, 5, 0), CheckpointName(1, 5, 1)
LEAVES = [
    StateTensor("model/weight", torch.rand(64, 128)),
    StateTensor("model/base", torch.rand(32, 128), tier=Tier.FROZEN),
    StateTensor("optimizer/weight/exp_avg", torch.rand(64, 128), tier=Tier.MOMENTS),
    StateTensor("optimizer/weight/step", torch.tensor(3.0), tier=Tier.MOMENTS),
]


def write_plan(rounded: bool = False) -> WritePlan:
    return WritePlan.of(LEAVES, SIZE, 0, 1, rounded)


def land(draft: WriteProgress, index: int, at: CheckpointName) -> None:
    pieces = draft.write_plan.objects[index].pieces
    draft.stored[index] = StoredObject([0] * len(pieces), at)


def test_the_lower_level_is_planned_alike_rounded_or_not() -> None:
    """Its objects stand first and are the same to the byte: a save may change over before it begins with the moments."""
    whole, rounded = write_plan(), write_plan(rounded=True)
    lower = [planned for planned in whole.objects if planned.tier in WEIGHTS]
    assert len(lower) > 2
    assert list(rounded.objects[: len(lower)]) == lower
    assert {item.name: item.dtype for item in rounded.items if item.tier is Tier.MOMENTS} == {
        "optimizer/weight/exp_avg": "bfloat16",
        "optimizer/weight/step": "float32",
    }
    assert rounded.nbytes < whole.nbytes


def test_what_is_left_is_what_has_not_left_for_the_store() -> None:
    """In the store, on its way, or only referred to: none of that is left."""
    draft = WriteProgress(write_plan())
    sizes = [planned.size for planned in draft.write_plan.objects]
    assert draft.left() == sum(sizes)
    land(draft, 0, FIRST)
    draft.leaving = {1: 100}
    assert draft.left() == sum(sizes) - sizes[0] - 100
    frozen = {i for i, planned in enumerate(draft.write_plan.objects) if planned.tier is Tier.FROZEN}
    assert draft.left(WEIGHTS, frozen) == draft.left((Tier.WEIGHTS,))


def test_what_is_referred_to_was_not_put() -> None:
    """It is in the store, and no byte of it is this save's."""
    draft = WriteProgress(write_plan())
    land(draft, 0, FIRST)
    land(draft, 1, SECOND)
    draft.spared.add(0)
    assert draft.bytes_of(ALL) == sum(draft.write_plan.objects[i].size for i in (0, 1))
    assert draft.put_of(ALL) == draft.write_plan.objects[1].size
    assert draft.put_of((Tier.MOMENTS,)) == 0


def test_moments_wait_for_the_weights_when_they_are_told_to() -> None:
    """Until the last of them has landed, and no longer."""
    draft = WriteProgress(write_plan())
    assert not draft.holds_back(Tier.MOMENTS)
    draft.weights_first = True
    for index in draft.missing(WEIGHTS):
        assert draft.holds_back(Tier.MOMENTS)
        assert not draft.holds_back(Tier.WEIGHTS)
        land(draft, index, FIRST)
    assert not draft.holds_back(Tier.MOMENTS)


def test_moments_wait_until_the_last_byte_of_the_weights_has_left() -> None:
    """Nobody waits for the store's answer, and what is on its way goes on."""
    draft = WriteProgress(write_plan())
    assert not draft.waits(Tier.MOMENTS)
    draft.weights_ahead = True
    *others, last = draft.missing(WEIGHTS)
    for index in others:
        land(draft, index, FIRST)
        assert draft.waits(Tier.MOMENTS)
        assert not draft.waits(Tier.WEIGHTS)
        assert not draft.holds_back(Tier.MOMENTS)
    size = draft.write_plan.objects[last].size
    draft.leaving = {last: size - 1}
    assert draft.waits(Tier.MOMENTS)
    draft.leaving = {last: size}
    assert not draft.waits(Tier.MOMENTS)


def test_what_is_doubted_is_not_there_and_is_put_again_by_the_next_part() -> None:
    """A copy of it for other roles doubts by itself."""
    draft = WriteProgress(write_plan())
    for index in draft.missing():
        land(draft, index, FIRST)
    (moments,) = draft.write_plan.indices_of(Tier.MOMENTS)[:1]
    draft.doubted.add(moments)
    assert draft.has(WEIGHTS)
    assert not draft.has(ALL)
    assert draft.missing() == []
    copy = draft.with_roles(draft.roles)
    assert copy.anew() == [moments]
    assert draft.doubted == {moments}
    assert draft.anew(WEIGHTS) == []
    assert draft.missing() == [moments]


def test_a_manifest_of_either_level_comes_from_one_draft() -> None:
    """The lower one names nothing of the moments; the full one, of the next name, refers to where the rest lies."""
    draft = WriteProgress(write_plan())
    for index in draft.missing(WEIGHTS):
        land(draft, index, FIRST)
    lower = draft.written(FIRST, WEIGHTS)
    assert {tensor.name for tensor in lower.tensors} == {"model/weight", "model/base"}
    assert {entry.checkpoint for entry in lower.objects} == {""}
    for index in draft.missing():
        land(draft, index, SECOND)
    full = draft.written(SECOND)
    assert {tensor.name for tensor in full.tensors} == {leaf.name for leaf in LEAVES}
    assert [entry.checkpoint for entry in full.objects[: len(lower.objects)]] == [str(FIRST)] * len(
        lower.objects
    )
    assert {entry.checkpoint for entry in full.objects[len(lower.objects) :]} == {""}
    assert {tensor.stored for tensor in full.tensors} == {""}
