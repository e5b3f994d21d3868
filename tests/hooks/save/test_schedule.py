"""When the next background checkpoint is due."""

from __future__ import annotations

import math

import pytest

from spotguard.hooks.save.schedule import AUTO_EVERY, CheckpointSchedule
from spotguard.providers.errors import UsageError


def test_seconds_are_seconds() -> None:
    """Counted from the begin, from each one that was asked for, and from each that was committed."""
    cadence = CheckpointSchedule("10", 100.0)
    assert cadence.due == 110.0
    cadence.begun(112.0)
    assert cadence.due == 122.0
    cadence.saved(115.0, 4.0)
    assert cadence.due == 125.0


def test_auto_gives_uploads_a_tenth_of_the_time() -> None:
    """A slow store is asked less often, a fast one not more often than every minute."""
    cadence = CheckpointSchedule("auto", 0.0)
    assert cadence.due == AUTO_EVERY
    cadence.saved(100.0, 30.0)
    assert cadence.due == 400.0
    cadence.saved(400.0, 0.1)
    assert cadence.due == 400.0 + AUTO_EVERY


def test_auto_weighs_what_one_costs_against_what_a_preemption_does() -> None:
    """Dearer ones lie further apart, and so do those of a machine that is seldom taken."""
    cadence = CheckpointSchedule("auto", 0.0)
    cadence.saved(100.0, 5.0, cost=1.0)
    assert cadence.interval == pytest.approx(147, abs=1)  # sqrt(2 x 1 s x 3 h)
    assert cadence.due == 100.0 + cadence.interval
    cadence.loses_every(12 * 3600.0)
    cadence.saved(300.0, 5.0, cost=1.0)
    assert cadence.interval == pytest.approx(294, abs=1)


def test_the_cost_of_the_first_checkpoint_is_forgotten() -> None:
    """It paid for the memory, too. And one of which nobody knows the cost changes nothing about it."""
    cadence = CheckpointSchedule("auto", 0.0)
    cadence.saved(0.0, 1.0, cost=30.0)
    assert cadence.interval == 3000.0
    for _ in range(2):
        cadence.saved(0.0, 1.0, cost=1.0)
    assert cadence.interval == pytest.approx(147, abs=1)
    cadence.saved(0.0, 1.0)
    assert cadence.interval == pytest.approx(147, abs=1)


@pytest.mark.parametrize("every", ["300", "off"])
def test_a_configured_interval_is_kept(every: str) -> None:
    """Whatever it costs."""
    cadence = CheckpointSchedule(every, 0.0)
    before = cadence.interval
    cadence.loses_every(60.0)
    cadence.saved(0.0, 400.0, cost=100.0)
    assert cadence.interval == before


def test_off_is_never() -> None:
    """No clock ever gets there."""
    cadence = CheckpointSchedule("off", 0.0)
    cadence.begun(10.0**9)
    assert cadence.due == math.inf


def test_one_that_is_asked_for_is_due_at_once_and_once() -> None:
    """Also when a save that was under way ends right after it: that one is older than the question."""
    cadence = CheckpointSchedule("60", 0.0)
    assert cadence.due > 1.0
    assert cadence.ask(going=False)
    cadence.saved(1.0, 0.5)
    assert cadence.due <= 1.0
    cadence.begun(2.0)
    assert cadence.due > 61.9
    assert cadence.due <= 62.0


def test_one_that_is_asked_for_and_not_begun_is_still_wanted() -> None:
    """Another was under way, which is older than the question. What was merely due is had an interval later."""
    cadence = CheckpointSchedule("60", 0.0)
    cadence.ask(going=True)
    cadence.begun(1.0, taken=False)
    assert cadence.due <= 1.0
    cadence.saved(5.0, 0.5)
    assert cadence.due <= 5.0
    cadence.begun(6.0)
    assert cadence.due == 66.0
    cadence.begun(66.0, taken=False)
    assert cadence.due == 126.0


def test_one_that_is_asked_for_before_training_begins_is_made() -> None:
    """An agent that knows of a near deadline asks right behind its welcome, before anything is restored."""
    cadence = CheckpointSchedule("60", 0.0)
    cadence.ask(going=True)
    cadence.restored(5.0)
    assert cadence.due < 5.0
    cadence.begun(5.0)
    cadence.restored(20.0)
    assert cadence.due == 80.0


def test_off_gives_way_to_a_machine_that_goes_and_to_no_mere_warning() -> None:
    """And is off again after it."""
    cadence = CheckpointSchedule("off", 0.0)
    assert not cadence.ask(going=False)
    assert cadence.due > 1e9
    assert cadence.ask(going=True)
    assert cadence.due <= 1.0
    cadence.begun(1.0)
    assert cadence.due > 1e9


@pytest.mark.parametrize("every", ["", "0", "-1", "nan", "often", "inf s"])
def test_an_invalid_interval_is_named(every: str) -> None:
    """With what would be one."""
    with pytest.raises(UsageError, match="seconds above 0"):
        CheckpointSchedule(every, 0.0)


def test_damage_asks_for_a_checkpoint_at_once_and_once_an_interval() -> None:
    """A store that loses all that it accepts gets no upload after the other."""
    schedule = CheckpointSchedule("300", 0.0)
    assert schedule.damaged(10.0)
    assert schedule.due == -math.inf
    schedule.saved(11.0, 1.0)
    assert schedule.due == -math.inf, "what was committed meanwhile is older than the request"
    schedule.begun(12.0)
    assert not schedule.damaged(20.0)
    assert schedule.due == 312.0
    assert schedule.damaged(311.0)
    assert schedule.due == -math.inf
    assert not CheckpointSchedule("off", 0.0).damaged(10.0)
