"""Small training jobs whose every bit is known at every step, and a way to look at all of those bits.

`bits` asks the objects themselves (their `state_dict`), never spotguard: it is what tests believe.
"""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer

from spotguard.hooks.control.ending import sigterm
from spotguard.hooks.control.ending.sigterm import Preempted
from spotguard.hooks.control.gate_rule import Shut
from spotguard.hooks.guard import Guard
from spotguard.hooks.register import register
from spotguard.providers.clock import Clock, SystemClock
from spotguard.providers.stores.base import BlobStore

#: Seconds after which a wait between threads counts as a hang.
PATIENCE = 100.0

#: Called inside a step with the name of the instant and the step it is in.
Instant = Callable[[str, int], None]


def _nothing(instant: str, step: int) -> None:
    """What happens at an instant unless a test says otherwise."""


@dataclass
class Job:
    """One training: what is registered, and one step of it, all but `guard.step()`.

    Attributes:
        values: what `register` is given.
        step: trains step number so-and-so.
        at: what happens at the instants of a step.
    """

    values: dict[str, Any]
    step: Callable[[int], None] = lambda step: None
    at: Instant = field(default=_nothing)

    def bits(self) -> dict[str, int]:
        return bits(self.values)


Make = Callable[[], Job]


def seed(number: int = 0) -> None:
    """The same random numbers again, from all three generators."""
    random.seed(number)
    np.random.seed(number)
    torch.manual_seed(number)


def small(
    optimizer: Callable[[Any], Optimizer] = lambda params: torch.optim.AdamW(params, lr=0.01), width: int = 16
) -> Job:
    """A network with batch statistics and dropout, one optimizer, one scheduler, and draws from three generators."""
    seed()
    model = nn.Sequential(
        nn.Linear(8, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.5), nn.Linear(width, 4)
    )
    opt = optimizer(model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(opt, 2, gamma=0.5)
    notes: dict[str, list[float]] = {"losses": []}
    job = Job({"model": model, "optimizer": opt, "scheduler": scheduler, "notes": notes})
    now = 0

    def inside(*_: Any) -> None:
        job.at("forward", now)

    model[2].register_forward_hook(inside)
    opt.register_step_pre_hook(lambda *_: job.at("entering", now))

    def step(number: int) -> None:
        nonlocal now
        now = number
        job.at("loading", number)
        x = torch.randn(6, 8) + random.random() + float(np.random.rand())

        def loss_of() -> torch.Tensor:
            opt.zero_grad()
            loss: torch.Tensor = model(x).square().mean()
            loss.register_hook(lambda grad: job.at("backward", number))
            loss.backward()
            return loss

        if isinstance(opt, torch.optim.LBFGS):
            loss = opt.step(loss_of)
        else:
            loss = loss_of()
            job.at("evaluating", number)
            opt.step()
        job.at("stepped", number)
        scheduler.step()
        notes["losses"].append(float(loss.detach()))
        job.at("ending", number)

    job.step = step
    return job


# --- looking -------------------------------------------------------------------------------------------------


def bits(values: Mapping[str, Any], rng: bool = True) -> dict[str, int]:
    """A checksum of every bit of every value, by its path, the generators' included."""
    found: dict[str, int] = {}
    for name, value in values.items():
        if isinstance(value, (torch.Tensor, dict)):
            _walk(name, value, found)
        else:
            _walk(name, value.state_dict(), found)
    if rng:
        _walk("rng.torch", torch.get_rng_state(), found)
        _walk("rng.python", repr(random.getstate()), found)  # one value for its 625 numbers
        _walk("rng.numpy", np.random.get_state(), found)
    return found


def _walk(path: str, value: Any, found: dict[str, int]) -> None:
    if isinstance(value, Mapping):
        for key, each in value.items():
            _walk(f"{path}.{key}", each, found)
    elif isinstance(value, (list, tuple)):
        for index, each in enumerate(value):
            _walk(f"{path}[{index}]", each, found)
    elif isinstance(value, torch.Generator):
        _walk(path, value.get_state(), found)
    elif isinstance(value, np.random.Generator):
        _walk(path, value.bit_generator.state, found)
    else:
        found[path] = zlib.crc32(_plain(value), zlib.crc32(type(value).__name__.encode()))


def _plain(value: Any) -> bytes:
    if isinstance(value, torch.Tensor):
        # As the bytes of its elements: some dtypes have no copy, and so cannot be made contiguous.
        flat = value.detach().cpu().resolve_conj().resolve_neg()
        flat = (flat.view(torch.uint8) if value.itemsize == 1 else flat).contiguous().reshape(-1)
        return f"{value.dtype}{tuple(value.shape)}".encode() + bytes(flat.view(torch.uint8).numpy())
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{value.shape}".encode() + value.tobytes()
    if isinstance(value, float):
        return struct.pack("d", value)
    return repr(value).encode()


def trajectory(make: Make, total: int) -> list[dict[str, int]]:
    """The bits after 0, 1 … `total` steps of an uninterrupted, unguarded run."""
    job = make()
    states = [job.bits()]
    for number in range(total):
        job.step(number)
        states.append(job.bits())
    return states


# --- guarding ------------------------------------------------------------------------------------------------


@contextmanager
def guarded(
    store: Path | BlobStore, values: Mapping[str, Any], run_id: str = "run", clock: Clock | None = None
) -> Iterator[Guard]:
    """A guard over a job, closed at the end, its signal handler gone with it."""
    if isinstance(store, Path):
        guard = register(store.as_uri(), run_id=run_id, **values)
    else:
        guard = Guard(store, run_id, dict(values), clock or SystemClock())
    try:
        yield guard
    finally:
        guard.close()
        sigterm.let_go()


def step_on(guard: Guard, job: Job, *numbers: int) -> None:
    """Train these steps, each of them to its boundary."""
    for number in numbers:
        job.step(number)
        guard.step()


def train(guard: Guard, job: Job, total: int) -> int:
    """Train to `total` steps or to a notice; returns the completed steps."""
    done = guard.restore()
    try:
        for number in range(done, total):
            job.step(number)
            done = number + 1  # with everything of it done, the boundary is only crossed
            guard.step()
    except Preempted:
        return -1
    return done


def saved_each_step(
    store: Path | BlobStore, total: int, *, make: Make = small, run_id: str = "run"
) -> list[dict[str, int]]:
    """A run with a checkpoint after each of its steps; the bits after 0, 1 … of them."""
    job = make()
    states = []
    with guarded(store, job.values, run_id) as guard:
        guard.restore()
        states.append(job.bits())
        for number in range(total):
            job.step(number)
            guard.step()
            guard.save()
            states.append(job.bits())
    return states


def restored(store: Path | BlobStore, make: Make, run_id: str = "run") -> tuple[int, dict[str, int]]:
    """The step and the bits that fresh objects have after a restore, before anything else happens."""
    job = make()
    seed(99)  # whatever the generators stand at, the restore must put them right
    with guarded(store, job.values, run_id) as guard:
        done = guard.restore()
        return done, job.bits()


def finished(
    store: Path | BlobStore, make: Make, total: int, run_id: str = "run"
) -> tuple[int, dict[str, int]]:
    """Restore into fresh objects and train to the end: the step it began at, and the last bits."""
    job = make()
    seed(99)
    with guarded(store, job.values, run_id) as guard:
        begun = guard.restore()
        step_on(guard, job, *range(begun, total))
        return begun, job.bits()


def wait_shut(guard: Guard) -> None:
    """Until the saver has seen the notice and has shut the gate."""
    with guard._gate._changed:
        assert guard._gate._changed.wait_for(lambda: guard._gate.place.shut is not Shut.OPEN, PATIENCE)


def wait_open(guard: Guard) -> None:
    """Until training may go on."""
    with guard._gate._changed:
        assert guard._gate._changed.wait_for(lambda: guard._gate.place.shut is Shut.OPEN, PATIENCE)


def different(one: Mapping[str, int], other: Mapping[str, int]) -> list[str]:
    """The paths at which two states differ."""
    return sorted(path for path in {*one, *other} if one.get(path) != other.get(path))
