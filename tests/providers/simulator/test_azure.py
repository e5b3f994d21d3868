"""The simulated machine of a scale set is as faithful as Azure's pages: asked by plain requests."""

from __future__ import annotations

from pathlib import Path

import pytest

from spotguard.providers.errors import UsageError
from spotguard.providers.simulator import cli
from spotguard.providers.simulator.azure import cli as azure_cli
from spotguard.providers.simulator.azure.service import AzureSimulator
from spotguard.providers.simulator.scenario import parse_script
from tests.fakes.clock import ManualClock
from tests.fixtures_simulator import SimulateAzure
from tests.providers.clouds.azure.curl import EVENTS, METADATA, NAME, approve, ask, events

GUID = "C7061BAC-AFDC-4513-B24B-AA5F13A16123"


@pytest.fixture
def vm(simulate_azure: SimulateAzure, clock: ManualClock) -> AzureSimulator:
    """A simulated machine on the clock by hand, whose events are on, and whose requests are not counted."""
    return simulate_azure(clock, enabling=0, limit=None)


# --- what is refused ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [EVENTS, NAME])
@pytest.mark.parametrize(
    ("headers", "word"),
    [
        ({}, "header not specified"),
        ({"Metadata": "false"}, "header not specified"),
        ({**METADATA, "X-Forwarded-For": "203.0.113.7"}, "X-Forwarded-For"),
    ],
)
def test_a_request_without_its_header_or_sent_on_by_a_proxy_is_bad(
    vm: AzureSimulator, path: str, headers: dict[str, str], word: str
) -> None:
    """400, with the reason as JSON."""
    answer = ask(vm, "GET", path, headers)
    assert answer.status_code == 400
    assert word in answer.json()["error"]


@pytest.mark.parametrize(
    "path",
    [
        "/metadata/scheduledevents",
        "/metadata/scheduledevents?api-version=2031-01-01",
        "/metadata/instance/compute/name?format=text",
        "/metadata/instance?api-version=soon",
    ],
)
def test_a_request_without_a_version_is_told_the_newest(vm: AzureSimulator, path: str) -> None:
    """400, and what could be asked for."""
    answer = ask(vm, "GET", path)
    assert answer.status_code == 400
    assert answer.json()["newest-versions"][0] == "2025-04-07"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/metadata/instance/compute/nothing?api-version=2021-02-01&format=text", 404),
        ("GET", "/metadata/attested?api-version=2021-02-01", 404),
        ("GET", "/metadata/instance/compute/name?api-version=2021-02-01", 400),
        ("GET", EVENTS + "&api-version=2020-07-01", 400),
        ("PUT", EVENTS, 405),
        ("POST", NAME, 405),
    ],
)
def test_an_unknown_path_is_refused(vm: AzureSimulator, method: str, path: str, status: int) -> None:
    """A leaf needs format=text, a name stands in a query once, and only events are posted to."""
    assert ask(vm, method, path).status_code == status


def test_more_than_five_requests_in_a_second_are_too_many(
    simulate_azure: SimulateAzure, clock: ManualClock
) -> None:
    """Whatever they ask for; a second later there is room again."""
    vm = simulate_azure(clock, enabling=0)
    paths = [EVENTS, NAME, EVENTS, NAME, EVENTS, NAME, EVENTS]
    assert [ask(vm, "GET", path).status_code for path in paths] == [200] * 5 + [429] * 2
    clock.advance(0.5)
    assert ask(vm, "GET", EVENTS).status_code == 429
    clock.advance(0.5)
    assert ask(vm, "GET", EVENTS).status_code == 200


# --- the machine --------------------------------------------------------------------------------------------


def test_the_machine_says_its_name_in_text_and_its_data_in_json(vm: AzureSimulator) -> None:
    """As its service signs itself."""
    answer = ask(vm, "GET", NAME)
    assert (answer.status_code, answer.text) == (200, "pool-vmss_12")
    assert answer.headers["Content-Type"].startswith("text/plain")
    assert answer.headers["Server"].startswith("IMDS/")
    compute = ask(vm, "GET", "/metadata/instance/compute?api-version=2021-02-01").json()
    assert (compute["name"], compute["priority"]) == ("pool-vmss_12", "Spot")
    assert ask(vm, "GET", "/metadata/instance?api-version=2021-02-01").json()["compute"]["name"] == vm.vm_name


# --- events -------------------------------------------------------------------------------------------------


def test_without_events_the_list_is_empty(vm: AzureSimulator) -> None:
    """It is a document all the same."""
    assert ask(vm, "GET", EVENTS).json() == {"DocumentIncarnation": 1, "Events": []}


def test_an_eviction_is_scheduled_begins_and_is_over(vm: AzureSimulator, clock: ManualClock) -> None:
    """Its date is blank once it has begun, and no status says that it is done."""
    assert vm.preempt() == clock.monotonic() + 30
    (scheduled,) = events(vm)
    assert (scheduled["EventType"], scheduled["EventStatus"]) == ("Preempt", "Scheduled")
    assert (scheduled["Resources"], scheduled["ResourceType"]) == (["pool-vmss_12"], "VirtualMachine")
    assert scheduled["NotBefore"] == "Fri, 20 Nov 2026 10:00:30 GMT"
    clock.advance(29)
    assert events(vm) == [scheduled]
    clock.advance(1)
    (started,) = events(vm)
    assert (started["EventStatus"], started["NotBefore"]) == ("Started", "")
    assert started["EventId"] == scheduled["EventId"]
    clock.advance(600)
    assert events(vm) == []


def test_the_incarnation_changes_with_the_list_and_only_then(vm: AzureSimulator, clock: ManualClock) -> None:
    """A client may go by it."""
    seen = []
    for happens in (lambda: None, vm.preempt, lambda: None, vm.begin, vm.finish):
        happens()
        clock.advance(1)
        seen.append(ask(vm, "GET", EVENTS).json()["DocumentIncarnation"])
    assert seen == [1, 2, 2, 3, 4]


def test_an_event_is_anybodys_of_the_set(simulate_azure: SimulateAzure, clock: ManualClock) -> None:
    """This machine's, another's, all; in capital letters, where that is wanted."""
    vm = simulate_azure(clock, enabling=0, others=2, capitals=True)
    for of in ("us", "other", "all"):
        vm.schedule("Freeze", of=of)
    assert [event["Resources"] for event in events(vm)] == [
        ["POOL-VMSS_12"],
        ["POOL-VMSS_100"],
        ["POOL-VMSS_100", "POOL-VMSS_101", "POOL-VMSS_12"],
    ]
    with pytest.raises(UsageError, match="of 'me': expected one of us, other, all"):
        vm.preempt(of="me")


def test_as_the_mock_server_has_it(simulate_azure: SimulateAzure, clock: ManualClock) -> None:
    """ISO dates, and another id when an event begins."""
    vm = simulate_azure(clock, enabling=0, dates="iso", new_ids=True)
    vm.preempt(skew=60)
    (before,) = events(vm)
    vm.begin()
    (after,) = events(vm)
    assert before["NotBefore"] == "2026-11-20T10:01:30Z"
    assert before["EventId"] != after["EventId"]


def test_a_failing_host_is_a_reboot_that_has_begun(vm: AzureSimulator) -> None:
    """Nobody was warned."""
    vm.fail()
    assert [(event["EventType"], event["EventStatus"]) for event in events(vm)] == [("Reboot", "Started")]


def test_an_event_that_has_not_begun_can_be_cancelled(vm: AzureSimulator) -> None:
    """And nothing else."""
    vm.fail()
    vm.preempt()
    vm.cancel()
    assert [event["EventType"] for event in events(vm)] == ["Reboot"]
    vm.finish()
    vm.preempt()
    vm.cancel()
    assert (events(vm), vm.deadline) == ([], None)


def test_an_approved_event_begins_at_once(vm: AzureSimulator, clock: ManualClock) -> None:
    """200 for any id that could be one; what it names begins for all that it is about."""
    vm.preempt(of="all")
    (scheduled,) = events(vm)
    assert approve(vm, GUID) == 200
    assert events(vm) == [scheduled]
    assert approve(vm, scheduled["EventId"].lower()) == 200
    (started,) = events(vm)
    assert started["EventStatus"] == "Started"
    assert vm.deadline == clock.monotonic()
    assert approve(vm, scheduled["EventId"]) == 200  # another machine may have been first


@pytest.mark.parametrize(
    "body", ["", "{}", "[]", '{"StartRequests": [{}]}', '{"StartRequests": [{"EventId": "all"}]}', "\x00"]
)
def test_a_malformed_approval_is_refused(vm: AzureSimulator, body: str) -> None:
    """400, and nothing begins."""
    vm.preempt()
    assert ask(vm, "POST", EVENTS, body=body).status_code == 400
    assert [event["EventStatus"] for event in events(vm)] == ["Scheduled"]


def test_the_first_call_is_answered_when_events_are_on(simulate_azure: SimulateAzure) -> None:
    """On the machine's own time: it is late, and from then on there is no waiting."""
    vm = simulate_azure(enabling=0.2)
    first, second = ask(vm, "GET", EVENTS), ask(vm, "GET", EVENTS)
    assert (first.status_code, second.status_code) == (200, 200)
    assert first.elapsed.total_seconds() >= 0.2
    assert vm.count("GET", EVENTS, 200) == 2


def test_clear_takes_everything_back(vm: AzureSimulator) -> None:
    """Events, begun or not, and faults."""
    vm.fail()
    vm.preempt()
    vm.fault("410", seconds=70)
    assert ask(vm, "GET", EVENTS).status_code == 410
    vm.clear()
    assert events(vm) == []
    assert vm.deadline is None


# --- the command --------------------------------------------------------------------------------------------


def test_each_line_of_a_script_does_what_it_says(simulate_azure: SimulateAzure, clock: ManualClock) -> None:
    """A time, a verb, its settings."""
    told: list[str] = []
    vm = simulate_azure(clock, enabling=0, others=1, tell=told.append)
    text = """
        1s  preempt window=20s of=other
        2s  schedule reboot window=15m
        3s  cancel
        4s  fail
        5s  finish
        6s  schedule freeze of=all
        7s  begin
        8s  fault 410 for=70s
        9s  clear
    """
    for step in parse_script(text, "x", azure_cli.VERBS):
        step.do(vm)
    assert told == [
        "notice: Preempt of pool-vmss_100, 20 s from now",
        "notice: Reboot of pool-vmss_12, 900 s from now",
        "Preempt of pool-vmss_100 is called off",
        "Reboot of pool-vmss_12 is called off",
        "notice: Reboot of pool-vmss_12, 0 s from now",
        "Reboot of pool-vmss_12 has started",
        "Reboot of pool-vmss_12 is over",
        "notice: Freeze of pool-vmss_100, pool-vmss_12, 900 s from now",
        "Freeze of pool-vmss_100, pool-vmss_12 has started",
        "fault: 410 for 70 s",
        "all clear",
    ]


def test_the_command_plays_flags_and_script(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """As for any cloud."""
    script = tmp_path / "script"
    script.write_text("0.02 schedule freeze of=other\n0.06 begin\n")
    words = ["--preempt-after=0.04", "--window=0.01", "--vm-name=gpu-7", "--enabling=0", f"--script={script}"]
    assert cli.main(["azure", "--for=1", *words]) == 0
    out = capsys.readouterr().out
    assert "spotguard run --provider azure --metadata-endpoint http://127.0.0.1:" in out
    order = ["Freeze of pool-vmss_100", "notice: Preempt of gpu-7", "has started", "ended;"]
    positions = [out.index(words) for words in order]
    assert positions == sorted(positions)
    # It is counted from the notice, which a busy machine plays late.
    assert out.count("the deadline: a real instance is gone now") == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--of", "me"], "argument --of: invalid choice: 'me'"),
        (["--dates", "none"], "argument --dates: invalid choice: 'none'"),
        (["--fault", "401"], "argument --fault: invalid choice: '401'"),
        (["--others", "-1"], "argument --others: '-1' is not a number of machines: expected 1 to 1000"),
    ],
)
def test_a_usage_error_is_refused(capsys: pytest.CaptureFixture[str], words: list[str], message: str) -> None:
    """Code 2, and nothing listens."""
    with pytest.raises(SystemExit) as end:
        cli.main(["azure", *words])
    assert end.value.code == 2
    assert message in capsys.readouterr().err
