"""Where every checkpoint is damaged a start refuses, and `--begin-anew` is the way out, once."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from spotguard.hooks.checkpoint.format.keys import anew_key
from spotguard.hooks.consensus.barrier import Meetings
from spotguard.hooks.control.ending import sigterm
from spotguard.providers.clock import SystemClock
from spotguard.providers.errors import AllDamagedError
from spotguard.providers.stores.base import BlobStore
from tests.fakes.store import FakeStore
from tests.fakes.training import different, guarded, small, step_on
from tests.fakes.two_guards import PATIENCE, join, on_all

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]


def train(store: BlobStore, steps: int = 2) -> None:
    """A start that restores, takes some steps, and commits the last."""
    job = small()
    with guarded(store, job.values) as guard:
        done = guard.restore()
        step_on(guard, job, *range(done, done + steps))
        guard.save()


def damage(store: FakeStore, what: str) -> None:
    """All that is there: the manifests, which is seen before anything is read, or the tensors."""
    for key in list(store.objects):
        if "/checkpoints/" in key and key.endswith(what):
            store.objects[key] = (
                b"\0" + store.objects[key][1:] if what == ".json" else _flipped(store.objects[key])
            )


def _flipped(data: bytes) -> bytes:
    return data[:-3] + bytes([data[-3] ^ 1]) + data[-2:]


def start(store: BlobStore) -> tuple[int, list[str]]:
    """The step at which a start begins, and what differs from what was registered."""
    job, fresh = small(), small()
    with guarded(store, job.values) as guard:
        step = guard.restore()
        return step, different(job.bits(), fresh.bits())


@pytest.mark.parametrize("what", [".json", ".safetensors"])
def test_a_start_refuses_and_names_each_damage(what: str, caplog: pytest.LogCaptureFixture) -> None:
    """Uncaught it ends with 78. (So it did not where the manifests were damaged: training began at 0.)"""
    store = FakeStore()
    train(store)
    train(store)
    damage(store, what)
    with pytest.raises(AllDamagedError) as caught:
        start(store)
    assert isinstance(caught.value, SystemExit)
    assert caught.value.code == 78
    for name in ("000000002-0001", "000000004-0002"):
        assert name in str(caught.value)
    assert str(caught.value) in caplog.text
    assert anew_key("run") not in store.objects


@pytest.mark.parametrize("what", [".json", ".safetensors"])
def test_begin_anew_begins_at_0_with_what_was_registered(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not with what a damaged checkpoint had put into it."""
    store = FakeStore()
    train(store)
    damage(store, what)
    monkeypatch.setenv("SPOTGUARD_BEGIN_ANEW", "yes")
    assert start(store) == (0, [])
    assert json.loads(store.objects[anew_key("run")])["newest"].startswith("000000002-0001")
    monkeypatch.delenv("SPOTGUARD_BEGIN_ANEW")
    assert start(store) == (0, []), "a start that crashed before its first checkpoint begins again"


def test_begin_anew_is_spent_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is damaged later is refused, though the option still stands in a unit."""
    store = FakeStore()
    train(store)
    damage(store, ".json")
    monkeypatch.setenv("SPOTGUARD_BEGIN_ANEW", "yes")
    train(store)
    assert start(store)[0] == 2, "a complete checkpoint is always taken"
    damage(store, ".json")
    with pytest.raises(AllDamagedError, match="--begin-anew has already given up 000000002-0001"):
        start(store)


@pytest.mark.parametrize("record", [b"", b"[" * 100_000, b"[7]", b'{"newest": 7}'], ids=len)
def test_a_damaged_record_of_begin_anew_forgives_nothing(record: bytes) -> None:
    store = FakeStore()
    train(store)
    damage(store, ".json")
    store.objects[anew_key("run")] = record
    with pytest.raises(AllDamagedError, match="every checkpoint of run run"):
        start(store)


def test_leftovers_of_a_save_alone_do_not_refuse() -> None:
    """A first save that never ended left objects, and no manifest."""
    store = FakeStore()
    train(store)
    for key in [key for key in store.objects if key.endswith(".json") and "/checkpoints/" in key]:
        del store.objects[key]
    assert start(store) == (0, [])


@pytest.mark.parametrize("anew", [False, True])
def test_several_ranks_all_refuse_or_begin_anew(anew: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first rank decides for all."""
    store = FakeStore()
    clocks = [SystemClock(), SystemClock()]
    trainers = join([store, store], clocks)
    on_all(lambda rank: trainers[rank].step())
    on_all(lambda rank: trainers[rank].guard.save())
    on_all(lambda rank: trainers[rank].guard.close())
    sigterm.let_go()
    damage(store, ".safetensors")
    if anew:
        monkeypatch.setenv("SPOTGUARD_BEGIN_ANEW", "yes")
        trainers = join([store, store], clocks)
        assert [each.guard._gate.place.completed for each in trainers] == [0, 0]
        on_all(lambda rank: trainers[rank].guard.close())
        sigterm.let_go()
    else:
        with pytest.raises(AllDamagedError):
            join([store, store], clocks)
        sigterm.let_go()


def test_the_first_rank_sends_beats_while_it_verifies_to_begin_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others wait as long as it reads, which may take hours."""
    beaten, waited = threading.Event(), list[bool]()
    beat = Meetings.beat

    def beats(meetings: Meetings) -> None:
        beat(meetings)
        beaten.set()

    class Slow(FakeStore):
        def read_into(self, *args: Any, **named: Any) -> None:
            if anew:
                waited.append(beaten.wait(PATIENCE))
            super().read_into(*args, **named)

    anew, store, clocks = False, Slow(), [SystemClock(), SystemClock()]
    trainers = join([store, store], clocks)
    on_all(lambda rank: trainers[rank].step())
    on_all(lambda rank: trainers[rank].guard.save())
    on_all(lambda rank: trainers[rank].guard.close())
    sigterm.let_go()
    damage(store, ".safetensors")
    monkeypatch.setenv("SPOTGUARD_BEGIN_ANEW", "yes")
    monkeypatch.setattr(Meetings, "beat", beats)
    anew = True
    trainers = join([store, store], clocks)
    assert waited
    assert all(waited)
    on_all(lambda rank: trainers[rank].guard.close())
    sigterm.let_go()
