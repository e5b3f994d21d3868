"""Ranks that write their shares and see the whole committed, with nobody to tell them when; and ranks that die on the way."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from spotguard.hooks.checkpoints.catalog import find_whole
from spotguard.hooks.checkpoints.commit import put_manifest, put_marker
from spotguard.hooks.checkpoints.draft import ALL, Draft, Written
from spotguard.hooks.checkpoints.effort import Effort
from spotguard.hooks.checkpoints.reader import read
from spotguard.hooks.checkpoints.stager import Stager
from spotguard.hooks.checkpoints.staging import Stage
from spotguard.hooks.checkpoints.together import Incomplete, Published, publish_together
from spotguard.hooks.checkpoints.verify import verify
from spotguard.hooks.checkpoints.writer import Writer
from spotguard.hooks.format.coverage import Coverage
from spotguard.hooks.format.keys import MARKER, CheckpointName, checkpoint_prefix, manifest_name
from spotguard.hooks.format.leaf import Leaf, Tier
from spotguard.hooks.format.manifest import RankManifest, private_name
from spotguard.hooks.format.sharing import ALL_STAY, Roles
from spotguard.providers.clock import Clock, SystemClock
from spotguard.providers.errors import CheckpointError
from spotguard.providers.stores.localfs import FileStore
from spotguard.providers.stores.store import BlobStore
from tests.fakes.called import CalledStore, Request
from tests.fakes.checkpoint import Save
from tests.fakes.clock import Hurried
from tests.fakes.mortal import Life, Mortal
from tests.fakes.store import FakeStore, Fault, Killed

pytestmark = pytest.mark.torch

NAME = CheckpointName(1, 10, 0)
PREFIX = checkpoint_prefix("run", NAME)
WORLD = 4
#: What a job of four holds together: replicas, and rows of which each rank has a part.
WEIGHT, MOMENT, ROWS = torch.rand(900, 1000), torch.rand(1800, 1000), torch.rand(10, 1000)


def leaves(rank: int, world: int) -> list[Leaf]:
    everyone, rows = tuple(range(world)), -(-10 // world)
    first, last = min(rows * rank, 10), min(rows * (rank + 1), 10)
    return [
        Leaf("model/weight", WEIGHT, holders=everyone),
        Leaf("model/rows", ROWS[first:last], offsets=(first, 0), shape=(10, 1000)),
        Leaf("model/mean", torch.full((8,), float(rank)), holders=(0,)),
        Leaf("optimizer/weight/exp_avg", MOMENT, tier=Tier.MOMENTS, holders=everyone),
        Leaf(private_name(rank, "rng"), torch.full((16,), rank)),
    ]


@dataclass
class Rank:
    """One rank's writer, on a thread of its own."""

    store: BlobStore
    rank: int
    world: int = WORLD
    clock: Clock = field(default_factory=SystemClock)
    roles: Roles = ALL_STAY
    hopeless: Callable[[int], str] = lambda rank: ""
    draft: Draft | None = None

    def __call__(self, seconds: float | None = 30.0) -> Published:
        with closing(Writer(self.store, "run", self.rank, self.world)) as writer:
            effort = Effort(self.clock, None if seconds is None else self.clock.monotonic() + seconds)
            held = leaves(self.rank, self.world)
            self.draft = Draft(writer.outline(held), roles=self.roles)
            written = writer.write(held, NAME, effort, draft=self.draft)
            assert writer.unchanged(held, written, effort) == ""
            manifest = RankManifest(
                "run", 10, 1, 0, self.rank, self.world, written.objects, written.tensors, incarnation="nonce"
            )
            return publish_together(writer, manifest, effort, self.clock, self.hopeless)


def publish(
    store: BlobStore,
    mine: RankManifest,
    seconds: float | None = None,
    hopeless: Callable[[int], str] = lambda rank: "",
) -> Published:
    """As a rank does it whose objects are there."""
    clock = Hurried()
    with closing(Writer(store, "run", mine.rank, mine.world)) as writer:
        return publish_together(writer, mine, Effort(clock, seconds), clock, hopeless)


@pytest.mark.parametrize("doomed", [set(), {1}, {0, 1, 2, 3}])
def test_four_ranks_write_one_checkpoint(folder: Path, doomed: set[int]) -> None:
    """All at once, over a real store. Each byte of the state is there once, and one that goes has put only what it alone
    holds; each of them hears that it is whole, and one at least has marked it."""
    store = FileStore(folder)
    ranks = [Rank(store, rank, roles=Roles(frozenset(doomed))) for rank in range(WORLD)]
    with ThreadPoolExecutor(WORLD) as pool:
        results = [future.result(60) for future in [pool.submit(rank) for rank in ranks]]
    assert any(result.marked for result in results)
    whole = find_whole(store, "run")
    assert whole is not None
    assert whole.name == NAME
    assert verify(store, whole) == []
    state = sum(each.nbytes for each in (WEIGHT, MOMENT, ROWS)) + 8 * 4 + WORLD * 16 * 8
    assert state < whole.nbytes < state + 2**15
    puts = [rank.draft.put_of(ALL) for rank in ranks if rank.draft is not None]
    if doomed == {1}:
        assert puts[1] < 20_000
        assert max(puts) - min(puts[0], *puts[2:]) < 2**20 + 2**15
    else:
        assert max(puts) - min(puts) < 2**20 + 2**15
    saved = {"model/weight": WEIGHT, "model/rows": ROWS, "optimizer/weight/exp_avg": MOMENT}
    into = {name: Leaf(name, torch.empty_like(tensor)) for name, tensor in saved.items()}
    read(store, Coverage(whole.manifests, whole.tensors), into)
    assert all(torch.equal(into[name].tensor, tensor) for name, tensor in saved.items())


def test_who_comes_last_asks_for_each_manifest_once_and_marks_it() -> None:
    """No look at what is there already."""
    store, save = FakeStore(), Save(world=3)
    first, second, last = (save.write_objects(store, rank) for rank in range(3))
    put_manifest(store, first)
    put_manifest(store, second)
    store.calls.clear()
    assert publish(store, last).marked
    assert [(verb, key.removeprefix(save.prefix)) for verb, key in store.calls] == [
        ("put", manifest_name(2, 3)),
        ("get", manifest_name(0, 3)),
        ("get", manifest_name(1, 3)),
        ("put", MARKER),
    ]


def test_many_manifests_are_fetched_by_several_threads(folder: Path) -> None:
    """Two of them are on their way at the same time; and one that is not there is missing in whatever order they come."""
    store, save = FakeStore(), Save(world=40)
    *others, last = (save.write_objects(store, rank) for rank in range(40))
    for manifest in others:
        if manifest.rank != 17:
            put_manifest(store, manifest)
    meeting = threading.Barrier(2)

    def meets(request: Request) -> None:
        if request.verb == "get" and request.key.endswith((manifest_name(0, 40), manifest_name(1, 40))):
            meeting.wait(30)

    asked = CalledStore(store, meets)
    with pytest.raises(Incomplete, match="rank 17 of 40 has put no manifest"):
        publish(asked, last)
    assert save.prefix + MARKER not in store.objects
    put_manifest(store, others[17])
    asked.requests.clear()
    assert publish(asked, last).marked
    assert len([each for each in asked.requests if each.verb == "get"]) == 39
    assert find_whole(store, "run") is not None


def test_who_was_earlier_waits_for_the_marker_and_merges_nothing() -> None:
    """Of a manifest that comes later it reads one byte."""
    store, save = FakeStore(), Save(world=3)
    mine, *others = (save.write_objects(store, rank) for rank in range(3))
    looks = 0

    def others_come(request: Request) -> None:
        nonlocal looks
        if request.verb != "get":
            return
        looks += request.key.endswith(MARKER)
        if looks == 3 and others:
            put_manifest(store, others.pop())
        if looks == 5 and others:
            put_manifest(store, others.pop())
        if looks == 7:
            put_marker(store, save.write(store, marker=False), created=1.0)

    asked = CalledStore(store, others_come)
    assert not publish(asked, mine).marked
    assert looks == 7
    gets = [each.key for each in asked.requests if each.verb == "get" and not each.key.endswith(MARKER)]
    assert gets == [save.prefix + manifest_name(1, 3)]
    assert [each.key for each in asked.requests if each.verb == "put"] == [save.prefix + manifest_name(0, 3)]


@pytest.mark.parametrize("seconds", [None, 4.0])
def test_where_the_one_who_came_last_died_another_marks_it(seconds: float | None) -> None:
    """With all manifests there, and no marker: in its own time, and at once where that is short."""
    store, save = FakeStore(), Save(world=2)
    mine, other = (save.write_objects(store, rank) for rank in range(2))

    def comes_late(request: Request) -> None:
        """The other's manifest, right after the first look."""
        if request.verb == "get":
            put_manifest(store, other)

    assert publish(CalledStore(store, after=comes_late), mine, seconds).marked
    assert find_whole(store, "run") is not None
    assert save.prefix + MARKER in store.objects


def test_a_manifest_that_never_comes_is_named() -> None:
    """Out of time, and nothing is marked."""
    store, save = FakeStore(), Save(world=4)
    mine = [save.write_objects(store, rank) for rank in range(4)]
    put_manifest(store, mine[2])
    with pytest.raises(Incomplete, match="out of time; ranks 1, 3 of 4 have put no manifest"):
        publish(store, mine[0], 3.0)
    assert save.prefix + MARKER not in store.objects
    assert find_whole(store, "run") is None


def test_without_a_deadline_it_ends_all_the_same() -> None:
    """A rank that died unseen, and nobody says so."""
    store, save = FakeStore(), Save()
    with pytest.raises(Incomplete, match="waited for 900 s; rank 1 of 2 has put no manifest"):
        publish(store, save.write_objects(store, 0))
    assert save.prefix + MARKER not in store.objects


def test_who_can_never_write_is_not_waited_for() -> None:
    """Its machine is gone; unless its manifest is there after all."""
    store, save = FakeStore(), Save(world=3)
    mine = [save.write_objects(store, rank) for rank in range(3)]
    put_manifest(store, mine[2])
    gone = {2: "its machine was to go 3 s ago"}
    asked: list[int] = []

    def hopeless(rank: int) -> str:
        asked.append(rank)
        return gone.get(rank, "")

    with pytest.raises(Incomplete, match="out of time; rank 1 of 3 has put no manifest"):
        publish(store, mine[0], 3.0, hopeless)
    assert 0 not in asked
    del store.objects[save.prefix + manifest_name(2, 3)]
    with pytest.raises(
        Incomplete, match=r"rank 2 of 3 will put no manifest: its machine was to go 3 s ago; ranks 1, 2 of 3"
    ):
        publish(store, mine[0], None, hopeless)
    assert save.prefix + MARKER not in store.objects


def test_a_manifest_of_another_start_is_none_of_ours() -> None:
    """Two starts that a store gave one number write under the same names."""
    store, save = FakeStore(), Save()
    mine, other = (save.write_objects(store, rank) for rank in range(2))
    put_manifest(
        store, RankManifest("run", 10, 1, 0, 1, 2, other.objects, other.tensors, incarnation="theirs")
    )
    with pytest.raises(Incomplete, match="waited for 900 s; rank 1 of 2 has put no manifest"):
        publish(store, mine)
    assert save.prefix + MARKER not in store.objects


def test_a_set_that_is_no_whole_is_not_marked() -> None:
    """All are there, and a tensor was written by nobody."""
    store, save = FakeStore(), Save()
    mine, other = (save.write_objects(store, rank) for rank in range(2))
    put_manifest(store, RankManifest("run", 10, 1, 0, 1, 2, (), (), incarnation="nonce"))
    del other
    with pytest.raises(CheckpointError, match="in no chunk"):
        publish(store, mine)
    assert save.prefix + MARKER not in store.objects


def test_it_is_whole_without_its_marker() -> None:
    """The store fails at the very last request: what was seen whole is committed, and was marked by nobody."""
    store, save = FakeStore(), Save()
    mine, other = (save.write_objects(store, rank) for rank in range(2))
    put_manifest(store, other)
    store.calls.clear()
    store.faults = [Fault(1, ("put",))]
    assert not publish(store, mine).marked
    assert find_whole(store, "run") is not None
    assert save.prefix + MARKER not in store.objects


def test_a_store_that_fails_for_now_is_asked_again() -> None:
    """At each of its requests; a rank that cannot be seen is no missing rank."""
    store, save = FakeStore(), Save()
    mine, other = (save.write_objects(store, rank) for rank in range(2))
    put_manifest(store, other)
    store.calls.clear()
    store.faults = [Fault(0), Fault(2)]
    assert publish(store, mine).marked
    assert find_whole(store, "run") is not None


def test_called_off_it_ends_at_once() -> None:
    """A withdrawal, or a better claim."""
    store, save = FakeStore(), Save()
    mine = save.write_objects(store, 0)
    clock = SystemClock()
    effort = Effort(clock)

    def hopeless(rank: int) -> str:
        effort.abandon("the notice was withdrawn")
        return ""

    with (
        closing(Writer(store, "run", 0, 2)) as writer,
        pytest.raises(Incomplete, match="withdrawn; rank 1 of 2"),
    ):
        publish_together(writer, mine, effort, clock, hopeless)
    assert save.prefix + MARKER not in store.objects


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


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("calls", range(12))
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
        assert isinstance(results[1], Incomplete)
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
    store, effort = FileStore(folder), Effort(SystemClock(), SystemClock().monotonic() + 30)
    held = [Leaf("model/weight", WEIGHT, holders=(0, 1))]
    roles, manifests = Roles(frozenset({1})), []
    for rank in range(2):
        with closing(Writer(store, "run", rank, 2)) as writer:
            draft = Draft(writer.outline(held), roles=roles)
            assert (draft.share() == 0) == (rank == 1)
            written = writer.write(held, NAME, effort, draft=draft)
            assert (writer.second_look(held, draft.outline, roles) == 0) == (rank == 1)
            manifests.append(RankManifest("run", 10, 1, 0, rank, 2, written.objects, written.tensors))
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
    effort = Effort(SystemClock(), SystemClock().monotonic() + 30)
    held, roles = leaves(1, WORLD), Roles(frozenset({0, 3}))
    with closing(Writer(store, "run", 1, WORLD)) as writer:
        stager = Stager(files, writer)
        manifests: list[RankManifest] = []

        def commit(written: Written, limit: Effort) -> None:
            manifests.append(RankManifest("run", 10, 1, 0, 1, WORLD, written.objects, written.tensors))

        outline = writer.outline(held)
        staged = stager.hold(held, outline, NAME, effort, str, commit, roles)
        assert staged is not None
        assert set(staged.draft.landed) == set(staged.draft.mine) != set(range(len(outline.objects)))
        direct = writer.write((), NAME, effort, draft=Draft(outline, roles=roles), fill=staged.fill)
        objects = dict(store.objects)
        assert len(objects) == len(staged.draft.mine)
        store.objects.clear()
        found = stager.left_behind(manifests[0], effort)
        again = writer.write((), NAME, effort, draft=Draft(found.draft.outline), fill=found.fill)
        stager.writer.close()
    assert store.objects == objects
    assert again.objects == direct.objects == manifests[0].objects
    assert again.tensors == direct.tensors == manifests[0].tensors
