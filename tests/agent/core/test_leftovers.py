"""What a command leaves behind when it ends: told, waited for and killed, as stories to the pure machine."""

from __future__ import annotations

import signal
from itertools import pairwise

import pytest

from spotguard.agent.actions import Action, KillGroup, Launch, Look, SignalOrphans, SignalSession
from spotguard.hooks.ipc.protocol import Bye, Leave
from tests.fakes.story import Story

TERM, KILL, CONT, INT = signal.SIGTERM, signal.SIGKILL, signal.SIGCONT, signal.SIGINT


def only(signals: list[int]) -> list[int]:
    return [s for s in signals if s != CONT]


def order(story: Story, *kinds: type[Action]) -> list[type[Action]]:
    return [type(action) for _, action in story.log if isinstance(action, kinds)]


def test_a_crash_is_started_again_when_the_old_one_is_gone() -> None:
    """The launcher died, its workers did not: they hold the run id that the next ones want."""
    story = Story(max_restarts=1)
    worker = story.opens(201)
    story.ends(-9)
    assert order(story, KillGroup, SignalSession, Launch)[1:] == [KillGroup, SignalSession, Launch]
    assert story.signalled_sessions == [(worker, KILL)]


def test_a_handler_that_cleans_up_after_its_shell_has_the_rest_of_the_window() -> None:
    """TERM ends `sh -c "train & wait"` at once; the training has until the reserve, and then goes."""
    story = Story()
    story.notice()
    story.group_left = True
    story.ends(-15)
    story.until(107)
    assert story.code is None
    assert only(story.signals) == [TERM], "one TERM is enough: a second one may mean haste"
    assert not story.killed
    story.until(109)
    assert story.killed
    assert story.code == 75
    assert story.outcomes[0].ended == "signalled, then what it had left behind was killed"


def test_it_goes_on_as_soon_as_the_last_one_is_gone() -> None:
    """Nobody waits for the reserve with nothing left."""
    story = Story()
    story.notice()
    story.group_left = True
    story.ends(-15)
    story.until(10)
    story.group_left = False
    story.until(11)
    assert story.code == 75
    assert not story.killed


def test_a_process_that_stays_after_leave_gets_term() -> None:
    """A helper in the background (a logger, a dashboard) has heard nothing yet."""
    story = Story()
    session = story.opens()
    story.notice()
    story.commits(session)
    story.group_left = True
    story.ends(75)
    story.until(1)
    assert only(story.signals) == [TERM]
    assert story.code is None


def test_a_worker_in_a_session_of_its_own_is_reached_too() -> None:
    """Torchrun's workers: no signal to the group reaches them. TERM, and SIGKILL at the reserve."""
    story = Story()
    worker = story.opens(201)
    story.notice()
    story.commits(worker)
    story.closes(worker, alive=True)
    story.ends(-9)
    story.until(107)
    assert story.signalled_sessions == [(worker, TERM), (worker, TERM)], (
        "the second one half-way to the reserve"
    )
    assert story.code is None
    story.until(109)
    assert story.signalled_sessions[2:] == [(worker, KILL)]
    assert story.code == 75


def test_a_parked_worker_without_a_launcher_leaves_in_order() -> None:
    """Nobody is there who would start it again: its own exit code and exit handlers, and TERM ten seconds later."""
    story = Story()
    worker = story.opens(201)
    story.notice()
    story.until(1)
    story.ends(-9)
    story.until(3)
    story.commits(worker)
    assert story.sent(Leave) == [(worker, Leave("n1", 75))]
    story.until(12.9)
    assert story.signalled_sessions == []
    story.until(14)
    assert story.signalled_sessions == [(worker, TERM)]
    assert len(story.sent(Leave)) == 1
    story.closes(worker)
    assert story.code == 75
    assert not story.killed


@pytest.mark.parametrize("how", ["beside others of the group", "without a store", "without a socket"])
def test_a_process_that_cannot_leave_in_order_gets_term_at_once(how: str) -> None:
    """A launcher may be among the others, a function of on_notice cannot leave, and words do not reach the third."""
    story = Story()
    worker = story.opens(201, store="" if how == "without a store" else "file:///s")
    story.notice()
    story.group_left = how == "beside others of the group"
    story.commits(worker)
    if how == "without a socket":
        story.closes(worker, alive=True)
    story.ends(-15)
    story.until(1)
    assert story.sent(Leave) == []
    assert story.signalled_sessions == [(worker, TERM)]


def test_a_session_that_said_goodbye_is_left_to_its_exit_handlers() -> None:
    """It goes by itself: TERM only if it has not in ten seconds."""
    story = Story()
    worker = story.opens(201)
    story.notice()
    story.ends(-9)
    story.says(worker, Bye())
    story.closes(worker, alive=True)
    story.until(9)
    assert story.signalled_sessions == []
    story.until(11)
    assert story.signalled_sessions == [(worker, TERM)]


def test_law_11_a_worker_without_socket_or_launcher_may_still_save() -> None:
    """Its launcher has died and its socket closed at once: neither TERM nor KILL before it is back, gone or late."""
    story = Story()
    worker = story.opens(201)
    story.notice()
    story.ends(1)
    story.closes(worker, alive=True)
    story.until(107)
    assert only(story.signals) == []
    assert story.signalled_sessions == []
    assert not story.killed
    story.until(108)
    assert story.signalled_sessions == [(worker, KILL)]
    assert story.code == 75


def test_out_of_time_kills_those_outside_the_group_too() -> None:
    """The kill at the reserve."""
    story = Story()
    worker = story.opens(201)
    story.notice()
    story.until(108)
    assert story.killed
    assert story.signalled_sessions == [(worker, KILL)]


def test_outlive_starts_again_on_a_clear_machine() -> None:
    """Withdrawn while the command was leaving: not beside what is left of it."""
    story = Story(outlive=True)
    session = story.opens()
    story.notice()
    story.commits(session)
    story.group_left = True
    story.gone()
    story.ends(75)
    story.until(5)
    assert story.pid == 100
    story.group_left = False
    story.until(6)
    assert story.pid == 101


def test_ctrl_c_takes_a_deaf_worker_along() -> None:
    """A shell lets what runs in its background ignore SIGINT; five seconds later it is killed."""
    story = Story()
    worker = story.opens(201)
    story.signal(INT)
    story.ends(-2)
    story.until(4.9)
    assert story.code is None
    story.until(5)
    assert (worker, KILL) in story.signalled_sessions
    assert story.code == 130


def test_processes_left_by_a_finished_command_stay() -> None:
    """As under a shell: a server in the background, with a notice and without."""
    for noticed in (False, True):
        story = Story(signal=None)
        if noticed:
            story.notice()
        story.group_left = True
        story.ends(0)
        story.until(1)
        assert story.code == 0
        assert not story.killed
        assert only(story.signals) == []


def told_workers_left() -> Story:
    """Torchrun and its worker are gone after the commit, and the worker's own children are not."""
    story = Story()
    worker = story.opens(201)
    story.notice()
    story.commits(worker)
    story.closes(worker)
    story.orphans_left = True
    story.ends(-15)
    return story


def test_a_workers_orphans_are_told_to_end_and_waited_for() -> None:
    """A data loader's workers, in the middle of a sample."""
    story = told_workers_left()
    story.until(1)
    assert story.all(SignalOrphans) == [SignalOrphans(TERM, frozenset({201}))]
    assert story.code is None
    story.orphans_left = False
    story.until(2)
    assert story.code == 75
    assert not story.killed


def test_a_workers_orphans_are_killed_at_the_reserve() -> None:
    story = told_workers_left()
    story.until(109)
    assert story.all(SignalOrphans)[1:] == [SignalOrphans(KILL, frozenset({201}))]
    assert story.code == 75


def test_a_worker_that_goes_after_its_launcher_is_looked_behind_too() -> None:
    """Its group was nobody's to look at while it lived, and is not sent what only orphans are."""
    story = Story()
    worker = story.opens(201)
    story.notice()
    story.commits(worker)
    story.ends(-9)
    story.until(1)
    assert story.all(SignalOrphans) == []
    story.orphans_left = True
    story.closes(worker)
    story.until(2)
    assert story.all(SignalOrphans) == [SignalOrphans(TERM, frozenset({201}))]
    assert story.code is None


def test_orphans_of_a_finished_jobs_workers_stay() -> None:
    story = Story()
    worker = story.opens(201)
    story.closes(worker)
    story.orphans_left = True
    story.ends(0)
    assert story.code == 0
    assert story.all(SignalOrphans) == []


@pytest.mark.parametrize("leaves", [False, True])
def test_a_waiting_rank_leaves_in_order_despite_another_ranks_orphans(leaves: bool) -> None:
    """Torchrun is dead, and so is rank 0: its data loader's worker is no launcher that would start rank 1 again."""
    story = Story()
    lost, waits = story.opens(201), story.opens(202, rank=1, world=2)
    story.notice()
    story.ends(-9)
    story.until(3)
    story.closes(lost)
    story.orphans_left = leaves
    story.until(4)
    story.commits(waits)
    story.until(5)
    assert story.sent(Leave) == [(waits, Leave("n1", 75))]
    assert story.signalled_sessions == []
    assert bool(story.all(SignalOrphans)) is leaves


def test_between_two_slow_looks_the_agent_hears() -> None:
    """A node with thousands of processes: the next look is due so long after the end of the last one."""
    story = Story()
    story.notice()
    story.group_left, story.look_takes = True, 0.25
    story.ends(-15)
    story.until(3)
    looks = story.times(Look)
    assert len(looks) > 3
    assert all(later - earlier > 0.4 for earlier, later in pairwise(looks))


def crashed(code: int = 1) -> tuple[Story, int]:
    """Torchrun is killed, or has an error of its own; nobody has told anybody of a notice, and its worker trains on."""
    story = Story()
    worker = story.opens(201)
    story.group_left = True  # a dashboard of the script around it
    story.ends(code)
    return story, worker


def test_a_launcher_that_crashes_takes_its_workers_along_and_nobody_else() -> None:
    """They would hold their GPUs, and the run id: TERM, by which they save one step, and its own code after them."""
    story, worker = crashed()
    story.until(1)
    assert story.signalled_sessions == [(worker, TERM)]
    assert story.code is None
    story.closes(worker)
    story.until(2)
    assert story.code == 1
    assert not story.killed
    assert story.signals == []


def test_a_worker_of_a_crashed_launcher_is_killed_if_it_stays_and_so_is_what_it_left() -> None:
    story, worker = crashed(-9)
    story.orphans_left = True
    story.until(29)
    assert story.code is None
    story.until(31)
    assert story.signalled_sessions == [(worker, TERM), (worker, KILL)]
    assert story.all(SignalOrphans) == [SignalOrphans(KILL, frozenset({201}))]
    assert story.code == 137
    assert not story.killed, "the dashboard stays, as under a shell"


def test_a_loaders_worker_that_outlives_its_rank_ends_with_the_crashed_launcher() -> None:
    story = Story()
    story.closes(story.opens(201))
    story.orphans_left = True
    story.ends(1)
    assert story.all(SignalOrphans) == [SignalOrphans(TERM, frozenset({201}))]
    assert story.code is None
    story.orphans_left = False
    story.until(1)
    assert story.code == 1


def test_ctrl_c_cuts_the_wait_for_a_crashed_launchers_workers_short() -> None:
    story, worker = crashed()
    story.until(1)
    story.signal(INT)
    story.until(7)
    assert (worker, KILL) in story.signalled_sessions
    assert story.code == 1


@pytest.mark.parametrize("how", ["done", "trained itself"])
def test_processes_of_a_finished_command_or_of_no_launcher_stay(how: str) -> None:
    story = Story()
    story.opens(201)
    if how == "trained itself":
        story.opens(100)
    story.ends(0 if how == "done" else 1)
    assert story.code == (0 if how == "done" else 1)
    assert story.signalled_sessions == []
    assert story.all(Look) == []
