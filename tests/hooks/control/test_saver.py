"""The thread that saves: a notice comes before everything, and a save ends in time, whatever the store does."""

from __future__ import annotations

import json
import sys
import threading

import pytest

from spotguard.hooks.checkpoint.catalog import find_whole
from spotguard.hooks.control.ending.sigterm import Preempted
from spotguard.hooks.guard import Guard
from spotguard.hooks.ipc import protocol
from spotguard.providers.errors import FullError
from tests.fakes.clock import ManualClock
from tests.fakes.noticed import Heard, notice, trained
from tests.fakes.store import Fault
from tests.fakes.training import different, guarded, restored, small, step_on, trajectory, wait_open
from tests.fakes.watched_store import PATIENCE, WatchedStore, is_object

pytestmark = pytest.mark.torch


def saving(guard: Guard) -> tuple[list[object], threading.Thread]:
    """By hand, on a thread that takes the place of the one that trains; what came of it, when it has ended."""
    ended: list[object] = []

    def save() -> None:
        guard._place.here()
        try:
            ended.append(guard.save())
        except Preempted as error:
            ended.append(error.code)

    trainer = threading.Thread(target=save, name="trainer")
    trainer.start()
    return ended, trainer


# --- a notice ------------------------------------------------------------------------------------------------


def test_a_notice_is_told_saved_and_committed() -> None:
    """In this order, with step, bytes and URL; the outcome stands in the store; then the process leaves."""
    store = WatchedStore()
    with trained(store) as (guard, job, heard):
        guard._agent.hear(notice())
        committed = heard.wait(protocol.Committed)
        assert (committed.id, committed.step) == ("n1", 2)
        assert committed.url.endswith("run/checkpoints/000000002-0001-0000/")
        phases = [message.phase for message in heard.of(protocol.Progress)]
        assert phases == ["begun", "gate", "first-byte", "writing", "written"]
        assert isinstance(heard.messages[0], protocol.Delivered)
        guard._agent.hear(protocol.Leave("n1", 75))
        with pytest.raises(Preempted):
            job.step(2)
    outcome = json.loads(next(data for key, data in store.objects.items() if "/outcomes/" in key))
    assert (outcome["committed"], outcome["step"], outcome["notice"]["ids"]) == (True, 2, ["n1"])
    assert restored(store, small)[0] == 2


def test_leave_has_the_code_it_was_given() -> None:
    """`--exit-code` reaches the training process."""
    with trained(WatchedStore()) as (guard, job, heard):
        guard._agent.hear(notice())
        heard.wait(protocol.Committed)
        guard._agent.hear(protocol.Leave("n1", 42))
        with pytest.raises(Preempted) as ended:
            job.step(2)
        assert ended.value.code == 42


def test_a_notice_before_restore_parks_who_has_not_begun() -> None:
    """There is nothing to save, and nothing is begun on a machine that goes away."""
    store, job = WatchedStore(), small()
    before = job.bits()
    with guarded(store, job.values) as guard:
        heard = Heard(guard)
        guard._agent.hear(notice())
        assert "not begun" in heard.wait(protocol.Failed).reason
        ended: list[BaseException] = []

        def begin() -> None:
            try:
                guard.restore()
            except Preempted as error:
                ended.append(error)

        trainer = threading.Thread(target=begin, name="trainer")
        trainer.start()
        guard._agent.hear(protocol.Leave("n1", 75))
        trainer.join(PATIENCE)
        assert [error.code for error in ended if isinstance(error, Preempted)] == [75]
    assert store.kinds() == {"objects": 0, "manifests": 0, "markers": 0}
    assert different(job.bits(), before) == []


def test_a_notice_withdrawn_before_restore_lets_it_begin() -> None:
    """Who was parked begins."""
    store, job = WatchedStore(), small()
    with guarded(store, job.values) as guard:
        heard = Heard(guard)
        guard._agent.hear(notice())
        heard.wait(protocol.Failed)
        done: list[int] = []
        trainer = threading.Thread(target=lambda: done.append(guard.restore()), name="trainer")
        trainer.start()
        guard._agent.hear(protocol.Withdrawn("n1"))
        trainer.join(PATIENCE)
        assert done == [0]


def test_a_notice_has_waiting_threads_ask_for_the_interpreter_at_once() -> None:
    """Until it is over: the training thread goes on beside the save."""
    usual = sys.getswitchinterval()
    with trained(WatchedStore()) as (guard, _, heard):
        guard._agent.hear(notice())
        heard.wait(protocol.Committed)
        assert sys.getswitchinterval() < usual
        guard._agent.hear(protocol.Withdrawn("n1"))
        assert sys.getswitchinterval() == usual


def test_a_step_that_is_committed_already_is_not_saved_again() -> None:
    """A notice right after a save by hand, or after a restore, costs nothing."""
    store = WatchedStore()
    with trained(store) as (guard, _, heard):
        saved = guard.save()
        guard._agent.hear(notice())
        committed = heard.wait(protocol.Committed, 2)
        assert (committed.id, committed.step, committed.url) == ("n1", 2, saved.url)
    assert store.kinds()["manifests"] == 1


def test_a_save_that_waits_for_boundaries_waits_for_none_behind_a_committed_one() -> None:
    """Training may be over: an upload or a last evaluation comes to no other `guard.step()`."""
    store = WatchedStore()
    with trained(store, clock=ManualClock()) as (guard, job, heard):
        saved = guard.save()
        guard._state.save_at_boundaries("copies cost much")
        guard._agent.hear(notice())
        assert heard.wait(protocol.Committed, 2).url == saved.url
        guard._agent.hear(protocol.Leave("n1", 75))
        with pytest.raises(Preempted):
            job.step(2)
    assert store.kinds()["markers"] == 1


def test_a_notice_during_a_background_save_comes_first() -> None:
    """The background save is abandoned: no manifest, no marker of it; the notice's own save is committed."""
    store = WatchedStore()
    with trained(store) as (guard, job, heard):
        store.hold(is_object)
        guard._saver.background()
        assert store.reached.wait(PATIENCE)
        wait_open(guard)  # copied: training goes on while it uploads
        step_on(guard, job, 2)
        guard._agent.hear(notice())
        store.let_go()
        assert heard.wait(protocol.Committed).step == 3
    assert store.manifests() == ["000000003-0001-0001"]
    assert different(restored(store, small)[1], trajectory(small, 3)[3]) == []


def test_a_notice_during_a_save_by_hand_comes_first() -> None:
    """`guard.save()` gives way, and ends in Preempted when the notice's save is committed."""
    store = WatchedStore()
    with trained(store) as (guard, _, heard):
        store.hold(is_object)
        ended, trainer = saving(guard)
        assert store.reached.wait(PATIENCE)
        guard._agent.hear(notice())
        store.let_go()
        assert heard.wait(protocol.Committed).id == "n1"
        guard._agent.hear(protocol.Leave("n1", 75))
        trainer.join(PATIENCE)
        assert ended == [75]
    assert store.kinds()["manifests"] == 1


def test_a_notice_comes_before_what_waits_its_turn() -> None:
    """A save by hand that stands behind a background upload does not come first: the notice's save does."""
    store = WatchedStore()
    with trained(store) as (guard, _, heard):
        store.hold(is_object)
        guard._saver.background()
        assert store.reached.wait(PATIENCE)
        ended, trainer = saving(guard)
        with guard._gate._changed:  # it stands at its boundary: its save is in the queue, or about to be
            assert guard._gate._changed.wait_for(lambda: guard._gate.place.at_boundary, PATIENCE)
        guard._agent.hear(notice())
        store.let_go()
        assert heard.wait(protocol.Committed).id == "n1"
        guard._agent.hear(protocol.Leave("n1", 75))
        trainer.join(PATIENCE)
        assert ended == [75]
    whole = find_whole(store, "run")
    assert whole is not None
    assert whole.manifests[0].kind == "emergency"
    assert store.kinds()["manifests"] == 1


# --- time and the store --------------------------------------------------------------------------------------


def test_out_of_time_leaves_the_last_checkpoint_as_it_was() -> None:
    """No manifest, no marker of the late save; the error says so and which step is the newest."""
    store, clock = WatchedStore(), ManualClock()
    with trained(store, clock=clock) as (guard, job, heard):
        guard.save()
        step_on(guard, job, 2)
        store.hold(is_object)
        guard._agent.hear(notice("n1", 10, reserve=3))
        assert store.reached.wait(PATIENCE)
        clock.advance(8)
        store.let_go()
        failed = heard.wait(protocol.Failed)
        assert ("out of time" in failed.reason, failed.last_step) == (True, 2)
    assert store.kinds()["manifests"] == store.kinds()["markers"] == 1
    step, state = restored(store, small)
    assert step == 2
    assert different(state, trajectory(small, 2)[2]) == []


def test_a_long_step_ends_at_the_deadline_not_later() -> None:
    """In the middle of a step no boundary comes: the save gives up by itself and says what it waited for."""
    store = WatchedStore()
    with trained(store) as (guard, job, heard):
        job.step(2)
        guard._agent.hear(notice("n1", seconds=0.1, reserve=0.05))
        assert "training reached no guard.step()" in heard.wait(protocol.Failed).reason
    assert store.kinds() == {"objects": 0, "manifests": 0, "markers": 0}


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("at", range(3), ids=["object", "manifest", "marker"])
def test_a_store_that_fails_once_is_asked_again(at: int, after: bool) -> None:
    """Whether the bytes arrived or not, at each of the three puts: committed all the same."""
    store = WatchedStore()
    with trained(store) as (guard, _, heard):
        store.calls.clear()
        store.faults = [Fault(at, verbs=("put",), after=after)]
        guard._agent.hear(notice())
        assert heard.wait(protocol.Committed).step == 2
    assert different(restored(store, small)[1], trajectory(small, 2)[2]) == []


def test_a_store_that_is_gone_until_the_deadline_is_named() -> None:
    """Out of time, and why: what the store said last."""
    store = WatchedStore()
    with trained(store) as (guard, _, heard):
        store.calls.clear()
        store.faults = [Fault(n, verbs=("put",)) for n in range(100)]
        guard._agent.hear(notice("n1", seconds=0.4, reserve=0.1))
        reason = heard.wait(protocol.Failed).reason
        assert "out of time" in reason
        assert "as it was told to" in reason
    assert store.kinds() == {"objects": 0, "manifests": 0, "markers": 0}


def test_a_store_that_is_full_is_not_asked_again() -> None:
    """No room comes back: fail now, while something else may still be done. (Another object may be on its way when
    the first is refused.)"""
    store = WatchedStore()
    store.parallel = 1  # the weights come first: if only the moments fail, the weights are committed
    with trained(store) as (guard, _, heard):
        store.calls.clear()
        store.faults = [Fault(0, verbs=("put",), error=lambda: FullError("no"))]
        guard._agent.hear(notice())
        assert heard.wait(protocol.Failed).reason == "no"
        asked = [key for verb, key in store.calls if verb == "put" and "/checkpoints/" in key]
        assert len(asked) == len(set(asked)) > 0
    assert store.kinds()["manifests"] == 0


def test_a_bug_of_ours_parks_nobody_for_ever() -> None:
    """Whatever the store raises: it is reported as a failure, and the thread lives on."""
    store = WatchedStore()
    store.parallel = 1  # the weights come first: if only the moments fail, the weights are committed
    with trained(store) as (guard, _, heard):
        store.calls.clear()
        store.faults = [Fault(0, verbs=("put",), error=lambda: ZeroDivisionError("oh"))]
        guard._agent.hear(notice("n1"))
        assert "ZeroDivisionError: oh" in heard.wait(protocol.Failed).reason
        guard._agent.hear(notice("n2"))
        heard.wait(protocol.Committed)
