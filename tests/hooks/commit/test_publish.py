"""A rank whose objects are there sees the whole committed, with nobody to tell it when, or says who is missing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from spotguard.hooks.checkpoint.catalog import find_whole
from spotguard.hooks.checkpoint.format.keys import MARKER, manifest_name
from spotguard.hooks.checkpoint.format.manifest import RankManifest
from spotguard.hooks.commit.cancel_scope import CancelScope
from spotguard.hooks.commit.own_manifest import publish as publish_alone
from spotguard.hooks.commit.own_manifest import queue_manifest
from spotguard.hooks.commit.publish import IncompleteError, Published
from spotguard.hooks.save.shard_writer import ShardWriter
from spotguard.providers.clock import SystemClock
from spotguard.providers.errors import CheckpointError, UnavailableError
from spotguard.providers.stores.base import BlobStore
from tests.fakes.called import CalledStore, Request
from tests.fakes.checkpoint import Save
from tests.fakes.clock import Hurried
from tests.fakes.commit import put_manifest, put_marker
from tests.fakes.store import FakeStore, Fault
from tests.hooks.commit.writes import commit_together

pytestmark = pytest.mark.torch


def publish(
    store: BlobStore,
    mine: RankManifest,
    seconds: float | None = None,
    hopeless: Callable[[int], str] = lambda rank: "",
) -> Published:
    """As a rank does it whose objects are there."""
    clock = Hurried()
    with closing(ShardWriter(store, "run", mine.rank, mine.world)) as writer:
        return commit_together(writer, mine, CancelScope(clock, seconds), clock, hopeless)


def test_the_last_rank_reads_each_manifest_once_and_marks_the_checkpoint() -> None:
    """No poll for what is there already, and one listing: what all ranks have put is there."""
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
        ("list", ""),
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
            meeting.wait(100)

    asked = CalledStore(store, meets)
    with pytest.raises(IncompleteError, match="rank 17 of 40 has uploaded no manifest"):
        publish(asked, last)
    assert save.prefix + MARKER not in store.objects
    put_manifest(store, others[17])
    asked.requests.clear()
    assert publish(asked, last).marked
    assert len([each for each in asked.requests if each.verb == "get"]) == 39
    assert find_whole(store, "run") is not None


@pytest.mark.parametrize("mine", [0, 3, 4, 10])
def test_the_bytes_of_a_few_manifests_are_in_memory_at_once(
    mine: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is asked for once all the same, whichever rank comes last; and a missing one ends the reading, wherever it is."""
    monkeypatch.setattr("spotguard.hooks.commit.peer_manifests._TOGETHER", 4)
    store, save = FakeStore(), Save(world=11)
    manifests = [save.write_objects(store, rank) for rank in range(11)]
    for manifest in manifests:
        if manifest.rank not in (mine, 9):
            put_manifest(store, manifest)
    with pytest.raises(IncompleteError, match="rank 9 of 11 has uploaded no manifest"):
        publish(store, manifests[mine])
    assert save.prefix + MARKER not in store.objects
    put_manifest(store, manifests[9])
    store.calls.clear()
    assert publish(store, manifests[mine]).marked
    fetched = [key.removeprefix(save.prefix) for verb, key in store.calls if verb == "get"]
    assert sorted(fetched) == [manifest_name(rank, 11) for rank in range(11) if rank != mine]


def test_an_earlier_rank_waits_for_the_marker_and_merges_nothing() -> None:
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
def test_another_rank_marks_the_checkpoint_when_the_last_one_died(seconds: float | None) -> None:
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


def test_a_commit_that_no_rank_has_looked_at_is_not_reported() -> None:
    """All manifests are there in the last second, and an object is not. This rank has no time to look, and no rank has marked."""
    store, save, clock = FakeStore(), Save(world=10), Hurried()
    manifests = [save.write_objects(store, rank) for rank in range(10)]

    def come_late(request: Request) -> None:
        """The others' manifests, right after the first look."""
        if request.verb == "get":
            store.objects.pop(manifests[3].object_key(0), None)
            for rank in range(10):
                put_manifest(store, manifests[rank])
        if request.key.endswith(MARKER):
            looks.append(clock.now)
            if len(looks) == 2:  # with which the last of the manifests is seen
                clock.now = 3.2

    looks: list[float] = []
    mine = manifests[8]
    with (
        closing(ShardWriter(CalledStore(store, after=come_late), "run", mine.rank, mine.world)) as writer,
        pytest.raises(IncompleteError, match="the manifests of all 10 ranks are in the store"),
    ):
        commit_together(writer, mine, CancelScope(clock, 4.0), clock)
    assert save.prefix + MARKER not in store.objects
    assert find_whole(store, "run") is None


def test_a_manifest_that_never_comes_is_named() -> None:
    """Out of time, and nothing is marked."""
    store, save = FakeStore(), Save(world=4)
    mine = [save.write_objects(store, rank) for rank in range(4)]
    put_manifest(store, mine[2])
    with pytest.raises(IncompleteError, match="out of time; ranks 1, 3 of 4 have uploaded no manifest"):
        publish(store, mine[0], 3.0)
    assert save.prefix + MARKER not in store.objects
    assert find_whole(store, "run") is None


def test_without_a_deadline_it_ends_all_the_same() -> None:
    """A rank that died unseen, and nobody says so."""
    store, save = FakeStore(), Save()
    with pytest.raises(IncompleteError, match="waited for 900 s; rank 1 of 2 has uploaded no manifest"):
        publish(store, save.write_objects(store, 0))
    assert save.prefix + MARKER not in store.objects


def test_a_rank_that_can_never_write_is_not_waited_for() -> None:
    """Its machine is gone; unless its manifest is there after all."""
    store, save = FakeStore(), Save(world=3)
    mine = [save.write_objects(store, rank) for rank in range(3)]
    put_manifest(store, mine[2])
    gone = {2: "its machine was to go 3 s ago"}
    asked: list[int] = []

    def hopeless(rank: int) -> str:
        asked.append(rank)
        return gone.get(rank, "")

    with pytest.raises(IncompleteError, match="out of time; rank 1 of 3 has uploaded no manifest"):
        publish(store, mine[0], 3.0, hopeless)
    assert 0 not in asked
    del store.objects[save.prefix + manifest_name(2, 3)]
    with pytest.raises(
        IncompleteError,
        match=r"rank 2 of 3 will upload no manifest: its machine was to go 3 s ago; ranks 1, 2 of 3",
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
    with pytest.raises(IncompleteError, match="waited for 900 s; rank 1 of 2 has uploaded no manifest"):
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


def test_a_job_of_one_rank_puts_its_manifest_before_the_marker() -> None:
    store, save, clock = FakeStore(), Save(world=1), Hurried()
    mine = save.write_objects(store, 0)
    store.calls.clear()
    with closing(ShardWriter(store, "run")) as writer:
        queue = writer.requests(scope := CancelScope(clock))
        publish_alone(queue, queue_manifest(queue, lambda: mine), scope, clock)
    assert store.calls == [("put", save.prefix + manifest_name(0, 1)), ("put", save.prefix + MARKER)]


@pytest.mark.parametrize(("failures", "marked"), [(1, True), (2, False)])
def test_a_checkpoint_whose_marker_fails_is_looked_at_whole(failures: int, marked: bool) -> None:
    """The failure may have lost any rank's objects. The marker is tried once more, and a checkpoint counts without it."""
    store, save = FakeStore(), Save()
    mine, other = (save.write_objects(store, rank) for rank in range(2))
    put_manifest(store, other)
    store.calls.clear()
    marker = save.prefix + MARKER

    def fails(request: Request) -> None:
        nonlocal failures
        if request.key == marker and failures:
            failures -= 1
            raise UnavailableError("it is away")

    assert publish(CalledStore(store, fails), mine).marked is marked
    assert ("list", save.prefix) in store.calls
    assert find_whole(store, "run") is not None
    assert (marker in store.objects) is marked


def test_a_checkpoint_that_lost_another_ranks_object_is_not_marked() -> None:
    """Which this rank heard of at its marker, and the other rank did not."""
    store, save = FakeStore(), Save()
    mine, other = (save.write_objects(store, rank) for rank in range(2))
    put_manifest(store, other)
    lost = other.object_key(0)

    def fails(request: Request) -> None:
        if request.key == save.prefix + MARKER and store.objects.pop(lost, b""):
            raise UnavailableError("it is away")

    with pytest.raises(IncompleteError, match=f"the store has lost objects of rank 1: {lost} is the first"):
        publish(CalledStore(store, fails), mine, 30.0)
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
    scope = CancelScope(clock)

    def hopeless(rank: int) -> str:
        scope.abandon("the notice was withdrawn")
        return ""

    with (
        closing(ShardWriter(store, "run", 0, 2)) as writer,
        pytest.raises(IncompleteError, match="withdrawn; rank 1 of 2"),
    ):
        commit_together(writer, mine, scope, clock, hopeless)
    assert save.prefix + MARKER not in store.objects
