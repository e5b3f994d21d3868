"""How fast a save goes: the last two seconds count, and what nobody can know is not said."""

from __future__ import annotations

from typing import Any

import pytest

from spotguard.agent.core.session import SaveProgress
from spotguard.agent.sources.feed import Feed
from spotguard.agent.telemetry.status import AgentFacts, answers
from spotguard.hooks.ipc.protocol import Progress
from tests.fakes.story import START, Story


def at_pace(rate: int, seconds: float, begin: float = 100.0, total: int = 100_000) -> SaveProgress:
    """Four words a second."""
    pace = SaveProgress()
    for quarter in range(int(seconds * 4) + 1):
        pace.hear(7, rate * quarter // 4, total, begin + quarter / 4)
    return pace


def test_one_word_is_no_rate() -> None:
    """Nor are two of the same instant."""
    pace = SaveProgress()
    assert (pace.rate(100.0), pace.seconds_left(100.0)) == (None, None)
    pace.hear(7, 0, 1000, 100.0)
    assert pace.rate(101.0) is None
    pace.hear(7, 10, 1000, 100.0)
    assert pace.rate(100.0) is None


def test_a_steady_link_is_its_rate_and_the_rest_its_seconds() -> None:
    """Bytes a second, and what is left by it."""
    pace = at_pace(8000, 5)
    assert pace.rate(105.0) == pytest.approx(8000)
    assert pace.seconds_left(105.0) == pytest.approx(60_000 / 8000)
    assert pace.rate(105.2) == pytest.approx(8000)  # the next word is not due yet


def test_only_the_last_two_seconds_count() -> None:
    """A link that has become slow is slow."""
    pace = at_pace(8000, 5)
    for quarter in range(1, 13):
        pace.hear(7, 40_000 + 200 * quarter, 100_000, 105.0 + quarter / 4)
    assert pace.rate(108.0) == pytest.approx(800)


def test_one_that_stands_still_gets_slower_by_the_second() -> None:
    """No word comes, for no piece leaves."""
    pace = at_pace(8000, 5)
    rates = [pace.rate(now) for now in (105.0, 107.0, 115.0, 1e6)]
    assert rates == sorted(rates, key=lambda rate: -(rate or 0))
    assert rates[-1] is not None
    assert rates[-1] < 1


def test_another_save_begins_anew() -> None:
    """After a background save that was let finish comes the notice's own."""
    pace = at_pace(8000, 5)
    pace.hear(8, 10, 100_000, 106.0)
    assert pace.rate(106.0) is None
    assert pace.done == 10


def test_bytes_that_are_sent_again_are_time_without_bytes() -> None:
    """What was there is not counted twice."""
    pace = at_pace(8000, 5)
    pace.hear(7, 20_000, 100_000, 105.5)
    assert pace.done == 40_000
    assert pace.rate(105.5) == pytest.approx(12_000 / 2)


def test_a_peers_figures_are_no_trap() -> None:
    """Negative, or no bytes at all to be sent."""
    pace = SaveProgress()
    pace.hear(-1, -5, -1, 100.0)
    pace.hear(-1, 0, 0, 101.0)
    assert (pace.done, pace.total, pace.seconds_left(101.0)) == (0, 0, None)


def test_status_says_it_beside_the_seconds_that_are_left() -> None:
    """While it writes; what is committed has no rate any more."""
    story = Story()
    session = story.opens()
    story.notice()
    facts = AgentFacts("run", 1, "a.sock", False, START)

    def saving() -> Any:
        (body,) = answers(story.machine, Feed(), facts, 0, story.now, None)
        return body["sessions"][0]["saving"]

    for quarter in range(9):
        story.until(1 + quarter / 4)
        done = 250 * quarter
        story.says(session, Progress("n1", "writing", story.now, step=7, done_bytes=done, total_bytes=10_000))
    assert saving() == {
        "phase": "writing",
        "step": 7,
        "bytes": 2000,
        "total": 10_000,
        "rate": 1000.0,
        "seconds_to_go": 8.0,
        "seconds_left": 105.0,
        "why": "",
    }
    story.commits(session)
    assert (saving()["phase"], saving()["rate"], saving()["seconds_to_go"]) == ("committed", None, None)


def test_the_overall_rate_of_a_save_is_known_afterwards() -> None:
    assert at_pace(1000, 8.0).overall() == 1000.0
    slower = at_pace(1000, 4.0)
    slower.hear(7, 4000, 100_000, 108.0)
    assert slower.overall() == 500.0
    assert SaveProgress().overall() is None
    assert at_pace(1000, 0.0).overall() is None, "one word"


def test_the_outcome_says_how_fast_what_was_written_in_vain_went() -> None:
    """All ranks together, beside each other."""
    story = Story()
    ranks = [story.opens(201), story.opens(202)]
    story.notice()
    for quarter in range(9):
        story.until(1 + quarter / 4)
        for rank in ranks:
            word = Progress("n1", "writing", story.now, step=7, done_bytes=250 * quarter, total_bytes=10_000)
            story.says(rank, word)
    for rank in ranks:
        story.fails(rank, "out of time")
        story.closes(rank)
    story.ends(1)
    (outcome,) = story.outcomes
    assert (outcome.committed, outcome.bytes, outcome.rate) == (None, 4000, 2000.0)
