"""What is reported as committed is there, whichever request of a save the store fails at, and whatever it loses by it."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Literal, TypeVar

import pytest
import torch

from spotguard.hooks.checkpoint.catalog import find_whole
from spotguard.hooks.checkpoint.format.keys import MARKER
from spotguard.hooks.checkpoint.format.manifest import Kind
from spotguard.hooks.checkpoint.retention import Keep
from spotguard.hooks.commit.cancel_scope import Abandoned, CancelScope
from spotguard.hooks.restore.reads.verify import verify
from spotguard.hooks.save.checkpointer import Checkpointer
from spotguard.hooks.save.request import SavedCheckpoint, SaveSpec, Weights
from spotguard.hooks.state.state import State
from spotguard.providers.clock import Clock
from spotguard.providers.errors import DeniedError, FullError, StoreError, ThrottledError, UnavailableError
from spotguard.providers.stores.base import BlobStore
from tests.fakes.called import CalledStore, Request
from tests.fakes.clock import Quick
from tests.fakes.store import FakeStore
from tests.tiers import few_fast

pytestmark = pytest.mark.torch

T = TypeVar("T")

STEP = 1
#: Virtual seconds of an emergency save: nothing is short of time on a slow machine either.
WINDOW = 2000.0


class Outage:
    """A store that fails one request of a save, and loses by an outage what it had accepted. No commit can know what a store loses
    later: behind the marker, or where several ranks mark, behind the first look of a rank at all objects."""

    def __init__(self, number: int, when: Literal["before", "behind"], error: type[StoreError]) -> None:
        self.below = FakeStore()
        self.number, self.when, self.error = number, when, error
        self.count, self.key = 0, ""
        #: The save has not begun; or a rank has listed the whole checkpoint, or has marked it.
        self.over = False
        self._lock = threading.Lock()

    def store(self) -> BlobStore:
        """As one rank sees it."""
        return _AwayOnce(self)

    def through(self, request: Request, effect: Callable[[], T]) -> T:
        """One request at a time, so that nobody sees what is lost in the same moment."""
        with self._lock:
            hit = not self.over and self.count == self.number
            self.count += not self.over
            if hit and self.when == "before":
                self._lose(request)
            result = effect()
            if hit:
                self._lose(request)
            looked = request.verb == "list" and request.key == f"run/checkpoints/{request.key.split('/')[2]}/"
            self.over |= looked or (request.verb == "put" and request.key.endswith(MARKER))
            return result

    def _lose(self, request: Request) -> None:
        self.key = f"{request.verb} {request.key}"
        if self.error.transient:  # a refusal loses nothing
            for key in [key for key in self.below.objects if "/checkpoints/" in key]:
                del self.below.objects[key]
        raise self.error("it was away")


class _AwayOnce(CalledStore):
    def __init__(self, outage: Outage) -> None:
        super().__init__(outage.below)
        self._outage = outage

    def through(self, request: Request, effect: Callable[[], T]) -> T:
        return self._outage.through(request, effect)


def save(
    away: Outage, rank: int, world: int, kind: Kind, weights: Weights | None, clock: Clock, *, frozen: bool
) -> SavedCheckpoint | Exception | None:
    """One rank's save of its own model and moments. An error is a result.

    Args:
        frozen: the save refers to weights that an earlier one has put.
    """
    store = away.store()
    model = torch.nn.Linear(32, 32)
    if frozen:
        model.add_module("base", torch.nn.Linear(32, 32).requires_grad_(False))
    optimizer = torch.optim.Adam([each for each in model.parameters() if each.requires_grad])
    state = State(
        {f"model{rank}": model, f"optimizer{rank}": optimizer}, lambda buffer: None, rank=rank, world=world
    )
    model(torch.ones(32)).sum().backward()
    optimizer.step()
    state.at_boundary()
    agreed = SaveSpec(STEP, parked=True)
    if weights is not None:
        agreed = SaveSpec(STEP, 7, parked=True, speaks=rank == 0, weights=weights)
    scope = CancelScope(clock, clock.monotonic() + WINDOW if kind == "emergency" else None)
    with closing(
        Checkpointer(store, "run", 1, clock=clock, keep=Keep(3), rank=rank, world=world, incarnation="nonce")
    ) as checkpointer:
        try:
            if frozen:
                away.over = True
                checkpointer.save(
                    state, SaveSpec(0, parked=True), "background", CancelScope(clock), opened=lambda: None
                )
                assert checkpointer._writer.plans._known
                away.over = False
            opened = (lambda: None) if kind == "background" else None
            return checkpointer.save(state, agreed, kind, scope, opened=opened)
        except (Abandoned, StoreError) as error:
            return error
        finally:
            state.close()


def outage(
    number: int,
    when: Literal["before", "behind"],
    world: int,
    kind: Kind,
    weights: Weights | None,
    error: type[StoreError] = UnavailableError,
    *,
    frozen: bool = False,
) -> tuple[Outage, list[SavedCheckpoint | Exception | None]]:
    """A save of all ranks at once."""
    away, clock = Outage(number, when, error), Quick()
    with ThreadPoolExecutor(world) as pool:
        saves = [
            pool.submit(save, away, rank, world, kind, weights, clock, frozen=frozen) for rank in range(world)
        ]
        return away, [each.result(100) for each in saves]


def assert_kept(away: Outage, results: list[SavedCheckpoint | Exception | None]) -> None:
    """Each that reports a level finds it in the store, byte for byte."""
    for result in results:
        if isinstance(result, SavedCheckpoint):
            whole = find_whole(away.below, "run", levels=(result.level,))
            assert whole is not None, f"{result.level} is reported, and lost at {away.key}"
            assert (whole.name.step, verify(away.below, whole)) == (STEP, [])


def requests(world: int, kind: Kind, weights: Weights | None, *, frozen: bool = False) -> int:
    """The number of requests of a save that meets no failure, roughly: ranks poll."""
    away, results = outage(-1, "before", world, kind, weights, frozen=frozen)
    assert all(isinstance(result, SavedCheckpoint) and result.level == "full" for result in results)
    return away.count


ALONE: list[tuple[Kind, Weights | None]] = [
    ("emergency", None),
    ("background", None),
    ("manual", None),
    ("emergency", "with the rest"),
    ("emergency", "first"),
    ("emergency", "early"),
]


@pytest.mark.parametrize("frozen", [False, True], ids=["own", "frozen"])
@pytest.mark.parametrize("error", few_fast([UnavailableError, ThrottledError]))
@pytest.mark.parametrize("when", ["before", "behind"])
@pytest.mark.parametrize(("kind", "weights"), ALONE)
def test_an_outage_at_any_request_of_a_single_process_is_made_good(
    kind: Kind,
    weights: Weights | None,
    when: Literal["before", "behind"],
    error: type[StoreError],
    frozen: bool,
) -> None:
    """With one failure there is time enough, so all of it is reported, and is there; what an earlier save has put is lost too."""
    for number in range(requests(1, kind, weights, frozen=frozen)):
        away, results = outage(number, when, 1, kind, weights, error, frozen=frozen)
        assert_kept(away, results)
        (saved,) = results
        assert isinstance(saved, SavedCheckpoint), f"{saved} at {away.key}"
        assert saved.level == "full", f"{saved.why} at {away.key}"


TOGETHER: list[tuple[Kind, Weights]] = [
    ("emergency", "with the rest"),
    ("emergency", "first"),
    ("emergency", "early"),
    ("background", "with the rest"),
    ("manual", "with the rest"),
]


def ranks(world: int, kind: Kind, weights: Weights, when: Literal["before", "behind"], every: int) -> None:
    for number in range(0, requests(world, kind, weights) + 2 * world, every):
        assert_kept(*outage(number, when, world, kind, weights))


@pytest.mark.parametrize("when", ["before", "behind"])
@pytest.mark.parametrize(("kind", "weights"), few_fast(TOGETHER, 2))
def test_an_outage_that_one_of_two_ranks_hears_leaves_no_false_commit(
    kind: Kind, weights: Weights, when: Literal["before", "behind"]
) -> None:
    ranks(2, kind, weights, when, 1)


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "behind"])
@pytest.mark.parametrize(("kind", "weights"), TOGETHER)
def test_an_outage_that_one_of_four_ranks_hears_leaves_no_false_commit(
    kind: Kind, weights: Weights, when: Literal["before", "behind"]
) -> None:
    """At each fifth request."""
    ranks(4, kind, weights, when, 5)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(12))
def test_no_order_of_threads_makes_a_false_commit(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that change at any bytecode meet what they meet once in thousands of saves."""
    monkeypatch.setattr("tests.hooks.commit.test_outages.WINDOW", 500.0)
    chance, interval = random.Random(seed), sys.getswitchinterval()
    counts: dict[tuple[object, ...], int] = {}
    try:
        for _ in range(60):
            world = chance.choice([1, 1, 1, 2, 4])
            kind, weights = chance.choice(ALONE if world == 1 else [*TOGETHER])
            frozen = world == 1 and chance.random() < 0.5
            when: Literal["before", "behind"] = chance.choice(["before", "behind"])
            error = chance.choice([UnavailableError, ThrottledError, FullError, DeniedError])
            drawn = world, kind, weights, frozen
            if drawn not in counts:
                counts[drawn] = requests(world, kind, weights, frozen=frozen)
            number = chance.randrange(counts[drawn] + 2 * world)
            sys.setswitchinterval(chance.choice([1e-6, 1e-5, 1e-4]))
            away, results = outage(number, when, world, kind, weights, error, frozen=frozen)
            assert_kept(away, results)
            if world == 1 and error.transient:
                assert [getattr(each, "level", each) for each in results] == ["full"], (drawn, away.key)
    finally:
        sys.setswitchinterval(interval)
