"""The log is told of a change in the moment it comes, is reminded of what lasts, and is never flooded."""

from __future__ import annotations

import logging
import random
from bisect import bisect_left

from spotguard.agent.sources.health_log import MOST, REMIND, HealthLog
from spotguard.providers.health import SEEING, STARTING, Health, Sight, blind, wrong_server
from tests.cases import cases

AWAY = blind("unreachable", "connection refused", "is it on?")
SLOW = blind("timeout", "no answer in 2 s")
PORTAL = wrong_server("200 with a page", "check the endpoint")


def said(*seen: tuple[float, Health]) -> list[str]:
    """The lines for what was seen, and when."""
    mention = HealthLog()
    lines = [mention.of(health, at) for at, health in seen]
    return [line[1] for line in lines if line is not None]


def test_nothing_is_said_before_the_first_look() -> None:
    assert said((0, STARTING), (0, STARTING)) == []


def test_the_first_look_is_said_whatever_it_shows() -> None:
    assert said((0, STARTING), (1, SEEING), (2, SEEING)) == ["seeing"]
    assert said((0, STARTING), (1, AWAY)) == ["blind (unreachable): connection refused; is it on?"]
    assert said((0, STARTING), (1, PORTAL)) == ["wrong server: 200 with a page; check the endpoint"]


def test_each_change_is_said_and_since_counts_from_the_first_blind_look() -> None:
    """Another reason is news, and no new blindness; other details of one reason are neither."""
    mention = HealthLog()
    assert mention.of(SEEING, 0.0) == (logging.INFO, "seeing")
    assert mention.of(AWAY, 10.0) is not None
    assert mention.of(blind("unreachable", "no route"), 11.0) is None
    assert mention.of(SLOW, 12.0) == (logging.WARNING, "blind (timeout): no answer in 2 s")
    assert mention.since == 10.0
    assert mention.of(SEEING, 14.0) == (logging.INFO, "seeing (again, after 4 s)")
    assert mention.since == 14.0


def test_a_lasting_state_is_logged_once_a_minute() -> None:
    lines = said(*((float(at), AWAY) for at in range(190)))
    assert [line.rpartition(" after ")[2] for line in lines[1:]] == ["60 s", "120 s", "180 s"]
    assert all(line.startswith("still blind (unreachable)") for line in lines[1:])


def test_a_service_that_is_being_switched_on_is_no_warning_for_a_minute() -> None:
    """Azure's first call takes up to two minutes, and says so."""
    enabling = blind("starting", "the first call switches scheduled events on")
    mention = HealthLog()
    assert mention.of(STARTING, 0.0) is None
    assert mention.of(enabling, 2.0) == (
        logging.INFO,
        "blind (starting): the first call switches scheduled events on",
    )
    assert mention.of(enabling, 2.0 + REMIND - 0.1) is None
    again = mention.of(enabling, 2.0 + REMIND)
    assert again is not None
    assert again[0] == logging.WARNING


def test_a_detail_of_a_seeing_source_is_a_warning() -> None:
    """Said once, and once more when it is other words: the token that could not be renewed, a notice that is old."""
    odd = Health(Sight.SEEING, detail="stale, no notice")
    mention = HealthLog()
    assert mention.of(odd, 0.0) == (logging.WARNING, "seeing; stale, no notice")
    assert mention.of(odd, 100.0) is None
    assert mention.of(SEEING, 101.0) == (logging.INFO, "seeing")


def test_a_source_that_flaps_does_not_flood_the_log() -> None:
    """A change a second for an hour: the first few, then one line a minute; and the end of it is said."""
    mention = HealthLog()
    hour = [mention.of((SEEING, AWAY)[at % 2], float(at)) for at in range(3600)]
    lines = [line[1] for line in hour if line is not None]
    assert len(lines) <= MOST + 1 + 60
    assert lines[MOST + 1].startswith("unsteady, 60 changes in 60 s; now ")
    calm = [mention.of(SEEING, 3600.0 + at) for at in range(120)]
    assert [line for line in calm if line is not None][-1] == (logging.INFO, "steady again: seeing")


@cases("seed", range(20))
def test_the_last_word_is_the_truth_and_no_minute_has_many(seed: int) -> None:
    """Whatever comes: seeds 0 to 19."""
    rng, mention, lines, now = random.Random(seed), HealthLog(), [], 0.0
    for _ in range(2000):
        now += rng.choice((0.05, 1.0, 1.0, 2.0, 30.0))
        if (line := mention.of(rng.choice((SEEING, AWAY, SLOW, PORTAL)), now)) is not None:
            lines.append((now, line[1]))
    for _ in range(int(2 * REMIND)):
        now += 1.0
        if (line := mention.of(SLOW, now)) is not None:
            lines.append((now, line[1]))
    assert "blind (timeout)" in lines[-1][1], seed
    times = [at for at, _ in lines]
    for at in times:
        assert bisect_left(times, at + REMIND) - bisect_left(times, at) <= MOST + 2, seed
