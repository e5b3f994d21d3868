"""All ranks at once go on from one checkpoint, and fetch for one another what they all need."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from time import monotonic
from typing import Any, cast

import pytest
import torch
from torch.distributed import HashStore  # type: ignore[attr-defined]

from spotguard.hooks.checkpoint.format.keys import CheckpointName, checkpoint_prefix, manifest_name
from spotguard.hooks.checkpoint.format.manifest import RankManifest
from spotguard.hooks.checkpoint.marker import put_saving
from spotguard.hooks.commit.cancel_scope import CancelScope
from spotguard.hooks.commit.plan.write_plan import WriteProgress
from spotguard.hooks.consensus.channel import Channel
from spotguard.hooks.consensus.collective_results import result_of_first_rank
from spotguard.hooks.consensus.stores.connection import JobStore, StoreSilent
from spotguard.hooks.guard import Guard
from spotguard.hooks.restore.collective import cannot_begin, restore_together, see_the_same
from spotguard.hooks.restore.restore import CheckpointChoice
from spotguard.hooks.restore.saves_in_flight import SavesInFlight
from spotguard.hooks.restore.startup import Startup
from spotguard.hooks.save.shard_writer import ShardWriter
from spotguard.hooks.state.state import State
from spotguard.providers.clock import Clock, SystemClock
from spotguard.providers.errors import SpotguardError, StateError, UsageError
from tests.fakes.clock import Impatient, ManualClock
from tests.fakes.commit import put_manifest
from tests.fakes.store import FakeStore

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

PATIENCE = 100.0
WORLD = 4


class Fussy:
    """Refuses the states of some steps."""

    def __init__(self, step: int, refuses: Sequence[int] = ()) -> None:
        self.step, self._refuses = step, refuses

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["step"] in self._refuses:
            raise ValueError(f"not {state['step']}")
        self.step = state["step"]


def state(rank: int, value: int, fussy: Fussy | None = None) -> State:
    values = {"notes": {"a": torch.full((3,), value)}, "fussy": fussy or Fussy(0)}
    made = State(values, lambda buffer: None, rank=rank, world=WORLD)
    made.at_boundary()
    return made


def saved(store: FakeStore, step: int) -> str:
    """A checkpoint of all ranks; returns where it lies."""
    name = CheckpointName(1, step, 0)
    for rank in range(WORLD):
        collected = state(rank, 10 * step + rank, Fussy(step)).collect()
        with closing(ShardWriter(store, "run", rank, WORLD)) as writer:
            scope = CancelScope(SystemClock())
            written = writer.write(
                collected.state_tensors,
                name,
                scope,
                write_progress=WriteProgress(writer.plans.of(collected.state_tensors)),
            )
        put_manifest(
            store,
            RankManifest("run", step, 1, 0, rank, WORLD, written.objects, written.tensors, collected.trees),
        )
    return checkpoint_prefix("run", name)


def restored(
    store: FakeStore, machines: Sequence[str], refuses: Sequence[int] = (), clock: Clock | None = None
) -> list[Any]:
    """What each rank has then, or why it has nothing.

    Args:
        refuses: steps that an object of rank 2 does not take.
        clock: by which saves in flight are waited for.
    """
    in_flight = None if clock is None else SavesInFlight(store, "run", clock)
    met = cast(JobStore, HashStore())

    def one(rank: int) -> Any:
        here = state(rank, -1, Fussy(0, refuses if rank == 2 else ()))
        channel = Channel.join(met, rank, WORLD, machines[rank], SystemClock(), meet=lambda _: b"life")
        try:
            done = restore_together(
                channel, store, "run", here, CheckpointChoice(in_flight=in_flight), must=False
            )
            here.at_boundary()
            return done.step, here.parts[0].tree()["a"].tolist()
        except SpotguardError as error:
            return str(error)
        finally:
            channel.close()

    with ThreadPoolExecutor(WORLD) as pool:
        return [each.result(PATIENCE) for each in [pool.submit(one, rank) for rank in range(WORLD)]]


def fetched(store: FakeStore, prefix: str) -> list[int]:
    counts = Counter(key for verb, key in store.calls if verb == "get")
    return [counts[prefix + manifest_name(rank, WORLD)] for rank in range(WORLD)]


@pytest.mark.parametrize(
    ("machines", "times"), [("aaaa", 1), ("aabb", 2), ("abab", 2), ("abbb", 2), ("abcd", 4)]
)
def test_each_machine_fetches_a_manifest_once(
    machines: str, times: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    store = FakeStore()
    prefix = saved(store, 7)
    store.calls.clear()
    assert restored(store, machines) == [(7, [70 + rank] * 3) for rank in range(WORLD)]
    assert fetched(store, prefix) == [times] * WORLD
    assert list(tmp_path.iterdir()) == []


def test_without_a_cache_directory_each_rank_fetches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    store = FakeStore()
    prefix = saved(store, 7)
    store.calls.clear()
    assert restored(store, "aaaa") == [(7, [70 + rank] * 3) for rank in range(WORLD)]
    assert fetched(store, prefix) == [WORLD] * WORLD


def test_damage_that_one_rank_finds_sends_all_to_the_older_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which they fetch once again, and leave nothing behind."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    store = FakeStore()
    older, newer = saved(store, 7), saved(store, 8)
    key = next(key for key in store.objects if key.startswith(newer + "00002-of"))
    store.objects[key] = store.objects[key][:-1] + b"?"
    store.calls.clear()
    assert restored(store, "aabb") == [(7, [70 + rank] * 3) for rank in range(WORLD)]
    assert fetched(store, older) == fetched(store, newer) == [2] * WORLD
    assert list(tmp_path.iterdir()) == []


def test_an_object_that_one_rank_refuses_sends_all_to_the_older_checkpoint() -> None:
    """It takes that, so the newer one is damaged."""
    store = FakeStore()
    for step in (7, 8):
        saved(store, step)
    assert restored(store, "abcd", refuses=[8]) == [(7, [70 + rank] * 3) for rank in range(WORLD)]


def test_all_ranks_wait_for_a_save_in_flight() -> None:
    """The last rank's manifest comes while the first one waits, and they go on from that step."""
    store, clock = FakeStore(), Impatient()
    saved(store, 1)
    prefix = saved(store, 2)
    last = store.objects.pop(prefix + manifest_name(3, WORLD))
    put_saving(store, "run", CheckpointName(1, 2, 0), 60)
    wait = clock.wait

    def then(event: threading.Event, timeout: float) -> bool:
        store.objects[prefix + manifest_name(3, WORLD)] = last
        return wait(event, timeout)

    clock.wait = then  # type: ignore[method-assign]
    assert restored(store, ["a", "a", "b", "b"], clock=clock) == [
        (2, [20.0 + rank] * 3) for rank in range(WORLD)
    ]
    assert len(clock.waits) == 1


def test_an_object_that_refuses_every_checkpoint_is_another_one_than_was_saved(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """No rank is told of damage, and none begins at 0."""
    store = FakeStore()
    for step in (7, 8):
        saved(store, step)
    for said in restored(store, "abcd", refuses=[7, 8]):
        assert said.startswith(
            "rank 2: fussy: Fussy.load_state_dict refuses the checkpoint's state (ValueError: not 7)"
        )
        assert "No older checkpoint could be restored" in said
    assert "damaged" not in caplog.text


def both(first: Callable[[Channel], Any], second: Callable[[Channel], Any]) -> list[Any]:
    """What two ranks that have met get from it, or what ends it."""
    met = cast(JobStore, HashStore())

    def one(rank: int) -> Any:
        channel = Channel.join(met, rank, 2, "a", SystemClock(), meet=lambda _: b"life")
        try:
            return (first, second)[rank](channel)
        except Exception as error:  # noqa: BLE001
            return error
        finally:
            channel.close()

    with ThreadPoolExecutor(2) as pool:
        return [each.result(PATIENCE) for each in [pool.submit(one, rank) for rank in range(2)]]


def test_an_error_of_the_first_rank_is_told_to_all() -> None:
    """Also what is nobody's business but its own: without a word they would wait for it for minutes."""
    error = MemoryError("no more")

    def ask() -> int:
        raise error

    first, second = both(lambda c: result_of_first_rank(c, ask), lambda c: result_of_first_rank(c, ask))
    assert first is error
    assert isinstance(second, StateError)
    assert str(second) == "rank 0: MemoryError: no more"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (StateError("model: x is a lock"), "rank 1: model: x is a lock"),
        (KeyError("a"), "rank 1: KeyError: 'a'"),
    ],
)
def test_a_rank_that_cannot_begin_says_so_where_the_others_meet(error: Exception, said: str) -> None:
    first, _ = both(lambda c: see_the_same(c, {"run-id": "a"}), lambda c: cannot_begin(c, error))
    assert isinstance(first, StateError)
    assert str(first) == said


def refused() -> None:
    raise UsageError("the agent guards another process of this name")


def test_a_rank_that_is_not_admitted_holds_nobody() -> None:
    """By its agent, or by the store."""

    def admit(connect: Callable[[], None]) -> Callable[[Channel], Any]:
        return lambda channel: Startup(FakeStore(), "run", SystemClock(), channel).admit(connect)

    first, second = both(admit(lambda: None), admit(refused))
    assert isinstance(first, UsageError)
    assert str(first) == "rank 1: the agent guards another process of this name"
    assert str(second) == "the agent guards another process of this name"
    assert both(admit(lambda: None), admit(lambda: None)) == [None, None]


def test_two_that_cannot_begin_wait_for_nobody() -> None:
    assert (
        both(lambda c: cannot_begin(c, ValueError()), lambda c: cannot_begin(c, ValueError())) == [None] * 2
    )


def test_a_guard_that_is_refused_leaves_the_meeting() -> None:
    others = {thread.ident for thread in threading.enumerate()}
    channel = Channel.join(cast(JobStore, HashStore()), 0, 1, "a", SystemClock(), meet=lambda _: b"life")
    with pytest.raises(StateError, match="lock"):
        Guard(FakeStore(), "run", {"lock": threading.Lock()}, SystemClock(), channel)
    assert {thread.ident for thread in threading.enumerate()} == others


@contextmanager
def meeting(clock: ManualClock) -> Iterator[list[Channel]]:
    """Two ranks that have met."""
    met = cast(JobStore, HashStore())
    with ExitStack() as ends, ThreadPoolExecutor(2) as pool:

        def join(rank: int) -> Channel:
            return Channel.join(met, rank, 2, "a", clock, meet=lambda _: b"life")

        joining = [pool.submit(join, rank) for rank in range(2)]
        while not all(each.done() for each in joining):
            clock.advance(0.01)
            wait(joining, 0.005)
        channels = [each.result() for each in joining]
        for channel in channels:
            ends.callback(channel.close, 0.0)
        yield channels


def test_a_rank_that_dies_while_it_reads_holds_the_others_for_a_minute_and_not_for_hours() -> None:
    clock = ManualClock()
    with meeting(clock) as (first, second), ThreadPoolExecutor(1) as pool:
        second.meetings.beat()
        began = clock.monotonic()
        asked = pool.submit(first.meetings.gather, b"read", 7200.0, silence=30.0)
        while not asked.done():
            clock.advance(1.0)
            wait([asked], 0.005)
        with pytest.raises(
            StoreSilent, match="rank 1 of 2 has shown no sign of life for 30 s while all ranks wait for it"
        ):
            asked.result()
        assert 30 <= clock.monotonic() - began < 300


def test_a_rank_that_reads_for_long_is_waited_for() -> None:
    clock = ManualClock()
    with meeting(clock) as (first, second), ThreadPoolExecutor(2) as pool:
        asked = pool.submit(first.meetings.gather, b"read", 7200.0, silence=30.0)
        for _ in range(60):
            second.meetings.beat()
            clock.advance(5.0)
            wait([asked], 0.005)
        assert not asked.done()
        told = pool.submit(second.meetings.gather, b"too", 7200.0, silence=30.0)
        while not (asked.done() and told.done()):
            clock.advance(1.0)
            wait([asked, told], 0.005)
        assert asked.result() == told.result() == [b"read", b"too"]


def test_a_reading_rank_beats_again_and_again() -> None:
    clock = ManualClock()
    with meeting(clock) as (first, second):

        def shown(least: int) -> bool:
            deadline = monotonic() + PATIENCE
            while first.meetings.beats((1,))[1] < least and monotonic() < deadline:
                clock.advance(1.0)  # again and again: nobody knows when it waits
            return first.meetings.beats((1,))[1] >= least

        with second.meetings.beating():
            assert shown(1)
            assert shown(2)
        seen = first.meetings.beats((1,))
        clock.advance(10.0)
        assert first.meetings.beats((1,)) == seen
