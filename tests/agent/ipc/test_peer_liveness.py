"""From which moment on another machine counts as silent."""

from __future__ import annotations

from spotguard.agent.events import MachineSeen
from spotguard.agent.ipc.peer_liveness import EVERY, MISSING, PeerLiveness

RUNS = frozenset({(1000, "job")})
PATIENCE = EVERY * MISSING


def heard_at(now: float) -> PeerLiveness:
    beats = PeerLiveness("node2", runs=RUNS)
    assert beats.heard(now) == MachineSeen(RUNS, "node2")
    return beats


def test_three_missing_heartbeats_are_silence_which_is_told_once() -> None:
    beats = heard_at(10.0)
    assert beats.heard(11.0) is None
    assert beats.look(11.0 + PATIENCE - 0.1) is None
    assert beats.look(11.0 + PATIENCE) == MachineSeen(RUNS, "node2", silent_since=11.0)
    assert beats.look(11.0 + 10 * PATIENCE) is None


def test_the_first_heartbeat_behind_a_silence_ends_it() -> None:
    beats = heard_at(0.0)
    beats.look(PATIENCE)
    assert beats.heard(60.0) == MachineSeen(RUNS, "node2")
    assert beats.look(60.0 + PATIENCE) == MachineSeen(RUNS, "node2", silent_since=60.0)


def test_a_machine_that_was_never_heard_is_never_silent() -> None:
    """A firewall may be between the agents."""
    assert PeerLiveness("node2", runs=RUNS).look(1e6) is None


def test_an_agent_that_has_ended_is_not_silent() -> None:
    beats = heard_at(0.0)
    assert beats.ended() == MachineSeen(RUNS, "node2", ended=True)
    assert beats.ended() is None
    assert beats.gone


def test_a_silent_machine_that_refuses_at_last_stays_silent() -> None:
    """It has booted again: its ranks are gone."""
    beats = heard_at(0.0)
    beats.look(PATIENCE)
    assert beats.ended() is None
    assert beats.silent
    assert not beats.gone


def test_an_agent_that_is_back_is_heard_again() -> None:
    beats = heard_at(0.0)
    beats.ended()
    assert beats.heard(60.0) == MachineSeen(RUNS, "node2")
    assert not beats.gone


def test_a_run_that_comes_later_learns_how_the_machine_is() -> None:
    beats, other = heard_at(0.0), (1000, "other")
    assert beats.follow(RUNS) is None
    beats.look(PATIENCE)
    assert beats.follow(RUNS | {other}) == MachineSeen(frozenset({other}), "node2", silent_since=0.0)
    assert beats.follow(RUNS | {other}) is None


def test_answers_that_have_waited_for_a_stopped_agent_are_not_from_the_future() -> None:
    beats = heard_at(0.0)
    beats.heard(3600.0)
    beats.missed(3600.0, 3600.0)
    assert beats.look(3600.0 + PATIENCE) is not None


def test_time_in_which_this_agent_was_stopped_is_nobodys_silence() -> None:
    beats = heard_at(0.0)
    beats.missed(600.0, 600.0)
    assert beats.look(600.0 + PATIENCE - 0.1) is None
    assert beats.look(600.0 + PATIENCE) is not None
