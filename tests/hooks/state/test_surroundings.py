"""What is around the state: thread counts, a default device, and what only the first boundaries cost."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from spotguard.hooks.checkpoint.catalog import find_whole
from spotguard.hooks.state import collected
from spotguard.hooks.state.state import State
from spotguard.providers.errors import StateError
from spotguard.providers.stores.file import FileStore
from tests.fakes.clock import ManualClock
from tests.fakes.training import Job, different, guarded, small, step_on

pytestmark = pytest.mark.torch


def test_the_training_threads_number_of_threads_is_recorded(folder: Path) -> None:
    """torch counts them for each thread by itself; the one that saves has other numbers."""
    torch.set_num_threads(2)
    job = small()
    with guarded(folder, job.values) as guard:
        guard.restore()
        torch.set_num_threads(1)
        step_on(guard, job, 0)
        guard.save()
    whole = find_whole(FileStore(folder), "run")
    assert whole is not None
    assert whole.manifests[0].environment["threads"] == 1


@pytest.mark.parametrize(
    ("key", "other", "said"),
    [
        ("torch", "9.9.9", "saved with torch {here}, restored with 9.9.9: "),
        ("threads", 64, "saved with CPU threads {here}, restored with 64: "),
        ("machine", "sparc64", "saved with machine type {here}, restored with sparc64: "),
        ("device", "NVIDIA H100", "saved with device {here}, restored with NVIDIA H100: "),
        ("python", "3.99", ""),
    ],
)
def test_a_restore_says_what_may_change_the_last_bits(
    key: str,
    other: object,
    said: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    job = small()
    with guarded(folder, job.values) as guard:
        guard.restore()
        step_on(guard, job, 0)
        guard.save()
    here = collected.describe()
    monkeypatch.setattr(collected, "describe", lambda: {**here, key: other})
    fresh = small()
    with guarded(folder, fresh.values) as guard:
        assert guard.restore() == 1
    lines = [each for each in caplog.messages if "training may differ in the last bits" in each]
    assert len(lines) == (said != "")
    assert all(said.format(here=here[key]) in each for each in lines)
    assert different(fresh.bits(), job.bits()) == []


def test_a_default_device_is_not_ours(folder: Path) -> None:
    """A script's `torch.set_default_device` says where its tensors go, not where a restore puts what it reads."""

    def make() -> Job:
        job = small()
        job.values["notes"] = {"mask": torch.arange(5), "rows": [torch.ones(2)]}
        job.values["counter"] = torch.arange(3)
        return job

    job = make()
    with guarded(folder, job.values) as guard:
        guard.restore()
        step_on(guard, job, 0)
        guard.save()
    fresh = make()
    torch.set_default_device("meta")
    try:
        with guarded(folder, fresh.values) as guard:
            assert guard.restore() == 1
    finally:
        torch.set_default_device(None)
    assert different(fresh.bits(), job.bits()) == []


def test_a_search_that_runs_once_is_not_weighed() -> None:
    """The first boundaries follow what an optimizer makes: what that takes says nothing about the later ones."""
    clock = ManualClock()

    class Slow(defaultdict[torch.Tensor, Any]):
        """State that takes a second to be looked through."""

        def values(self) -> Any:
            clock.advance(1.0)
            return super().values()

    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer.state = Slow(dict)
    state = State({"model": model, "optimizer": optimizer}, lambda frame: None, clock)
    for _ in range(4):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        state.at_boundary()
        assert state._times.costly == 0
    assert state.boundary_only == ""


def test_state_that_does_not_fit_itself_is_refused_at_register() -> None:
    """What was saved and read back must also be what `restore` would take: here an entry that only saving sees."""

    class Extra(nn.Linear):
        def get_extra_state(self) -> int:
            return 1

        def set_extra_state(self, state: int) -> None:
            """Always the same."""

    model = nn.Sequential(Extra(2, 2), Extra(2, 2))

    def strip(module: nn.Module, state: dict[str, Any], prefix: str, local: Any) -> None:
        del state["0._extra_state"]

    model.register_state_dict_post_hook(strip)
    with pytest.raises(StateError, match=r"model does not fit .*0\._extra_state"):
        State({"model": model}, lambda frame: None)
