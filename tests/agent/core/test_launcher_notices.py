"""A launcher ends its ranks, for one of them has died: they save by themselves, and the agent keeps the outcome. Stories."""

from __future__ import annotations

import logging
import signal

import pytest

from spotguard.agent.actions import Log, Send
from spotguard.agent.core.session_messages import LATE, TOLD
from spotguard.hooks.ipc.protocol import LAUNCHER, Committed, Delivered, Failed, Progress
from tests.agent.core.telling import torchrun
from tests.fakes.story import Story

LEFT = 24.0
LESS = "rank 1 of 2 has not answered in time"


def tells(story: Story, session: int, id: str = "sigterm") -> None:
    """This rank has had the launcher's SIGTERM, or has heard of it."""
    story.says(session, Delivered(id, story.now, LAUNCHER, "SIGTERM", LEFT))


def commits(story: Story, session: int, level: str = "partial-extras", id: str = "sigterm") -> None:
    story.says(session, Committed(id, 7, 1000, 0.5, "file:///s/x", story.now, level, LESS))


def crashed() -> tuple[Story, int]:
    """Of two ranks one has died, and the other saves."""
    story, (dead, rank) = torchrun()
    story.closes(dead)
    tells(story, rank)
    return story, rank


def test_a_crash_has_an_outcome_like_any_other() -> None:
    """One line and one record, at once when the rank has answered; nobody is told anything, and nothing is ended."""
    story, rank = crashed()
    story.says(rank, Progress("sigterm", "gate", story.now, 7))
    assert not story.outcomes
    story.until(10)
    commits(story, rank)
    (outcome,) = story.outcomes
    assert (outcome.id, outcome.kind, outcome.source, outcome.left) == (
        "sigterm",
        "launcher",
        "SIGTERM",
        LEFT,
    )
    assert (outcome.step, outcome.committed, outcome.level, outcome.less) == (7, 10.0, "partial-extras", LESS)
    assert (outcome.slack, outcome.code, outcome.returncode) == (14.0, None, None)
    assert [each.rank for each in outcome.sessions] == [1]
    line = outcome.line()
    assert line.startswith("launcher notice from SIGTERM: COMMITTED step 7 in 10.00 s")
    assert ", as partial-extras, " in line
    assert line.endswith(f", 14.0 s to spare, {LESS}; the launcher ends its ranks")
    assert outcome.measures().startswith("seen with 24.0 s left")
    assert not story.all(Send)
    assert not story.signals
    assert not story.killed
    story.closes(rank)
    story.ends(1)
    assert story.code == 1
    assert len(story.outcomes) == 1


def test_it_is_said_when_it_begins() -> None:
    story, _ = crashed()
    said = [log.text for log in story.all(Log) if log.level == logging.WARNING]
    assert said == ["launcher notice from SIGTERM: 24.0 s left for the save of the other ranks"]


def test_every_rank_that_is_there_is_waited_for() -> None:
    """Also one that tells of it a moment after the first has answered; the outcome is that of all."""
    story, (a, b) = torchrun()
    tells(story, a)
    story.says(a, Failed("sigterm", "the job's store is gone"))
    assert not story.outcomes
    story.until(1)
    tells(story, b)
    commits(story, b)
    (outcome,) = story.outcomes
    assert (outcome.committed, outcome.level) == (None, "")
    assert outcome.why == "1 of 2: the job's store is gone"
    assert "1 of 2 ranks here (4 in all) committed step 7" in outcome.line()


def test_one_that_never_tells_of_it_is_not_waited_for_long() -> None:
    """It is stuck, and the others have saved without it."""
    story, (a, _) = torchrun()
    tells(story, a)
    commits(story, a)
    assert not story.outcomes
    story.until(TOLD)
    assert [outcome.level for outcome in story.outcomes] == ["partial-extras"]


def test_a_rank_that_never_answers_is_waited_for_until_its_time_is_over() -> None:
    story, rank = crashed()
    story.until(LEFT + LATE - 0.1)
    assert not story.outcomes
    story.until(LEFT + LATE)
    (outcome,) = story.outcomes
    assert outcome.why == "no commit before the end: the launcher ends its ranks"
    commits(story, rank)
    assert len(story.outcomes) == 1


def test_a_rank_that_is_killed_in_its_save_has_not_committed() -> None:
    """torchrun does that 30 s after its SIGTERM."""
    story, rank = crashed()
    story.closes(rank)
    assert [outcome.why for outcome in story.outcomes] == ["its process died before the commit"]


def test_last_words_that_come_after_the_command_has_ended_count() -> None:
    """The kernel tells of that end before they are read."""
    story, rank = crashed()
    story.ends(1)
    assert story.code is None
    commits(story, rank)
    story.closes(rank)
    story.until(1)
    assert [outcome.level for outcome in story.outcomes] == ["partial-extras"]
    assert story.code == 1


def test_without_launcher_notices_the_outcome_precedes_the_exit() -> None:
    story, _ = crashed()
    story.ends(1)
    story.until(1)
    assert [outcome.committed for outcome in story.outcomes] == [None]


def test_a_command_that_is_started_again_has_the_next_one_for_itself() -> None:
    """Under the same name: every launcher's SIGTERM has it."""
    story, rank = crashed()
    commits(story, rank)
    story.closes(rank)
    again = story.opens(601, rank=0, world=2)
    tells(story, again)
    commits(story, again, "full")
    assert [outcome.level for outcome in story.outcomes] == ["partial-extras", "full"]


def test_two_runs_of_a_service_are_two_outcomes() -> None:
    """Each launcher's SIGTERM has the same name."""
    story = Story(command=False)
    ranks = [story.opens(201 + number, run=run) for number, run in enumerate("ab")]
    for rank in ranks:
        tells(story, rank)
    commits(story, ranks[1], "full")
    commits(story, ranks[0])
    assert [outcome.sessions[0].run_id for outcome in story.outcomes] == ["b", "a"]
    assert [outcome.level for outcome in story.outcomes] == ["full", "partial-extras"]


def test_an_agent_that_is_stopped_says_how_far_it_was() -> None:
    story = Story(command=False)
    tells(story, story.opens(201))
    story.signal(signal.SIGTERM)
    assert [outcome.kind for outcome in story.outcomes] == ["launcher"]
    assert story.code == 0


def test_a_notice_of_this_agent_keeps_its_own_answers() -> None:
    """The rank had both: it answers each by its name."""
    story, rank = crashed()
    story.notice()
    commits(story, rank, "full", "n1")
    assert not story.outcomes
    commits(story, rank, "full")
    assert [outcome.id for outcome in story.outcomes] == ["sigterm"]
    story.closes(rank)
    story.ends(-15)
    assert [outcome.id for outcome in story.outcomes] == ["sigterm", "n1"]


@pytest.mark.parametrize("kind", ["", "no launcher's"])
def test_an_unknown_launcher_notice_is_ignored(kind: str) -> None:
    """A late answer to a notice that is over, or a word that this agent does not know."""
    story, (rank, _) = torchrun()
    story.says(rank, Delivered("n0", story.now, kind, "SIGTERM", LEFT))
    story.says(rank, Committed("n0", 7, 1000, 0.5, "file:///s/x", story.now))
    story.until(60)
    assert not story.outcomes


def test_each_of_many_jobs_has_an_outcome_of_its_own() -> None:
    """A scheduler ends all jobs of a user at once. What one run tells beyond two notices has none, which is said once."""
    story = Story(command=False)
    ranks = [story.opens(500 + n, run=f"job{n}", world=2) for n in range(24)]
    for rank in ranks:
        for id in ("sigterm", "second", "third", "fourth"):
            tells(story, rank, id)
    said = [log.text for log in story.all(Log) if "has no outcome" in log.text]
    assert len(said) == 1
    for rank in ranks:
        for id in ("sigterm", "second", "third"):
            commits(story, rank, id=id)
    story.until(TOLD)
    assert sorted(outcome.id for outcome in story.outcomes) == ["second"] * 24 + ["sigterm"] * 24
