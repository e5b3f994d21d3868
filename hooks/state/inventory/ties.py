"""Tensors that share memory here, against those that share it in a checkpoint: tied weights, and views of one storage."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

import torch

from ....providers.errors import StateError
from ...checkpoint.format.coverage import MergedTensor
from ...checkpoint.format.crc import combine
from ..memory_access import unreadable
from ..sharding.dtensor import is_dtensor, local
from .looks import is_as_read
from .ownership import extent, runs


def memory_of(tensor: torch.Tensor) -> Hashable:
    """Return a value that is equal for tensors that are the same elements of one memory, whatever objects they are.

    A tensor without memory shares it with no other.
    """
    shard = local(tensor)
    if not shard.numel() or unreadable(shard):
        return id(tensor)
    steps = tuple(step for size, step in zip(shard.shape, shard.stride(), strict=True) if size > 1)
    return shard.device, shard.data_ptr(), shard.dtype, tuple(shard.shape), steps, tuple(tensor.shape)


class FilledTensor(NamedTuple):
    """A live tensor that a restore fills, its path in the script, and the tensor of the checkpoint that fills it."""

    path: str
    live: torch.Tensor
    saved: MergedTensor


def content(saved: MergedTensor) -> tuple[Hashable, ...]:
    """Return what the checkpoint records of a tensor's content: equal for equal tensors, however they were cut in chunks.

    (Chunks that cut another dimension than the first are equal only if they were cut alike.)
    """
    chunks = [chunk for _, chunk in saved.chunks]
    kind = saved.dtype, saved.stored, saved.shape
    if all(chunk.sizes[1:] == saved.shape[1:] for chunk in chunks):
        return *kind, combine((chunk.crc32, chunk.end - chunk.start) for chunk in chunks)
    return *kind, frozenset((chunk.offsets, chunk.sizes, chunk.crc32) for chunk in chunks)


def check_ties(filled: Iterable[FilledTensor]) -> tuple[list[str], list[FilledTensor]]:
    """Compare the ties of live tensors with those of the checkpoint. Nothing is read.

    Returns:
        One warning for each tie that the checkpoint has and this process has not. And the tensors that overlap others, for
        `check_overlaps`.

    Raises:
        StateError: one tensor here is two in the checkpoint, and these differ.
    """
    here: dict[Hashable, FilledTensor] = {}
    there: dict[str, FilledTensor] = {}
    apart: list[str] = []
    for each in filled:
        tied = here.setdefault(memory_of(each.live), each)
        if tied.saved.name != each.saved.name and content(tied.saved) != content(each.saved):
            raise _lost(tied.path, each.path)
        was_tied = there.setdefault(each.saved.name, each)
        if memory_of(was_tied.live) != memory_of(each.live) and (
            _may_change(was_tied.live) or _may_change(each.live)
        ):
            one, other = typed(was_tied.path), typed(each.path)
            apart.append(
                f"{one} and {other} were one tensor when they were saved, and are two here: both begin with its value, and "
                f"training changes each on its own; to keep one tensor, tie them before register: {other} = {one}"
            )
    return apart, _overlapping([*here.values()])


def check_overlaps(overlapping: Sequence[FilledTensor]) -> None:
    """Check behind a restore that no tensor's bytes were overwritten by those of another that overlaps it.

    Raises:
        StateError: the checkpoint holds two values for one element.
    """
    for each in overlapping:
        if (
            each.live.shape == each.saved.shape
            and not is_dtensor(each.live)
            and not is_as_read(each.saved, each.live)
        ):
            raise _lost(each.path, next(other.path for other in overlapping if other is not each))


def _overlapping(distinct: Sequence[FilledTensor]) -> list[FilledTensor]:
    """Return the tensors whose bytes may be those of another one too."""
    spans = ((span, each) for each in distinct if (span := extent(each.live)) is not None)
    return [each for run in runs(spans) if len(run) > 1 for _, each in run]


def _may_change(tensor: torch.Tensor) -> bool:
    return tensor.requires_grad or not isinstance(tensor, torch.nn.Parameter)


def typed(path: str) -> str:
    """Return a path as Python has it: `model[0].weight` for the checkpoint's `model.0.weight`."""
    return re.sub(r"\.(\d+)(?=\.|$)", r"[\1]", path)


def _lost(one: str, other: str) -> StateError:
    one, other = typed(one), typed(other)
    return StateError(
        f"{one} and {other} share memory here, and are two tensors of different values in the checkpoint, of which one would be "
        f"lost; give each its own memory before register, as in {other} = torch.nn.Parameter({other}.detach().clone()), or "
        "choose another run id [SG602]"
    )
