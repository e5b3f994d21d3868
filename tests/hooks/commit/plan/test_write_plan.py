"""What a save has in the store, what is on its way, and the manifest of either level that can be made from it."""

from __future__ import annotations

import pytest
import torch

from spotguard.hooks.checkpoint.format.keys import CheckpointName
from spotguard.hooks.checkpoint.tier import Tier
from spotguard.hooks.commit.plan.write_plan import ALL, WEIGHTS, StoredObject, WritePlan, WriteProgress
from spotguard.hooks.state.state_tensor import StateTensor

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


def land(write_progress: WriteProgress, index: int, at: CheckpointName) -> None:
    pieces = write_progress.write_plan.objects[index].pieces
    write_progress.stored[index] = StoredObject([0] * len(pieces), at)


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


def test_bytes_left_are_those_not_yet_sent() -> None:
    """In the store, on its way, or only referred to: none of that is left."""
    write_progress = WriteProgress(write_plan())
    sizes = [planned.size for planned in write_progress.write_plan.objects]
    assert write_progress.left() == sum(sizes)
    land(write_progress, 0, FIRST)
    write_progress.leaving = {1: 100}
    assert write_progress.left() == sum(sizes) - sizes[0] - 100
    frozen = {i for i, planned in enumerate(write_progress.write_plan.objects) if planned.tier is Tier.FROZEN}
    assert write_progress.left(WEIGHTS, frozen) == write_progress.left((Tier.WEIGHTS,))


def test_referred_objects_count_as_no_bytes_put() -> None:
    """It is in the store, and no byte of it is this save's."""
    write_progress = WriteProgress(write_plan())
    land(write_progress, 0, FIRST)
    land(write_progress, 1, SECOND)
    write_progress.spared.add(0)
    assert write_progress.bytes_of(ALL) == sum(write_progress.write_plan.objects[i].size for i in (0, 1))
    assert write_progress.put_of(ALL) == write_progress.write_plan.objects[1].size
    assert write_progress.put_of((Tier.MOMENTS,)) == 0


def test_moments_wait_for_the_weights_when_they_are_told_to() -> None:
    """Until the last of them has landed, and no longer."""
    write_progress = WriteProgress(write_plan())
    assert not write_progress.holds_back(Tier.MOMENTS)
    write_progress.weights_first = True
    for index in write_progress.missing(WEIGHTS):
        assert write_progress.holds_back(Tier.MOMENTS)
        assert not write_progress.holds_back(Tier.WEIGHTS)
        land(write_progress, index, FIRST)
    assert not write_progress.holds_back(Tier.MOMENTS)


def test_moments_wait_until_the_last_byte_of_the_weights_has_left() -> None:
    """Nobody waits for the store's answer, and what is on its way goes on."""
    write_progress = WriteProgress(write_plan())
    assert not write_progress.waits(Tier.MOMENTS)
    write_progress.weights_ahead = True
    *others, last = write_progress.missing(WEIGHTS)
    for index in others:
        land(write_progress, index, FIRST)
        assert write_progress.waits(Tier.MOMENTS)
        assert not write_progress.waits(Tier.WEIGHTS)
        assert not write_progress.holds_back(Tier.MOMENTS)
    size = write_progress.write_plan.objects[last].size
    write_progress.leaving = {last: size - 1}
    assert write_progress.waits(Tier.MOMENTS)
    write_progress.leaving = {last: size}
    assert not write_progress.waits(Tier.MOMENTS)


def test_a_doubted_object_does_not_count_and_a_lost_one_is_missing() -> None:
    """A copy of it for other roles doubts by itself."""
    write_progress = WriteProgress(write_plan())
    for index in write_progress.missing():
        land(write_progress, index, FIRST)
    (moments,) = write_progress.write_plan.indices_of(Tier.MOMENTS)[:1]
    write_progress.doubted.add(moments)
    assert write_progress.has(WEIGHTS)
    assert not write_progress.has(ALL)
    assert write_progress.missing() == []
    copy = write_progress.with_roles(write_progress.roles)
    copy.lose(moments)
    assert copy.missing() == [*copy.lost] == [moments]
    assert write_progress.doubted == {moments}
    assert write_progress.missing() == []


def test_a_manifest_of_either_level_comes_from_one_draft() -> None:
    """The lower one names nothing of the moments; the full one, of the next name, refers to where the rest lies."""
    write_progress = WriteProgress(write_plan())
    for index in write_progress.missing(WEIGHTS):
        land(write_progress, index, FIRST)
    lower = write_progress.written(FIRST, WEIGHTS)
    assert {tensor.name for tensor in lower.tensors} == {"model/weight", "model/base"}
    assert {entry.checkpoint for entry in lower.objects} == {""}
    for index in write_progress.missing():
        land(write_progress, index, SECOND)
    full = write_progress.written(SECOND)
    assert {tensor.name for tensor in full.tensors} == {state_tensor.name for state_tensor in LEAVES}
    assert [entry.checkpoint for entry in full.objects[: len(lower.objects)]] == [str(FIRST)] * len(
        lower.objects
    )
    assert {entry.checkpoint for entry in full.objects[len(lower.objects) :]} == {""}
    assert {tensor.stored for tensor in full.tensors} == {""}
