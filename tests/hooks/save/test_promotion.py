"""A background save that is under way when a notice comes: called off, or let finish where its rest is worth more.

The store stands behind a link on which everything takes 10 s, of which the moments take about `REST`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from spotguard.hooks.checkpoint.catalog import find_whole
from spotguard.hooks.control.gate_rule import Shut
from spotguard.hooks.guard import Guard
from spotguard.hooks.ipc import protocol
from tests.fakes.clock import ManualClock
from tests.fakes.noticed import Heard, notice, trained
from tests.fakes.slow_store import SlowStore
from tests.fakes.training import Job, Make, different, restored, small, step_on, trajectory, wait_open
from tests.fakes.watched_store import PATIENCE

pytestmark = pytest.mark.torch

EVERYTHING = 10.0


def is_moments(key: str) -> bool:
    """The second of the two objects."""
    return key.endswith("/0001.safetensors")


@contextmanager
def uploading(make: Make = small) -> Iterator[tuple[SlowStore, Guard, Job, Heard]]:
    """Step 3 is committed; of step 4 a background save has put the weights, and its moments are held."""
    clock = ManualClock()
    store = SlowStore(clock)
    store.parallel = 1
    with trained(store, clock=clock, make=make) as (guard, job, heard):
        guard.save()
        store.rate = store.nbytes() / EVERYTHING
        for number in (2, 3):
            if number == 3:
                guard.save()
            job.step(number)
            guard.step()
        heard.wait(protocol.Committed, 2)
        heard.messages.clear()
        store.hold(is_moments)
        guard._saver.background()
        assert store.reached.wait(PATIENCE)
        wait_open(guard)  # it is copied: training goes on beside it
        yield store, guard, job, heard
        store.let_go()


def rest(store: SlowStore) -> float:
    """Seconds of what is held."""
    return EVERYTHING - store.nbytes("/0000.safetensors") / store.rate


def goes_on(guard: Guard, job: Job) -> None:
    """One step beyond what is uploaded."""
    step_on(guard, job, 4)


def answer(heard: Heard) -> protocol.Committed | protocol.Failed:
    """The agent's notice is answered."""
    with heard._changed:
        assert heard._changed.wait_for(lambda: any(_ends(each) for each in heard.messages), PATIENCE)
    (end,) = (each for each in heard.messages if _ends(each))
    assert isinstance(end, protocol.Committed | protocol.Failed)
    return end


def _ends(message: protocol.Message) -> bool:
    return isinstance(message, protocol.Committed | protocol.Failed) and message.id == "n1"


def newest(store: SlowStore, step: int, kind: str, make: Make = small) -> None:
    """What a restore takes, bit for bit."""
    whole = find_whole(store, "run")
    assert whole is not None
    assert (whole.name.step, whole.manifests[0].kind) == (step, kind)
    found, state = restored(store, make)
    assert found == step
    assert different(state, trajectory(make, step)[step]) == []


# --- let finish ----------------------------------------------------------------------------------------------


def test_an_upload_of_this_very_step_is_the_commit_of_the_notice() -> None:
    """However much time there is: nothing is put twice, and training does not go beyond it."""
    with uploading() as (store, guard, _, heard):
        guard._agent.hear(notice("n1", 600.0))
        assert guard._gate.place.shut is not Shut.OPEN
        store.let_go()
        end = answer(heard)
        assert isinstance(end, protocol.Committed)
        assert (end.step, end.level, end.detail) == (4, "full", "")
        assert {message.step for message in heard.of(protocol.Progress)} <= {4, -1}
    assert store.kinds() == {"objects": 6, "manifests": 3, "markers": 3}
    newest(store, 4, "background")


def test_an_upload_of_an_older_step_is_abandoned_if_a_new_save_fits() -> None:
    """The newer step is worth the bytes; of the older one no manifest is left."""
    with uploading() as (store, guard, job, heard):
        goes_on(guard, job)
        guard._agent.hear(notice("n1", 600.0))
        store.let_go()
        end = answer(heard)
        assert isinstance(end, protocol.Committed)
        assert (end.step, end.level, end.detail) == (5, "full", "")
    assert [name[:9] for name in store.manifests()] == [
        "000000002",
        "000000003",
        "000000005",
    ]
    newest(store, 5, "emergency")


def test_an_upload_of_an_older_step_finishes_if_a_new_save_does_not_fit() -> None:
    """Its rest does. The outcome says that it is no new save, and why."""
    with uploading() as (store, guard, job, heard):
        goes_on(guard, job)
        guard._agent.hear(notice("n1", rest(store) + 1, reserve=0.0))
        assert guard._gate.place.shut is Shut.OPEN
        store.let_go()
        end = answer(heard)
        assert isinstance(end, protocol.Committed)
        assert (end.step, end.level) == (4, "full")
        assert end.detail.startswith(
            "spotguard finished the background checkpoint under way; the save after it: nothing is saved: "
        )
    outcome = json.loads(next(data for key, data in store.objects.items() if "/outcomes/" in key))
    assert (outcome["step"], outcome["level"], outcome["reason"]) == (4, "full", end.detail)
    newest(store, 4, "background")


def test_how_far_it_is_reaches_the_agent() -> None:
    """Under the notice's id, as of any save of it."""
    with uploading() as (store, guard, job, heard):
        goes_on(guard, job)
        guard._agent.hear(notice("n1", rest(store) + 1, reserve=0.0))
        store.let_go()
        answer(heard)
        said = [each for each in heard.of(protocol.Progress) if each.step == 4]
        assert {each.id for each in said} == {"n1"}
        assert {"writing", "written"} <= {each.phase for each in said}
        assert said[-1].done_bytes == said[-1].total_bytes > 0


def test_when_time_is_left_after_it_the_present_step_is_saved_too() -> None:
    """The link was better than it had been: the newer checkpoint is the notice's."""
    with uploading() as (store, guard, job, heard):
        goes_on(guard, job)
        guard._agent.hear(notice("n1", rest(store) + 1, reserve=0.0))
        store.rate *= 1000
        store.let_go()
        end = answer(heard)
        assert isinstance(end, protocol.Committed)
        assert (end.step, end.level, end.detail) == (5, "full", "")
        assert [(each.id, each.step) for each in heard.of(protocol.Committed)] == [("", 4), ("n1", 5)]
    newest(store, 5, "emergency")


def test_an_upload_is_tried_to_the_end_if_nothing_fits() -> None:
    """Neither its rest nor the parameters alone: nothing else can be done with the seconds."""
    with uploading() as (store, guard, job, heard):
        goes_on(guard, job)
        guard._agent.hear(notice("n1", rest(store) - 1, reserve=0.0))
        store.rate *= 3
        store.let_go()
        assert answer(heard).type == "committed"
    newest(store, 4, "background")


# --- and does not --------------------------------------------------------------------------------------------


def test_one_that_stalls_ends_with_the_deadline() -> None:
    """What was committed before stands, and the reason says what was tried."""
    with uploading() as (store, guard, job, heard):
        goes_on(guard, job)
        seconds = rest(store) + 1
        guard._agent.hear(notice("n1", seconds, reserve=0.0))
        store.clock.advance(seconds)
        end = answer(heard)
        assert isinstance(end, protocol.Failed)
        assert end.last_step == 3
        assert end.reason.startswith(
            "out of time; before that: spotguard finishes the background checkpoint of step 4, "
        )
        assert store.kinds()["manifests"] == 2
        newest(store, 3, "manual")


def test_an_earlier_deadline_is_its_deadline_too() -> None:
    """A second notice while it is let finish: it ends with the earlier of both."""
    with uploading() as (store, guard, job, heard):
        goes_on(guard, job)
        guard._agent.hear(notice("n0", rest(store) + 1.5, reserve=0.0))
        guard._agent.hear(notice("n1", rest(store) + 0.5, reserve=0.0))
        store.clock.advance(rest(store) + 0.5)
        end = answer(heard)
        assert isinstance(end, protocol.Failed)
        assert end.last_step == 3
        assert store.kinds()["manifests"] == 2


def test_when_its_link_gets_slower_the_parameters_of_now_come_first() -> None:
    """It is looked at again as its bytes leave. Of a wide network the parameters are a third, and less than the rest."""
    with uploading(lambda: small(width=2048)) as (store, guard, job, heard):
        goes_on(guard, job)
        guard._agent.hear(notice("n1", 9.0, reserve=0.0))
        store.rate /= 1.6
        store.hold(lambda key: is_moments(key) and "/000000005-" in key)
        store.wait_committed(3)
        store.clock.advance(9.0)
        end = answer(heard)
        assert isinstance(end, protocol.Committed)
        assert (end.step, end.level) == (5, "weights")
        assert heard.of(protocol.Committed) == [end]
    assert [name[:9] for name in store.manifests()][-1] == "000000005"
    newest(store, 3, "manual", lambda: small(width=2048))


def test_a_withdrawal_in_its_middle_leaves_a_background_checkpoint() -> None:
    """Training goes on bit for bit, nobody is told of a failure, and it is committed as any other."""
    with uploading() as (store, guard, job, heard):
        guard._agent.hear(notice("n1", 600.0))
        guard._agent.hear(protocol.Withdrawn("n1"))
        wait_open(guard)
        store.let_go()
        committed = heard.wait(protocol.Committed)
        assert (committed.id, committed.step) == ("", 4)
        goes_on(guard, job)
        assert different(job.bits(), trajectory(small, 5)[5]) == []
        assert heard.of(protocol.Failed) == []
    newest(store, 4, "background")


def test_one_that_was_hurried_by_a_notice_that_is_void_does_not_end_unheard(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It keeps the deadline: what it did not finish in that time the next one saves, and the log says so."""
    with uploading() as (store, guard, _, heard):
        guard._agent.hear(notice("n1", 600.0, reserve=0.0))
        hurried = guard._saver._running
        assert hurried is not None
        guard._agent.hear(protocol.Withdrawn("n1"))
        store.clock.advance(600.0)
        assert hurried.done.wait(PATIENCE)
        assert "background checkpoint failed, training continues: out of time" in caplog.text
        assert heard.of(protocol.Failed) == []
        assert guard._gate.place.shut is Shut.OPEN
    assert store.kinds()["manifests"] == 2
