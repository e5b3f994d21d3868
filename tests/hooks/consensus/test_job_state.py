"""The log of calls, folded: which notices stand, and which save counts."""

from __future__ import annotations

from dataclasses import replace

from spotguard.hooks.consensus.events import (
    BackgroundEvent,
    BoundaryEvent,
    CarriedEvent,
    DamagedEvent,
    FailedEvent,
    LogEvent,
    ManualEvent,
    NoticeEvent,
    RevoteEvent,
    UnknownEvent,
    WithdrawnEvent,
)
from spotguard.hooks.consensus.failover import SECOND_STORE
from spotguard.hooks.consensus.job_state import JobState, WantedSave


def notice(id: str, machine: str = "m0", *, drill: bool = False) -> NoticeEvent:
    return NoticeEvent(id, "interruption", "aws", 30.0, machine, 120.0, drill)


def after(*calls: LogEvent) -> JobState:
    standing = JobState()
    for call in calls:
        standing = standing.after(call)
    return standing


def test_a_notice_dooms_its_machine_and_wants_a_save() -> None:
    """Of all ranks; those of that machine are the doomed ones."""
    standing = after(notice("a", "m1"))
    assert standing.wanted == WantedSave(1, "notice")
    assert standing.departing == {"m1"}
    assert standing.departing_ranks(["m0", "m1", "m0", "m1"]) == {1, 3}


def test_the_same_notice_again_is_nothing_new() -> None:
    """Every rank of a machine hears of it from its agent, and calls."""
    standing = after(notice("a"), notice("a"), notice("a"))
    assert standing.wanted == WantedSave(1, "notice")
    assert (standing.epoch, len(standing.notices)) == (3, 1)


def test_a_further_machine_supersedes() -> None:
    """Roles change: it is decided anew."""
    standing = after(notice("a"), notice("b", "m1"))
    assert standing.wanted == WantedSave(2, "notice")
    assert standing.departing == {"m0", "m1"}
    assert not standing.counts(1)
    assert standing.counts(2)


def test_a_further_notice_for_a_doomed_machine_is_remembered_and_no_more() -> None:
    """The first being withdrawn, the machine is doomed all the same."""
    standing = after(notice("a"), notice("b"))
    assert standing.wanted == WantedSave(1, "notice")
    standing = standing.after(WithdrawnEvent("a"))
    assert standing.departing == {"m0"}
    assert standing.wanted == WantedSave(1, "notice")


def test_a_notice_after_a_drill_is_in_earnest() -> None:
    """Of what a drill had saved nobody knows whether its ranks have gone on; and a drill after a notice is nothing."""
    standing = after(notice("d", drill=True))
    assert standing.drill
    standing = standing.after(notice("a"))
    assert standing.wanted == WantedSave(2, "notice")
    assert not standing.drill
    standing = standing.after(notice("e", drill=True)).after(WithdrawnEvent("d"))
    assert standing.wanted == WantedSave(2, "notice")


def test_a_stall_that_two_machines_see_is_one_save_and_its_restart_another() -> None:
    """No machine goes, so no rank's part changes. What ends training is in earnest, and again two machines see it."""
    stalls = [replace(notice(m, m, drill=True), kind="stall") for m in ("m0", "m1")]
    standing = after(*stalls)
    assert standing.wanted == WantedSave(1, "notice")
    assert [each.id for each in standing.notices] == ["m0", "m1"]
    assert standing.after(WithdrawnEvent("m0")).wanted == WantedSave(1, "notice")
    ends = [replace(notice(f"r{m}", m), kind="restart", ended=1) for m in ("m0", "m1")]
    assert after(*stalls, *ends).wanted == WantedSave(3, "notice")
    assert after(*stalls, notice("a", "m1")).wanted == WantedSave(3, "notice")


def test_a_stall_whose_caller_has_ended_the_first_ones_save_has_its_own() -> None:
    """Nobody else would answer the second machine's agent."""
    stall = [replace(notice(m, m, drill=True), kind="stall") for m in ("m0", "m1")]
    late = replace(stall[1], ended=1)
    standing = after(stall[0], late)
    assert standing.wanted == WantedSave(2, "notice")
    assert [each.id for each in standing.notices] == ["m0", "m1"]
    assert standing.after(late).wanted == standing.wanted, "the call of another rank of its machine"
    both = after(*stall)
    assert both.after(late).wanted == WantedSave(3, "notice"), "the other rank's save went on"
    again = replace(stall[0], id="c", ended=1)
    assert both.after(WithdrawnEvent("m0")).after(again).wanted == WantedSave(4, "notice")
    assert after(*[replace(each, kind="restart", drill=False) for each in (stall[0], late)]).counts(2)


def test_withdrawn_training_goes_on() -> None:
    """Only when no notice is left; what nobody has heard of cannot be withdrawn."""
    both = after(notice("a"), notice("b", "m1"))
    assert both.after(WithdrawnEvent("z")).wanted == both.wanted
    one = both.after(WithdrawnEvent("b"))
    assert one.wanted == WantedSave(2, "notice")
    assert one.departing == {"m0"}
    none = one.after(WithdrawnEvent("a"))
    assert none.wanted is None
    assert not none.drill
    assert none.after(notice("a")).wanted == WantedSave(5, "notice")


def test_while_a_notice_stands_nothing_else_is_saved() -> None:
    """Beside training, or by hand."""
    assert after(notice("a"), BackgroundEvent(), ManualEvent(3)).wanted == WantedSave(1, "notice")


def test_a_notice_supersedes_what_is_saved_beside_training() -> None:
    """And what is withdrawn then leaves nothing to be done."""
    standing = after(BackgroundEvent("every 60 s"))
    assert standing.wanted == WantedSave(1, "background")
    standing = standing.after(ManualEvent(4))
    assert standing.wanted == WantedSave(2, "manual")
    standing = standing.after(notice("a"))
    assert standing.wanted == WantedSave(3, "notice")
    assert standing.after(WithdrawnEvent("a")).wanted is None


def test_a_request_made_before_an_event_does_not_supersede_it() -> None:
    """The clock of background checkpoints strikes while the script saves by hand: that is not called off."""
    by_hand = after(BackgroundEvent(heard=0), ManualEvent(4))
    assert by_hand.after(BackgroundEvent(heard=1)).wanted == WantedSave(2, "manual")
    assert by_hand.after(BackgroundEvent(heard=2)).wanted == WantedSave(3, "background")
    assert after(BackgroundEvent(heard=0), BackgroundEvent(heard=0)).wanted == WantedSave(1, "background")


def test_a_state_that_moved_is_saved_at_a_boundary() -> None:
    """By all, once, for the same cause; and a save that does not count any more is not saved again."""
    standing = after(BackgroundEvent(), BoundaryEvent(1, "moved"), BoundaryEvent(1, "moved here too"))
    assert standing.wanted == WantedSave(2, "background", boundary=True)
    assert after(notice("a"), BoundaryEvent(1)).wanted == WantedSave(2, "notice", boundary=True)
    assert after(notice("a"), WithdrawnEvent("a"), BoundaryEvent(1)).wanted is None


def test_state_that_moved_under_one_notice_is_saved_at_a_boundary_under_the_next() -> None:
    """But after the first is over it is tried again."""
    moved = after(notice("a"), BoundaryEvent(1))
    assert moved.after(notice("b", "m1")).wanted == WantedSave(3, "notice", boundary=True)
    assert moved.after(WithdrawnEvent("a")).after(notice("c")).wanted == WantedSave(4, "notice")


def test_an_unreadable_event_only_counts() -> None:
    """The numbers of the log stay those of all ranks."""
    told = FailedEvent(1, 0), DamagedEvent("000000020-0001-0000")
    standing = after(notice("a"), UnknownEvent("?"), *told, notice("b", "m1"))
    assert standing.wanted == WantedSave(5, "notice")


# --- the second store's log, which begins with what a rank has read in the first ---


def carried(*calls: LogEvent) -> CarriedEvent:
    return after(*calls).carry(lambda each: each.seconds_left)


def second(*calls: LogEvent) -> JobState:
    standing = JobState(SECOND_STORE)
    for call in calls:
        standing = standing.after(call)
    return standing


def test_the_state_of_the_first_log_holds_in_the_second() -> None:
    standing = second(carried(notice("a")))
    assert standing.notices == (notice("a"),)
    assert standing.wanted == WantedSave(1, "notice")
    assert standing.undecided(0)
    assert not standing.undecided(1)
    assert second(carried(notice("a")), FailedEvent(1, 0)).counts(1)
    assert second(carried(notice("a")), RevoteEvent(1), RevoteEvent(1)).counts(SECOND_STORE + 2)
    assert second(carried(notice("a")), BoundaryEvent(1)).wanted == WantedSave(
        SECOND_STORE + 2, "notice", True
    )


def test_the_longer_of_two_states_holds_and_its_new_save_is_voted_on_by_all() -> None:
    short, long = carried(notice("a")), carried(notice("a"), notice("b", "m1"))
    assert second(short, long).departing == second(long, short).departing == {"m0", "m1"}
    assert second(short, long).counts(SECOND_STORE + 2)
    assert second(long, short).counts(2)
    assert second(carried(), short).counts(SECOND_STORE + 2)


def test_a_notice_withdrawn_in_either_log_does_not_come_back() -> None:
    short, long = carried(notice("a")), carried(notice("a"), FailedEvent(1, 0))
    for calls in [(short, WithdrawnEvent("a"), long), (carried(), WithdrawnEvent("a"), long)]:
        assert second(*calls).notices == ()
        assert second(*calls).wanted is None
    over = carried(notice("a"), WithdrawnEvent("a"))
    assert second(short, over).notices == second(over, short).notices == ()
    assert second(short, over).wanted is None


def test_an_entry_that_was_carried_is_not_read_a_second_time() -> None:
    """Its caller did not know that another rank had read it."""
    again = replace(notice("a"), was=1)
    assert second(carried(notice("a")), WithdrawnEvent("a"), again).notices == ()
    assert second(carried(), again).counts(SECOND_STORE + 2)


def test_a_notice_of_the_second_log_stands_whatever_is_carried_later() -> None:
    standing = second(carried(), notice("b", "m1"), carried(notice("a"), WithdrawnEvent("a")))
    assert standing.departing == {"m1"}
    assert standing.counts(SECOND_STORE + 2)


def test_a_save_beside_training_is_neither_lost_nor_voted_on_again() -> None:
    standing = second(carried(BackgroundEvent()))
    assert standing.counts(1)
    assert not standing.undecided(0)
