"""What is shown of each training process: what it has said, as it ages, and whether its save fits the window."""

from __future__ import annotations

from functools import partial
from math import isnan

import pytest

from spotguard.hooks.ipc.protocol import MOST_METRICS, Committed, Position, Register

pytest.importorskip("prometheus_client")

from spotguard.agent.events import Closed, Opened, WindowTold
from spotguard.agent.telemetry.metrics.processes import SHOWN
from tests.agent.telemetry.metrics.metered import Life

# --- training processes ---


def test_a_process_is_shown_with_what_it_knows_and_no_more() -> None:
    life = Life()
    life.joins(nbytes=0)
    who = ("r", "0", "0")
    for name in (
        "step",
        "checkpoint_step",
        "checkpoint_age_seconds",
        "checkpoint_interval_seconds",
        "state_bytes",
        "upload_bytes_per_second",
        "expected_save_seconds",
        "expected_slack_seconds",
        "fits_window",
        "earlier_step_seconds",
    ):
        assert life.value(f"spotguard_{name}", *who) is None, name
    life.says(Position(3, save_seconds=27.5, rate=2.0, interval=60.0, earlier_step_seconds=0.25))
    assert life.value("spotguard_step", *who) == 3
    assert life.value("spotguard_checkpoint_step", *who) is None
    assert life.value("spotguard_checkpoint_interval_seconds", *who) == 60
    assert life.value("spotguard_expected_slack_seconds", *who) == -0.5  # of 30 s, 3 in reserve
    assert life.value("spotguard_fits_window", *who) == 0
    assert life.value("spotguard_earlier_step_seconds", *who) == 0.25
    life.happens(Closed(1, "gone"))
    assert life.value("spotguard_step", *who) is None
    assert life.value("spotguard_sessions") == 0


def test_phase_and_progress_are_shown_while_a_process_trains() -> None:
    """A process may send any word as its phase, and it makes no series of its own."""
    life = Life()
    life.joins()
    who = ("r", "0", "0")
    life.says(Position(-1))
    assert life.value("spotguard_progress_age_seconds", *who) is None
    life.says(Position(3, phase="data", still=4.0))
    life.now += 30
    assert life.value("spotguard_progress_age_seconds", *who) == 34
    assert life.value("spotguard_phase", *who, "data") == 1
    life.says(Position(3, phase="a word", still=0.0))
    assert life.value("spotguard_phase", *who, "data") is None
    assert life.value("spotguard_phase", *who, "other") == 1


def test_losses_are_shown_as_they_are_and_no_other_text_is() -> None:
    """Prometheus knows "nan". A script that gives no loss has no series of losses. Bad ones count from 0, or a rise from the first
    loss on would be none."""
    life = Life()
    life.joins()
    who = ("r", "0", "0")
    for text in ("", "a word"):
        life.says(Position(3, loss=text))
        assert life.value("spotguard_loss", *who) is None
        assert life.value("spotguard_bad_loss_steps_total", *who) == 0
    life.says(Position(4, loss="2.5"))
    assert life.value("spotguard_loss", *who) == 2.5
    life.says(Position(5, loss="nan", suspect="the loss is nan since step 5", bad_loss_steps=1))
    assert isnan(life.value("spotguard_loss", *who))
    assert life.value("spotguard_bad_loss_steps_total", *who) == 1


def test_a_script_s_own_metrics_are_shown_and_no_other_names_and_texts_are() -> None:
    """A process may send anything, and each name would be a series of its own."""
    life = Life()
    life.joins()
    who = ("r", "0", "0")
    wrong = {"Loss": "1", "a" * 65: "1", "a b": "1", "no_number": "x", "empty": "", "plain": 1.0}
    life.says(Position(3, metrics={**wrong, "validation_loss": "nan", "accuracy": "0.5"}))
    assert isnan(life.value("spotguard_metric", *who, "validation_loss"))
    assert life.value("spotguard_metric", *who, "accuracy") == 0.5
    assert life.machine.sessions[1].status(life.now)["metrics"] == {
        "validation_loss": "nan",
        "accuracy": "0.5",
    }
    life.says(Position(4, metrics={f"m{number}": "1" for number in range(MOST_METRICS + 1)}))
    assert life.value("spotguard_metric", *who, "m15") == 1
    assert life.value("spotguard_metric", *who, "m16") is None
    assert life.value("spotguard_metric", *who, "accuracy") is None


def test_the_age_of_a_checkpoint_grows_between_words_and_a_commit_ends_it() -> None:
    life = Life()
    life.joins()
    life.says(Position(0, restored_age=0.0), after=10)
    life.now += 30
    assert life.value("spotguard_checkpoint_age_seconds", "r", "0", "0") == 30
    life.says(Committed("", 5, 1000, 1.0, "u", 0.0), after=10)
    life.now += 3
    assert life.value("spotguard_checkpoint_age_seconds", "r", "0", "0") == 3
    assert life.value("spotguard_checkpoint_step", "r", "0", "0") == 5
    assert life.value("spotguard_checkpoints_total", "background") == 1
    assert life.value("spotguard_checkpoint_bytes_total", "background") == 1000


def test_an_evaluation_makes_no_checkpoint_older_and_none_younger() -> None:
    """No step is made in it, so the work at risk stays what it was: also if that is too much already."""
    life = Life()
    life.joins()
    age = partial(life.value, "spotguard_checkpoint_age_seconds", "r", "0", "0")
    life.says(Position(5, restored_age=0.0), after=10)
    life.says(Position(5, restored_age=40.0, phase="evaluation"), after=40)
    life.says(Position(5, restored_age=1840.0, phase="data"), after=1800)  # it loads batches, too
    life.now += 3600
    assert age() == 40
    life.says(Position(6, restored_age=5450.0, phase="forward"), after=10)
    assert age() == 5450
    life.says(Position(6, restored_age=5460.0, phase="evaluation"), after=10)
    life.says(Committed("", 6, 1000, 1.0, "u", 0.0), after=10)  # of an upload that was under way
    life.now += 3600
    assert age() == 0


def test_an_old_restored_checkpoint_puts_no_work_at_risk_yet() -> None:
    """The machine before this one was taken yesterday: that is no checkpoint that is overdue."""
    life = Life()
    life.joins()
    life.says(Position(500, checkpoint_step=500, checkpoint_age=86400.0, restored_age=0.0), after=600)
    life.now += 5
    assert life.value("spotguard_checkpoint_age_seconds", "r", "0", "0") == 5


def test_a_process_that_reconnects_keeps_the_age_of_its_checkpoint() -> None:
    """Else a socket that comes and goes would hide a checkpoint that never comes."""
    life = Life()
    life.joins(1)
    life.says(Position(1, restored_age=0.0), 1)
    life.happens(Closed(1, "reset", alive=True), after=100)
    life.happens(Opened(2, 101, 0, Register(101, "r", "train.py", "file:///s")))
    life.says(Position(90, restored_age=100.0), 2)
    assert life.value("spotguard_checkpoint_age_seconds", "r", "0", "0") == 100


@pytest.mark.parametrize(
    ("said", "age"),
    [
        # Since it restored, an hour ago, nothing was committed: there is a store that is broken.
        (Position(90, restored_age=3600.0), 3600),
        (Position(90, checkpoint_step=40, checkpoint_age=86400.0, restored_age=3600.0), 3600),
        (Position(90, checkpoint_step=80, checkpoint_age=60.0, restored_age=3600.0), 60),
        # A hook of before, which does not say how long it trains.
        (Position(90, checkpoint_step=80, checkpoint_age=60.0), 60),
        (Position(90), None),
        # Not restored yet: nothing is at risk.
        (Position(-1, checkpoint_step=80, checkpoint_age=60.0), None),
    ],
)
def test_an_agent_that_is_started_anew_goes_by_the_hook_s_word(said: Position, age: float | None) -> None:
    """Not by when it heard of the process: an old checkpoint would be new with each start of an agent."""
    life = Life()
    life.joins()
    life.says(said, after=5)
    assert life.value("spotguard_checkpoint_age_seconds", "r", "0", "0") == age


# --- whether it fits ---


def test_the_window_is_the_cloud_s_newest_word_of_this_machine_unless_the_user_has_said_one() -> None:
    """GCE's notice duration: 30 s are what is usual there."""
    life = Life()
    assert life.value("spotguard_window_seconds") == 30
    life.joins()
    life.says(Position(3, save_seconds=100.0))
    assert life.value("spotguard_fits_window", "r", "0", "0") == 0
    life.happens(WindowTold(60.0), WindowTold(120.0))
    assert life.value("spotguard_window_seconds") == 120
    assert life.value("spotguard_reserve_seconds") == 12
    assert life.value("spotguard_expected_slack_seconds", "r", "0", "0") == 8
    assert life.value("spotguard_fits_window", "r", "0", "0") == 1
    told = Life(window=45.0)
    told.happens(WindowTold(120.0))
    assert told.value("spotguard_window_seconds") == 45
    assert told.value("spotguard_reserve_seconds") == 4.5
    assert Life(window=45.0, reserve=7.0).value("spotguard_reserve_seconds") == 7


def test_runs_that_save_at_once_share_the_link_and_ranks_of_one_have_shown_it_together() -> None:
    """Each fits alone, both do not: 13 s and 15 s of the 27 there are."""
    life = Life()
    life.joins(1, run_id="a", rank=0)
    life.joins(2, run_id="a", rank=1)
    life.joins(3, run_id="b")
    life.says(Position(3, save_seconds=12.0), 1)
    life.says(Position(3, save_seconds=13.0), 2)
    assert life.value("spotguard_expected_slack_seconds", "a", "0", "0") == 14
    assert life.value("spotguard_fits_window", "a", "0", "0") == 1
    assert life.value("spotguard_fits_window", "b", "0", "0") is None  # has shown nothing yet
    life.says(Position(3, save_seconds=15.0), 3)
    for run_id, rank in (("a", "0"), ("a", "1"), ("b", "0")):
        assert life.value("spotguard_expected_slack_seconds", run_id, rank, "0") == -1
        assert life.value("spotguard_fits_window", run_id, rank, "0") == 0
    assert life.value("spotguard_expected_save_seconds", "b", "0", "0") == 15
    life.happens(Closed(3, "gone"))
    assert life.value("spotguard_fits_window", "a", "0", "0") == 1


def test_one_name_of_two_users_is_two_runs() -> None:
    life = Life()
    life.joins(1, uid=0)
    life.joins(2, uid=7)
    for number in (1, 2):
        life.says(Position(3, save_seconds=15.0), number)
    assert life.value("spotguard_fits_window", "r", "0", "7") == 0


def test_no_series_comes_twice_and_who_saves_by_itself_has_none() -> None:
    """Two processes under one name and rank, by mistake or one after the other: the newer one is shown."""
    life = Life()
    life.joins(1)
    life.joins(2)
    life.joins(3, uid=7)
    life.happens(Opened(4, 104, 0, Register(104, "r", "train.py")))
    life.says(Position(1), 1)
    life.says(Position(2), 2)
    life.says(Position(3), 3)
    assert life.value("spotguard_step", "r", "0", "0") == 2
    assert life.value("spotguard_step", "r", "0", "7") == 3
    assert life.value("spotguard_sessions") == 4
    life.happens(Closed(2, "gone"))
    assert life.value("spotguard_step", "r", "0", "0") == 1
    life.says(Position(4), 1)
    assert life.value("spotguard_step", "r", "0", "0") == 4


def test_the_first_processes_are_shown_and_all_are_counted() -> None:
    life = Life()
    for number in range(SHOWN + 20):
        life.joins(number, rank=number, nbytes=1)
    shown = [key for key in life.samples() if key[0] == "spotguard_state_bytes"]
    assert len(shown) == SHOWN
    assert life.value("spotguard_sessions") == SHOWN + 20
    life.happens(Closed(0, "gone"))
    assert life.value("spotguard_state_bytes", "r", "0", "0") is None
    assert life.value("spotguard_state_bytes", "r", str(SHOWN), "0") == 1
