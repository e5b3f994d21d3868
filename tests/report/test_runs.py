"""All runs of a store, one line each: who trains, whose checkpoint is late, and what a line costs."""

from __future__ import annotations

from typing import Any

import pytest

from spotguard.hooks.checkpoint.format.keys import end_key, failure_key, object_name
from spotguard.report.reading import read_run
from spotguard.report.reckoning import reckon
from spotguard.report.runs import RunLine, all_runs
from tests.fakes.checkpoint import Save
from tests.fakes.store import FakeStore
from tests.report.kept import Kept

#: A run that saves every 100 s trains if it gave a sign in 900 s, and is late after 300 s without a checkpoint: it has made two.
EVERY: dict[str, Any] = {"first": 0, "interval": 100.0, "saves": 2}


def line(kept: Kept, now: float) -> RunLine:
    (one,) = all_runs(kept.store, now)
    return one


def test_a_run_that_trains() -> None:
    kept = Kept()
    kept.claim()
    kept.at(1100.0).save(10, **EVERY)
    run = line(kept, 1150.0)
    assert (run.run_id, run.state, run.late, run.step, run.age) == ("run", "training", False, 10, 50.0)
    assert (run.checkpoint, run.interval, run.attempts) == ("000000010-0001-0000", 100.0, 1)
    assert (run.failure, run.failed_attempt, run.failed_at) == ("", None, None)


def test_a_run_that_stood_still_at_its_last_sign_is_not_said_to_train() -> None:
    """Whether it stands there still or was killed has no record. A later checkpoint shows that it went on, and silence counts as ever."""
    kept = Kept()
    kept.claim()
    kept.at(1100.0).save(5, **EVERY)
    kept.at(1200.0).outcome(kind="stall", notice={"source": "spotguard", "drill": True})
    assert line(kept, 1250.0).state == "stalled"
    report = reckon(read_run(kept.store, "run", 1250.0))
    assert (report.state, report.attempts[0].end, report.attempts[0].stalls) == ("stalled", "stalled", 1)
    assert line(kept, 9000.0).state == "silent"
    kept.at(1300.0).save(9, **EVERY)
    assert line(kept, 1350.0).state == "training"


def test_a_checkpoint_that_is_late_is_said() -> None:
    """It gives signs, so it trains: objects of a save that fails each time."""
    kept = Kept()
    kept.claim()
    kept.at(1100.0).save(10, **EVERY)
    kept.at(1500.0).put(failure_key("run", 9, 0).replace("0009", "0001"), "{}")
    run = line(kept, 1550.0)
    assert (run.state, run.late, run.age, run.quiet) == ("training", True, 450.0, 50.0)


def test_uploads_that_take_longer_than_the_interval_are_not_late() -> None:
    kept = Kept()
    kept.claim()
    kept.at(2000.0).save(10, **EVERY)
    kept.at(4000.0).save(20, **EVERY)
    run = line(kept, 7000.0)
    assert (run.state, run.late) == ("training", False)
    assert line(kept, 8001.0).late is True
    assert line(kept, 10001.0).state == "silent"


def test_a_run_without_any_checkpoint_is_late_when_its_time_has_come() -> None:
    kept = Kept()
    kept.claim()
    assert line(kept, 1100.0).late is False
    assert line(kept, 1000.0 + 3601.0).late is False  # it is silent: most likely it trains no more
    late = line(kept, 1000.0 + 1801.0)
    assert (late.state, late.late, late.step, late.checkpoint, late.age) == (
        "training",
        True,
        None,
        None,
        None,
    )


def test_a_new_attempt_does_not_see_by_the_checkpoints_of_the_last_one() -> None:
    kept = Kept()
    kept.claim()
    kept.at(1100.0).save(10, **EVERY)
    kept.at(9000.0).claim()
    assert line(kept, 9010.0).late is False
    run = line(kept, 12000.0)
    assert (run.late, run.step) == (True, 10)


@pytest.mark.parametrize("state", ["notice", "error", "ended"])
def test_a_run_that_has_ended_is_neither(state: str) -> None:
    """However long ago."""
    kept = Kept()
    kept.claim()
    kept.at(1100.0).save(5, **EVERY)
    if state == "notice":
        kept.outcome()
    elif state == "error":
        kept.put(failure_key("run", 1, 0), {"says": "an error", "step": 5, "ended": 1100.0})
    else:
        kept.put(end_key("run", 1), {"why": "ended", "ended": 1100.0})
    for now in (1110.0, 1e6):
        run = line(kept, now)
        assert (run.state, run.late) == (state, False)


def test_a_notice_that_was_withdrawn_is_no_end() -> None:
    kept = Kept()
    kept.claim()
    kept.at(1100.0).outcome()
    kept.at(1200.0).save(9, **EVERY)
    assert line(kept, 1210.0).state == "training"


def test_the_last_error_stays_though_a_later_attempt_trains() -> None:
    kept = Kept()
    kept.claim()
    kept.at(1100.0).put(failure_key("run", 1, 0), {"says": "an error", "step": 5, "ended": 1100.0})
    kept.at(1200.0).claim()
    run = line(kept, 1210.0)
    assert (run.state, run.failure, run.failed_attempt, run.failed_at) == ("training", "an error", 1, 1100.0)


def test_each_run_of_a_store_has_a_line_and_nothing_else_has_one() -> None:
    store = FakeStore()
    for run_id in ("b", "a"):
        kept = Kept(run_id, store)
        kept.claim()
    kept.put("notes/readme.txt", "x")
    kept.put("c/stalls/0001-01-00000.json", "{}")
    assert [run.run_id for run in all_runs(store, 1100.0)] == ["a", "b"]
    assert [run.run_id for run in all_runs(store, 1100.0, "b")] == ["b"]


def test_a_run_takes_a_handful_of_requests_however_many_checkpoints_it_has() -> None:
    kept = Kept()
    for attempt in range(1, 4):
        kept.claim()
        for step in range(50):
            kept.save(1000 * attempt + step, attempt, **EVERY)
        kept.put(failure_key("run", attempt, 0), {"says": "an error", "step": 5})
    kept.store.calls.clear()
    line(kept, 1100.0)
    assert len(kept.store.calls) == 4


def test_a_save_that_never_ended_is_no_checkpoint() -> None:
    kept = Kept()
    kept.claim()
    kept.put(Save("run", 1, 10).prefix + object_name(0, 1, 0), "bytes")
    assert (line(kept, 1100.0).step, line(kept, 1100.0).checkpoint) == (None, None)


def test_the_last_error_is_the_cause_and_not_what_follows_from_it() -> None:
    kept = Kept()
    kept.claim()
    lost = {"kind": "peer-lost", "says": "another rank is gone", "step": 5}
    kept.at(1100.0).put(failure_key("run", 1, 0), lost | {"ended": 1100.0})
    kept.at(1101.0).put(failure_key("run", 1, 1), {"says": "the cause", "step": 5, "ended": 1101.0})
    assert (line(kept, 1110.0).failure, line(kept, 1110.0).failed_at) == ("the cause", 1101.0)
    kept.at(1200.0).claim()
    assert (line(kept, 1210.0).failure, line(kept, 1210.0).failed_attempt) == ("the cause", 1)


def test_many_records_of_one_attempt_take_no_request_each() -> None:
    kept = Kept()
    kept.claim()
    for number in range(1, 100):
        kept.outcome(number=number, kind="stall")
    kept.store.calls.clear()
    line(kept, 1100.0)
    assert [verb for verb, _ in kept.store.calls].count("get") <= 6
