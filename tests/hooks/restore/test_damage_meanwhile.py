"""Whatever happens while a restore reads: it loads all of one checkpoint that is sound, or nothing is trained."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

from spotguard.hooks.state.restore_plan import RestorePlan
from spotguard.providers.errors import CheckpointError, StateError
from tests.fakes.called import CalledStore, Request
from tests.fakes.clock import Impatient
from tests.fakes.reads import PATIENCE, Reads, ctrl_c_as_usual
from tests.fakes.store import FakeStore, Fault
from tests.fakes.training import different, guarded, restored, saved_each_step, small
from tests.hooks.restore.two_checkpoints import TOTAL, Made, made, saved

pytestmark = pytest.mark.torch
__all__ = ["made"]


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


def test_a_checkpoint_that_is_pruned_for_a_newer_one_sends_the_restore_to_that(made: Made) -> None:
    """It disappears while it is read. The one before it may be gone as well."""
    before = FakeStore()
    states = saved_each_step(before, 3)
    newer = {key: data for key, data in before.objects.items() if "/000000003-" in key}
    below, job = FakeStore(), small()
    below.objects = {key: data for key, data in before.objects.items() if key not in newer}

    def prunes(request: Request) -> None:
        if request.verb == "read_into" and "/000000002-" in request.key:
            for key in [key for key in below.objects if "/000000002-" in key]:
                del below.objects[key]
            below.objects.update(newer)

    with guarded(CalledStore(below, prunes), job.values) as guard:
        assert guard.restore() == 3
    assert different(job.bits(), states[3]) == []


@pytest.mark.parametrize("every", [2, 3, 5])
def test_a_store_that_fails_again_and_again_for_now(made: Made, every: int) -> None:
    """At every k-th of all requests, a restore's and a claim's: the newest, bit for bit, and not a byte read twice."""
    objects, states, _ = made
    plain, store, job = Reads(), Reads(), small()
    plain.objects, store.objects = dict(objects), dict(objects)
    assert restored(plain, small)[0] == TOTAL
    store.faults = [Fault(at) for at in range(0, 200, every)]
    with guarded(store, job.values, clock=Impatient()) as guard:
        assert guard.restore() == TOTAL
    assert different(job.bits(), states[TOTAL]) == []
    failed = sum(verb == "read_into" for verb, _ in store.calls[:200:every])
    assert len(store.reads) == len(plain.reads) + failed
    assert {*store.reads} == {*plain.reads}


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
    with guarded(asked, small().values) as guard, pytest.raises(CheckpointError, match="disappeared"):
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

        def targets(*args: Any) -> RestorePlan:
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
