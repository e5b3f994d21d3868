"""Runs made by hand, and the figures that they have."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spotguard.report.facts import AttemptFacts, EventFact, FailureFact
from spotguard.report.reckoning import RunReport, reckon
from spotguard.report.summary import lost_steps
from tests.report.lives import EARLIER, FAILED, FINISHED, PREEMPTED, RUN, START, checkpoint, history, only


def shares(report: RunReport) -> dict[str, float]:
    return {each.key: round(each.seconds, 6) for each in report.shares if each.seconds}


def test_three_lives() -> None:
    report = reckon(RUN)
    assert (report.state, report.step, report.counted, report.wall) == ("ended", 200, 200, 310.0)
    assert report.ettr == pytest.approx(200 / 310)
    assert [line.end for line in report.attempts] == ["notice", "error", "ended"]
    assert [(line.first, line.last, line.lost, line.kept) for line in report.attempts] == [
        (0, 100, 0, 40),
        (100, 160, 10, 0),
        (150, 200, 0, None),
    ]
    assert (report.lost, report.kept, report.saves, report.cost) == (10, 40, 3, 6.0)
    assert report.notes == ()


def test_the_parts_of_the_time_are_all_of_it() -> None:
    """Waiting for a machine is known of the second attempt alone: the third one's machine had been there for hours."""
    later = replace(FINISHED, events=(EventFact("ended", START + 330, "", 200),))
    report = reckon(replace(RUN, attempts=(PREEMPTED, FAILED, later)))
    parts = {
        "useful": 200.0,
        "again": 10.0,
        "checkpoints": 6.0,
        "saving": 2.0,
        "starting": 25.0,
        "waiting": 40.0,
        "down": 30.0,
    }
    assert shares(report) == parts | {"rest": 330.0 - sum(parts.values())}


def test_money_is_paid_for_each_machine_and_not_for_down_time() -> None:
    money = reckon(RUN, price=36.0).money  # a cent for a second of a machine
    assert money is not None
    assert money.spent == pytest.approx(0.01 * (2 * 110 + 70 + 60))
    assert money.machine_hours == pytest.approx((2 * 110 + 70 + 60) / 3600)
    assert money.useful == pytest.approx(0.01 * (2 * 100 + 50 + 50))
    assert money.lost == pytest.approx(0.01 * 10)
    assert money.checkpoints == pytest.approx(0.01 * (2 * 2 + 3 + 1))
    assert money.kept == pytest.approx(0.01 * 2 * 40)
    assert reckon(RUN).money is None


def test_without_a_checkpoint_of_its_own_an_attempt_has_everything_at_stake() -> None:
    """Since nothing: its first step."""
    bare = replace(
        PREEMPTED, history=history(10, 0, completed=100), checkpoints=(checkpoint(100, 110, emergency=True),)
    )
    assert reckon(only(bare)).attempts[0].kept == 100


def test_a_drill_is_no_end_and_its_checkpoint_is_at_no_stake() -> None:
    """Training went on behind it: only the steps after it count thanks to the notice, and without one their loss is not known."""
    drill = EventFact("drill", START + 90, "", 80, True)
    drilled = replace(
        PREEMPTED,
        checkpoints=(checkpoint(60, 70), checkpoint(80, 90, emergency=True), *PREEMPTED.checkpoints[1:]),
        events=(drill, *PREEMPTED.events),
    )
    assert reckon(only(drilled)).attempts[0].kept == 20
    killed = replace(drilled, checkpoints=drilled.checkpoints[:2], events=(drill,))
    line = reckon(replace(RUN, attempts=(killed, FAILED, FINISHED))).attempts[0]
    assert (line.end, line.committed, line.lost, line.kept) == ("", 80, None, None)


def test_a_save_that_failed_keeps_nothing() -> None:
    missed = replace(
        PREEMPTED,
        checkpoints=(checkpoint(60, 70),),
        events=(EventFact("notice", START + 110, "terminate notice from aws", 100, False),),
    )
    (line,) = reckon(only(missed)).attempts
    assert (line.lost, line.kept) == (40, 0)


def test_an_attempt_that_was_killed_has_no_known_end() -> None:
    """Its lost steps are not known, and the time to the next start is not called down time."""
    killed = replace(FAILED, events=(), history=history(180, 100, periodic=150))
    report = reckon(replace(RUN, attempts=(PREEMPTED, killed, FINISHED)))
    line = report.attempts[1]
    assert (line.end, line.last, line.committed, line.lost, line.ended) == ("", None, 150, None, START + 230)
    assert shares(report)["unseen"] == 20.0
    assert "end of attempt 2 has no record" in " ".join(report.notes)


def test_after_a_notice_that_was_withdrawn_training_goes_on() -> None:
    """A later checkpoint shows that it did."""
    went_on = replace(PREEMPTED, checkpoints=(*PREEMPTED.checkpoints, checkpoint(150, 170)))
    (line,) = reckon(only(went_on, now=180)).attempts
    assert (line.end, line.ended, line.last) == ("running", START + 170, None)


@pytest.mark.parametrize("committed", [True, False])
def test_after_a_restart_that_was_never_done_training_goes_on(committed: bool) -> None:
    """The agent may be killed between the save and the end of the command."""
    asked = EventFact("error", START + 80, "training stood still", 70, committed, 2.0, asked=True)
    went_on = replace(FAILED, events=(asked, *FAILED.events))
    assert reckon(only(went_on)).attempts[0].last == 160
    stood = replace(FAILED, checkpoints=(checkpoint(70, 81, emergency=True),), events=(asked,))
    (line,) = reckon(only(stood)).attempts
    assert (line.end, line.last) == ("error", 70)


def test_a_rank_that_was_killed_after_a_stall_has_its_steps_kept_by_the_stalls_save() -> None:
    """Its last position is older than the save, so its record does not know that checkpoint."""
    stall = EventFact("stall", START + 105, "training stood still", 100, True, 2.0)
    killed = EventFact("error", START + 170, "training stood still (it was killed)", 100, False)
    attempt = replace(PREEMPTED, events=(stall, killed))
    for checkpoints in (PREEMPTED.checkpoints, ()):  # its checkpoints may be deleted
        first, _ = reckon(only(replace(attempt, checkpoints=checkpoints), replace(FAILED))).attempts
        assert (first.end, first.lost, first.kept) == ("error", 0, 40)
    without = replace(attempt, events=(killed,), checkpoints=PREEMPTED.checkpoints[:1])
    first, _ = reckon(only(without, replace(FAILED))).attempts
    assert first.kept == 0


def killed(step: int, newest: int | None, kind: str = "killed") -> EventFact:
    """The record that the agent writes for a rank that was killed, by what it last saw of it."""
    failure = FailureFact(kind, (), "medium", "", "", "", "", "", (), 1, step, newest, by_agent=True)
    return EventFact("error", START + 110, "a process was killed", step, newest == step, failure=failure)


def test_a_kill_keeps_nothing_and_may_have_lost_more_than_its_agent_saw() -> None:
    """The newest checkpoint is a background one. Its history has the one before it."""
    attempt = replace(
        PREEMPTED, checkpoints=(checkpoint(60, 70), checkpoint(95, 105)), events=(killed(95, 95),)
    )
    report = reckon(only(attempt))
    (line,) = report.attempts
    assert (line.last, line.lost, line.kept) == (95, 0, 0)
    assert (lost_steps(line), lost_steps(report), lost_steps(reckon(RUN))) == ("≥ 0", "≥ 0", "10")
    (line,) = reckon(only(replace(attempt, events=(killed(95, 95, "stall"),)))).attempts
    assert lost_steps(line) == "0"
    (line,) = reckon(only(replace(attempt, history={}, checkpoints=()))).attempts
    assert lost_steps(line) == "-"


@pytest.mark.parametrize(
    "seen", [pytest.param(90, id="before the save"), pytest.param(60, id="at a checkpoint")]
)
def test_the_other_ranks_save_is_the_end_of_an_attempt_whose_rank_was_killed(seen: int) -> None:
    save = EventFact("save", START + 109, "RuntimeError", 100, True, 9.0)
    for checkpoints in (PREEMPTED.checkpoints, ()):  # its checkpoints may be deleted
        attempt = replace(PREEMPTED, checkpoints=checkpoints, events=(save, killed(seen, 60)))
        after = replace(FAILED, history={**FAILED.history, "first": 100})
        first, _ = reckon(only(attempt, after)).attempts
        assert (first.end, first.last, first.lost, first.kept, first.at_least) == ("error", 100, 0, 40, False)
    failed = replace(
        attempt,
        checkpoints=PREEMPTED.checkpoints[:1],
        events=(replace(save, committed=False), killed(seen, 60)),
    )
    (line,) = reckon(only(failed)).attempts
    assert (line.last, line.kept) == (seen, 0)


@pytest.mark.parametrize(
    ("now", "interval", "state"),
    [
        pytest.param(1000, 60.0, "training", id="a while ago"),
        pytest.param(1300, 60.0, "silent", id="too long ago"),
        pytest.param(1300, 600.0, "training", id="but its interval is long"),
        pytest.param(1300, None, "training", id="no interval is known"),
        pytest.param(9000, None, "silent", id="for hours"),
    ],
)
def test_a_run_without_a_known_end_trains_while_it_gives_signs(
    now: float, interval: float | None, state: str
) -> None:
    alive = replace(
        FINISHED, number=1, events=(), history=history(255, 150, interval=interval, saves=2, periodic=200)
    )
    assert reckon(only(alive, now=now)).state == state


def test_an_attempt_with_slow_steps_or_a_first_checkpoint_alone_has_longer() -> None:
    """Its rhythm is not known yet."""
    for facts in ({"saves": 1}, {"saves": 2, "step_seconds": 120.0}):
        alive = replace(FINISHED, number=1, events=(), history=history(255, 150, periodic=200, **facts))
        assert reckon(only(alive, now=2000)).state == "training"


def test_objects_of_an_upload_are_a_sign_of_life() -> None:
    facts = history(255, 150, saves=9, periodic=200)
    alive = replace(FINISHED, number=1, events=(), history=facts, touched=START + 4000)
    report = reckon(only(alive, now=4010))
    assert (report.state, report.attempts[0].ended) == ("training", START + 4000)


def test_lost_steps_reach_back_to_where_training_went_on() -> None:
    """Starts that never trained stand between; nothing knows that they were killed."""
    idle = [AttemptFacts(number, started=START + 240 + number) for number in (3, 4)]
    after = replace(FINISHED, number=5)
    report = reckon(replace(RUN, attempts=(PREEMPTED, FAILED, *idle, after)))
    assert [(line.end, line.lost) for line in report.attempts[1:4]] == [
        ("error", 10),
        ("bare", None),
        ("bare", None),
    ]
    assert "killed" not in " ".join(report.notes)
    assert "neither a checkpoint nor a record of attempts 3, 4" in " ".join(report.notes)
    report = reckon(only(PREEMPTED, FAILED, *idle, now=9000))
    assert (report.lost, report.state) == (10, "silent")


def test_without_a_later_training_the_newest_checkpoint_counts() -> None:
    bare = replace(FAILED, history=history(180, 100, completed=160), checkpoints=())
    report = reckon(only(PREEMPTED, bare, AttemptFacts(3, started=START + 250), now=9000))
    assert [line.lost for line in report.attempts] == [0, 60, None]


def test_a_save_that_was_not_committed_keeps_nothing_though_a_background_checkpoint_came() -> None:
    late = replace(PREEMPTED, events=(EventFact("notice", START + 110, "notice", 100, False),))
    (line,) = reckon(only(late)).attempts
    assert (line.lost, line.kept) == (0, 0)


def test_the_cause_is_named_and_not_what_follows_from_it() -> None:
    """The first rank learns of it first, by its clock."""
    events = (
        EventFact("error", START + 239, "another rank is gone", 159, False, follows=True),
        EventFact("error", START + 240, "the cause", 160, False),
        EventFact("error", START + 241, "another error", 160, False),
        EventFact("error", START + 300, "another rank is gone", 160, False, follows=True),
    )
    line = reckon(only(PREEMPTED, replace(FAILED, events=events))).attempts[1]
    assert (line.cause, line.ended) == ("the cause", START + 300)


def test_an_attempt_that_a_restore_left() -> None:
    left = replace(FAILED, events=(EventFact("left", START + 240, "", 160),))
    line = reckon(replace(RUN, attempts=(PREEMPTED, left, FINISHED))).attempts[1]
    assert (line.end, line.lost, line.kept) == ("left", 10, None)


def test_steps_of_another_run_do_not_count() -> None:
    """A run may begin with the checkpoint of another."""
    tuned = replace(FINISHED, number=1, history=history(255, 150, run="base", periodic=200, completed=200))
    report = reckon(only(tuned))
    assert (report.step, report.counted) == (200, 50)


def test_a_branch_that_was_left_does_not_count() -> None:
    """The script went back to step 30, so the steps from 30 to 100 were trained for nothing."""
    back = replace(FINISHED, number=2, history=history(255, 30, periodic=200, completed=200))
    report = reckon(only(PREEMPTED, back, earlier=[{**history(10, 0), "attempt": 1, "last": 30}]))
    assert (report.counted, report.lost) == (200, 70)


def test_steps_behind_the_newest_checkpoint_are_lost_where_a_script_ends() -> None:
    """An exit in the middle looks the same, and no start has them."""
    unsaved = replace(
        FINISHED,
        number=1,
        history=history(255, 150, periodic=190, completed=200),
        checkpoints=(checkpoint(190, 290),),
    )
    report = reckon(only(unsaved))
    assert (report.step, report.counted, report.lost) == (190, 40, 10)
    assert "attempt 1 ended behind its newest checkpoint" in " ".join(report.notes)


def test_a_last_checkpoint_that_is_deleted_counts() -> None:
    """The script had saved its last step."""
    unsaved = replace(FINISHED, history=history(255, 150, periodic=200, completed=200), checkpoints=())
    newest = {**FAILED.history, "earlier": [{**history(10, 0), "attempt": 1, "last": 100}]}
    report = reckon(replace(RUN, attempts=(PREEMPTED, FAILED, unsaved), history=newest))
    assert (report.step, report.counted, report.lost) == (200, 200, 10)
    assert report.ettr == pytest.approx(200 / 310)


def test_each_attempt_counts_with_its_own_median() -> None:
    """The second machine is twice as fast."""
    fast = replace(FAILED, history=history(180, 100, step_seconds=0.5, periodic=150, completed=160))
    entry = {**history(10, 0), "attempt": 1, "last": 100}
    report = reckon(only(PREEMPTED, fast, earlier=[entry]))
    assert report.ettr == pytest.approx((100 * 1.0 + 50 * 0.5) / 240)


def test_seconds_of_a_step_come_from_the_dates_of_checkpoints_without_a_history() -> None:
    """The page says so."""
    old = [
        AttemptFacts(1, started=START, checkpoints=(checkpoint(50, 60), checkpoint(100, 110))),
        AttemptFacts(2, started=START + 200, checkpoints=(checkpoint(150, 260), checkpoint(200, 310))),
    ]
    report = reckon(replace(RUN, attempts=tuple(old), history={}))
    assert (report.step_seconds, report.estimated, report.step, report.counted) == (1.0, True, 200, 200)
    assert [(line.first, line.lost, line.end) for line in report.attempts] == [
        (None, None, ""),
        (None, None, "running"),
    ]
    assert report.notes[0] == "The seconds of a step are estimated from the dates of checkpoints."
    assert "history of attempts 1, 2" in report.notes[1]


def test_a_run_that_has_only_begun() -> None:
    report = reckon(only(AttemptFacts(1, started=START), now=5))
    assert (report.state, report.step, report.ettr, report.wall) == ("training", None, None, 0.0)
    assert reckon(only()).state == "empty"


def test_attempts_that_overlap_by_their_clocks_are_named_with_what_it_means_for_the_ettr() -> None:
    """The second machine's clock is behind."""
    behind = replace(
        FAILED,
        started=START + 90,
        history=history(100, 100, saves=1, cost=3.0, periodic=150, completed=160),
        checkpoints=(checkpoint(150, 150),),
        events=(EventFact("error", START + 160, "an error", 160, False),),
    )
    report = reckon(only(PREEMPTED, behind, earlier=[{**history(10, 0), "attempt": 1, "last": 100}]))
    assert report.ettr == pytest.approx(150 / 160)
    assert report.notes == (
        "By their clocks, attempt 2 starts 20.0 s before the end of attempt 1: the clocks differ, or the attempts ran at once. "
        "If the clocks differ, the wall time may be 20.0 s too short, and the ETTR is 83.3 % then.",
    )


def test_an_ettr_that_is_cut_has_a_note() -> None:
    slow = replace(
        FINISHED, number=1, history=history(255, 150, step_seconds=3.0, periodic=200, completed=200)
    )
    report = reckon(only(slow))
    assert (report.ettr, report.wall) == (1.0, 60.0)
    assert report.notes[0].startswith(
        "The steps that count take 2 min 30 s by their median, and the wall time is 1 min: the ETTR is cut to 100 %."
    )


def test_a_second_restore_in_one_process_overlaps_with_nothing() -> None:
    left = replace(FAILED, events=(EventFact("left", START + 255, "", 160),))
    assert reckon(replace(RUN, attempts=(PREEMPTED, left, FINISHED))).notes == ()


@pytest.mark.parametrize(
    ("kind", "down"),
    [("notice", 8890.0), ("error", 8890.0), ("", 8890.0), ("ended", None), ("interrupted", None)],
)
def test_a_run_that_waits_for_its_next_start_has_the_time_since_its_last_sign(
    kind: str, down: float | None
) -> None:
    """It is in neither the wall time nor the ETTR: nobody knows yet whether there is a next start."""
    events = (EventFact(kind, START + 110, "", 100, True),) if kind else ()
    facts = history(10, 0, periodic=100, saves=2, completed=100)
    one = replace(PREEMPTED, checkpoints=(checkpoint(100, 110),), events=events, history=facts)
    early, late = (reckon(only(one, now=now)) for now in (111.0, 9000.0))
    assert late.down == down
    assert early.down == (None if not kind or down is None else 1.0)
    assert (late.wall, late.ettr) == (early.wall, early.ettr)
    assert (late.wall, late.ettr) == pytest.approx((110.0, 100 / 110))


def test_the_ettr_without_queueing_leaves_out_the_known_waits_for_machines() -> None:
    """A machine was there 40 s after the first attempt's end; the third attempt's had been there before."""
    report = reckon(RUN)
    assert (report.queueing, report.ettr, report.ettr_without_queueing) == pytest.approx(
        (40.0, 200 / 310, 200 / 270)
    )
    alone = reckon(only(PREEMPTED))
    assert (alone.queueing, alone.ettr_without_queueing) == (0.0, alone.ettr)


def test_queueing_that_no_record_shows_is_not_guessed() -> None:
    """Without the boot of the machine, and after a kill, whose moment nobody knows."""
    unknown = replace(FAILED, available=None)
    report = reckon(only(PREEMPTED, unknown, earlier=EARLIER[:1]))
    assert (report.queueing, report.ettr_without_queueing) == (None, None)
    assert report.ettr is not None
    assert report.notes == ()  # there is no figure that it would explain
    killed = replace(FAILED, events=(), history=history(180, 100, periodic=150))
    report = reckon(replace(RUN, attempts=(PREEMPTED, killed, replace(FINISHED, available=START + 240))))
    assert report.queueing == 40.0
    note = "The queueing before attempt 3 is not known, so the ETTR without queueing counts it as if it was none."
    assert note in report.notes
    overlong = replace(FAILED, available=START + 171)  # after its own start: another clock
    assert reckon(only(PREEMPTED, overlong)).queueing is None


def test_an_attempt_without_an_end_is_paid_until_its_last_sign_and_named() -> None:
    killed = replace(FAILED, events=(), history=history(180, 100, periodic=150), touched=START + 235)
    report = reckon(replace(RUN, attempts=(PREEMPTED, killed, FINISHED)), price=36.0)
    assert report.money is not None
    assert report.money.spent == pytest.approx(0.01 * (2 * 110 + 65 + 60))
    note = "The money of attempt 2 is that until the last sign: the end is not known, and the machines may have run for longer."
    assert note in report.notes
    assert "money" not in " ".join(reckon(replace(RUN, attempts=(PREEMPTED, killed, FINISHED))).notes)
    alive = replace(FINISHED, number=1, events=(), history=history(255, 150, saves=2, periodic=200))
    assert "The money of attempt 1 is that until" in " ".join(reckon(only(alive, now=310), price=1.0).notes)
    assert reckon(RUN, price=36.0).notes == ()


def test_an_attempt_whose_start_has_no_record_is_paid_from_its_first_sign_and_named() -> None:
    unclaimed = replace(PREEMPTED, started=None)
    report = reckon(replace(RUN, attempts=(unclaimed, FAILED, FINISHED)), price=36.0)
    assert report.money is not None
    assert report.money.spent == pytest.approx(0.01 * (2 * 100 + 70 + 60))
    assert report.notes == ("The money of attempt 1 is that from the first sign: the start has no record.",)
