"""The first rank's calls for a save, and each rank's own `guard.save()`."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("torch")

from spotguard.hooks.commit.cancel_scope import Abandoned, CancelScope
from spotguard.hooks.control.manual_saves import ManualSaves
from spotguard.hooks.save.request import SaveRequest
from spotguard.providers.clock import SystemClock
from spotguard.providers.errors import CheckpointError
from tests.fakes.called import CalledStore, Request
from tests.fakes.store import FakeStore
from tests.fakes.two_guards import PATIENCE, on_all, two_guards
from tests.fakes.watched_store import is_marker


@pytest.fixture
def by_hand() -> ManualSaves:
    clock = SystemClock()
    return ManualSaves(lambda: SaveRequest("manual", CancelScope(clock)), threading.Lock(), clock, None)


def test_a_save_asked_for_first_waits_for_the_event(by_hand: ManualSaves) -> None:
    asked = by_hand.asked(5)
    assert by_hand.called(5, 7) is asked
    assert asked.epoch == 7


def test_a_save_asked_for_late_finds_its_result(by_hand: ManualSaves) -> None:
    """The save was made while it trained on."""
    called = by_hand.called(5, 7)
    called.done.set()
    assert by_hand.asked(5) is called


def test_each_save_has_a_call_of_its_own(by_hand: ManualSaves) -> None:
    first, second = by_hand.called(5, 7), by_hand.called(5, 8)
    assert [by_hand.asked(5), by_hand.asked(5)] == [first, second]
    assert by_hand.asked(5) not in (first, second)


def test_a_rank_that_falls_behind_finds_each_of_its_calls(by_hand: ManualSaves) -> None:
    """The first rank shares no collective with it, and has saved two steps meanwhile: it would wait for a call that has come."""
    calls = [by_hand.called(step, epoch) for epoch, step in enumerate((3, 4, 5), 1)]
    assert [by_hand.asked(step) for step in (3, 4, 5)] == calls


def test_a_restore_forgets_the_calls_for_steps_that_come_again(by_hand: ManualSaves) -> None:
    by_hand.called(6, epoch=1)
    by_hand.forget_calls()
    again = by_hand.called(6, epoch=2)
    assert by_hand.asked(6) is again


def test_a_save_that_was_interrupted_takes_no_call_of_a_later_one(by_hand: ManualSaves) -> None:
    """Ctrl-C: the first rank has not called for it yet, and the script saves again, at this step or at another."""
    interrupted = by_hand.asked(5)
    by_hand.drop(interrupted)
    again = by_hand.asked(5)
    assert by_hand.called(5, 7) is again
    by_hand.drop(again)  # was called for: nothing waits any more
    other = by_hand.asked(6)
    assert by_hand.called(6, 8) is other


def test_a_call_that_was_for_nobody_here_is_not_taken_for_another(by_hand: ManualSaves) -> None:
    by_hand.called(5, 7)
    asked = by_hand.asked(9)
    assert asked.epoch == 0
    assert by_hand.called(9, 8) is asked


def test_a_waiting_save_hears_that_no_event_will_come(by_hand: ManualSaves) -> None:
    """At one step, or at any."""
    one, other = by_hand.asked(5), by_hand.asked(6)
    by_hand.give_up(Abandoned("no"), 6)
    assert (one.done.is_set(), other.done.is_set()) == (False, True)
    by_hand.give_up(Abandoned("a notice came"))
    assert str(one.error) == "a notice came"


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("under_way", [False, True], ids=["before the call", "under way"])
def test_ranks_save_again_after_one_was_interrupted(under_way: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C on rank 1, whose script catches it. A save under way fails on rank 0 at once, and the next one is made."""
    store, reached, go = FakeStore(), threading.Event(), threading.Event()

    def put(request: Request) -> None:
        if request.verb == "put" and "/00001-of-" in request.key:
            reached.set()
            assert go.wait(PATIENCE)

    with two_guards([store, CalledStore(store, put)]) as trainers, ThreadPoolExecutor(1) as pool:
        on_all(lambda rank: trainers[rank].step())
        first, second = (each.guard for each in trainers)

        def interrupted(job: SaveRequest, step: int) -> None:
            assert not under_way or reached.wait(PATIENCE)
            raise KeyboardInterrupt

        saving = pool.submit(first.save) if under_way else None
        with monkeypatch.context() as patched:
            patched.setattr(second._saver.manual_saves, "wait", interrupted)
            with pytest.raises(KeyboardInterrupt):
                second.save()
        if saving is not None:
            with pytest.raises(CheckpointError, match=r"guard\.save\(\) was interrupted"):
                saving.result(PATIENCE)
            assert not any(map(is_marker, store.objects))
        go.set()
        assert [saved.step for saved in on_all(lambda rank: (first, second)[rank].save())] == [1, 1]
