"""The cause that a failed command is put down to, and whether the command is started again."""

from __future__ import annotations

import logging
import signal
from typing import Any

import pytest

from spotguard.agent.actions import Launch, Log, ReportEvent
from spotguard.agent.core.failures.errors import FailureLog
from spotguard.agent.events import Closed, CommandEnded
from spotguard.hooks.ipc.protocol import Bye, Committed, Delivered, Position, TrainingFailed
from tests.fakes.story import START, Story


def error(kind: str = "program", step: int = 7, fingerprint: str = "f1", **more: str) -> TrainingFailed:
    words = {"error": "ValueError", "message": "bad", "where": "train.py:4 in main", "phase": "other"} | more
    return TrainingFailed(kind, **words, fingerprint=fingerprint, step=step, stays=kind == "program")  # type: ignore[arg-type]


def causes(story: Story) -> list[str]:
    prefix = "training failed: "
    return [each.text.removeprefix(prefix) for each in story.all(Log) if each.text.startswith(prefix)]


def test_the_first_error_that_follows_from_no_other_is_the_cause() -> None:
    story = Story()
    first, second = (story.opens(501 + rank, rank=rank, world=2) for rank in (0, 1))
    story.says(first, error("peer-lost", message="Connection closed by peer"))
    story.says(second, error("data", step=8))
    for each in (first, second):
        story.closes(each)
    story.ends(1)
    (cause,) = causes(story)
    assert cause.startswith(
        "rank 1 (pid 502) at step 8: the data could not be read at train.py:4 in main (ValueError: bad); what to do:"
    )


def test_a_process_that_dies_without_a_word_is_the_cause_of_a_lost_peer() -> None:
    story = Story()
    first, second = (story.opens(501 + rank, rank=rank, world=2) for rank in (0, 1))
    story.says(second, Position(40, checkpoint_step=30))
    story.closes(second)
    story.says(first, error("peer-lost"))
    story.closes(first)
    story.ends(1)
    assert causes(story) == [
        "rank 1 (pid 502), last seen at step 40, with a checkpoint of step 30: its process vanished, so a signal or "
        "os._exit() has ended it; what to do: see dmesg, and the log of the scheduler"
    ]


def test_a_launcher_s_last_attempt_has_a_cause_of_its_own() -> None:
    """Its earlier attempts may have met errors that passed, hours before."""
    story = Story(launcher_restarts=True)
    first, second = story.opens(501), story.opens(502)
    story.says(first, Position(7, attempt=1))
    story.says(first, error())
    story.closes(first)
    story.says(second, Position(5000, attempt=2))
    story.closes(second)
    told = "rank 0 (pid 502), last seen at step 5000: its process vanished"
    assert causes(story) == [told]  # at once: the launcher may go on for hours
    story.ends(1)
    assert causes(story)[-1].startswith(told)


def test_a_rank_that_was_killed_for_its_stall_explains_no_later_attempt() -> None:
    """Its launcher started the ranks again, and hours later one of them met an error."""
    story = Story(launcher_restarts=True)
    first, second = story.opens(501), story.opens(502)
    story.says(first, Position(7, attempt=1))
    story.machine._failures.stood(story.machine._sessions.open[first], "training stood still")
    story.closes(first)
    assert causes(story) == []
    story.says(second, Position(5000, attempt=2))
    story.says(second, error())
    story.closes(second)
    story.ends(1)
    (cause,) = causes(story)
    assert cause.startswith("rank 0 (pid 502) at step")


LAUNCHER = Delivered("sigterm", 0.0, "launcher", "SIGTERM", 24.0)


@pytest.mark.parametrize(
    ("here", "kind", "words"),
    [
        pytest.param(1, "peer-lost", "another rank is gone, or does not answer", id="with ranks elsewhere"),
        pytest.param(2, "killed", "see the launcher's log", id="with no other rank"),
    ],
)
@pytest.mark.parametrize("bye", [False, True])
def test_ranks_that_a_launcher_ends_by_sigterm_were_not_killed(
    here: int, kind: str, words: str, *, bye: bool
) -> None:
    """A launcher that has lost the other machine may end its ranks before they meet an error of their own."""
    story = Story()
    ranks = [story.opens(501 + rank, rank=rank, world=2) for rank in range(here)]
    for each in ranks:
        story.says(each, Position(40))
        story.says(each, LAUNCHER)
        story.says(each, Committed("sigterm", 41, 1000, 0.5, "file:///s/x", story.now))
        story.says(each, Position(41))
        if bye:
            story.says(each, Bye())
        story.closes(each)
    story.ends(1)
    (cause,) = causes(story)
    assert cause.startswith(
        "rank 0 (pid 501), last seen at step 41: it was ended by SIGTERM, as a launcher does, and no rank here had failed"
    )
    assert words in cause
    (facts,) = failures(story)
    assert (facts["class"], facts["confidence"], facts["reported"]) == (kind, "medium", False)


def test_ranks_that_this_machine_had_in_an_earlier_attempt_are_elsewhere() -> None:
    """A launcher of several machines numbers its ranks anew at each start."""
    story = Story(launcher_restarts=True)
    for attempt, rank in ((1, 0), (2, 1)):
        session = story.opens(501 + rank, rank=rank, world=2)
        story.says(session, Position(40, attempt=attempt))
        story.says(session, LAUNCHER)
        story.closes(session)
    story.ends(1)
    assert failures(story)[0]["class"] == "peer-lost"


def test_a_function_of_on_notice_is_no_rank_of_this_machine() -> None:
    """It registers beside the rank of its process, and has no number of a rank."""
    story = Story()
    session = story.opens(501, rank=1, world=2)
    story.opens(501, store="")
    story.says(session, Position(40))
    story.says(session, LAUNCHER)
    story.closes(session)
    story.ends(1)
    assert [each["class"] for each in failures(story)] == ["peer-lost"]


def test_a_rank_that_trains_on_behind_another_one_s_sigterm_may_be_killed_later() -> None:
    """It was called to the save of a rank elsewhere."""
    story = Story()
    session = story.opens(501, world=2)
    story.says(session, Position(40))
    story.says(session, LAUNCHER)
    story.says(session, Position(41))
    story.says(session, Position(42))
    story.closes(session)
    story.ends(1)
    assert "its process vanished" in causes(story)[0]


def test_a_rank_that_had_trained_since_it_told_its_step_does_not_train_on_behind_the_sigterm() -> None:
    """It tells its step every two seconds, and its launcher kills it in its save."""
    story = Story()
    session = story.opens(501, world=2)
    story.says(session, Position(40))
    story.says(session, LAUNCHER)
    story.says(session, Position(55))
    story.says(session, Position(55))
    story.closes(session)
    story.ends(1)
    assert [each["class"] for each in failures(story)] == ["peer-lost"]


def test_the_rank_that_died_before_its_launcher_ended_the_others_is_the_cause() -> None:
    story = Story()
    first, second = (story.opens(501 + rank, rank=rank, world=4) for rank in (0, 1))
    story.closes(second)
    story.says(first, LAUNCHER)
    story.closes(first)
    story.ends(1)
    assert causes(story)[0].startswith("rank 1 (pid 502): its process vanished")


@pytest.mark.parametrize("world", [2, 4])
def test_a_rank_that_ended_by_itself_may_be_why_its_launcher_ended_the_others(world: int) -> None:
    """It has told no error, as at sys.exit(3): neither was a process killed, nor is a rank of another machine lost."""
    story = Story()
    first, second = (story.opens(501 + rank, rank=rank, world=world) for rank in (0, 1))
    story.says(second, Bye())
    story.closes(second)
    story.says(first, LAUNCHER)
    story.says(first, Bye())
    story.closes(first)
    story.ends(1)
    assert [each["class"] for each in failures(story)] == ["unknown"]
    assert causes(story) == []


def test_a_command_whose_exit_code_shows_no_signal_was_not_killed() -> None:
    story = Story()
    session = story.opens(story.pid)
    story.says(session, Position(8))
    story.ends(3)
    assert causes(story) == [
        f"rank 0 (pid {story.pid}), last seen at step 8: it ended with exit code 3 and without an error, as by os._exit() or in "
        "native code"
    ]
    (facts,) = failures(story)
    assert (facts["class"], facts["confidence"], facts["reported"]) == ("program", "low", False)


@pytest.mark.parametrize("said", [None, "loader-worker", "peer-lost"])
def test_processes_that_the_kernel_killed_for_memory_explain_a_death(said: str | None) -> None:
    story = Story()
    session = story.opens(501)
    if said:
        story.says(session, error(said))
    story.closes(session)
    story.on(CommandEnded(story.pid, 1, memory_kills=2, memory_limit=8 << 30))
    (cause,) = causes(story)
    assert (
        "the machine is out of memory: the kernel killed 2 processes of this job, whose limit is 8.0 GiB"
        in cause
    )


def test_a_kill_for_memory_is_recorded_for_the_rank_whose_loader_met_it() -> None:
    """Neither for one of an attempt before, nor for one that lost that rank."""
    story = Story(launcher_restarts=True)
    for attempt, told in ((1, [(0, "network")]), (2, [(0, "peer-lost"), (1, "loader-worker")])):
        ranks = [story.opens(500 + 10 * attempt + rank, rank=rank, world=2) for rank in (0, 1)]
        for each in ranks:
            story.says(each, Position(7, attempt=attempt))
        for rank, kind in told:
            story.says(ranks[rank], error(kind))
        for each in ranks:
            story.says(each, Bye())
            story.closes(each)
    story.on(CommandEnded(story.pid, 1, memory_kills=1))
    (facts,) = failures(story)
    assert (facts["class"], facts["attempt"], facts["rank"]) == ("host-memory", 2, 1)


def test_a_silent_death_that_the_kernel_s_log_names_is_one_for_memory() -> None:
    """No cgroup has counted it: the machine's own memory was full."""
    story = Story()
    first, second = (story.opens(501 + rank, rank=rank, world=2) for rank in (0, 1))
    story.closes(first)
    story.closes(second)
    story.on(CommandEnded(story.pid, 1, killed_for_memory=frozenset({502, 9})))
    (cause,) = causes(story)
    assert cause.startswith(
        "rank 1 (pid 502): the machine is out of memory: the kernel killed a process of this job; "
    )


def test_a_kill_for_memory_of_a_foreign_process_explains_nothing() -> None:
    story = Story()
    story.closes(story.opens(story.pid))
    story.on(CommandEnded(story.pid, -signal.SIGKILL, killed_for_memory=frozenset({9})))
    assert "SIGKILL, and not by spotguard" in causes(story)[0]


def test_an_error_of_its_own_outweighs_a_kill_for_memory() -> None:
    """A background process of the script may have been killed long before."""
    story = Story()
    session = story.opens(501)
    story.says(session, error("data"))
    story.closes(session)
    story.on(CommandEnded(story.pid, 1, memory_kills=1))
    assert "the data could not be read" in causes(story)[0]


@pytest.mark.parametrize(
    ("signum", "words"), [(signal.SIGKILL, "SIGKILL, and not by spotguard"), (signal.SIGBUS, "shared memory")]
)
def test_a_death_by_a_signal_is_named(signum: int, words: str) -> None:
    story = Story()
    story.opens(story.pid)
    story.ends(-signum)
    assert words in causes(story)[0]


def test_a_command_that_only_ends_with_a_code_has_no_cause() -> None:
    story = Story()
    session = story.opens(501)
    story.says(session, Bye())
    story.closes(session)
    story.ends(3)
    assert causes(story) == []


def test_a_preemption_explains_everything() -> None:
    story = Story()
    session = story.opens(story.pid)
    story.notice(120)
    story.says(session, error("loader-worker"))
    story.ends(1)
    story.until(200)
    assert causes(story) == []


def fails(story: Story, message: TrainingFailed) -> None:
    session = story.opens(story.pid)
    story.says(session, message)
    story.ends(1)
    story.pause()


@pytest.mark.parametrize(
    ("again", "launches"),
    [
        pytest.param(error(), 2, id="same"),
        pytest.param(error(step=8), 3, id="another step"),
        pytest.param(error(fingerprint="f2"), 3, id="another error"),
    ],
)
def test_the_same_error_at_the_same_step_is_not_started_a_third_time(
    again: TrainingFailed, launches: int
) -> None:
    story = Story(max_restarts=9)
    fails(story, error())
    fails(story, again)
    assert len(story.all(Launch)) == launches
    assert story.machine.finished == (launches == 2)
    if story.machine.finished:
        (stopped,) = (each for each in story.all(Log) if "same error at the same step" in each.text)
        assert stopped.level == logging.ERROR


def test_an_error_of_all_ranks_repeats_whichever_rank_tells_it_first() -> None:
    """Each names its own rank, as a loader does that reads a shard, so the errors differ."""
    story = Story(max_restarts=9)
    for order in ((0, 1), (1, 0)):
        sessions = [story.opens(501 + rank, rank=rank, world=2) for rank in (0, 1)]
        for rank in order:
            story.says(sessions[rank], error(fingerprint=f"of rank {rank}"))
        for each in sessions:
            story.closes(each)
        story.ends(1)
        story.until(story.now - START + 5)
    assert len(story.all(Launch)) == 2
    assert story.code == 1


def test_an_error_that_may_pass_is_started_again() -> None:
    story = Story(max_restarts=2)
    for _ in range(3):
        fails(story, error("network"))
    assert len(story.all(Launch)) == 3


def test_ranks_that_a_launcher_ends_after_an_error_are_no_cause() -> None:
    story = Story()
    first, second = (story.opens(501 + rank, rank=rank, world=2) for rank in (0, 1))
    story.says(first, error("peer-lost"))
    story.closes(second)
    story.closes(first)
    story.ends(1)
    assert causes(story)[0].startswith("rank 0 (pid 501) at step 7: another rank is gone")


def test_a_class_of_a_newer_hook_is_told_as_it_is() -> None:
    story = Story()
    fails(story, error("cosmic-ray", message="a bit \x1b[31mflipped"))
    (cause,) = causes(story)
    assert "ValueError: a bit  [31mflipped" in cause


# --- what the helper of alerts is told ---


def failures(story: Story) -> list[dict[str, Any]]:
    return [dict(each.facts) for each in story.all(ReportEvent) if each.kind == "failure"]


def test_failing_checkpoints_are_an_incident_until_one_is_committed() -> None:
    story = Story()
    session = story.opens(501)
    for step, failing in ((1, ""), (2, "403: no access"), (3, "403 again"), (4, ""), (5, "")):
        story.says(session, Position(step, failing=failing))
    found = [each.facts for each in story.all(ReportEvent) if each.kind == "checkpoints-failing"]
    run_id = found[0]["run_id"]
    assert found == [
        {"run_id": run_id, "rank": 0, "over": False, "text": "403: no access"},
        {"run_id": run_id, "rank": 0, "over": True, "text": ""},
    ]


def test_failing_checkpoints_of_a_rank_that_leaves_are_over_until_it_is_back() -> None:
    story = Story()
    session = story.opens(501)
    story.says(session, Position(1, failing="403"))
    story.closes(session, alive=True)
    again = story.opens(501)
    story.says(again, Position(2, failing="403"))
    found = [each.facts["over"] for each in story.all(ReportEvent) if each.kind == "checkpoints-failing"]
    assert found == [False, True, False]


def test_a_failure_is_an_incident_with_its_evidence_once_for_each_start() -> None:
    story = Story(max_restarts=1)
    session = story.opens(501)
    story.says(session, Position(7, checkpoint_step=6, attempt=3, phase="save", where="train.py:1 in main"))
    story.says(session, error("data"))
    story.says(session, Bye())
    story.closes(session)
    story.ends(1)
    (facts,) = failures(story)
    assert facts["text"].startswith("rank 0 (pid 501) at step 7: the data could not be read")
    del facts["text"], facts["run_id"], facts["store"]
    assert facts == {
        "class": "data",
        "evidence": ["the process's own error"],
        "confidence": "medium",
        "repeats": False,
        "rank": 0,
        "world": 1,
        "pid": 501,
        "step": 7,
        "attempt": 3,
        "newest_checkpoint": 6,
        "phase": "other",
        "where": "train.py:4 in main",
        "reported": True,
        "returncode": 1,
    }


def test_a_process_that_is_killed_in_the_save_for_its_error_has_written_no_record() -> None:
    """The facts then have what the next start compares its own error with."""
    story = Story()
    session = story.opens(501)
    story.says(session, error())
    story.closes(session)
    story.ends(1)
    (facts,) = failures(story)
    assert (facts["class"], facts["reported"]) == ("program", False)
    assert [facts[name] for name in ("error", "message", "fingerprint", "stays")] == [
        "ValueError",
        "bad",
        "f1",
        True,
    ]


def test_a_death_that_is_seen_behind_its_peers_error_is_the_cause() -> None:
    """The kernel closes the socket first, then the peer's connection; only then the process is gone."""
    story = Story()
    first, second = story.opens(501), story.opens(502, rank=1, world=2)
    story.says(second, Position(40))
    story.closes(second, alive=True)
    story.says(first, TrainingFailed("peer-lost", "E", "closed by peer", "x", "backward", "f", 40))
    story.closes(second)
    story.closes(first)
    story.ends(1)
    assert story.machine.failure is not None
    assert (story.machine.failure.kind, story.machine.failure.session.pid) == ("killed", 502)  # type: ignore[union-attr]


def test_a_silent_death_has_two_sources_where_the_kernel_counts_it() -> None:
    """One alone is no high confidence, and nobody has recorded it."""
    for kills, told in ((0, ["its process vanished"]), (1, None)):
        story = Story()
        session = story.opens(501)
        story.closes(session)
        story.on(CommandEnded(story.pid, 1, memory_kills=kills))
        (facts,) = failures(story)
        assert (facts["class"], facts["reported"]) == ("host-memory" if kills else "killed", False)
        assert facts["confidence"] == ("high" if kills else "medium")
        assert told is None or facts["evidence"] == told


def test_a_command_that_fails_without_a_cause_is_an_incident_too() -> None:
    story = Story()
    story.ends(3)
    assert failures(story) == [{"class": "unknown", "text": "the command failed", "returncode": 3}]


def test_a_command_that_ends_well_or_by_hand_is_none() -> None:
    for code in (0, -signal.SIGINT):
        story = Story()
        story.ends(code)
        assert failures(story) == []


def test_a_process_that_trains_is_told_so_that_a_failure_is_over() -> None:
    story = Story()
    session = story.opens(501)
    story.says(session, Position(7))
    (incident,) = [each for each in story.all(ReportEvent) if each.kind == "training"]
    assert incident.facts["rank"] == 0


def test_a_run_is_gone_with_its_last_process() -> None:
    story = Story()
    first, second = story.opens(501), story.opens(502)
    story.closes(first)
    assert [each for each in story.all(ReportEvent) if each.kind == "gone"] == []
    story.closes(second)
    (incident,) = [each for each in story.all(ReportEvent) if each.kind == "gone"]
    assert incident.facts["run_id"]


def test_a_service_reports_the_errors_of_its_sessions_and_keeps_none() -> None:
    """It runs for months, and sees no command end."""
    story, new = Story(command=False), vars(FailureLog())
    session = story.opens(501)
    story.says(session, Position(7))
    story.says(session, error("data"))
    (facts,) = failures(story)
    assert (facts["class"], facts["step"]) == ("data", 7)
    story.closes(session, alive=True)
    story.closes(session)
    assert vars(story.machine._failures) == new


@pytest.mark.parametrize(
    ("told", "sure"), [("low", "low"), ("high", "high"), ("", "medium"), ("x" * 999, "medium")]
)
def test_an_error_s_alert_has_the_confidence_of_its_record(told: str, sure: str) -> None:
    """The process tells what it records, and any process may tell anything."""
    story = Story()
    fails(story, error(confidence=told))
    assert [each["confidence"] for each in failures(story)] == [sure]


def test_the_command_s_end_may_be_seen_before_its_process_s_death() -> None:
    """Its socket closes in its exit, when it still counts as alive."""
    story = Story()
    session = story.opens(story.pid)
    story.says(session, Position(3))
    story.on(Closed(session, "it closed the connection", alive=True))
    story.ends(-signal.SIGKILL)
    (facts,) = failures(story)
    assert (facts["pid"], facts["step"], facts["confidence"]) == (story.pid, 3, "high")
    assert facts["evidence"] == ["the command was ended by SIGKILL", "its process vanished"]


def test_a_process_that_came_back_and_said_good_bye_was_not_killed() -> None:
    story = Story()
    story.on(Closed(story.opens(story.pid), "it closed the connection", alive=True))
    again = story.opens(story.pid)
    story.says(again, Bye())
    story.on(Closed(again, "it closed the connection", alive=True))
    story.ends(3)
    assert failures(story) == [{"class": "unknown", "text": "the command failed", "returncode": 3}]


def test_an_error_counts_beside_a_rank_that_came_back_behind_a_second_restore() -> None:
    """A second restore begins another attempt, and no other process. One rank has lost its socket since."""
    story = Story()
    first, second = (story.opens(501 + rank, rank=rank, world=2) for rank in (0, 1))
    for attempt in (1, 2):
        for each in (first, second):
            story.says(each, Position(7, attempt=attempt))
    story.closes(second, alive=True)
    back = story.opens(502, rank=1, world=2)
    story.says(back, Position(7, attempt=2))
    story.says(first, error("data"))
    for each in (first, back):
        story.closes(each)
    story.ends(1)
    assert [each["class"] for each in failures(story)] == ["data"]


def test_a_death_counts_whichever_socket_of_its_process_closes_last() -> None:
    """A function of `on_notice` has a socket of its own."""
    story = Story()
    for store in ("file:///s", ""):
        session = story.opens(story.pid, store=store)
        story.closes(session, alive=True)
    story.ends(3)
    assert [each["class"] for each in failures(story)] == ["program"]
