"""Ranks that write their shares at once make one whole, also where one dies, has nothing to write, or staged its share."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from spotguard.hooks.checkpoint.catalog import find_whole
from spotguard.hooks.checkpoint.format.coverage import Coverage
from spotguard.hooks.checkpoint.format.keys import MARKER, CheckpointName, checkpoint_prefix, manifest_name
from spotguard.hooks.checkpoint.format.manifest import RankManifest, private_name
from spotguard.hooks.checkpoint.local_stage import Stage
from spotguard.hooks.checkpoint.tier import Tier
from spotguard.hooks.commit.cancel_scope import CancelScope
from spotguard.hooks.commit.own_manifest import queue_manifest
from spotguard.hooks.commit.plan.partitioner import ALL_STAY, RankRoles
from spotguard.hooks.commit.plan.write_plan import ALL, WriteProgress, WrittenState
from spotguard.hooks.commit.publish import IncompleteError, Published, publish_together
from spotguard.hooks.commit.upload.save_queue import SaveQueue
from spotguard.hooks.restore.reads.resharding import read
from spotguard.hooks.restore.reads.verify import verify
from spotguard.hooks.save.local_copy.stage_writer import StageWriter
from spotguard.hooks.save.shard_writer import ShardWriter
from spotguard.hooks.state.device.host_buffer import HostBuffer
from spotguard.hooks.state.state_tensor import StateTensor
from spotguard.providers.clock import Clock, SystemClock
from spotguard.providers.stores.base import BlobStore
from spotguard.providers.stores.file import FileStore
from tests.cases import cases
from tests.fakes.called import CalledStore, Request
from tests.fakes.clock import Hurried
from tests.fakes.commit import put_manifest
from tests.fakes.mortal import Life, Mortal
from tests.fakes.store import FakeStore, Killed

pytestmark = pytest.mark.torch

NAME = CheckpointName(1, 10, 0)
PREFIX = checkpoint_prefix("run", NAME)
WORLD = 4
#: What a job of four holds together: replicas, and rows of which each rank has a part.
WEIGHT, MOMENT, ROWS = torch.rand(900, 1000), torch.rand(1800, 1000), torch.rand(10, 1000)


def state_tensors(rank: int, world: int) -> list[StateTensor]:
    everyone, rows = tuple(range(world)), -(-10 // world)
    first, last = min(rows * rank, 10), min(rows * (rank + 1), 10)
    return [
        StateTensor("model/weight", WEIGHT, holders=everyone),
        StateTensor("model/rows", ROWS[first:last], offsets=(first, 0), shape=(10, 1000)),
        StateTensor("model/mean", torch.full((8,), float(rank)), holders=(0,)),
        StateTensor("optimizer/weight/exp_avg", MOMENT, tier=Tier.MOMENTS, holders=everyone),
        StateTensor(private_name(rank, "rng"), torch.full((16,), rank, dtype=torch.uint8)),
    ]


def places(written: WrittenState) -> dict[str, Any]:
    """The state of a manifest: a value for each tensor, as a restore wants it."""
    at = {entry.name: {"$": "tensor", "name": entry.name} for entry in written.tensors}
    private = next((name for name in at if name.startswith("@")), None)
    return at if private is None else {"rng": {"torch": at.pop(private)}, **at}


@dataclass
class Rank:
    """One rank's writer, on a thread of its own."""

    store: BlobStore
    rank: int
    world: int = WORLD
    clock: Clock = field(default_factory=SystemClock)
    roles: RankRoles = ALL_STAY
    hopeless: Callable[[int], str] = lambda rank: ""
    write_progress: WriteProgress | None = None

    def __call__(self, seconds: float | None = 30.0) -> Published:
        with closing(ShardWriter(self.store, "run", self.rank, self.world)) as writer:
            scope = CancelScope(self.clock, None if seconds is None else self.clock.monotonic() + seconds)
            held = state_tensors(self.rank, self.world)
            self.write_progress = WriteProgress(writer.plans.of(held), roles=self.roles)
            queue = writer.queue(held, NAME, scope, write_progress=self.write_progress)

            def manifest() -> RankManifest:
                written = queue.written(NAME)
                assert writer.unchanged(held, written, scope) == ""
                return RankManifest(
                    "run",
                    10,
                    1,
                    0,
                    self.rank,
                    self.world,
                    written.objects,
                    written.tensors,
                    state=places(written),
                    incarnation="nonce",
                )

            queue.objects()
            own = queue_manifest(queue, manifest, ALL)
            return publish_together(queue, own, scope, self.clock, self.hopeless)


@pytest.mark.parametrize("departing", [set(), {1}, {0, 1, 2, 3}])
def test_four_ranks_write_one_checkpoint(folder: Path, departing: set[int]) -> None:
    """All at once, over a real store. Each byte of the state is there once, and one that goes has put only what it alone
    holds; each of them hears that it is whole, and one at least has marked it."""
    store = FileStore(folder)
    ranks = [Rank(store, rank, roles=RankRoles(frozenset(departing))) for rank in range(WORLD)]
    with ThreadPoolExecutor(WORLD) as pool:
        results = [future.result(100) for future in [pool.submit(rank) for rank in ranks]]
    assert any(result.marked for result in results)
    whole = find_whole(store, "run")
    assert whole is not None
    assert whole.name == NAME
    assert verify(store, whole) == []
    state = sum(each.nbytes for each in (WEIGHT, MOMENT, ROWS)) + 8 * 4 + WORLD * 16
    assert state < whole.nbytes < state + 2**15
    puts = [rank.write_progress.put_of(ALL) for rank in ranks if rank.write_progress is not None]
    if departing == {1}:
        assert puts[1] < 20_000
        assert max(puts) - min(puts[0], *puts[2:]) < 2**20 + 2**15
    else:
        assert max(puts) - min(puts) < 2**20 + 2**15
    saved = {"model/weight": WEIGHT, "model/rows": ROWS, "optimizer/weight/exp_avg": MOMENT}
    into = {name: StateTensor(name, torch.empty_like(tensor)) for name, tensor in saved.items()}
    read(store, Coverage(whole.manifests, whole.tensors), into)
    assert all(torch.equal(into[name].tensor, tensor) for name, tensor in saved.items())


def both(store: BlobStore, mortal: BlobStore, life: Life) -> list[Published | BaseException]:
    """Two ranks at once, of which the first may die."""
    gone = lambda rank: "it died" if life.over else ""  # noqa: E731
    ranks = [Rank(each, rank, 2, Hurried(0.005), hopeless=gone) for rank, each in enumerate((mortal, store))]
    results: list[Published | BaseException] = []
    with ThreadPoolExecutor(2) as pool:
        for future in [pool.submit(rank, None) for rank in ranks]:
            error = future.exception(60)
            results.append(future.result() if error is None else error)
    return results


@cases("after", [False, True])
@cases("calls", range(12))
def test_a_rank_that_dies_at_any_request_leaves_nothing_that_only_looks_whole(
    calls: int, after: bool
) -> None:
    """What the other says is what the store holds; and at no moment before was there a checkpoint that was none."""
    store, life, puts = FakeStore(), Life(), list[tuple[str, bytes]]()

    def noted(request: Request) -> None:
        """Each beginning of these is what two ranks leave that die at that moment."""
        if request.verb == "put":
            puts.append((request.key, store.objects[request.key]))

    asked = CalledStore(store, after=noted)
    life.ends(calls, after=after)
    results = both(asked, Mortal(asked, life), life)
    whole = find_whole(store, "run")
    assert isinstance(results[0], Killed if life.over else Published)
    assert (whole is not None) == isinstance(results[1], Published)
    if whole is None:
        assert isinstance(results[1], IncompleteError)
        assert PREFIX + MARKER not in store.objects
    at_any_moment = FakeStore()
    names = {PREFIX + manifest_name(rank, 2) for rank in range(2)}
    for key, data in puts:
        at_any_moment.objects[key] = data
        found = find_whole(at_any_moment, "run")
        assert (found is not None) == names.issubset(at_any_moment.objects)
        if found is not None:
            assert verify(at_any_moment, found) == []


def test_a_rank_that_has_nothing_to_write_takes_part_all_the_same(folder: Path) -> None:
    """Its manifest says what it holds; without it the checkpoint would not be whole."""
    store, scope = FileStore(folder), CancelScope(SystemClock(), SystemClock().monotonic() + 30)
    held = [StateTensor("model/weight", WEIGHT, holders=(0, 1))]
    roles, manifests = RankRoles(frozenset({1})), []
    for rank in range(2):
        with closing(ShardWriter(store, "run", rank, 2)) as writer:
            write_progress = WriteProgress(writer.plans.of(held), roles=roles)
            assert (write_progress.share() == 0) == (rank == 1)
            written = writer.write(held, NAME, scope, write_progress=write_progress)
            manifests.append(
                RankManifest(
                    "run", 10, 1, 0, rank, 2, written.objects, written.tensors, state=places(written)
                )
            )
    assert manifests[1].objects == ()
    put_manifest(store, manifests[0])
    assert find_whole(store, "run") is None
    put_manifest(store, manifests[1])
    whole = find_whole(store, "run")
    assert whole is not None
    assert verify(store, whole) == []


def test_a_share_on_this_machines_disk_goes_to_the_store_as_it_is(folder: Path) -> None:
    """Numbers of objects are those of the plan, of which this rank writes only some: also for another process that finds only
    the manifest there."""
    files, store = Stage(folder, "run"), FakeStore()
    scope = CancelScope(SystemClock(), SystemClock().monotonic() + 30)
    held = state_tensors(1, WORLD)
    with closing(ShardWriter(store, "run", 1, WORLD)) as writer:
        stager = StageWriter(files, writer)
        manifests: list[RankManifest] = []

        def commit(queue: SaveQueue[HostBuffer]) -> None:
            written = queue.written(NAME)
            manifests.append(RankManifest("run", 10, 1, 0, 1, WORLD, written.objects, written.tensors))

        write_plan = writer.plans.of(held)
        staged = stager.hold(held, write_plan, NAME, scope, str, commit)
        assert staged is not None
        assert (
            set(staged.write_progress.stored)
            == set(staged.write_progress.mine)
            != set(range(len(write_plan.objects)))
        )
        direct = writer.write((), NAME, scope, write_progress=WriteProgress(write_plan), fill=staged.fill)
        objects = dict(store.objects)
        assert len(objects) == len(staged.write_progress.mine)
        store.objects.clear()
        found = stager.left_behind(manifests[0], scope)
        again = writer.write(
            (), NAME, scope, write_progress=WriteProgress(found.write_progress.write_plan), fill=found.fill
        )
        stager.writer.uploads.close()
    assert store.objects == objects
    assert again.objects == direct.objects == manifests[0].objects
    assert again.tensors == direct.tensors == manifests[0].tensors
