"""What the simulated instance says ahead of time: recommendations, scheduled events, its group's wishes."""

from __future__ import annotations

import pytest
import requests

from spotguard.providers.errors import UsageError
from spotguard.providers.simulator.aws.maintenance import CODES, HISTORY, SCHEDULED
from spotguard.providers.simulator.aws.service import STATES, AwsSimulator
from tests.fakes.clock import ManualClock
from tests.providers.clouds.aws.curl import Client

ROOT = "/latest/meta-data/"


def get(client: Client, key: str) -> requests.Response:
    return client.get(ROOT + key)


@pytest.mark.parametrize(
    ("value", "status", "text"),
    [
        ("absent", 404, ""),
        ("garbage", 200, "none"),
        ("stale", 200, "2026-11-20T09:00:00Z"),
        ("valid", 200, "2026-11-20T10:02:00Z"),
    ],
)
def test_the_older_key_holds_what_it_was_seen_to_hold(
    client: Client, instance: AwsSimulator, value: str, status: int, text: str
) -> None:
    """Absent, no time, the time of an interruption that failed, and the time of one that comes; by itself."""
    instance.termination_time(value)
    answer = get(client, "spot/termination-time")
    assert answer.status_code == status
    assert answer.text == text or status == 404
    assert get(client, "spot/instance-action").status_code == 404


def test_another_value_of_the_older_key_is_refused(instance: AwsSimulator) -> None:
    with pytest.raises(UsageError, match="'soon': expected one of absent, garbage, stale, valid"):
        instance.termination_time("soon")


def test_an_event_is_listed_with_a_date_of_its_own_form(
    client: Client, instance: AwsSimulator, clock: ManualClock
) -> None:
    """As the documentation shows it; the date does not move."""
    id = instance.maintenance("system-reboot", ahead=86400)
    clock.advance(60)
    (event,) = get(client, SCHEDULED).json()
    assert event == {
        "NotBefore": "21 Nov 2026 10:00:00 GMT",
        "Code": "system-reboot",
        "Description": "The instance is scheduled for system-reboot",
        "EventId": id,
        "NotAfter": "21 Nov 2026 12:00:00 GMT",
        "State": "active",
        "NotBeforeDeadline": "28 Nov 2026 10:00:00 GMT",
    }
    assert id.startswith("instance-event-")


@pytest.mark.parametrize(("state", "prefix"), [("completed", "[Completed] "), ("canceled", "[Canceled] ")])
def test_an_event_that_is_over_is_history(
    client: Client, instance: AwsSimulator, state: str, prefix: str
) -> None:
    """With a word before its description; the others stay."""
    first, other = instance.maintenance("instance-stop"), instance.maintenance("system-maintenance")
    instance.maintenance_over(state, first)
    (active,), (over,) = get(client, SCHEDULED).json(), get(client, HISTORY).json()
    assert (active["EventId"], over["EventId"], over["State"]) == (other, first, state)
    assert over["Description"].startswith(prefix)
    instance.maintenance_over()
    assert get(client, SCHEDULED).text == "[]"


def test_an_event_can_be_put_off(client: Client, instance: AwsSimulator) -> None:
    """It keeps its id."""
    id = instance.maintenance(ahead=600)
    instance.reschedule(id, 7200)
    (event,) = get(client, SCHEDULED).json()
    assert (event["EventId"], event["NotBefore"]) == (id, "20 Nov 2026 12:00:00 GMT")


def test_every_code_of_the_documentation_can_be_scheduled(client: Client, instance: AwsSimulator) -> None:
    """And any other word, at the same time."""
    for code in (*CODES, "instance-teleport"):
        instance.maintenance(code)
    listed = get(client, SCHEDULED).json()
    assert [event["Code"] for event in listed] == [*CODES, "instance-teleport"]
    assert len({event["EventId"] for event in listed}) == len(listed)


@pytest.mark.parametrize("state", STATES)
def test_a_group_says_one_word(client: Client, instance: AwsSimulator, state: str) -> None:
    """And nothing, where there is no group."""
    assert get(client, "autoscaling/target-lifecycle-state").status_code == 404
    instance.autoscaling(state)
    assert get(client, "autoscaling/target-lifecycle-state").text == state


def test_clear_takes_these_back_too(client: Client, instance: AwsSimulator) -> None:
    """Events as if they had never been, and no group."""
    instance.maintenance()
    instance.maintenance_over()
    instance.maintenance()
    instance.termination_time("valid")
    instance.autoscaling("Terminated")
    instance.clear()
    assert get(client, SCHEDULED).text == get(client, HISTORY).text == "[]"
    assert get(client, "spot/termination-time").status_code == 404
    assert get(client, "autoscaling/target-lifecycle-state").status_code == 404
