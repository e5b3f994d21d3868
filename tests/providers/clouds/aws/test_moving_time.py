"""A key whose time is new at each look, as AWS's public mock has it at its defaults, holds one warning."""

from __future__ import annotations

import pytest

from spotguard.providers.clouds.aws.events import Rebalance
from spotguard.providers.clouds.aws.spot import InstanceAction, TerminationTime
from spotguard.providers.simulator.aws.service import AwsSimulator
from tests.fakes.clock import ManualClock
from tests.providers.clouds.looking import MakeSource, the_notice


@pytest.mark.parametrize("kind", [InstanceAction, TerminationTime])
def test_the_earliest_deadline_stands_under_one_id(
    instance: AwsSimulator,
    watch: MakeSource,
    clock: ManualClock,
    kind: type[InstanceAction] | type[TerminationTime],
) -> None:
    """The mock answers with two minutes from each request on, for ever."""
    source = watch(instance, kind)
    instance.preempt()
    source.poll()  # the legacy key tells at its second look
    clock.advance(1)
    instance.preempt()
    first = the_notice(source)
    for _ in range(130):
        clock.advance(1)
        instance.preempt()
        assert the_notice(source) is first
    assert first.deadline == clock.monotonic() - 130 + 119


def test_an_earlier_time_moves_the_deadline(
    instance: AwsSimulator, watch: MakeSource, clock: ManualClock
) -> None:
    """And the id stays."""
    source = watch(instance)
    instance.preempt(120)
    first = the_notice(source)
    instance.preempt(60)
    sooner = the_notice(source)
    assert (sooner.id, sooner.deadline) == (first.id, clock.monotonic() + 60)


def test_another_action_is_another_notice(instance: AwsSimulator, watch: MakeSource) -> None:
    """Stopping and terminating are two ends."""
    source = watch(instance)
    instance.preempt(120)
    first = the_notice(source)
    instance.preempt(120, "stop")
    assert the_notice(source).id != first.id


@pytest.mark.parametrize("spared", ["absent", "overdue"])
def test_an_interruption_after_one_that_failed_is_another_notice(
    instance: AwsSimulator, watch: MakeSource, clock: ManualClock, spared: str
) -> None:
    """The key was absent in between, or still held the old time long after it."""
    source = watch(instance)
    source.poll()
    instance.preempt()
    first = the_notice(source)
    if spared == "absent":
        instance.clear()
        source.poll()
        clock.advance(1)
    else:
        clock.advance(3600)
        the_notice(source)
    instance.preempt()
    second = the_notice(source)
    assert second.id != first.id
    assert second.deadline == clock.monotonic() + 120


def test_a_recommendation_that_is_new_at_each_look_is_one(
    instance: AwsSimulator, watch: MakeSource, clock: ManualClock
) -> None:
    """One that comes after the first has stood unchanged for hours is another."""
    source = watch(instance, Rebalance)
    ids = set()
    for _ in range(400):
        instance.rebalance()
        ids.add(the_notice(source).id)
        clock.advance(10)
    assert len(ids) == 1
    for _ in range(100):
        assert the_notice(source).id in ids
        clock.advance(10)
    instance.rebalance()
    assert the_notice(source).id not in ids
