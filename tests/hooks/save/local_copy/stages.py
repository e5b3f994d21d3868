"""A stage on a disk of this machine, what lies there, and a process that left something behind there."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from spotguard.hooks.guard import Guard
from spotguard.hooks.ipc import protocol
from spotguard.hooks.save.request import SaveRequest as Asked
from spotguard.providers.errors import FullError
from tests.fakes.noticed import trained
from tests.fakes.store import Fault
from tests.fakes.training import Job, different, restored, seed, small, step_on, trajectory
from tests.fakes.watched_store import PATIENCE, WatchedStore, is_object


@pytest.fixture
def stage(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The disk of this machine."""
    monkeypatch.setenv("SPOTGUARD_STAGE", str(folder / "stage"))
    monkeypatch.setenv("SPOTGUARD_EVERY", "off")
    return folder / "stage"


def staged(stage: Path) -> dict[str, bytes]:
    """The objects of all checkpoints there, by key."""
    return {
        str(path.relative_to(stage)): path.read_bytes()
        for path in sorted(stage.glob("*/checkpoints/*/*/*.safetensors"))
    }


def objects(store: WatchedStore) -> dict[str, bytes]:
    return {key: data for key, data in store.objects.items() if is_object(key)}


def left_behind(store: WatchedStore) -> None:
    """A process that stages step 2 and gets nothing of it to the store; step 1 is there."""
    with trained(store, steps=1) as (guard, job, heard):
        guard.save()
        heard.wait(protocol.Committed)
        step_on(guard, job, 1)
        store.calls.clear()
        store.faults = [Fault(0, ("put",), error=lambda: FullError("the store takes nothing more"))]
        guard._saver.background()
        settled(guard)
    store.faults.clear()


def settled(guard: Guard) -> None:
    """Until the saving thread has done all that it was asked for."""
    job = Asked("background", guard._saver._scope(None), rehearsal=True)
    guard._saver._jobs.put(job)
    assert job.done.wait(PATIENCE)


def restores(store: WatchedStore, step: int) -> None:
    """Fresh objects get this step, bit for bit."""
    found, state = restored(store, small)
    assert found == step
    assert different(state, trajectory(small, step)[step]) == []


def adapter() -> Job:
    """A layer that is trained over one that is not."""
    seed()
    base, head = torch.nn.Linear(64, 64).requires_grad_(False), torch.nn.Linear(64, 1)
    optimizer = torch.optim.AdamW(head.parameters(), lr=0.01)
    job = Job({"base": base, "head": head, "optimizer": optimizer})

    def step(number: int) -> None:
        optimizer.zero_grad()
        head(base(torch.randn(4, 64))).square().mean().backward()
        optimizer.step()

    job.step = step
    return job
