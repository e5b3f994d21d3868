"""A job and who saves it over a narrow link, and what a save over it must have left: the tests of short times share them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from spotguard.hooks.checkpoint.catalog import WholeCheckpoint, find_whole
from spotguard.hooks.checkpoint.retention import Keep
from spotguard.hooks.commit.cancel_scope import CancelScope
from spotguard.hooks.restore.reads.verify import verify
from spotguard.hooks.restore.restore import CheckpointChoice, restore
from spotguard.hooks.save.checkpointer import Checkpointer
from spotguard.hooks.save.request import SavedCheckpoint, SaveSpec
from spotguard.hooks.state.state import State
from tests.fakes.narrow_store import NarrowStore, WatchedClock
from tests.fakes.store import FakeStore
from tests.fakes.training import Job, different, seed, small

BOTH = ("full", "weights")
#: With so wide a layer and so small objects, weights and moments are several objects each.
WIDTH, OBJECT = 8192, 64 * 2**10
#: Bytes of the job's state, roughly: the rate of a link and the deadlines of the tests are made from them.
WEIGHTS, MOMENTS = 560_000, 900_000
#: Seconds after which a wait counts as a hang.
PATIENCE = 100.0
RATE = 100_000.0


class Saving:
    """A job of two steps and who saves it, to a slow store."""

    def __init__(
        self,
        rate: Callable[[float], float] = lambda now: RATE,
        *,
        lossy: bool = False,
        known: bool = True,
        width: int = WIDTH,
        job: Job | None = None,
    ) -> None:
        self.clock = WatchedClock()
        self.store = NarrowStore(self.clock, rate)
        self.width = width
        self.job = job if job is not None else small(width=width)
        self.state = State(self.job.values, lambda buffer: None, self.clock)
        self.checkpointer = Checkpointer(
            self.store, "run", 1, clock=self.clock, keep=Keep(1), lossy=lossy, world=1
        )
        self.writer = self.checkpointer._writer
        self.writer.uploads.width.object_bytes = OBJECT
        self.store.quiet = self.quiet
        self.done = 0
        self.train(2)
        self.phases: list[str] = []
        self.checkpointer.warm()
        self.checkpointer.rehearse(self.state)
        if known:
            link = self.writer.uploads.link
            link.begin(-10.0)
            for second in range(1, 11):
                link.sent(int(second * RATE), second - 10.0)
            link.end(0.0)
            link.committed(2 * self.store.latency)

    def quiet(self) -> bool:
        """Whether no request is on its way: each of their threads is free, or pauses before it tries again."""
        return all(
            worker.free or self.clock.waits(worker._thread.ident)
            for worker in self.writer.uploads.request_pool.workers
        )

    def train(self, steps: int = 1) -> None:
        for _ in range(steps):
            self.job.step(self.done)
            self.done += 1
            self.state.at_boundary()

    def scope(self, seconds: float) -> CancelScope:
        return CancelScope(self.clock, self.clock.monotonic() + seconds)

    def save(self, seconds: float | CancelScope, kind: Any = "emergency") -> SavedCheckpoint | None:
        scope = seconds if isinstance(seconds, CancelScope) else self.scope(seconds)
        return self.checkpointer.save(
            self.state,
            SaveSpec(self.done),
            kind,
            scope,
            lambda phase, done, total: self.phases.append(phase),
        )

    def background(self) -> SavedCheckpoint:
        saved = self.checkpointer.save(
            self.state,
            SaveSpec(self.done, parked=True),
            "background",
            CancelScope(self.clock),
            opened=lambda: None,
        )
        assert saved is not None
        return saved

    def close(self) -> None:
        self.checkpointer.close()
        self.state.close()

    # --- what is there ---

    def newest(self, levels: Any = BOTH) -> WholeCheckpoint | None:
        return find_whole(self.store, "run", levels=levels)

    def manifests(self) -> list[str]:
        return sorted(key.split("/")[2] for key in self.store.objects if key.endswith("-of-00001.json"))

    def markers(self) -> int:
        return sum(key.endswith("COMMIT.json") for key in self.store.objects)

    def restored(self, step: int | None = None, job: Job | None = None) -> tuple[Job, int]:
        """Fresh objects that a restore filled, from a copy that takes no time."""
        store = FakeStore()
        store.objects = dict(self.store.objects)
        fresh = job if job is not None else small(width=self.width)
        seed(99)
        state = State(fresh.values, lambda buffer: None)
        try:
            done = restore(store, "run", state, CheckpointChoice(step))
        finally:
            state.close()
        return fresh, done.step


@pytest.fixture
def saving() -> Iterator[Callable[..., Saving]]:
    """Makes them, and closes them: no thread of theirs is left."""
    made: list[Saving] = []
    before = writers()

    def make(*args: Any, **kwargs: Any) -> Saving:
        made.append(Saving(*args, **kwargs))
        return made[-1]

    yield make
    for each in made:
        each.close()
    for thread in writers() - before:  # nobody waited for who was in the store
        thread.join(PATIENCE)
        assert not thread.is_alive()


def writers() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("spotguard-writer")}


def without_moments(job: Job) -> dict[str, int]:
    return {path: bits for path, bits in job.bits().items() if not path.startswith("optimizer.state")}


def assert_weights(one: Saving, whole: WholeCheckpoint | None) -> None:
    """The lower level of this step: every bit but the optimizer's state, which begins anew."""
    assert whole is not None
    assert (whole.level, whole.name.step) == ("weights", one.done)
    assert not any(name.startswith("optimizer/state") for name in whole.tensors)
    again, step = one.restored(one.done)
    assert step == one.done
    assert different(without_moments(again), without_moments(one.job)) == []
    optimizer = again.values["optimizer"]
    assert optimizer.state_dict()["state"] == {}
    assert [group["lr"] for group in optimizer.param_groups] == [
        group["lr"] for group in one.job.values["optimizer"].param_groups
    ]


def assert_full(one: Saving) -> None:
    """Every bit of this step, and every byte of it is what was written."""
    whole = one.newest(("full",))
    assert whole is not None
    assert whole.name.step == one.done
    again, step = one.restored(one.done)
    assert step == one.done
    assert different(again.bits(), one.job.bits()) == []
    assert verify(one.store, whole) == []
