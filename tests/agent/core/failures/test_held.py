"""A training process in which no Python runs: it sends nothing, and is not stopped."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import pytest

from spotguard.agent.actions import Launch, Log, LookAtProcess, ReadStacks, ReportEvent, Send, SignalSession
from spotguard.agent.config.parsers import recover
from spotguard.agent.core.failures.stall import OLD, SILENT
from spotguard.agent.events import MachineSeen
from spotguard.hooks.ipc.failures.phase_times import LEAST
from spotguard.hooks.ipc.protocol import STALL, Preempt, Resume, WatchMachines
from tests.agent.core.failures.test_stall import Run
from tests.fakes.story import START

FIRST = 1800.0


class HeldRun(Run):
    """A run whose last rank sends nothing from some moment on."""

    def __init__(self, ranks: int = 1, world: int = 0, **policy: Any) -> None:
        super().__init__(ranks, world, **policy)
        self.story.may_run = True
        self.trains()

    def holds(self, seconds: float) -> None:
        """The last rank sends nothing for so long; the others wait for it."""
        end = self.story.now + seconds
        while self.story.now < end:
            self.story.until(min(self.story.now + 2, end) - START)
            for rank in range(len(self.ranks) - 1):
                self.says(rank, "collective")

    def comes_back(self) -> None:
        self.moves(len(self.ranks) - 1, "forward")

    @property
    def incidents(self) -> list[str]:
        return [each.kind for each in self.story.all(ReportEvent) if each.kind in ("stall", "moving")]


def test_a_process_in_which_no_python_runs_is_a_stall_without_a_save() -> None:
    run = HeldRun()
    run.holds(FIRST - 4)
    assert run.incidents == []
    run.holds(20)
    assert run.incidents == ["stall"]
    assert run.told == []  # it would read it when it is back
    assert run.warnings == [
        "training stands still: rank 0 (pid 501) sends nothing, and was last seen in forward at train.py:10 in main: no "
        "progress of the run for 1800 s, 1800 s are the limit, notifying 0 training process(es)",
        "rank 0 (pid 501) cannot save: no Python runs there; native code seems to hold the interpreter's lock",
    ]
    assert run.story.all(ReadStacks) == [ReadStacks("run", "file:///s", run.step, {501: (0, -1)})]
    (outcome,) = run.story.outcomes
    assert (outcome.kind, outcome.committed) == ("stall", None)
    assert "no Python runs there" in outcome.why
    assert run.story.signals == []
    assert run.story.signalled_sessions == []
    run.holds(10 * FIRST)
    assert run.incidents == ["stall"]
    run.comes_back()
    assert run.incidents == ["stall", "moving"]


def test_the_other_ranks_save_without_it() -> None:
    run = HeldRun(3)
    run.holds(FIRST + 12)
    assert run.told == run.ranks[:2]
    assert "rank 2 (pid 503) sends nothing" in run.warnings[0]
    for rank in run.ranks[:2]:
        run.story.commits(rank, run.step)
    (outcome,) = run.story.outcomes
    assert [bool(each.committed) for each in outcome.sessions] == [True, True, False]
    assert outcome.why == ("1 of 3: no Python runs there; native code seems to hold the interpreter's lock")
    assert [number for number, _ in run.story.sent(Resume)] == run.ranks[:2]


def stops(run: HeldRun) -> None:
    run.story.may_run = False
    run.holds(3 * OLD)
    run.story.may_run = True


def late(run: HeldRun) -> None:
    """The agent itself was stopped, and comes to itself at any event."""
    run.story.now += 3 * OLD
    run.story.on(None)


@pytest.mark.parametrize("pause", [stops, late])
def test_a_time_in_which_somebody_was_stopped_begins_the_limit_anew(
    pause: Callable[[HeldRun], None],
) -> None:
    run = HeldRun()
    run.holds(FIRST - 20)
    pause(run)
    run.holds(FIRST - 20)
    assert run.incidents == []
    run.holds(50)
    assert run.incidents == ["stall"]


def test_a_process_that_stays_stopped_is_no_stall() -> None:
    run = HeldRun(2)
    run.story.may_run = False
    run.holds(5 * FIRST)
    assert run.incidents == []
    assert run.told == []


def test_the_log_names_a_process_that_is_stopped_and_tells_when_it_runs_again() -> None:
    run = HeldRun(2)
    run.story.may_run = False
    run.holds(2 * OLD - 2)
    assert run.warnings == []
    run.holds(20 * OLD)
    assert run.warnings == [
        "rank 1 (pid 502) is stopped by a signal, a tracer or a frozen cgroup, or is ending: run run waits for it. This is no "
        "stall, and nothing is saved; kill -CONT 502 continues what a signal has stopped"
    ]
    run.comes_back()
    run.comes_back()
    again = [each.text for each in run.story.all(Log) if "runs again" in each.text]
    assert again == ["rank 1 (pid 502) runs again, 218 s after its last word"]


def test_ranks_that_waited_for_a_stopped_one_have_their_limit_anew() -> None:
    """It runs again, and has ended before they tell that they moved."""
    run = HeldRun(2)
    run.story.may_run = False
    run.holds(5 * FIRST)
    run.comes_back()
    run.story.closes(run.ranks[1])
    run.holds(LEAST - 2)
    assert run.incidents == []
    run.holds(FIRST)
    assert run.incidents == ["stall"]


def test_a_moment_in_which_its_stacks_are_read_is_no_stop() -> None:
    """py-spy stops a process that it reads."""
    run = HeldRun()
    run.holds(FIRST + 12)
    run.story.may_run = False
    run.holds(OLD)
    run.story.may_run = True
    run.holds(2 * FIRST)
    assert run.incidents == ["stall"]
    assert "is stopped" not in " ".join(run.warnings)


def test_a_rank_that_moves_excuses_one_that_sends_nothing() -> None:
    """It may compute for hours in one call, and no other rank waits for it."""
    run = HeldRun(2)
    for _ in range(8):
        run.holds(FIRST / 2)
        run.moves(0, "evaluation")
    assert run.incidents == []


def test_a_process_that_has_not_begun_is_not_looked_at() -> None:
    run = HeldRun()
    run.says(0, "")
    run.holds(5 * FIRST)
    assert run.story.all(LookAtProcess) == []
    assert run.incidents == []


def test_a_process_that_was_last_seen_in_a_save_is_no_exception() -> None:
    """Some Python runs in each save; and the first position comes from inside the restore."""
    run = HeldRun(2)
    run.says(1, "save")
    run.holds(FIRST + 12)
    assert run.incidents == ["stall"]


def test_a_stall_that_ends_by_itself_lengthens_the_next_limit() -> None:
    run = HeldRun()
    run.holds(FIRST + 12)
    run.comes_back()
    run.trains(2)
    run.holds(4 * FIRST)
    assert run.incidents == ["stall", "moving"]
    run.holds(FIRST + 80)
    assert run.incidents == ["stall", "moving", "stall"]


def test_a_silent_machine_does_not_shorten_the_limit() -> None:
    run = HeldRun(2, world=4)
    run.story.says(run.ranks[0], WatchMachines({"10.0.0.9 4000 abc": "node2"}))
    watched = frozenset([(1000, "run")])
    run.story.on(MachineSeen(watched, "node2"))
    run.holds(2)
    run.story.on(MachineSeen(watched, "node2", silent_since=run.story.now))
    run.holds(FIRST - 20)
    assert SILENT < FIRST
    assert run.incidents == []


def test_below_a_launcher_that_restarts_the_held_rank_is_killed() -> None:
    run = HeldRun(2, recover=recover("--recover", "stall=restart"), launcher_restarts=True)
    run.holds(FIRST + 12)
    run.story.commits(run.ranks[0], run.step)
    run.holds(FIRST - 20)
    assert run.story.all(SignalSession) == []
    run.holds(40)
    assert run.story.all(SignalSession) == [SignalSession(run.ranks[1], signal.SIGKILL)]


def test_a_command_with_a_held_rank_ends_without_its_answer_and_starts_again() -> None:
    run = HeldRun(recover=recover("--recover", "stall=restart:1"))
    run.holds(2 * FIRST + 20)
    assert len(run.story.all(Launch)) == 1
    run.holds(60)
    assert [each.message.kind for each in run.story.all(Send) if isinstance(each.message, Preempt)] == []
    assert run.story.killed  # it cannot obey a TERM
    run.story.closes(run.ranks[0])
    run.story.ends(-9)
    assert [each.failure for each in run.story.all(Launch)] == ["", "stall"]


def test_without_a_rule_a_held_rank_is_left_alone() -> None:
    run = HeldRun()
    run.holds(10 * FIRST)
    assert not run.story.killed
    assert run.story.signals == []
    assert any("no Python runs there" in each.text for each in run.story.all(Log))


def test_a_service_reads_no_stacks() -> None:
    """It has no credentials of its users."""
    run = HeldRun(2, command=False)
    run.holds(FIRST + 12)
    assert run.incidents == ["stall"]
    assert run.told == run.ranks[:1]
    assert [message.kind for _, message in run.story.sent(Preempt)] == [STALL]
    assert run.story.all(ReadStacks) == []
