"""A stateful loader goes on with the very next batch, and its workers have nothing of the hook."""

from __future__ import annotations

import os
import socket
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import spotguard
from spotguard.providers.errors import StateError
from tests.fakes.dataset import Facts
from tests.fakes.training import Job, bits, different, guarded, seed, step_on
from tests.tiers import few_fast

data = pytest.importorskip("torchdata.stateful_dataloader")

#: torchdata calls what torch has deprecated.
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")]

TOTAL = 7


@pytest.fixture
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """A spawned worker finds the data set by its module's name."""
    monkeypatch.syspath_prepend(Path(__file__).parents[4])


def make(workers: int, context: str | None = None, socket: str = "") -> Job:
    """Shuffled batches into a network with dropout, over more than one epoch."""
    seed()
    loader = spotguard.ResumableLoader(
        data.StatefulDataLoader(
            Facts(12, socket),
            batch_size=3,
            shuffle=True,
            num_workers=workers,
            multiprocessing_context=context,
        )
    )
    model = nn.Sequential(nn.Linear(1, 8), nn.Dropout(0.5), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    notes: dict[str, list[list[float]]] = {"batches": []}
    feed: Any = iter(())

    def step(number: int) -> None:
        nonlocal feed
        batch: Any = next(feed, None)
        if batch is None:
            feed = iter(loader)  # begun, or gone on with
            batch = next(feed, None)
            if batch is None:  # what was restored was an epoch's end
                feed = iter(loader)
                batch = next(feed)
        notes["batches"].append(batch[:, 0].tolist())
        optimizer.zero_grad()
        model(batch[:, :1]).square().sum().backward()
        optimizer.step()

    # In no circle: a loader whose queues are collected before it waits 5 s for each of its workers.
    job = Job({"model": model, "optimizer": optimizer, "loader": loader, "notes": notes})
    job.step = step
    return job


def look(job: Job) -> dict[str, int]:
    """All but the loader, which must not be asked: what it gives is what counts."""
    return bits({name: value for name, value in job.values.items() if name != "loader"})


@cache
def plain(workers: int) -> list[dict[str, int]]:
    """The bits of a run without us, which never asks the loader for its state."""
    job = make(workers, "fork" if workers else None)
    states = [look(job)]
    for number in range(TOTAL):
        job.step(number)
        states.append(look(job))
    return states


@pytest.mark.parametrize(
    ("workers", "context", "stop", "total"),
    [(0, None, stop, TOTAL) for stop in (0, 3, 4)]
    + [(2, "fork", stop, TOTAL) for stop in (0, 3, 4)]
    + [pytest.param(1, "spawn", 2, 3, marks=pytest.mark.soak)],  # each of its workers imports torch
)
def test_it_goes_on_with_the_next_batch(
    workers: int, context: str | None, stop: int, total: int, folder: Path, importable: None
) -> None:
    """The same batches and the same dropout as a run without us: before the first, in an epoch, and at its end."""
    expected = plain(workers)
    job = make(workers, context)
    with guarded(folder, job.values) as guard:
        guard.restore()
        for number in range(stop):
            job.step(number)
            guard.step()
            assert different(look(job), expected[number + 1]) == [], "guarding changed something"
        assert guard.save().step == stop
    fresh = make(workers, context)
    seed(99)
    with guarded(folder, fresh.values) as guard:
        assert guard.restore() == stop
        assert different(look(fresh), expected[stop]) == []
        for number in range(stop, total):
            fresh.step(number)
            guard.step()
            assert different(look(fresh), expected[number + 1]) == []


def test_a_loader_is_not_begun_by_register(folder: Path) -> None:
    """Its first seed is drawn where the script draws it, and no worker starts before."""
    job = make(2, "fork")
    before = torch.get_rng_state()
    with guarded(folder, job.values) as guard:
        guard.restore()
        guard.save()
        assert job.values["loader"].loader._iterator is None
    assert torch.equal(before, torch.get_rng_state())


def saved_before_and_after_three(folder: Path) -> None:
    """Checkpoints of step 0, with no batch taken yet, and of step 3."""
    job = make(0)
    with guarded(folder, job.values) as guard:
        guard.restore()
        guard.save()
        step_on(guard, job, *range(3))
        guard.save()


@pytest.mark.parametrize("begun", ["restored", "under way"])
def test_going_back_to_before_the_first_batch_begins_anew(begun: str, folder: Path) -> None:
    """A loader that is in the middle of an epoch, of its own or of a checkpoint's, gives the first batch again."""
    expected = plain(0)
    saved_before_and_after_three(folder)
    fresh = make(0)
    with guarded(folder, fresh.values) as guard:
        assert guard.restore() == 3
        if begun == "under way":
            fresh.step(3)
            guard.step()
        assert guard.restore(step=0) == 0
        guard.save()
    again = make(0)
    with guarded(folder, again.values) as guard:
        assert guard.restore() == 0, "what was saved then is no place in an epoch either"
        for number in range(TOTAL):
            again.step(number)
            guard.step()
            assert different(look(again), expected[number + 1]) == []


def test_a_loader_that_was_told_where_to_go_on_is_told_to_begin(folder: Path) -> None:
    """In one process, with no batch in between: a whole epoch comes. (Its order is the sampler's, which drew since.)"""
    saved_before_and_after_three(folder)
    fresh = make(0)
    with guarded(folder, fresh.values) as guard:
        assert guard.restore() == 3
        assert guard.restore(step=0) == 0
        for number in range(4):
            fresh.step(number)
            guard.step()
    batches = fresh.values["notes"]["batches"]
    assert sorted(item for batch in batches for item in batch) == list(range(12))


# A spawned worker loads torch, and has nothing of this process but what it is handed.
@pytest.mark.parametrize("context", few_fast(["fork", "spawn"]))
def test_workers_inherit_nothing(
    context: str, folder: Path, monkeypatch: pytest.MonkeyPatch, importable: None
) -> None:
    """No thread of ours, no handler of SIGTERM, no descriptor of the agent's socket."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    path = folder / "agent.sock"
    server.bind(str(path))
    server.listen()
    monkeypatch.setenv("SPOTGUARD_SOCKET", str(path))
    values: dict[str, Any] = {"model": nn.Linear(1, 1)}
    with server, guarded(folder, values) as guard:
        assert guard._agent.client is not None
        assert guard._agent.client._socket is not None
        ours = os.readlink(f"/proc/self/fd/{guard._agent.client._socket.fileno()}")
        loader = data.StatefulDataLoader(
            Facts(2, ours), batch_size=1, num_workers=1, multiprocessing_context=context
        )
        for batch in loader:
            assert batch[0].tolist()[1:] == [0.0, 0.0, 0.0]
        threads, *others = Facts(1, ours)[0].tolist()[1:]
        assert threads >= 2, "the training process has a listener and a saver, and a writer once it is warm"
        assert others == [1.0, 1.0], "and the others too"


def test_a_loader_that_cannot_be_saved_says_so_at_its_first_boundary(folder: Path) -> None:
    """Before it begins there is nothing to prove; then it is proven at once, not at the notice."""

    class Odd(Facts):
        def state_dict(self) -> dict[str, Any]:
            return {"function": open}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            """Nothing comes back."""

    job = make(0)
    job.values["loader"] = spotguard.ResumableLoader(data.StatefulDataLoader(Odd(12)))
    with guarded(folder, job.values) as guard:
        guard.restore()
        assert len(list(job.values["loader"])) == 12
        with pytest.raises(StateError, match="loader"):
            guard.step()
