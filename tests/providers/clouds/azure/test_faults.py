"""Whatever Azure's service does wrong is blindness by its name, and never "no notice"."""

from __future__ import annotations

from contextlib import closing

import pytest
from responses import RequestsMock

from spotguard.providers.clouds.azure.imds import EVENTS_PATH, AzureImds
from spotguard.providers.clouds.azure.source import AzureScheduledEvents
from spotguard.providers.health import SEEING, Sight
from spotguard.providers.notice import Acknowledging, NoticeSource, Sighting
from spotguard.providers.simulator.azure.service import AzureSimulator
from spotguard.providers.simulator.faults import REDIRECTED
from tests.fakes.clock import ManualClock
from tests.providers.clouds.azure.looking import IMPATIENT, Watch
from tests.providers.clouds.blindness import EVERYWHERE, assert_blind
from tests.providers.clouds.canned import CANNED, a_vm_of_azure

BLIND = EVERYWHERE | {"410": "server-error", "garbage": "garbage"}


# --- S17: what goes wrong --------------------------------------------------------------------------------------


@pytest.mark.parametrize("seen_before", [False, True])
@pytest.mark.parametrize("fault", BLIND)
def test_s17_every_fault_is_blindness_by_its_name_and_ends_with_it(
    vm: AzureSimulator, watch: Watch, fault: str, seen_before: bool
) -> None:
    """Never "no notice", never an exception, always a way out; and the first look after it sees."""
    timeout = IMPATIENT if BLIND[fault] == "timeout" else 5.0
    looker = watch(vm, timeout=timeout, first_timeout=timeout)
    if seen_before:
        looker.look()
    vm.fault(fault, path=EVENTS_PATH)
    sighting = looker.look()
    assert_blind(sighting, fault, BLIND[fault])
    assert vm.endpoint in sighting.health.detail
    vm.clear()
    vm.preempt()
    looker.the_notice()


def test_s17_a_redirect_is_not_followed(vm: AzureSimulator, watch: Watch) -> None:
    """Where it leads, nobody asks."""
    vm.fault("redirect")
    looker = watch(vm)
    for _ in range(3):
        looker.look()
    assert vm.count(status=302) >= 4
    assert vm.count(path=REDIRECTED) == 0


def test_s17_azure_signs_nothing_so_the_words_count(vm: AzureSimulator, watch: Watch) -> None:
    """A proxy that passes on bodies and no headers passes on notices."""
    vm.fault("foreign")
    looker = watch(vm)
    assert looker.look() == Sighting(SEEING)
    vm.preempt()
    looker.the_notice()


@pytest.mark.parametrize(
    ("status", "body", "reason", "notices"),
    [
        (200, b"", "garbage", 0),
        (200, b"{}", "garbage", 0),
        (200, b'{"Events": []}', "garbage", 0),
        (200, b'{"DocumentIncarnation": 1, "Events": null}', "garbage", 0),
        (200, b'{"DocumentIncarnation": 1, "Events": [7]}', "garbage", 0),
        (200, b'{"DocumentIncarnation": 1, "Events": [7, {"EventType": "Preempt"}]}', "garbage", 1),
        (200, b'{"Events": [{"EventType": "Preempt"}]}', "garbage", 1),
        (200, b"<html></html>", "wrong-server", 0),
        (400, b'{"error": "Bad request. api-version is invalid"}', "garbage", 0),
        (401, b"", "forbidden", 0),
        (403, b"", "forbidden", 0),
        (404, b"", "missing-key", 0),
        (405, b"", "garbage", 0),
        (500, b'{"DocumentIncarnation": 1, "Events": []}', "server-error", 0),
        (500, b'{"DocumentIncarnation": 1, "Events": [{"EventType": "Preempt"}]}', "server-error", 1),
        (500, b'{"Events": [{"EventType": "Preempt"}]}', "server-error", 0),
    ],
)
def test_s17_the_body_decides(
    canned: RequestsMock, clock: ManualClock, status: int, body: bytes, reason: str, notices: int
) -> None:
    """A notice is believed under any status where it is one, and nothing passes for "no notice" that is not."""
    a_vm_of_azure(canned)
    canned.get(CANNED + EVENTS_PATH, status=status, body=body)
    with closing(AzureScheduledEvents(AzureImds(CANNED, clock), clock)) as source:
        sighting = source.poll()
    assert not sighting.health.seeing
    assert (sighting.health.reason, len(sighting.notices)) == (reason, notices)


def test_s17_what_blindness_hides_still_stands(vm: AzureSimulator, watch: Watch) -> None:
    """A list that could not be read whole takes nothing back."""
    looker = watch(vm)
    vm.preempt()
    first = looker.the_notice()
    vm.fault("garbage", count=3)
    assert [looker.look().health.seeing for _ in range(3)] == [False] * 3
    assert looker.the_notice() is first


# --- as a source ---------------------------------------------------------------------------------------------


def test_nobody_there_is_unreachable(clock: ManualClock) -> None:
    """As on a laptop; the advice says how to go without."""
    source = AzureScheduledEvents(AzureImds("http://127.0.0.1:9", clock), clock)
    health = source.poll().health
    source.close()
    assert (health.sight, health.reason) == (Sight.BLIND, "unreachable")
    assert "--provider none" in health.advice


def test_a_bug_makes_blind_and_not_dead(vm: AzureSimulator, clock: ManualClock) -> None:
    """`poll` never raises: an agent that dies is blind for good."""

    class Broken(AzureImds):
        def name(self) -> None:
            raise RuntimeError("a bug")

    source = AzureScheduledEvents(Broken(vm.endpoint, clock), clock)
    health = source.poll().health
    source.close()
    assert (health.sight, health.detail) == (Sight.BLIND, "RuntimeError: a bug")


def test_it_is_a_source_as_the_agent_knows_one(vm: AzureSimulator, watch: Watch) -> None:
    """What it no longer shows was withdrawn, and it can acknowledge."""
    source: NoticeSource = watch(vm).source
    assert (source.name, source.interval, source.withdraws) == ("azure scheduledevents", 1.0, True)
    assert isinstance(source, Acknowledging)
