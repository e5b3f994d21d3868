"""What a group wants of its instance: `autoscaling/target-lifecycle-state`, over real sockets and any bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotguard.providers.clouds.aws.autoscaling import TargetState, parse_state
from spotguard.providers.health import SEEING
from spotguard.providers.notice import NoticeKind, Severity, Sighting
from spotguard.providers.simulator.aws.service import STATES, AwsSimulator
from tests.fakes.clock import ManualClock
from tests.providers.clouds.looking import MakeSource, the_notice


def test_terminated_is_the_end_soon(instance: AwsSimulator, watch: MakeSource, clock: ManualClock) -> None:
    """No time is said: 30 s from the first look, and not from each."""
    source = watch(instance, TargetState)
    assert source.poll() == Sighting(SEEING)  # a young instance has no such key
    instance.autoscaling("InService")
    assert source.poll() == Sighting(SEEING)
    instance.autoscaling("Terminated")
    notice = the_notice(source)
    assert (notice.kind, notice.severity) == (NoticeKind.TERMINATE, Severity.TERMINAL)
    assert (notice.deadline, notice.window) == (clock.monotonic() + 30, 30)
    clock.advance(3600)  # a lifecycle hook may hold it so long
    assert the_notice(source) is notice


def test_a_group_that_forgets_its_instance_takes_nothing_back(
    instance: AwsSimulator, watch: MakeSource
) -> None:
    """The key goes while the instance ends: no withdrawal."""
    source = watch(instance, TargetState)
    instance.autoscaling("Terminated")
    notice = the_notice(source)
    instance.remove(TargetState.key)
    assert the_notice(source) is notice


def test_another_word_takes_it_back(instance: AwsSimulator, watch: MakeSource, clock: ManualClock) -> None:
    """And the end that comes after that is a new one, with time of its own."""
    source = watch(instance, TargetState)
    instance.autoscaling("Terminated")
    the_notice(source)
    clock.advance(600)
    instance.autoscaling("InService")
    assert source.poll() == Sighting(SEEING)
    instance.autoscaling("Terminated")
    assert the_notice(source).deadline == clock.monotonic() + 30


@pytest.mark.parametrize(
    ("state", "kind"),
    [
        ("Warmed:Stopped", NoticeKind.STOP),
        ("Warmed:Hibernated", NoticeKind.HIBERNATE),
        ("Warmed:Running", None),
    ],
)
def test_a_warm_pool_prepares_an_instance_and_takes_one_back(
    instance: AwsSimulator, watch: MakeSource, state: str, kind: NoticeKind | None
) -> None:
    """The same word: nothing new on one that has never served, the end on one that has."""
    instance.autoscaling(state)
    source = watch(instance, TargetState)
    assert source.poll() == Sighting(SEEING)
    instance.autoscaling("InService")
    source.poll()
    instance.autoscaling(state)
    assert [notice.kind for notice in source.poll().notices] == ([] if kind is None else [kind])


def test_an_unknown_word_is_blindness_that_names_it(instance: AwsSimulator, watch: MakeSource) -> None:
    """Logged when it comes and every minute: who does not know a word does not know that all is well."""
    instance.autoscaling("Rebooting")
    sighting = watch(instance, TargetState).poll()
    assert (sighting.notices, sighting.health.reason) == ((), "garbage")
    assert "no state that this program knows in 'Rebooting'" in sighting.health.detail


# --- the parser ---------------------------------------------------------------------------------------------


@given(st.binary() | st.text().map(str.encode) | st.sampled_from(STATES).map(str.encode), st.booleans())
def test_no_bytes_raise_and_only_known_words_are_nothing(data: bytes, served: bool) -> None:
    sighting = parse_state(data, ManualClock(), served=served)
    known = {state.lower() for state in STATES}
    assert sighting.health.seeing is (data.decode("utf-8", "replace").strip().lower() in known)
    assert bool(sighting.notices) <= sighting.health.seeing
    assert sighting.health.detail.isprintable()


@pytest.mark.parametrize("state", STATES)
def test_under_an_errors_status_no_word_is_believed(state: str) -> None:
    """It comes again in ten seconds, or the error is seen."""
    sighting = parse_state(state.encode(), ManualClock(), served=True, strict=True)
    assert (sighting.notices, sighting.health.reason) == ((), "garbage")


@pytest.mark.parametrize("text", ["Terminated", "terminated\n", " TERMINATED ", "Warmed:Terminated"])
def test_case_and_blanks_do_not_matter(text: str) -> None:
    """A termination is one also out of a warm pool."""
    (notice,) = parse_state(text.encode(), ManualClock()).notices
    assert notice.kind is NoticeKind.TERMINATE
