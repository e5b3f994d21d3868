"""One decision from the offers that are there."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from spotguard.hooks.consensus.vote import (
    Decision,
    ReplicaGroup,
    Vote,
    decide,
    ranges,
    read_decision,
    read_offer,
    shared,
)
from spotguard.providers.errors import ProtocolError


def test_the_latest_of_the_steps_is_saved_by_all() -> None:
    """Whatever the order in which they offered."""
    assert decide(4, 3, [Vote(2, 7), Vote(0, 8, boundary=True), Vote(1, 5)]) == Decision(
        4, 8, "", (0, 1, 2), "full", whole_each=False
    )


def test_a_rank_without_state_aborts_for_all() -> None:
    """Also when others are silent, and named."""
    for offers in ([Vote(0, 3), Vote(1, None), Vote(2, 3)], [Vote(1, None)]):
        decision = decide(1, 3, offers)
        assert decision.step is None
        assert "rank 1 of 3" in decision.why
        assert decision.ranks == tuple(offer.rank for offer in offers)


def test_without_the_silent_only_who_holds_all_that_they_hold() -> None:
    """And only where nobody would have to train to get there."""
    replica = (0, 1, 2)
    there = [Vote(0, 6, covers=ranges(replica)), Vote(2, 6, covers=ranges(replica))]
    decision = decide(1, 3, there)
    assert (decision.step, decision.ranks) == (6, (0, 2))
    assert "rank 1 of 3" in decision.why
    for instead in (
        [Vote(0, 6, covers=ranges((0,))), Vote(2, 6, covers=ranges((2,)))],
        [there[0], replace(there[1], step=7)],
        [there[0], replace(there[1], boundary=True)],
        [],
    ):
        assert decide(1, 3, instead).step is None
        assert decide(1, 3, instead).why


@pytest.mark.parametrize("behind", [Vote(1, 5), Vote(1, 6, boundary=True)], ids=["behind", "in-a-change"])
def test_a_rank_that_stands_before_the_step_of_the_others_is_not_waited_for(behind: Vote) -> None:
    """It will never come there. The others save without it, if they hold what it holds, and else nobody does."""
    replica = (0, 1, 2)
    ahead = [Vote(rank, 6, covers=ranges(replica)) for rank in (0, 2)]
    final = replace(behind, final=True)
    decision = decide(1, 3, [*ahead, final])
    assert (decision.step, decision.ranks) == (6, (0, 2))
    assert decision.why.startswith("training stands behind the others on rank 1 of 3: its extras are missing")
    assert decide(1, 3, [*ahead, behind]).ranks == replica
    alone = [replace(each, covers=ranges((each.rank,))) for each in ahead]
    assert decide(1, 3, [*alone, final]).step is None
    assert "no other rank holds the state of rank 1" in decide(1, 3, [*alone, final]).why


def test_nobody_saves_where_all_stand_in_a_change() -> None:
    decision = decide(1, 2, [Vote(rank, 6, boundary=True, final=True) for rank in (0, 1)])
    assert (decision.step, decision.ranks) == (None, ())
    assert "training stands in the middle of a step on ranks 0, 1 of 2" in decision.why


def test_a_complete_checkpoint_as_new_is_worth_more_than_one_without_the_silent() -> None:
    """Whoever knows of it. One that is older is not; and where all answer, each saves: who asks may want its own."""
    replica = (0, 1, 2)
    there = [Vote(0, 6, last=4, covers=ranges(replica)), Vote(2, 6, last=6, covers=ranges(replica))]
    decision = decide(1, 3, there)
    assert (decision.step, decision.saved, decision.ranks) == (None, 6, (0, 2))
    assert decision.why == (
        "no answer in time from rank 1 of 3, and the complete checkpoint of step 6 is as new"
    )
    for older in ([there[0]], [there[0], replace(there[1], step=7, last=6)], [replace(there[1], last=5)]):
        assert decide(1, 3, older).saved == -1
    assert decide(1, 3, [*there, Vote(1, 6, last=6)]).step == 6


def test_a_shard_that_is_gone_matters_not_where_the_step_is_complete() -> None:
    """Nobody else holds it, and nothing is lost."""
    assert decide(1, 2, [Vote(0, 6, last=6)]).saved == 6


def test_one_that_covers_the_silent_is_enough() -> None:
    """Two groups of replicas of which each has lost one; and one that has lost both."""
    there = [Vote(0, 6, covers=ranges((0, 2))), Vote(3, 6, covers=ranges((1, 3)))]
    assert decide(1, 4, there).ranks == (0, 3)
    gone = [Vote(0, 6, covers=ranges((0, 2))), Vote(2, 6, covers=ranges((0, 2)))]
    assert "state of ranks 1, 3" in decide(1, 4, gone).why


def test_weights_go_first_where_a_doomed_rank_is_short_of_time() -> None:
    """A quarter slower, two commits and a second must fit; who is not doomed has time, and hope where nothing is known."""
    short = Vote(0, 1, weights=100, moments=700, rate=100.0, commit=1.0, left=12.9)
    assert decide(1, 2, [short, Vote(1, 1)]).level == "weights-first"
    for enough in (replace(short, left=13.1), replace(short, left=None), replace(short, rate=None)):
        assert decide(1, 2, [enough, Vote(1, 1)]).level == "full"


def test_weights_go_early_where_a_doomed_rank_says_that_they_count() -> None:
    """Of all that fits. Short of time they go first; and who stays has no cloud that breaks its promise."""
    fits = Vote(0, 1, weights=100, moments=700, rate=100.0, commit=1.0, left=30.0, early=True)
    assert decide(1, 2, [fits, Vote(1, 1)]).level == "weights-early"
    assert decide(1, 2, [fits, replace(fits, rank=1, left=9.0)]).level == "weights-first"
    for other in (replace(fits, left=None), replace(fits, early=False)):
        assert decide(1, 2, [other, Vote(1, 1)]).level == "full"


def test_a_rank_with_another_view_of_shared_state_is_not_relied_on() -> None:
    """Another digest, or a group that one of its ranks does not know. Groups may differ from rank to rank."""
    left, right = shared({(0, 1): "x"}), shared({(2, 3): "y"})
    assert left[0].group != right[0].group
    offers = [
        Vote(0, 1, plan=left),
        Vote(1, 1, plan=left),
        Vote(2, 1, plan=right),
        Vote(3, 1, plan=right),
    ]
    assert not decide(1, 4, offers).whole_each
    assert decide(1, 4, [*offers[:3], replace(offers[3], plan=shared({(2, 3): "z"}))]).whole_each
    assert decide(1, 4, [*offers[:3], replace(offers[3], plan=())]).whole_each


def test_a_silent_rank_makes_nobody_differ() -> None:
    """Its plan is simply not there."""
    plan = shared({(0, 1): "x"})
    decision = decide(1, 2, [Vote(0, 1, plan=plan, covers=ranges((0, 1)))])
    assert decision.step == 1
    assert not decision.whole_each


def test_many_ranks_are_not_all_named() -> None:
    """In one line."""
    why = decide(1, 300, [Vote(0, 1)]).why
    assert "ranks 1, 2, 3, 4, 5, 6, 7, 8 … of 300" in why


def test_ranks_held_at_boundaries_learn_of_ranks_that_are_not() -> None:
    """These wait for it in the next step. Of one that is silent nobody knows, and it waits for nobody."""
    held = [Vote(rank, 1, parks=True, covers=ranges((2,))) for rank in range(2)]
    free = Vote(2, 1, covers=ranges((0, 1, 2)))
    assert decide(1, 3, [*held, free]).some_park
    assert not decide(1, 2, held).some_park
    assert not decide(1, 1, [Vote(0, 1)]).some_park
    assert not decide(1, 3, [held[0], free]).some_park


def test_offers_and_decisions_cross_the_wire() -> None:
    """With all that they say."""
    offer = Vote(
        3, None, True, 5, 6, 7.5, 0.25, 30.0, 12, (ReplicaGroup("g", 2, "d"),), ranges((3, 4, 6)), True, True
    )
    assert read_offer(offer.encode()) == offer
    decision = Decision(3, 9, "why", (0, 2), "weights-first", True, True, 8)
    assert read_decision(decision.encode().encode()) == decision
    assert read_decision(Decision(3, 9, level="weights-early").encode()).level == "weights-early"
    assert read_decision(Decision(3, None, "no").encode()).step is None


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("step", "3"),
        ("step", True),
        ("plan", {}),
        ("plan", [3]),
        ("plan", [{"group": "g"}]),
        ("covers", ["a"]),
        ("covers", [[3, 3]]),
        ("covers", [[-1, 3]]),
        ("covers", [[0, 2.0]]),
        ("covers", [[0, 10**9]]),
        ("covers", [[0, 1, 2]]),
    ],
)
def test_a_malformed_vote_is_refused(field: str, value: object) -> None:
    """By the field that is wrong."""
    body = {**json.loads(Vote(0, 1).encode()), field: value}
    with pytest.raises(ProtocolError):
        read_offer(json.dumps(body))


def test_votes_of_ten_thousand_ranks_are_short() -> None:
    """With replicas each covers all: spelt out, the votes would have 600 MB, and the decision 59 kB for each rank."""
    everybody = range(10_000)
    assert ranges(everybody) == (everybody,)
    vote, decision = Vote(5, 7, covers=ranges(everybody)), Decision(1, 7, ranks=tuple(everybody))
    assert len(vote.encode()) < 300
    assert len(decision.encode()) < 300
    assert read_offer(vote.encode()) == vote
    assert read_decision(decision.encode()) == decision
    assert ranges(rank for rank in everybody if rank != 4000) == (range(4000), range(4001, 10_000))


def test_a_level_of_another_world_is_refused() -> None:
    """It could not be obeyed."""
    with pytest.raises(ProtocolError):
        read_decision(Decision(3, 9).encode().replace("full", "half"))
