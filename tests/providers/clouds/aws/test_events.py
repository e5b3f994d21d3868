"""What AWS says ahead of time, over real sockets: S6, S18, and scheduled events from the first word to the last."""

from __future__ import annotations

import json

import pytest

from spotguard.providers.clouds.aws.events import AwsScheduledEvents, Rebalance
from spotguard.providers.health import SEEING
from spotguard.providers.notice import NoticeKind, Severity, Sighting
from spotguard.providers.simulator.aws.service import AwsSimulator
from tests.fakes.clock import ManualClock
from tests.providers.clouds.looking import MakeSource, the_notice

DAY = 86400.0


# --- S6: recommendations ------------------------------------------------------------------------------------


def test_s6_a_recommendation_is_advice_and_the_notice_is_another(
    instance: AwsSimulator, watch: MakeSource, clock: ManualClock
) -> None:
    """First the one, then the other: neither changes what the other source shows."""
    terminal, advisory = watch(instance), watch(instance, Rebalance)
    instance.rebalance()
    advice = the_notice(advisory)
    assert (advice.kind, advice.severity) == (NoticeKind.REBALANCE, Severity.ADVISORY)
    assert terminal.poll() == Sighting(SEEING)
    clock.advance(1020)
    instance.preempt()
    assert the_notice(terminal).severity is Severity.TERMINAL
    assert the_notice(advisory) is advice


@pytest.mark.parametrize("order", ["together", "after"])
def test_s6_a_recommendation_with_the_notice_or_after_it(
    instance: AwsSimulator, watch: MakeSource, clock: ManualClock, order: str
) -> None:
    """It stays advice, whatever stands beside it."""
    instance.preempt()
    if order == "after":
        clock.advance(30)
    instance.rebalance()
    assert the_notice(watch(instance, Rebalance)).severity is Severity.ADVISORY
    assert the_notice(watch(instance)).severity is Severity.TERMINAL


def test_s6_a_recommendation_alone_is_one_for_as_long_as_it_stands(
    instance: AwsSimulator, watch: MakeSource, clock: ManualClock
) -> None:
    """17 minutes to 8 hours and 42, in the field: looked at again and again, it is the same value."""
    source = watch(instance, Rebalance)
    instance.rebalance()
    first = the_notice(source)
    for _ in range(100):
        clock.advance(313)
        assert the_notice(source) is first


def test_s6_thirty_recommendations_are_thirty_and_none_of_them_an_end(
    instance: AwsSimulator, watch: MakeSource, clock: ManualClock
) -> None:
    """30 recommendations to 15 notices in 17 hours, as one cluster saw: each with an id of its own, never terminal."""
    advisory, terminal = watch(instance, Rebalance), watch(instance)
    ids, ends = set[str](), 0
    for number in range(30):
        instance.rebalance()
        notice = the_notice(advisory)
        assert notice.severity is Severity.ADVISORY
        ids.add(notice.id)
        if number % 2:
            instance.preempt()
            ends += the_notice(terminal).severity is Severity.TERMINAL
        else:
            assert terminal.poll().notices == ()
        clock.advance(2040)
        instance.clear()
        terminal.poll()
    assert (len(ids), ends) == (30, 15)


# --- scheduled events ---------------------------------------------------------------------------------------


def test_an_event_days_ahead_has_its_own_day(
    instance: AwsSimulator, watch: MakeSource, clock: ManualClock
) -> None:
    """`NotBefore` is the deadline, to the second, in AWS's third form of a date; it does not move."""
    instance.maintenance("instance-retirement", 14 * DAY)
    source = watch(instance, AwsScheduledEvents)
    notice = the_notice(source)
    assert (notice.kind, notice.severity) == (NoticeKind.TERMINATE, Severity.LATER)
    assert notice.deadline == clock.monotonic() + 14 * DAY
    assert notice.detail == "instance-retirement, not before 04 Dec 2026 10:00:00 GMT"
    clock.advance(13 * DAY)
    assert the_notice(source) is notice


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("instance-stop", NoticeKind.STOP),
        ("instance-retirement", NoticeKind.TERMINATE),
        ("instance-reboot", NoticeKind.REBOOT),
        ("system-reboot", NoticeKind.REBOOT),
        ("system-maintenance", NoticeKind.MAINTENANCE),
        ("instance-teleport", NoticeKind.UNKNOWN),
    ],
)
def test_each_code_has_its_kind_and_none_is_dropped(
    instance: AwsSimulator, watch: MakeSource, code: str, kind: NoticeKind
) -> None:
    """One that is newer than this program is an event all the same."""
    instance.maintenance(code)
    notice = the_notice(watch(instance, AwsScheduledEvents))
    assert (notice.kind, notice.severity) == (kind, Severity.LATER)
    assert ("unknown to this program" in notice.detail) is (kind is NoticeKind.UNKNOWN)


@pytest.mark.parametrize("state", ["completed", "canceled"])
def test_an_event_that_is_over_is_gone(instance: AwsSimulator, watch: MakeSource, state: str) -> None:
    """The source sees and no longer shows it, which is a withdrawal; the others stand."""
    first, _ = instance.maintenance("instance-stop", 3 * DAY), instance.maintenance("system-reboot", 5 * DAY)
    source = watch(instance, AwsScheduledEvents)
    assert len(source.poll().notices) == 2
    instance.maintenance_over(state, first)
    assert the_notice(source).kind is NoticeKind.REBOOT
    instance.maintenance_over(state)
    assert source.poll() == Sighting(SEEING)
    assert source.withdraws


@pytest.mark.parametrize(
    "over",
    [{"State": "completed"}, {"State": "Canceled"}, {"State": "", "Description": "[Completed] it was"}],
)
def test_an_event_that_is_over_and_still_listed_is_gone_too(
    instance: AwsSimulator, watch: MakeSource, over: dict[str, str]
) -> None:
    """By its state, or by the word that the history puts before its description."""
    event = {"Code": "instance-stop", "NotBefore": "21 Nov 2026 10:00:00 GMT", "EventId": "instance-event-1"}
    instance.put(AwsScheduledEvents.key, json.dumps([event | over]).encode())
    assert watch(instance, AwsScheduledEvents).poll() == Sighting(SEEING)


@pytest.mark.parametrize("ahead", [2 * DAY, 300.0])
def test_an_event_on_another_day_is_another_notice(
    instance: AwsSimulator, watch: MakeSource, clock: ManualClock, ahead: float
) -> None:
    """Put off or brought forward: deadlines only move earlier, so the old one goes and the new one comes."""
    id = instance.maintenance("system-reboot", DAY)
    source = watch(instance, AwsScheduledEvents)
    before = the_notice(source)
    instance.reschedule(id, ahead)
    after = the_notice(source)
    assert after.id != before.id
    assert after.deadline == clock.monotonic() + ahead


def test_an_event_that_begins_stays_what_it_was(
    instance: AwsSimulator, watch: MakeSource, clock: ManualClock
) -> None:
    """It is still listed an hour after its time: the same notice, whose time has come."""
    instance.maintenance("instance-stop", 600)
    source = watch(instance, AwsScheduledEvents)
    notice = the_notice(source)
    clock.advance(4200)
    assert the_notice(source) is notice


def test_an_event_found_long_after_its_time_ends_nothing(
    instance: AwsSimulator, watch: MakeSource, clock: ManualClock
) -> None:
    """It may begin at any moment, or in hours: a checkpoint, and not the end of every run that is started here."""
    instance.maintenance("instance-stop", -3600)
    notice = the_notice(watch(instance, AwsScheduledEvents))
    assert (notice.severity, notice.kind) == (Severity.ADVISORY, NoticeKind.STOP)
    assert "may begin at any moment" in notice.detail
    instance.clear()
    instance.maintenance("instance-stop", -60)
    notice = the_notice(watch(instance, AwsScheduledEvents))
    assert (notice.severity, notice.deadline) == (Severity.LATER, clock.monotonic())


def test_an_event_that_cannot_be_read_blinds_for_itself_alone(
    instance: AwsSimulator, watch: MakeSource
) -> None:
    """The others are shown, and nothing is withdrawn: a source that does not see withdraws nothing."""
    good = {"Code": "instance-stop", "NotBefore": "21 Nov 2026 10:00:00 GMT", "State": "active"}
    listed = [{"Code": "system-reboot", "NotBefore": "soon", "State": "active"}, good]
    instance.put(AwsScheduledEvents.key, json.dumps(listed).encode())
    sighting = watch(instance, AwsScheduledEvents).poll()
    assert [notice.kind for notice in sighting.notices] == [NoticeKind.STOP]
    assert sighting.health.reason == "garbage"
    assert "no Code and NotBefore in 'system-reboot'" in sighting.health.detail


@pytest.mark.parametrize("skew", [60.0, -60.0])
def test_s18_an_event_is_as_wrong_as_the_clock_until_the_clock_is_right(
    instance: AwsSimulator, watch: MakeSource, clock: ManualClock, skew: float
) -> None:
    """Days ahead no clamp helps. Put right, a deadline moves earlier, and later it does not."""
    instance.maintenance("instance-stop", DAY, skew=skew)
    source = watch(instance, AwsScheduledEvents)
    first = the_notice(source)
    assert first.deadline == clock.monotonic() + DAY + skew
    clock.step_wall(skew)
    right = the_notice(source)
    assert right.deadline == clock.monotonic() + min(DAY, DAY + skew)
    assert (right.id, right.seen_at) == (first.id, first.seen_at)


def test_s18_an_event_that_a_wrong_clock_puts_into_the_past_is_later_once_it_is_right(
    instance: AwsSimulator, watch: MakeSource, clock: ManualClock
) -> None:
    """An hour ahead, it reads as past and mere advice; put right, it is the event that it is."""
    instance.maintenance("instance-stop", 1800)
    clock.step_wall(3600)
    source = watch(instance, AwsScheduledEvents)
    assert the_notice(source).severity is Severity.ADVISORY
    clock.step_wall(-3600)
    notice = the_notice(source)
    assert (notice.severity, notice.deadline) == (Severity.LATER, clock.monotonic() + 1800)
