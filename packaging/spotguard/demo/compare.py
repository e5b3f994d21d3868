"""Bit-for-bit comparison of two runs: their final states, and the losses of every step."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Verdict:
    """The amount of compared data, and all differences."""

    tensors: int
    values: int
    steps: int
    differences: tuple[str, ...]

    @property
    def equal(self) -> bool:
        return not self.differences

    @property
    def short(self) -> str:
        """The verdict in a few words."""
        same = f"{self.values:,} values and {self.steps:,} losses compared: every bit is the same"
        return (
            same if self.equal else f"{len(self.differences)} differences, the first: {self.differences[0]}"
        )

    def line(self) -> str:
        """Return the verdict in one line, the last line of the demo."""
        if self.equal:
            return (
                f"EQUAL: {self.values:,} values in {self.tensors} tensors (weights, optimizer, RNG) and {self.steps:,} "
                "losses are bit for bit those of the uninterrupted run"
            )
        more = f"; and {len(self.differences) - 3} more" if len(self.differences) > 3 else ""
        return f"DIFFERENT from the uninterrupted run: {'; '.join(self.differences[:3])}{more}"


def compare(reference: Path, resumed: Path, losses: Losses, parts: Sequence[Losses]) -> Verdict:
    """Return the verdict on a run.

    Args:
        reference: the file with the final state of the uninterrupted run, written by torch.save.
        resumed: the same file of the run under test.
        losses: the losses of the uninterrupted run.
        parts: the losses of the run under test, for each machine.
    """
    import torch

    a = torch.load(reference, map_location="cpu", weights_only=True)
    b = torch.load(resumed, map_location="cpu", weights_only=True)
    tensors = [state_tensor for _, state_tensor in _leaves("", a) if isinstance(state_tensor, torch.Tensor)]
    return Verdict(
        tensors=len(tensors),
        values=sum(tensor.numel() for tensor in tensors),
        steps=len(losses.by_step),
        differences=(*loss_differences(losses, parts), *state_differences(a, b)),
    )


def loss_differences(reference: Losses, parts: Sequence[Losses]) -> Iterator[str]:
    """Yield the steps at which a part's loss differs from the reference. A step that two machines took is compared twice."""
    for wanted, runs, name in (
        (reference.by_step, [part.by_step for part in parts], "loss"),
        (reference.held_out, [part.held_out for part in parts], "held-out loss"),
    ):
        for step, value in sorted(wanted.items()):
            at_step = [found[step] for found in runs if step in found]
            if not at_step:
                yield f"{name} of step {step}: there is none"
            yield from (
                f"{name} of step {step}: {found!r}, not {value!r}" for found in at_step if found != value
            )


def state_differences(a: Any, b: Any) -> Iterator[str]:
    """Yield the differences in type, shape and bits between two nests of dicts, lists, tensors and plain values."""
    left, right = dict(_leaves("", a)), dict(_leaves("", b))
    for name in sorted(left.keys() ^ right.keys()):
        yield f"{name}: only in {'the uninterrupted run' if name in left else 'the resumed run'}"
    for name, value in left.items():
        if name in right and (difference := _unlike(value, right[name])):
            yield f"{name}: {difference}"


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(f"{name}.{key}" if name else str(key), item)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _leaves(f"{name}[{index}]", item)
    else:
        yield name, value


def _unlike(a: Any, b: Any) -> str:
    """Return how two leaves differ; "" if they do not."""
    import torch

    if type(a) is not type(b):
        return f"{type(b).__name__}, not {type(a).__name__}"
    if isinstance(a, torch.Tensor):
        if (a.dtype, a.shape) != (b.dtype, b.shape):
            return f"{b.dtype} {tuple(b.shape)}, not {a.dtype} {tuple(a.shape)}"
        # Compare bytes: as floats, -0.0 equals 0.0, and a NaN equals nothing.
        other = (_bytes(a) != _bytes(b)).sum().item()
        return f"{other} of {a.numel() * a.element_size()} bytes differ" if other else ""
    if isinstance(a, float):
        return "" if struct.pack("d", a) == struct.pack("d", b) else f"{b!r}, not {a!r}"
    return "" if a == b else f"{b!r}, not {a!r}"


def _bytes(tensor: Any) -> Any:
    import torch

    return tensor.contiguous().reshape(-1).view(torch.uint8)


# The log of a training script: one JSON line for each step, read while the script writes it.


@dataclass(slots=True)
class Losses:
    """The losses in a log file so far."""

    path: Path
    #: Completed steps at which the process began; None until the log has them.
    started: int | None = None
    by_step: dict[int, float] = field(default_factory=dict)
    held_out: dict[int, float] = field(default_factory=dict)
    _read: int = 0

    @property
    def step(self) -> int:
        """The newest completed step."""
        return max(self.by_step, default=self.started or 0)

    @property
    def loss(self) -> float | None:
        return self.by_step.get(self.step)

    def refresh(self) -> None:
        """Read the lines added since the last call. An incomplete line waits for the next call."""
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(self._read)
            whole, end, _ = file.read().rpartition(b"\n")
        self._read += len(whole) + len(end)
        for line in whole.splitlines():
            self._take(json.loads(line))

    def _take(self, record: dict[str, Any]) -> None:
        step = record["step"]
        if record.get("event") == "start":
            self.started = step
            return
        self.by_step[step] = record["loss"]
        if "held_out" in record:
            self.held_out[step] = record["held_out"]
