"""The facts of a run from the store's listing and records, and the requests that they take."""

from __future__ import annotations

import pytest

from spotguard.alerts.records.failure_record import record_of
from spotguard.hooks.checkpoint.format.keys import dismissed_key, end_key, failure_key, outcome_key
from spotguard.report.page import page
from spotguard.report.reckoning import reckon
from spotguard.report.runs import all_runs
from spotguard.report.summary import alarm_of, failure_of
from tests.fakes.checkpoint import Save
from tests.report.kept import NOW, Kept


def test_a_start_has_its_machines_and_the_time_since_when_they_were_there() -> None:
    kept = Kept()
    kept.claim(machines=["a", "b"], machine_count=2, up=400)
    slurm = {"name": "slurm", "job": "7", "since": 1990}
    kept.at(2000.0).claim(machines=["c"], machine_count=1, up=400, launchers=[slurm])
    one, two = kept.read().attempts
    assert (one.started, one.world, one.machines, one.machine_count, one.available) == (
        1000.0,
        2,
        ("a", "b"),
        2,
        400,
    )
    assert (two.number, two.available) == (2, 1990)


def test_a_start_without_facts_has_a_time_alone() -> None:
    kept = Kept()
    kept.claim(pid=3, command=["python"])
    (one,) = kept.read().attempts
    assert (one.machines, one.machine_count, one.available, one.history) == ((), None, None, {})


def test_checkpoints_have_their_steps_and_dates_from_the_listing() -> None:
    kept = Kept()
    kept.claim()
    kept.at(1100.0).save(10, first=0)
    kept.at(1200.0).save(20, marker=False, first=0, periodic=10)
    partial = Save("run", 1, 30, tensors={})
    partial.write_rank(kept.store, 0)
    facts = kept.read()
    assert [(each.step, each.at) for each in facts.attempts[0].checkpoints] == [(10, 1100.0), (20, 1200.0)]
    assert facts.history == {
        "first": 0,
        "periodic": 10,
    }  # of the newest that is whole, though it has no marker


@pytest.mark.parametrize(
    ("step", "counts", "lost"),
    [
        pytest.param(30, 18, 12, id="the full one is worth more"),
        pytest.param(130, 130, 0, id="the full one is too old"),
    ],
)
def test_steps_count_up_to_the_checkpoint_that_the_next_start_restores(
    step: int, counts: int, lost: int
) -> None:
    """A rank was gone at the newest one, so that this lacks the rank's extras."""
    kept = Kept()
    kept.claim()
    kept.at(1100.0).save(18, first=0, began=1000.0)
    Save("run", 1, step, level="partial-extras", tensors={}).write(kept.at(1200.0).store)
    kept.outcome(step=step, history={"first": 0, "periodic": 18})
    report = reckon(kept.read())
    (line,) = report.attempts
    assert (report.step, report.counted, report.age) == (
        counts,
        counts,
        NOW - (1200.0 if not lost else 1100.0),
    )
    assert (line.last, line.lost, line.kept) == (step, lost, step - 18 - lost)


def test_a_pruned_attempt_is_known_from_the_newest_checkpoint() -> None:
    kept = Kept()
    kept.claim()
    kept.at(2000.0).claim()
    kept.at(2100.0).save(90, 2, first=50, earlier=[{"attempt": 1, "first": 0, "last": 50, "cost": 1.5}])
    one, two = kept.read().attempts
    assert (one.history["first"], one.history["cost"], one.checkpoints) == (0, 1.5, ())
    assert two.history["first"] == 50


def test_records_of_notices_errors_and_ends_are_events() -> None:
    kept = Kept()
    kept.claim()
    where = "rank 1 (pid 7) in data"
    kept.at(1100.0).outcome(
        number=1, kind="stall", notice={"source": "spotguard", "drill": True, "detail": where}
    )
    kept.at(1200.0).outcome(number=2, notice={"drill": True})
    kept.at(1250.0).outcome(number=5, left_out=["notes.path: pathlib.Path"])
    kept.at(1300.0).outcome(number=3, committed=False, reason="the store is full", history={"completed": 9})
    kept.at(1400.0).outcome(number=4, kind="failure")
    error = {"says": "an error", "error": "ValueError", "message": "bad\nmore", "where": "t.py:1 in f"}
    kept.put(failure_key("run", 1, 0), error | {"step": 9, "newest_checkpoint": 5, "ended": 1400.0})
    kept.at(1500.0).put(
        end_key("run", 1), {"why": "interrupted", "ended": 1500.0, "history": {"completed": 9}}
    )
    (one,) = kept.read().attempts
    assert [(each.kind, each.at, each.step, each.committed, each.text) for each in one.events] == [
        ("stall", 1100.0, 5, True, f"training stood still: {where}"),
        ("drill", 1200.0, 5, True, ""),
        ("notice", 1250.0, 5, True, "terminate notice from aws; left out: notes.path: pathlib.Path"),
        ("notice", 1300.0, 9, False, "terminate notice from aws; nothing new was saved: the store is full"),
        ("error", 1400.0, 9, False, "an error at t.py:1 in f (ValueError: bad)"),
        ("save", 1400.0, 5, True, "aws"),
        ("interrupted", 1500.0, 9, None, ""),
    ]
    assert one.history == {"completed": 9}


def test_the_rank_that_was_killed_after_a_stall_is_the_end_of_its_attempt() -> None:
    """The agent has recorded it. The launcher's SIGTERM to the other ranks follows from it, and training came again."""
    kept = Kept()
    kept.claim()
    kept.at(1100.0).outcome(kind="stall", notice={"source": "spotguard", "drill": True})
    who = "rank 1 (pid 4242) was killed, so that its launcher starts the ranks again"
    facts = {
        "class": "stall",
        "text": who,
        "step": 5,
        "newest_checkpoint": 5,
        "where": "t.py:1 in f",
        "rank": 1,
    }
    kept.put(failure_key("run", 1, 1), record_of(facts, 1160.0))
    kept.at(1161.0).outcome(number=2, kind="launcher", history={"first": 0, "completed": 5})
    kept.at(1170.0).claim()
    kept.at(1200.0).save(9, 2, first=5, began=1174.0)
    facts_of_run = kept.read()
    first, second = reckon(facts_of_run).attempts
    cause = f"training stood still at t.py:1 in f ({who})"
    assert (first.end, first.cause, first.ended, first.lost) == ("error", cause, 1160.0, 0)
    assert (first.stalls, first.again, second.first) == (1, 14.0, 5)
    assert f"ended by an error: {cause}; training again 14.0 s later; it stood still 1 time" in page(
        reckon(facts_of_run), facts_of_run
    )


@pytest.mark.parametrize(
    ("record", "cause"),
    [
        pytest.param(
            {
                "says": "the data could not be read",
                "error": "ValueError",
                "message": "Caught ValueError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n"
                "ValueError: bad sample 57\n",
                "where": "t.py:6 in get",
            },
            "the data could not be read at t.py:6 in get (ValueError: bad sample 57)",
            id="of a loader's worker",
        ),
        pytest.param(
            {
                "says": "training stood still",
                "message": "training stood still: rank 0 in data at t.py:6 in get: no progress for 60 s",
                "where": "t.py:6 in get",
            },
            "training stood still: rank 0 in data at t.py:6 in get: no progress for 60 s",
            id="of a stall",
        ),
        pytest.param({"kind": "stall", "message": "x" * 600}, f"stall ({'x' * 600})", id="a long one"),
    ],
)
def test_the_cause_of_an_error_is_its_own_message_once(record: dict[str, str], cause: str) -> None:
    kept = Kept()
    kept.claim()
    kept.put(failure_key("run", 1, 0), record)
    (alarm,) = reckon(kept.read()).alarms
    assert alarm.cause == cause
    assert len(alarm_of(alarm)) == min(400, len(cause))
    (run,) = all_runs(kept.store, 1500.0)
    assert run.failure == cause


def test_a_run_that_was_ended_after_a_stall_was_not_preempted() -> None:
    kept = Kept()
    kept.claim()
    kept.at(1160.0).outcome(kind="restart", notice={"source": "spotguard"}, history={"first": 0})
    assert [each.asked for each in kept.read().attempts[0].events] == [True]
    kept.at(1170.0).claim()
    kept.at(1200.0).save(9, 2, first=5, began=1174.0)
    first, _ = reckon(kept.read()).attempts
    assert (first.end, first.lost, first.again) == ("error", 0, 14.0)
    assert first.cause == "training stood still, and was ended so that it starts again"


def test_the_save_at_an_error_stands_for_a_record_that_a_killed_rank_could_not_write() -> None:
    kept = Kept()
    kept.claim()
    kept.at(1400.0).outcome(kind="failure", notice={"source": "RuntimeError"}, seconds_to_commit=9.0)
    (event,) = kept.read().attempts[0].events
    assert (event.kind, event.text, event.step, event.seconds) == ("error", "RuntimeError", 5, 9.0)


def test_records_that_are_none_are_passed_over() -> None:
    """Another program may write anything to the store."""
    kept = Kept()
    kept.claim(machines="a", machine_count="2", up=True, launchers=[3, {"since": "now"}])
    for number, text in enumerate(
        ["", "[]", "{", '{"notice": 3}', "[" * 100_000, '{"notice": {"kind": {}}, "step": 1e99}'], 1
    ):
        kept.put(outcome_key("run", 1, number), text)
    kept.put(failure_key("run", 1, 0), "null")
    kept.put(end_key("run", 1), '{"why": 3, "history": []}')
    kept.put("run/outcomes/notes.txt", "x")
    kept.save(10, first="x", earlier=[3, {"attempt": "one"}, {"attempt": 1, "last": True}])
    facts = kept.read()
    (one,) = facts.attempts
    assert (one.machines, one.machine_count, one.available) == ((), None, None)
    assert {each.kind for each in one.events} <= {"notice", "ended"}


def test_thousands_of_checkpoints_take_no_request_each() -> None:
    kept = Kept()
    for attempt in range(1, 4):
        kept.claim()
        for step in range(200):
            kept.save(1000 * attempt + step, attempt)
    kept.store.calls.clear()
    facts = kept.read()
    assert [len(each.checkpoints) for each in facts.attempts] == [200] * 3
    verbs = [verb for verb, _ in kept.store.calls]
    assert (verbs.count("list"), verbs.count("get"), len(verbs)) == (1, 6, 7)


def test_only_a_few_of_many_failed_ranks_are_read() -> None:
    kept = Kept()
    kept.claim()
    for rank in range(100):
        kept.put(failure_key("run", 1, rank), {"says": f"rank {rank}", "step": 5, "newest_checkpoint": 5})
    kept.store.calls.clear()
    (one,) = kept.read().attempts
    assert len(one.events) == 8
    assert len(kept.store.calls) == 10


def test_the_ranks_that_failed_first_are_read() -> None:
    """The number of a rank says nothing."""
    kept = Kept()
    kept.claim()
    for rank in reversed(range(20)):
        kept.at(1100.0 - rank).put(failure_key("run", 1, rank), {"says": f"rank {rank}", "step": 5})
    (one,) = kept.read().attempts
    assert [each.text for each in one.events] == [f"rank {rank}" for rank in range(19, 11, -1)]


def test_the_rank_that_was_killed_is_the_cause_although_many_have_lost_it_as_a_peer() -> None:
    """The agent records it once its command has ended."""
    kept = Kept()
    kept.claim()
    for rank in range(100):
        kind = "killed" if rank == 60 else "peer-lost"
        at = 1200.0 if rank == 60 else 1100.0 + rank / 10
        kept.at(at).put(failure_key("run", 1, rank), {"kind": kind, "says": kind, "rank": rank, "step": 5})
    kept.store.calls.clear()
    (alarm,) = reckon(kept.read()).alarms
    assert alarm.cause == "killed"
    assert len(kept.store.calls) == 11


def test_the_newest_fact_counts_and_an_unknown_one_replaces_none() -> None:
    """A stall, hours of training, then the records of two ranks, the second of which has no times."""
    kept = Kept()
    kept.claim()
    kept.at(1100.0).outcome(kind="stall", history={"saves": 1, "cost": 1.0, "periodic": 40})
    kept.at(8900.0).save(7800, first=0, saves=130, cost=130.0, periodic=7740, step_seconds=1.0)
    late = {"saves": None, "step_seconds": None, "completed": 7801}
    kept.at(8901.0).put(failure_key("run", 1, 1), {"says": "an error", "ended": 8901.0, "history": late})
    (one,) = kept.read().attempts
    assert one.history == {
        "first": 0,
        "saves": 130,
        "cost": 130.0,
        "periodic": 7740,
        "step_seconds": 1.0,
        "completed": 7801,
    }


def test_numbers_that_cannot_be_true_are_passed_over() -> None:
    """One foreign record must not break the page."""
    kept = Kept()
    kept.claim(machine_count=-5, up=9e14)
    kept.at(1700.0).save(600, first=-1, step_seconds=-1.0, saves=-10, cost=-1e9, began=8e14)
    kept.put(end_key("run", 1), {"why": "ended", "ended": 9e14})
    kept.put(failure_key("run", 1, 0), '{"says": "x", "error": "\\ud800", "step": -5}')
    facts = kept.read()
    (one,) = facts.attempts
    report = reckon(facts, price=1.0)
    assert (one.machine_count, one.available) == (None, None)
    assert (report.wall, report.cost, report.saves, report.attempts[0].first) == (700.0, 0.0, 0, None)
    assert page(report, facts).encode()


def test_a_failure_has_its_whole_record_on_the_page() -> None:
    """It has why, how sure that is, whom it concerns, and what to do: a person needs these at night. Others may have written anything."""
    record = {
        "kind": "data",
        "evidence": ["text", "place", 7],
        "confidence": "high",
        "says": "the data could not be read",
        "error": "ValueError",
        "message": "bad sample 57\n<b>second line</b>",
        "stack": ["train.py:3 in main", "train.py:6 in __getitem__", None],
        "where": "train.py:6 in __getitem__",
        "advice": "look at the sample",
        "rank": 0,
        "step": 9,
        "newest_checkpoint": 9,
    }
    kept = Kept()
    kept.claim()
    kept.at(1400.0).put(failure_key("run", 1, 0), record)
    kept.claim()
    kept.at(1500.0).put(failure_key("run", 2, 0), {key: {"a": 1} for key in record})
    facts = kept.read()
    report = reckon(facts, 2.10)
    (one, other) = report.alarms
    assert one.failure is not None
    assert (one.failure.evidence, one.failure.stack[-1]) == (("text", "place"), "train.py:6 in __getitem__")
    assert one.failure.message.endswith("second line</b>")
    assert other.failure is not None
    assert (other.failure.advice, other.failure.stack, other.failure.step) == ("", (), None)
    shown = dict(failure_of(one, report))
    assert shown["evidence"] == "the error's text, where it arose"
    assert shown["scope"].startswith("rank 0 of ")
    assert (shown["confidence"], shown["resumes at"], shown["what to do"]) == (
        "high",
        "step 9",
        "look at the sample",
    )
    text = page(report, facts)
    assert "&lt;b&gt;second line&lt;/b&gt;" in text
    assert "train.py:3 in main\ntrain.py:6 in __getitem__</pre>" in text


def test_an_alarm_that_a_person_has_dismissed_is_listed_and_does_not_count() -> None:
    """A failure by its attempt, with the errors of all ranks; a stall by its record."""
    kept = Kept()
    kept.claim()
    kept.at(1100.0).outcome(number=1, kind="stall", notice={"source": "spotguard", "drill": True})
    kept.at(1200.0).outcome(number=2, kind="stall", notice={"source": "spotguard", "drill": True})
    for rank in (0, 1):
        kept.at(1400.0 + rank).put(failure_key("run", 1, rank), {"says": f"rank {rank}", "step": 9})
    report = reckon(kept.read())
    assert (report.state, report.attempts[0].stalls) == ("error", 2)
    assert [each.id for each in report.alarms] == ["stall-0001-01", "stall-0001-02", "failure-0001"]
    for id in ("stall-0001-02", "failure-0001", "stall-0009-09"):
        kept.put(dismissed_key("run", id), {"id": id})
    facts = kept.read()
    report = reckon(facts)
    assert (report.state, report.attempts[0].stalls, report.down) == ("false-error", 1, None)
    assert [(each.id, each.cause, each.dismissed) for each in report.alarms] == [
        ("stall-0001-01", "training stood still", False),
        ("stall-0001-02", "training stood still", True),
        ("failure-0001", "rank 0", True),
    ]
    assert "1 ended by an error that was dismissed" in page(report, facts)
    assert "<p>stall-0001-02: " in page(report, facts)
    (run,) = all_runs(kept.store, 1500.0)
    assert (run.state, run.failure, run.failed_attempt) == ("false-error", "", None)
