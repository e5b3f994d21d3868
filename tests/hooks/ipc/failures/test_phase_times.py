"""For how long a phase may stand still: by its own pauses, and by those of earlier attempts."""

from __future__ import annotations

from typing import Any

import pytest

from spotguard.hooks.ipc.failures.phase_times import (
    ENOUGH,
    ENOUGH_HERE,
    ENOUGH_STEPS,
    LEAST,
    LEAST_OTHER,
    LEAST_PROCESS,
    TIMES,
    PhaseTimes,
)


class Thread:
    """A training thread that is looked at every two seconds."""

    def __init__(self, told: object = None) -> None:
        self.times = PhaseTimes()
        self.times.restored(told)
        self.step, self.now, self._moved_at = 0, 1000.0, 1000.0

    def stands(self, seconds: float, phase: str) -> float:
        """Stand still in a phase; return its limit."""
        limit, end = -1.0, self.now + seconds
        while self.now < end:
            self.now += 2
            limit = self.times.look(phase, self.now - self._moved_at, self.step, self.now)
        return limit

    def moves(self, *, step: bool = False) -> None:
        self._moved_at = self.now
        self.step += step

    def trains(self, steps: int) -> None:
        for _ in range(steps):
            self.moves(step=True)
            self.stands(2, "forward")

    def pauses(self, seconds: float, phase: str, times: int = 1) -> None:
        self.moves()
        for _ in range(times):
            self.stands(seconds, phase)
            self.moves()


def test_nothing_is_known_of_a_phase_until_it_has_passed_often() -> None:
    thread = Thread()
    thread.trains(ENOUGH_HERE + 1)
    thread.pauses(4, "evaluation", ENOUGH - 1)
    thread.trains(1)
    assert thread.stands(4, "evaluation") == -1
    thread.pauses(4, "evaluation")
    thread.trains(1)
    assert thread.stands(4, "evaluation") == LEAST


def test_short_waits_for_a_program_say_little_of_the_next_one() -> None:
    thread = Thread()
    thread.trains(ENOUGH_HERE + 1)
    thread.pauses(10, "process", ENOUGH)
    thread.trains(1)
    assert thread.stands(4, "process") == LEAST_PROCESS > LEAST
    thread.pauses(2 * LEAST_PROCESS / TIMES, "process")
    thread.trains(1)
    assert thread.stands(4, "process") == pytest.approx(2 * LEAST_PROCESS, abs=5 * TIMES)


@pytest.mark.parametrize("known", [False, True])
def test_a_first_step_may_compile_although_its_thread_is_found_moving_many_times(known: bool) -> None:
    """Compilers work on the training thread for a minute, and then wait for processes of their own."""
    first = Thread()
    first.trains(2 * ENOUGH)
    thread = Thread(first.times.facts if known else None)
    for phase in ("forward", "other"):
        thread.pauses(4, phase, 2 * ENOUGH)
        assert thread.stands(600, phase) == -1
    thread.trains(ENOUGH_HERE - 1)
    thread.pauses(4, "forward", 2 * ENOUGH)
    assert thread.stands(600, "forward") == -1


def test_a_first_evaluation_has_more_time_until_a_step_follows_it() -> None:
    """It may score for minutes by another process, after it has moved for as long."""
    thread = Thread()
    thread.trains(2 * ENOUGH)
    thread.pauses(4, "evaluation", 2 * ENOUGH)
    assert thread.stands(300, "evaluation") == -1
    assert "evaluation" not in thread.times.facts
    thread.trains(1)
    assert thread.stands(2, "evaluation") == TIMES * 300


def test_a_hang_of_the_script_s_own_code_is_found_by_the_steps_where_it_has_never_paused() -> None:
    thread = Thread()
    thread.trains(ENOUGH_STEPS)
    assert thread.stands(2, "other") == -1
    thread.trains(1)
    assert thread.stands(2, "other") == LEAST_OTHER
    assert thread.stands(2, "evaluation") == -1, "no other phase has that limit"


def test_a_long_turn_makes_the_limit_of_the_script_s_own_code_longer() -> None:
    """As one with a long evaluation in it does, or one that compiles."""
    thread = Thread()
    thread.trains(ENOUGH_STEPS)
    thread.pauses(200, "evaluation")
    thread.trains(1)
    assert thread.stands(2, "other") == TIMES * 202


def test_a_completed_step_has_passed_all_phases_of_a_step() -> None:
    thread = Thread()
    thread.trains(ENOUGH + 2)
    assert thread.stands(2, "data") == LEAST
    assert thread.stands(2, "evaluation") == -1


def test_the_longest_pause_that_ended_by_itself_makes_the_limit() -> None:
    thread = Thread()
    thread.trains(ENOUGH + 2)
    thread.pauses(40, "data")
    assert thread.stands(2, "data") == TIMES * 40
    assert thread.stands(2, "forward") == LEAST


def test_a_stall_that_ended_makes_the_limit_no_more_than_five_times_as_long() -> None:
    thread = Thread()
    thread.trains(ENOUGH + 2)
    thread.pauses(1000, "data")
    assert thread.stands(2, "data") == TIMES * LEAST


@pytest.mark.parametrize("phase", ["save", ""])
def test_a_save_has_no_limit(phase: str) -> None:
    thread = Thread()
    thread.pauses(4, phase, 2 * ENOUGH)
    assert thread.stands(4, phase) == -1
    assert thread.times.facts == {}


def test_a_later_attempt_needs_few_passes_of_its_own() -> None:
    """The first ones may compile, or fill a cache, on another machine than before."""
    first = Thread()
    first.trains(ENOUGH)
    first.pauses(30, "evaluation", ENOUGH)
    first.trains(1)
    later = Thread(first.times.facts)
    later.trains(2)
    assert later.stands(2, "forward") == -1
    later.trains(ENOUGH_HERE)
    assert later.stands(2, "forward") == LEAST
    later.pauses(10, "evaluation", ENOUGH_HERE - 1)
    assert later.stands(10, "evaluation") == -1
    later.moves()
    assert later.stands(2, "evaluation") == TIMES * 30
    later.trains(1)
    assert later.times.facts["evaluation"] == [ENOUGH + ENOUGH_HERE + 1, 30.0]


def test_a_long_first_pass_makes_the_limits_of_its_own_attempt_alone() -> None:
    first = Thread()
    first.pauses(300, "forward")
    first.trains(ENOUGH)
    assert first.stands(2, "forward") == TIMES * 300
    later = Thread(first.times.facts)
    later.trains(ENOUGH_HERE + 2)
    assert later.stands(2, "forward") == LEAST


def test_a_restore_in_one_process_counts_nothing_twice() -> None:
    thread = Thread()
    thread.trains(1)
    thread.pauses(4, "evaluation", 6)
    thread.trains(1)
    for _ in range(4):
        thread.times.restored(thread.times.facts)
    assert thread.times.facts["evaluation"] == [6, 4.0]


@pytest.mark.parametrize(
    "told",
    [
        None,
        7,
        [],
        {"data": 3},
        {"data": [1]},
        {"data": ["9", 1]},
        {"data": [-5, 1.0]},
        {"data": [10**20, 1]},
        {"data": [50, -1]},
        {"data": [50, float("nan")]},
        {"save": [50, 1]},
        {7: [50, 1]},
    ],
)
def test_phase_times_of_another_program_are_ignored(told: Any) -> None:
    assert Thread(told).times.facts == {}


def test_an_endless_pause_in_a_file_does_not_switch_the_rule_off() -> None:
    for longest in (1e300, 10**400):
        thread = Thread({"data": [50, longest]})
        thread.trains(ENOUGH_HERE + 2)
        assert 0 < thread.stands(2, "data") <= TIMES * 1800
