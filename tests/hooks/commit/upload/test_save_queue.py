"""A save's queue: what goes behind what, and what becomes of the rest when something fails."""

from __future__ import annotations

import threading

import pytest
import torch

from spotguard.hooks.checkpoint.format.keys import MARKER
from spotguard.hooks.checkpoint.tier import Tier
from spotguard.hooks.commit.cancel_scope import Abandoned, CancelScope
from spotguard.hooks.commit.own_manifest import OwnManifest, queue_marker
from spotguard.hooks.commit.plan.write_plan import ALL, WEIGHTS, WriteProgress
from spotguard.hooks.commit.upload.save_queue import EntryState, Put, QueueEntry, SaveQueue
from spotguard.hooks.commit.upload.transfer import StateChanged
from spotguard.hooks.save.shard_writer import ShardWriter
from spotguard.hooks.state.device.host_buffer import HostBuffer
from spotguard.hooks.state.state_tensor import StateTensor
from spotguard.providers.errors import FullError, SpotguardError, UnavailableError
from spotguard.providers.stores.base import BlobStore
from tests.fakes.called import CalledStore, Request
from tests.fakes.clock import ManualClock, Quick
from tests.fakes.store import FakeStore
from tests.fakes.watched_store import PATIENCE
from tests.hooks.commit.writes import NAME, writer_of

pytestmark = pytest.mark.torch

KEY = "run/manifest.json"


def queue_of(writer: ShardWriter, scope: CancelScope) -> SaveQueue[HostBuffer]:
    """The queue of some weights and some moments, which are on their way."""
    state_tensors = [
        StateTensor("w", torch.ones(2**12)),
        *[StateTensor(f"m{n}", torch.ones(2**17), tier=Tier.MOMENTS) for n in range(6)],
    ]
    progress = WriteProgress(writer.plans.of(state_tensors))
    queue = writer.queue(state_tensors, NAME, scope, write_progress=progress)
    queue.objects()
    return queue


def put_of(store: BlobStore) -> Put:
    return lambda left: store.put(KEY, memoryview(b"{}"), timeout=left)


def test_a_manifest_that_fails_is_not_put_again_before_its_objects_are_looked_at() -> None:
    """A process that dies in between would leave a manifest of objects that are gone."""
    below, away = FakeStore(), [True]

    def before(request: Request) -> None:
        if request.key == KEY and away.pop(0) if away else False:
            below.objects.clear()
            raise UnavailableError("it is away")

    store = CalledStore(below, before)
    with writer_of(store) as writer:
        queue = queue_of(writer, CancelScope(Quick()))
        entry = queue.add(QueueEntry("manifest", lambda: put_of(store), ALL))
        queue.wait(lambda: entry.stored and queue.settled())
    verbs = [request.verb if request.key != KEY else "manifest" for request in store.requests]
    between = verbs[verbs.index("manifest") + 1 : len(verbs) - 1]
    assert between[0] == "list"
    assert "manifest" not in between
    assert len(below.objects) == between.count("put") + 1


def test_an_entry_that_is_held_up_behind_a_failed_try_is_in_doubt() -> None:
    """The store may have it although it has failed, and it is away until the save ends. So its end names the manifest."""

    def before(request: Request) -> None:
        if request.verb == "list" and entry.state is not EntryState.SENDING:
            scope.abandon("the machine goes")
        if request.key == KEY or request.verb in ("list", "read_into"):
            raise UnavailableError("it is away")

    store, scope = CalledStore(FakeStore(), before), CancelScope(Quick())
    entry = QueueEntry("manifest", lambda: put_of(store), ALL)
    with writer_of(store) as writer:
        queue = queue_of(writer, scope)
        queue.add(entry)
        with pytest.raises(Abandoned, match="the machine goes"):
            queue.wait(lambda: entry.stored)
        assert entry.state is EntryState.DOUBTED


def test_a_marker_is_not_put_behind_a_manifest_that_failed() -> None:
    """The save does without that manifest, which held nothing up. A marker would name a checkpoint that is none."""

    def before(request: Request) -> None:
        if request.key == KEY:
            raise FullError("no room")

    below = FakeStore()
    store = CalledStore(below, before)
    with writer_of(store) as writer:
        queue = queue_of(writer, CancelScope(ManualClock()))
        entry = queue.add(QueueEntry("manifest", lambda: put_of(store), WEIGHTS, tolerated=(SpotguardError,)))
        marker = queue_marker(queue, entry, lambda: (f"run/{MARKER}", b"{}"))
        queue.wait(lambda: marker.ended and queue.whole())
        assert not marker.stored
    assert not any(key.endswith(MARKER) for key in below.objects)


def test_a_save_is_not_over_with_a_manifest_that_fails_at_that_moment() -> None:
    """Its marker ends by the same failure, and who waits for the marker must not take the save for committed."""
    refused, asked = threading.Event(), threading.Event()

    def before(request: Request) -> None:
        if request.key == KEY:
            assert asked.wait(PATIENCE)
            raise FullError("no room")

    def over() -> bool:
        asked.set()  # behind the look at what has failed so far
        assert refused.wait(PATIENCE)
        return queue._due() is None and marker.ended

    with writer_of(CalledStore(FakeStore(), before)) as writer:
        queue = queue_of(writer, CancelScope(ManualClock()))
        queue.wait(queue.whole)
        entry = queue.add(QueueEntry("manifest", lambda: put_of(queue.store), ALL))
        marker = queue_marker(queue, entry, lambda: (f"run/{MARKER}", b"{}"))
        queue.wake = refused.set  # type: ignore[method-assign]  # the worker calls it behind the entry's end
        with pytest.raises(FullError, match="no room"):
            queue.wait(over)


def test_the_limit_of_an_entry_begins_with_its_request() -> None:
    """The second look at the state before it may take longer."""
    store, clock = FakeStore(), ManualClock(0.0)

    def looks() -> Put:
        clock.advance(30.0)
        return put_of(store)

    with writer_of(store) as writer:
        queue = queue_of(writer, CancelScope(clock, 60.0))
        entry = queue.add(QueueEntry("manifest", looks, WEIGHTS, limit=2.0, tolerated=(SpotguardError,)))
        queue.wait(lambda: entry.ended)
        assert entry.stored
        assert queue.write_progress.failures == 0


def test_an_entry_that_hangs_is_sent_again_when_it_is_needed() -> None:
    """Beside the moments it could wait. Now it is all that is left to save."""
    below, hangs, go = FakeStore(), threading.Event(), threading.Event()

    def before(request: Request) -> None:
        if request.key == KEY and not hangs.is_set():
            hangs.set()
            assert go.wait(PATIENCE)

    store = CalledStore(below, before)
    with writer_of(store) as writer:
        queue = queue_of(writer, CancelScope(ManualClock()))
        entry = queue.add(QueueEntry("manifest", lambda: put_of(store), WEIGHTS, tolerated=(SpotguardError,)))
        queue.wait(queue.whole)
        assert hangs.wait(PATIENCE)
        own = OwnManifest(lambda: pytest.fail("it is made"), WEIGHTS)
        own.entry = entry
        own.retry()
        queue.wait(lambda: entry.stored)
        assert not go.is_set()
        go.set()


def test_no_object_leaves_after_the_save_has_failed() -> None:
    """Its threads would read a state that trains on, and share the link with the next save."""
    below, held, go = FakeStore(), threading.Event(), threading.Event()
    below.parallel = 1

    def before(request: Request) -> None:
        if request.key.endswith("/0001.safetensors"):
            held.set()
            assert go.wait(PATIENCE)

    def moved() -> Put:
        assert held.wait(PATIENCE)
        raise StateChanged("a weight was changed")

    store = CalledStore(below, before)
    with writer_of(store) as writer:
        queue = queue_of(writer, CancelScope(ManualClock()))
        queue.add(QueueEntry("manifest", moved, WEIGHTS, tolerated=(SpotguardError,)))
        with pytest.raises(StateChanged):
            queue.wait(queue.whole)
        go.set()
        assert all(worker.returns(PATIENCE) for worker in writer.uploads.pool.workers)
    assert len([request for request in store.requests if request.verb == "put"]) == 2
