"""Four ranks that meet at a file: `several.py FILE`. Each trains a model in each of torch's ways, takes the state apart,
puts it together from the boxes of all ranks, and restores it in the other ways. Torch's own full tensors say what is right.

What the hooks do is done where any collective raises. The ranks are forked: torch is loaded once.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor.debug import CommDebugMode
from torch.utils._python_dispatch import TorchDispatchMode

from spotguard.hooks.checkpoint.format.coverage import MergedTensor
from spotguard.hooks.state.state import State
from spotguard.hooks.state.state_tensor import StateTensor
from tests.fakes.several import WAYS, Model, share_of, whole
from tests.hooks.state.sharding.programs.counting import only_its_own

WORLD, STEPS = 4, 2
#: From one to the other: each is left once, and entered once.
ROADS = [
    ("ddp", "fsdp"),
    ("fsdp", "tp_fsdp"),
    ("tp_fsdp", "ddp"),
    ("hsdp", "tp"),
    ("tp", "hsdp"),
    ("fsdp", "fsdp"),
]


class Alone(TorchDispatchMode):
    """Whoever asks another rank for anything inside is told so."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace in ("c10d", "_c10d_functional", "_dtensor"):
            raise AssertionError(f"a collective: {func}")
        return func(*args, **(kwargs or {}))


@contextmanager
def no_collective() -> Iterator[None]:
    with CommDebugMode() as counted, Alone():  # type: ignore[no-untyped-call]
        yield
    assert counted.get_total_counts() == 0


@dataclass
class Saved:
    """What all ranks wrote: every tensor whole, and each rank's trees."""

    tensors: dict[str, torch.Tensor]
    states: list[dict[str, Any]]

    @property
    def entries(self) -> dict[str, MergedTensor]:
        return {
            name: MergedTensor(name, str(t.dtype).removeprefix("torch."), tuple(t.shape), "", [])
            for name, t in self.tensors.items()
        }


@dataclass
class Kept:
    saved: Saved
    #: What torch gathers.
    full: dict[str, torch.Tensor]
    #: The loss of the next step, had nobody stopped.
    after: float


def batch(way: str, rank: int, number: int) -> torch.Tensor:
    return torch.randn(6, 5, generator=torch.Generator().manual_seed(100 * number + share_of(way, rank)))


def make(way: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(3)
    model = Model() if way == "alone" else WAYS[way](Model(), WORLD)
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> float:
    loss: torch.Tensor = model(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


def full(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """Weights and moments by the names that a checkpoint has for them, as torch gathers them."""
    inner = model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model
    found = {}
    for name, parameter in inner.named_parameters():
        found[f"model/{name}"] = whole(parameter).clone()
        for word, value in optimizer.state[parameter].items():
            found[f"optimizer/state/model/{name}/{word}"] = whole(value).clone()
    return found


def bytes_of(state_tensors: Sequence[StateTensor]) -> dict[str, bytes]:
    return {
        state_tensor.name: state_tensor.tensor.detach().numpy().tobytes() for state_tensor in state_tensors
    }


def gathered(value: Any) -> list[Any]:
    everyone: list[Any] = [None] * WORLD
    dist.all_gather_object(everyone, value)
    return everyone


def put_together(state_tensors: Sequence[StateTensor], rank: int) -> dict[str, torch.Tensor]:
    """Every tensor from the boxes of those who hold it. Two that say they hold the same do."""
    mine = [
        (
            state_tensor.name,
            state_tensor.tensor.detach().clone(),
            state_tensor.offsets,
            state_tensor.shape,
            state_tensor.holders,
        )
        for state_tensor in state_tensors
        if not state_tensor.holders or rank in state_tensor.holders
    ]
    found: dict[str, torch.Tensor] = {}
    filled: dict[str, torch.Tensor] = {}
    for name, part, offsets, shape, _ in (each for ranks in gathered(mine) for each in ranks):
        if name not in found:
            found[name] = torch.empty(part.shape if shape is None else shape, dtype=part.dtype)
            filled[name] = torch.zeros(found[name].shape, dtype=torch.bool)
        box = tuple(slice(o, o + n) for o, n in zip(offsets or (0,) * part.dim(), part.shape, strict=True))
        twice = filled[name][box]
        assert bool((~twice).all()) or torch.equal(found[name][box], part), f"{name} differs"
        found[name][box] = part
        filled[name][box] = True
    assert all(bool(each.all()) for each in filled.values())
    return found


def save(way: str, rank: int) -> Kept:
    plain_model, plain_optimizer = make(way)
    plain = [step(plain_model, plain_optimizer, batch(way, rank, number)) for number in range(STEPS)]
    model, optimizer = make(way)
    state = State({"model": model, "optimizer": optimizer}, lambda frame: None, rank=rank, world=WORLD)
    state.at_boundary()
    losses = []
    for number in range(STEPS):
        losses.append(step(model, optimizer, batch(way, rank, number)))
        with no_collective():
            state.at_boundary()
    assert losses == plain, f"{way}: guarding changed {plain} to {losses}"
    with no_collective():
        collected = state.collect()
        assert state.inconsistency() == ""
    saved = Saved(put_together(collected.state_tensors, rank), gathered(dict(collected.trees)))
    expected = full(model, optimizer)
    mid_forward(way, rank, model, state)
    with torch.no_grad():
        model(batch(way, rank, STEPS))  # an evaluation, which leaves gathered weights behind
    with no_collective():
        state.take_again()
        now = state.collect()
    assert set(bytes_of(now.state_tensors)) == set(bytes_of(collected.state_tensors))
    return Kept(saved, expected, step(plain_model, plain_optimizer, batch(way, rank, STEPS)))


def save_alone() -> Saved:
    """What one process has, that nobody helped."""
    model, optimizer = make("alone")
    state = State({"model": model, "optimizer": optimizer}, lambda frame: None)
    step(model, optimizer, batch("alone", 0, 0))
    state.at_boundary()
    collected = state.collect()
    return Saved(
        {state_tensor.name: state_tensor.tensor.clone() for state_tensor in collected.state_tensors},
        [dict(collected.trees)],
    )


def mid_forward(way: str, rank: int, model: nn.Module, state: State) -> None:
    """Another thread sees the same state from within forward and backward."""
    expected = bytes_of(state.collect().state_tensors)
    seen: list[object] = []

    def look() -> None:
        try:
            seen.append((state.inconsistency(), bytes_of(state.collect().state_tensors) == expected))
        except BaseException as error:  # noqa: BLE001 - the thread that joins says what it was
            seen.append(error)

    def aside(*_: Any) -> None:
        thread = threading.Thread(target=look)
        thread.start()
        thread.join(100)

    last = next(m for n, m in model.named_modules() if n.endswith("last"))
    hooks = [last.register_forward_pre_hook(aside), last.register_full_backward_hook(aside)]
    model(batch(way, rank, STEPS)).sum().backward()
    for hook in hooks:
        hook.remove()
    model.zero_grad()
    assert seen == [("", True)] * 2, f"{way}: {seen}"


def fill(into: Mapping[str, StateTensor], tensors: Mapping[str, torch.Tensor]) -> None:
    """As the reader does: the box of each tensor."""
    for name, state_tensor in into.items():
        part = tensors[name]
        if state_tensor.offsets is not None:
            assert state_tensor.shape == tuple(part.shape)
            for dim, (offset, size) in enumerate(
                zip(state_tensor.offsets, state_tensor.tensor.shape, strict=True)
            ):
                part = part.narrow(dim, offset, size)
        state_tensor.tensor.detach().copy_(part)


def restore(way: str, rank: int, world: int, saved: Saved) -> tuple[dict[str, torch.Tensor], float]:
    """Into a model that has been evaluated; gives what it is then, and the loss of its next step."""
    model, optimizer = make(way)
    state = State({"model": model, "optimizer": optimizer}, lambda frame: None, rank=rank, world=world)
    with torch.no_grad():
        model(batch(way, rank, 0))
    with no_collective():
        restoring = state.targets(saved.states, saved.entries)
        fill(restoring.into, saved.tensors)
        state.put_back(restoring)
        state.at_boundary()
        state.collect()
    found = full(model, optimizer)
    return found, step(model, optimizer, batch(way, rank, STEPS))


def compare(what: str, found: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]) -> None:
    assert sorted(found) == sorted(expected), what
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), f"{what}: {name}"


def by_name(tensors: Mapping[str, torch.Tensor], rank: int) -> dict[str, torch.Tensor]:
    """The names that a rank's `full` has for them."""
    own = {name.removeprefix(f"@{rank:05d}/"): t for name, t in tensors.items()}
    return {name: own[name] for name in own if not name.startswith("@")}


def main(rank: int, file: str) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=WORLD)
    kept: dict[str, Kept] = {}
    for way in WAYS:
        one = kept[way] = save(way, rank)
        group = (
            rank % 2 if way == "tp_fsdp" else rank
        )  # what tensor parallel left alone bears the first rank's number
        found = by_name(one.saved.tensors, group)
        compare(way, {name: found[name] for name in one.full}, one.full)
    for old, new in ROADS:
        tensors, loss = restore(new, rank, WORLD, kept[old].saved)
        compare(f"{old} to {new}", tensors, kept[old].full)
        assert loss == kept[old].after or old != new, f"{old} goes on with {loss} for {kept[old].after}"
    for way in ("ddp", "hsdp", "tp", "tp_fsdp"):
        made, given = partial(make, way), partial(batch, way, rank)
        only_its_own(made, given, rank, Path(file).parent / way)
    tensors, _ = restore("alone", 0, 1, kept["fsdp"].saved)
    compare("fsdp to one process", tensors, kept["fsdp"].full)
    single = save_alone()
    tensors, _ = restore("fsdp", rank, WORLD, single)
    compare("one process to fsdp", tensors, {name: single.tensors[name] for name in tensors})
    dist.destroy_process_group()
    print("held", flush=True)


def fork(file: str) -> int:
    """How the first of them ended that did not end well; else 0. Those that would wait for it are ended."""
    make("alone")  # an optimizer loads the compiler
    gc.freeze()  # no rank collects and frees what that has made
    pids = set()
    for rank in range(WORLD):
        if (pid := os.fork()) == 0:
            main(rank, file)
            return 0
        pids.add(pid)
    code = 0
    while pids:
        ended, status = os.wait()
        pids.remove(ended)
        if status and not code:
            code = os.waitstatus_to_exitcode(status)
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
    return code


if __name__ == "__main__":
    sys.exit(fork(sys.argv[1]))
