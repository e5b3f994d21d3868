"""The records that a report reads: each end of an attempt has one, with what the attempt was."""

from __future__ import annotations

import json
from typing import Any

import pytest

from spotguard import testing
from spotguard.hooks.checkpoint.catalog import find_whole
from spotguard.hooks.control.ending.sigterm import Preempted
from spotguard.providers.errors import UnavailableError
from tests.fakes.noticed import trained
from tests.fakes.store import FakeStore, Fault
from tests.fakes.training import PATIENCE, guarded, small, step_on

pytestmark = pytest.mark.torch


def records(store: FakeStore, kind: str) -> list[dict[str, Any]]:
    return [json.loads(store.objects[key]) for key in sorted(store.objects) if key.startswith(f"run/{kind}/")]


def test_a_script_that_ends_by_itself_leaves_its_last_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPOTGUARD_EVERY", "off")
    store = FakeStore()
    with trained(store, 2) as (guard, job, _):
        guard.save()
        step_on(guard, job, 2)
    (end,) = records(store, "ends")
    history = end["history"]
    assert (end["why"], history["completed"], history["first"], history["periodic"], history["saves"]) == (
        "ended",
        3,
        0,
        2,
        1,
    )
    assert (records(store, "outcomes"), records(store, "failures")) == ([], [])


def test_the_wait_for_the_last_upload_is_no_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    """A script may close its guard itself, while a large checkpoint is on its way."""
    seen = []
    with trained(FakeStore(), 2) as (guard, _, _):
        progress, close = guard._parts.progress, guard._saver.close

        def waits(*given: Any) -> None:
            seen.append(progress.look().phase)
            close(*given)

        monkeypatch.setattr(guard._saver, "close", waits)
        guard.close()
    assert seen == ["save"]


def test_ctrl_c_is_named() -> None:
    store = FakeStore()

    def interrupted() -> None:
        with trained(store):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert [each["why"] for each in records(store, "ends")] == ["interrupted"]


def test_an_error_of_an_earlier_cell_is_not_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    store = FakeStore()
    monkeypatch.setattr("sys.last_value", KeyboardInterrupt(), raising=False)
    with trained(store):
        pass
    assert [each["why"] for each in records(store, "ends")] == ["ended"]


def test_the_record_of_the_end_comes_after_the_last_upload(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPOTGUARD_EVERY", "off")
    store = FakeStore()
    with trained(store, 2) as (guard, _, _):
        guard._schedule.ask(going=True)
        guard.step()
    puts = [key for verb, key in store.calls if verb == "put"]
    assert puts[-1] == "run/ends/0001.json"
    assert any("/checkpoints/" in key for key in puts)
    assert records(store, "ends")[0]["history"]["periodic"] == 3


def test_ctrl_c_while_a_guard_closes_leaves_it_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    store = FakeStore()

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with guarded(store, small().values) as guard:
        guard.restore()
        with monkeypatch.context() as patch:
            patch.setattr(guard._saver, "close", interrupt)
            with pytest.raises(KeyboardInterrupt):
                guard.close()
        assert guard.closed
        assert guard._gate.inert
        guard._saver.close(PATIENCE)
        guard._checkpointer.close()


def test_a_process_that_never_trained_has_no_end() -> None:
    store = FakeStore()
    with guarded(store, small().values):
        pass
    assert records(store, "ends") == []


def test_a_preempted_attempt_has_the_outcome_alone() -> None:
    store = FakeStore()
    with trained(store) as (guard, job, _):
        testing.preempt(guard, seconds=60)
        with pytest.raises(Preempted):
            step_on(guard, job, 2, 3, 4)
    (outcome,) = records(store, "outcomes")
    assert outcome["history"]["completed"] == outcome["step"]
    assert records(store, "ends") == []


def test_an_error_has_its_own_record_alone() -> None:
    store = FakeStore()
    with trained(store) as (guard, _, _):
        guard.fail(ValueError("bad"))
    (failure,) = records(store, "failures")
    assert failure["history"]["completed"] == failure["step"] == 2
    assert records(store, "ends") == []


def test_a_store_that_fails_at_the_exit_costs_the_record_alone(caplog: pytest.LogCaptureFixture) -> None:
    store = FakeStore()
    with trained(store):
        done = sum(verb == "put" for verb, _ in store.calls)
        store.faults.append(Fault(done, ("put",), error=lambda: UnavailableError("no answer")))
    assert records(store, "ends") == []
    assert "spotguard could not write a record to the store: no answer" in caplog.text


def test_a_checkpoint_hands_on_the_attempts_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """From its manifest, at the next restore; in the marker as well."""
    monkeypatch.setenv("SPOTGUARD_EVERY", "off")
    store = FakeStore()
    for steps in (2, 4):
        job = small()
        with guarded(store, job.values) as guard:
            step_on(guard, job, *range(guard.restore(), steps))
            guard.save()
    whole = find_whole(store, "run")
    assert whole is not None
    history = whole.manifests[0].history
    assert [(each["attempt"], each["first"], each["last"]) for each in history["earlier"]] == [(1, 0, 2)]
    assert (history["first"], history["from"]) == (2, "000000002-0001-0000")
    marker = json.loads(store.objects[f"run/checkpoints/{whole.name}/COMMIT.json"])["commit"]
    assert marker["history"] == history


def test_a_history_that_makes_no_sense_stops_no_restore(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither does a mistake in its reading."""
    monkeypatch.setenv("SPOTGUARD_EVERY", "off")
    store = FakeStore()
    with trained(store, 2) as (guard, _, _):
        guard._history._earlier = 7  # type: ignore[assignment]
        guard.save()
    with guarded(store, small().values) as guard:
        assert guard.restore() == 2
    monkeypatch.setattr("spotguard.hooks.checkpoint.history._earlier", lambda told: 1 / 0)
    with guarded(store, small().values) as guard:
        assert guard.restore() == 2


def test_after_a_second_restore_records_belong_to_its_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    """The attempt that it left has an end of its own."""
    monkeypatch.setenv("SPOTGUARD_EVERY", "off")
    store = FakeStore()
    with trained(store, 2) as (guard, job, _):
        guard.save()
        step_on(guard, job, 2)
        assert guard.restore() == 2
        testing.preempt(guard, seconds=60)
        with pytest.raises(Preempted):
            step_on(guard, job, 2, 3, 4)
    (left,) = records(store, "ends")
    assert (left["why"], left["history"]["completed"], left["history"]["periodic"]) == ("left", 3, 2)
    assert [key for key in sorted(store.objects) if key.startswith(("run/ends/", "run/outcomes/"))] == [
        "run/ends/0001.json",
        "run/outcomes/0002-01.json",
    ]
