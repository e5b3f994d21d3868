"""Whatever one byte, object or manifest becomes: a restore loads what was saved, or the next older, bit for bit."""

from __future__ import annotations

import gc
import random
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from spotguard import testing
from spotguard.hooks.checkpoints.catalog import Whole, find_whole
from spotguard.hooks.checkpoints.commit import put_manifest
from spotguard.hooks.checkpoints.verify import verify
from spotguard.hooks.format.codec import NewerFormatError, encode_manifest
from spotguard.hooks.format.keys import manifest_name
from spotguard.hooks.format.leaf import Leaf
from spotguard.hooks.format.manifest import Chunk, ObjectEntry, RankManifest, TensorEntry
from spotguard.hooks.preempted import Preempted
from spotguard.hooks.restore import restore
from spotguard.hooks.state.restoring import Restoring
from spotguard.providers.errors import CheckpointError, StateError
from spotguard.providers.stores.localfs import FileStore
from spotguard.providers.stores.store import BlobStore, ObjectInfo
from tests.fakes.called import CalledStore, Request
from tests.fakes.checkpoint import Save
from tests.fakes.clock import Impatient
from tests.fakes.reads import PATIENCE, Reads, ctrl_c_as_usual
from tests.fakes.store import FakeStore, Fault
from tests.fakes.training import different, guarded, restored, saved_each_step, small, step_on, train

pytestmark = pytest.mark.torch

TOTAL = 2


def saved(store: BlobStore, run_id: str = "run") -> list[dict[str, int]]:
    return saved_each_step(store, TOTAL, run_id=run_id)


@pytest.fixture(scope="module")
def made() -> tuple[dict[str, bytes], list[dict[str, int]], Whole]:
    """The objects of a store with two checkpoints, the bits after each step, and the newer one."""
    store = FakeStore()
    states = saved(store)
    whole = find_whole(store, "run")
    assert whole is not None
    assert whole.name.step == TOTAL
    return dict(store.objects), states, whole


@pytest.fixture(params=["fake", "file"])
def stores(request: pytest.FixtureRequest, folder: Path) -> Callable[[dict[str, bytes]], BlobStore]:
    """Stores that hold so much."""
    count = 0

    def make(objects: dict[str, bytes]) -> BlobStore:
        nonlocal count
        count += 1
        store: BlobStore = FakeStore() if request.param == "fake" else FileStore(folder / str(count))
        for key, data in objects.items():
            store.put(key, memoryview(data))
        return store

    return make


Made = tuple[dict[str, bytes], list[dict[str, int]], Whole]
Stores = Callable[[dict[str, bytes]], BlobStore]


def flipped(data: bytes, at: int, bit: int) -> bytes:
    spoilt = bytearray(data)
    spoilt[at] ^= 1 << bit
    return bytes(spoilt)


def places(whole: Whole) -> list[tuple[str, str, int, int]]:
    """(tensor, key, first byte, end) of every chunk, extras and generators included."""
    found = [
        (name, whole.manifests[rank].object_key(chunk.object), chunk.start, chunk.end)
        for name, tensor in whole.tensors.items()
        for rank, chunk in tensor.chunks
    ]
    assert len(found) > 20
    return found


# --- one bit ---------------------------------------------------------------------------------------------------


def test_a_bit_flipped_in_any_chunk_is_never_loaded(made: Made, stores: Stores) -> None:
    """Every chunk of the newest checkpoint in its turn, its first, its last and a seeded byte."""
    objects, states, whole = made
    chance = random.Random(7)
    for number, (name, key, start, end) in enumerate(places(whole)):
        at = [start, end - 1, chance.randrange(start, end)][number % 3]
        spoilt = {**objects, key: flipped(objects[key], at, chance.randrange(8))}
        step, state = restored(stores(spoilt), small)
        assert step == TOTAL - 1, (name, at)
        assert different(state, states[TOTAL - 1]) == [], (name, at)


def test_a_bit_flipped_in_a_header_harms_no_restore(made: Made, stores: Stores) -> None:
    """No restore reads it: the manifest says where all is. `verify` does, and says so. Every 16th byte."""
    objects, states, whole = made
    entry, key = whole.manifests[0].objects[0], whole.manifests[0].object_key(0)
    for at in range(0, entry.header, 16):
        store = stores({**objects, key: flipped(objects[key], at, at % 8)})
        assert [damage.tensor for damage in verify(store, whole)] == [""]
        if not at % 256:
            step, state = restored(store, small)
            assert step == TOTAL
            assert different(state, states[TOTAL]) == []


def test_a_bit_flipped_in_a_manifest_is_never_believed(made: Made, stores: Stores) -> None:
    """Forty seeded places, and the file's two ends."""
    objects, states, whole = made
    chance = random.Random(11)
    key = f"run/checkpoints/{whole.name}/{manifest_name(0, 1)}"
    size = len(objects[key])
    for at in [0, size - 1, *(chance.randrange(size) for _ in range(40))]:
        step, state = restored(stores({**objects, key: flipped(objects[key], at, at % 7)}), small)
        assert step == TOTAL - 1, at
        assert different(state, states[TOTAL - 1]) == [], at


# --- objects and manifests -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "left", [0, 1, 0.5, -1, None], ids=["empty", "a byte", "half", "all but one", "gone"]
)
@pytest.mark.parametrize("kind", ["object", "manifest"])
def test_what_is_cut_or_gone_is_never_loaded(
    made: Made, stores: Stores, kind: str, left: float | None
) -> None:
    objects, states, whole = made
    manifest = f"run/checkpoints/{whole.name}/{manifest_name(0, 1)}"
    key = whole.manifests[0].object_key(0) if kind == "object" else manifest
    spoilt = dict(objects)
    if left is None:
        del spoilt[key]
    else:
        size = len(objects[key])
        spoilt[key] = objects[key][: int(left * size) if 0 < left < 1 else int(left) % size]
    step, state = restored(stores(spoilt), small)
    assert step == TOTAL - 1
    assert different(state, states[TOTAL - 1]) == []


@pytest.mark.parametrize("loss", ["cut", "gone"])
def test_what_is_cut_or_gone_behind_the_listing_is_never_loaded(made: Made, loss: str) -> None:
    """The listing was right when it was made."""
    objects, states, whole = made
    key = whole.manifests[0].object_key(0)

    store = FakeStore()
    store.objects = dict(objects)

    def lost(request: Request) -> None:
        if request.verb == "read_into" and loss == "gone":
            store.objects.pop(key, None)
        elif request.verb == "read_into" and key in store.objects:
            store.objects[key] = store.objects[key][:100]

    step, state = restored(CalledStore(store, lost), small)
    assert step == TOTAL - 1
    assert different(state, states[TOTAL - 1]) == []


@pytest.mark.parametrize("change", [{"run_id": "other"}, {"attempt": 7}, {"step": TOTAL - 1}, {"save": 9}])
def test_a_manifest_of_elsewhere_is_never_loaded(
    made: Made, stores: Stores, change: dict[str, object]
) -> None:
    """Of another run, attempt, step or save, in this one's place: sound in itself, and its objects are there."""
    objects, states, whole = made
    foreign = replace(whole.manifests[0], **change)  # type: ignore[arg-type]
    key = f"run/checkpoints/{whole.name}/{manifest_name(0, 1)}"
    step, state = restored(stores({**objects, key: encode_manifest(foreign)}), small)
    assert step == TOTAL - 1
    assert different(state, states[TOTAL - 1]) == []


def test_another_runs_checkpoint_in_this_ones_folder_is_never_loaded(stores: Stores) -> None:
    """Objects, manifest and marker, all of them copied: whole, and not ours."""
    own, other = FakeStore(), FakeStore()
    states = saved(own)
    saved(other, "other")
    objects = dict(own.objects)
    newest = find_whole(other, "other")
    assert newest is not None
    for key, data in other.objects.items():
        if str(newest.name) in key:
            objects[f"run/{key.partition('/')[2]}"] = data
    step, state = restored(stores(objects), small)
    assert step == TOTAL - 1
    assert different(state, states[TOTAL - 1]) == []


def test_with_nothing_sound_nothing_is_trained(made: Made, stores: Stores) -> None:
    """Every checkpoint has a bit flipped: an error, and the guard takes no step."""
    objects, _, _ = made
    spoilt = {
        key: flipped(data, len(data) - 1, 0) if key.endswith(".safetensors") else data
        for key, data in objects.items()
    }
    with guarded(stores(spoilt), small().values) as guard:
        with pytest.raises(CheckpointError, match="Training was not started"):
            guard.restore()
        with pytest.raises(Exception, match="mix of two states"):
            guard.step()


def test_a_chunk_that_only_a_newer_version_can_hold_is_not_gone_back_behind() -> None:
    """It may be good: the restore stops and says what reads it, and the older checkpoint is not touched."""

    class Huge(FakeStore):
        """Says that it holds what no test should."""

        def list(self, prefix: str, *, timeout: float | None = None) -> Iterator[ObjectInfo]:
            for info in super().list(prefix, timeout=timeout):
                yield replace(info, size=8 + 2**28) if "/000000020-" in info.key else info

    class Outline:
        poisoned = ""

        def targets(self, trees: Any, entries: Any) -> Restoring:
            return Restoring({}, {"a": Leaf("a", torch.empty(2**28, dtype=torch.uint8, device="meta"))}, ())

    store = Huge()
    Save(step=10).write(store)
    entry = TensorEntry("a", "uint8", (2**28,), (Chunk((0,), (2**28,), 0, 8, 8 + 2**28, 0),))
    held = ObjectEntry("00000-of-00001/0000.safetensors", 8 + 2**28, 8, 0)
    put_manifest(store, RankManifest("run", 20, 1, 1, 0, 1, objects=(held,), tensors=(entry,)))
    store.put("run/checkpoints/000000020-0001-0001/00000-of-00001/0000.safetensors", memoryview(b"x"))
    state: Any = Outline()
    with pytest.raises(NewerFormatError, match="a has a chunk of 256 MiB"):
        restore(store, "run", state)
    assert "read_into" not in [verb for verb, _ in store.calls]


# --- on the way ------------------------------------------------------------------------------------------------


def test_a_bit_that_flips_on_its_way_costs_no_step(made: Made, caplog: pytest.LogCaptureFixture) -> None:
    """Read once more, it is as it was saved: the newest is restored, and nothing is called damaged."""
    objects, states, _ = made
    plain, store, job = Reads(), Reads(), small()
    plain.objects, store.objects = dict(objects), dict(objects)
    assert restored(plain, small)[0] == TOTAL
    store.spoil = lambda number, key, start: number == 0
    with guarded(store, job.values) as guard:
        assert guard.restore() == TOTAL
    assert different(job.bits(), states[TOTAL]) == []
    assert len(store.reads) == len(plain.reads) + 1
    assert store.nbytes < 2 * plain.nbytes
    assert "damaged" not in caplog.text


@pytest.mark.parametrize("every", [2, 3, 5])
def test_a_store_that_fails_again_and_again_for_now(made: Made, every: int) -> None:
    """At every k-th of all requests, a restore's and a claim's: the newest, bit for bit, and not a byte read twice."""
    objects, states, whole = made
    store, job = Reads(), small()
    store.objects = dict(objects)
    store.faults = [Fault(at) for at in range(0, 200, every)]
    with guarded(store, job.values, clock=Impatient()) as guard:
        assert guard.restore() == TOTAL
    assert different(job.bits(), states[TOTAL]) == []
    assert store.nbytes <= 2 * whole.nbytes


def test_ctrl_c_in_the_middle_leaves_no_state_to_train(made: Made) -> None:
    """A real signal, while the store is silent: it comes out at once, no step is taken, and a restore puts it right."""
    objects, states, _ = made
    store, job = Reads(), small()
    store.objects = dict(objects)
    store.hold = lambda number, key, start: number == 0

    def when_it_hangs() -> None:
        assert store.held.wait(PATIENCE)
        interrupt()

    thread = threading.Thread(target=when_it_hangs, name="who interrupts")
    with ctrl_c_as_usual() as interrupt, guarded(store, job.values) as guard:
        thread.start()
        try:
            with pytest.raises(KeyboardInterrupt):
                guard.restore()
            with pytest.raises(StateError, match="mix of two states"):
                guard.step()
            before = job.bits()
        finally:
            store.go.set()
            thread.join(PATIENCE)
        for each in threading.enumerate():
            # Ctrl-C may come while one is started: that one has no number yet, and begins nothing.
            if each.name.startswith("spotguard-reader") and each.ident is not None:
                each.join(PATIENCE)
        assert different(job.bits(), before) == [], "what came too late went nowhere"
        assert guard.restore() == TOTAL
    assert different(job.bits(), states[TOTAL]) == []


# --- twice -----------------------------------------------------------------------------------------------------


def test_one_guard_restores_twice(made: Made, stores: Stores) -> None:
    """Right after the other, back and forth; each time all of it, with no thread left over."""
    objects, states, _ = made
    job = small()
    with guarded(stores(objects), job.values) as guard:
        for step in (TOTAL, TOTAL - 1, TOTAL, TOTAL):
            assert guard.restore(step=step) == step
            assert different(job.bits(), states[step]) == []


def test_two_jobs_of_one_process_restore_one_after_the_other(made: Made, stores: Stores) -> None:
    objects, states, _ = made
    store = stores(objects)
    for _ in range(2):
        step, state = restored(store, small)
        assert step == TOTAL
        assert different(state, states[TOTAL]) == []


def test_what_a_notice_by_hand_has_saved_is_restored(stores: Stores) -> None:
    """`spotguard.testing.preempt`, then a new life in the same process."""
    store, job = stores({}), small()
    with guarded(store, job.values) as guard:
        assert guard.restore() == 0
        step_on(guard, job, 0)
        before = job.bits()
        testing.preempt(guard, seconds=30)
        with pytest.raises(Preempted):
            guard.step()
    step, state = restored(store, small)
    assert step == 1
    assert different(state, before) == []
    job = small()
    with guarded(store, job.values) as guard:
        assert train(guard, job, TOTAL) == TOTAL


def pruned(store: FakeStore, *steps: int) -> None:
    """What a prune leaves of these checkpoints."""
    for key in [key for key in store.objects if any(f"/{step:09d}-" in key for step in steps)]:
        del store.objects[key]


def overtaken(store: FakeStore, fits: Callable[[str], bool], then: Callable[[], None]) -> CalledStore:
    """Something happens when a key that fits is read first."""
    once = threading.Lock()

    def look(request: Request) -> None:
        if request.verb in ("get", "read_into") and fits(request.key) and once.acquire(blocking=False):
            then()

    return CalledStore(store, look)


@pytest.mark.parametrize("suffix", [".safetensors", "-of-00001.json"])
def test_a_run_that_still_trains_may_be_the_start(suffix: str) -> None:
    """It commits and prunes while its newest is read, so that all that was listed is gone: the newer one is taken."""
    store = FakeStore()
    states = saved_each_step(store, 3)
    newer = {key: data for key, data in store.objects.items() if "/000000003-" in key}
    pruned(store, 3)

    def goes_on() -> None:
        store.objects.update(newer)
        pruned(store, 1, 2)

    asked = overtaken(store, lambda key: "/000000002-" in key and key.endswith(suffix), goes_on)
    job = small()
    with guarded(asked, job.values, "other") as guard:
        assert guard.restore(run_id="run") == 3
        assert guard._state.poisoned == ""
    assert different(job.bits(), states[3]) == []


def test_a_run_that_is_pruned_to_nothing_is_no_fresh_start() -> None:
    """There were checkpoints when it was listed: an error, and no step 0."""
    store = FakeStore()
    saved(store)
    asked = overtaken(store, lambda key: key.endswith("-of-00001.json"), lambda: pruned(store, 1, 2))
    with guarded(asked, small().values) as guard, pytest.raises(CheckpointError, match="went away"):
        guard.restore()


@pytest.mark.parametrize("harm", ["flipped", "gone"])
def test_the_memory_of_a_damaged_checkpoint_is_given_back_first(
    made: Made, harm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its moments are as large as the model twice: they are gone before the next one's are made, collector or not."""
    objects, states, whole = made
    store = FakeStore()
    store.objects.update(objects)
    key = next(key for key in objects if str(whole.name) in key and key.endswith(".safetensors"))

    def spoil() -> None:
        if harm == "gone":
            del store.objects[key]
        else:
            store.corrupt(key, len(objects[key]) - 3)

    held: list[weakref.ref[torch.Tensor]] = []
    alive: list[int] = []
    job = small()
    with guarded(store, job.values) as guard:
        plain = guard._state.targets

        def targets(*args: Any) -> Restoring:
            alive.append(sum(ref() is not None for ref in held))
            restoring = plain(*args)
            if not held:
                spoil()
            moments = [
                each.tensor for name, each in restoring.into.items() if name.startswith("optimizer/state")
            ]
            held.extend(map(weakref.ref, moments))
            return restoring

        monkeypatch.setattr(guard._state, "targets", targets)
        gc.disable()
        try:
            assert guard.restore() == TOTAL - 1
        finally:
            gc.enable()
    assert held
    assert alive == [0, 0]
    assert different(job.bits(), states[TOTAL - 1]) == []
