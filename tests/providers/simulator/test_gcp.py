"""The simulated VM is as faithful as the documentation and captures of the real one: asked by plain requests."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from spotguard.providers.errors import UsageError
from spotguard.providers.simulator.gcp.service import GcpSimulator
from spotguard.providers.simulator.gcp.upcoming import NOTHING, SPELLINGS
from tests.fakes.awake import STAYS_AWAKE
from tests.fakes.clock import ManualClock
from tests.fixtures_simulator import SimulateGcp
from tests.providers.clouds.gcp.curl import FLAVOR, PREEMPTED, ROOT, Held, ask, get

WAIT = "?wait_for_change=true"


@pytest.fixture
def vm(simulate_gcp: SimulateGcp, clock: ManualClock) -> GcpSimulator:
    """A simulated VM on the clock by hand."""
    return simulate_gcp(clock)


# --- the tree -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "text", "kind"),
    [
        ("instance/preempted", "FALSE", "application/text"),
        ("instance/preempted?alt=json", '"FALSE"', "application/json"),
        ("instance/maintenance-event", "NONE", "application/text"),
        ("instance/tags", '["training"]', "application/json"),
        ("instance/scheduling/", "automatic-restart\non-host-maintenance\npreemptible\n", "application/text"),
        (
            "instance/scheduling/?recursive=true",
            '{"automaticRestart": "FALSE", "onHostMaintenance": "TERMINATE", "preemptible": "TRUE"}',
            "application/json",
        ),
        (
            "instance/scheduling/?recursive=true&alt=text",
            "automatic-restart FALSE\non-host-maintenance TERMINATE\npreemptible TRUE\n",
            "application/text",
        ),
        ("", "instance/\nproject/\n", "application/text"),
    ],
)
def test_keys_and_folders_are_text_or_json(vm: GcpSimulator, path: str, text: str, kind: str) -> None:
    """A folder lists its children, one to a line, folders with a slash; below it all, names are in camelCase."""
    answer = get(vm, ROOT + path)
    assert (answer.status_code, answer.text, answer.headers["Content-Type"]) == (200, text, kind)
    assert (answer.headers["Server"], answer.headers["Metadata-Flavor"]) == (
        "Metadata Server for VM",
        "Google",
    )
    assert len(answer.headers["ETag"]) == 16


@pytest.mark.parametrize(("path", "text"), [("/", "computeMetadata/\n"), ("/computeMetadata/", "v1/\n")])
def test_the_way_down_is_listed(vm: GcpSimulator, path: str, text: str) -> None:
    assert get(vm, path).text == text


def test_a_folder_without_its_slash_leads_to_it(vm: GcpSimulator) -> None:
    answer = get(vm, f"{ROOT}instance/scheduling")
    assert (answer.status_code, answer.headers["Location"]) == (301, f"{ROOT}instance/scheduling/")


@pytest.mark.parametrize(
    "path", ["instance/nothing", "instance/preempted/", "instance/shutdown-details/stop-state"]
)
def test_a_missing_key_is_a_signed_page(vm: GcpSimulator, path: str) -> None:
    answer = get(vm, ROOT + path)
    assert (answer.status_code, answer.headers["Metadata-Flavor"]) == (404, "Google")
    assert "<title>Error 404 (Not Found)!!1</title>" in answer.text
    assert "ETag" not in answer.headers


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        ({}, "Missing Metadata-Flavor:Google header."),
        ({"Metadata-Flavor": "Vanilla"}, "Missing Metadata-Flavor:Google header."),
        ({**FLAVOR, "X-Forwarded-For": "203.0.113.7"}, "does not have permission"),
    ],
)
def test_without_the_header_or_forwarded_nothing_is_read(
    vm: GcpSimulator, headers: dict[str, str], said: str
) -> None:
    answer = ask(vm, "GET", PREEMPTED, headers)
    assert (answer.status_code, answer.headers["Metadata-Flavor"]) == (403, "Google")
    assert said in answer.text


def test_the_root_needs_no_header_and_other_methods_are_refused(vm: GcpSimulator) -> None:
    """By the root's, a library finds out where it is."""
    assert ask(vm, "GET", "/", {}).headers["Metadata-Flavor"] == "Google"
    assert ask(vm, "POST", PREEMPTED, FLAVOR).status_code == 405


def test_gke_hides_what_is_not_for_pods(simulate_gcp: SimulateGcp) -> None:
    """Neither preemption nor maintenance; the id is there."""
    vm = simulate_gcp(gke=True)
    vm.preempt()
    for key in ("preempted", "maintenance-event", "upcoming-maintenance?alt=json", "scheduling/preemptible"):
        answer = get(vm, f"{ROOT}instance/{key}")
        assert (answer.status_code, answer.headers["Server"]) == (404, "GKE Metadata Server")
    answer = get(vm, f"{ROOT}instance/id")
    assert (answer.status_code, answer.headers["Server"]) == (200, "GKE Metadata Server")


# --- what is held -------------------------------------------------------------------------------------------


def test_a_request_that_waits_is_held_until_the_value_changes(vm: GcpSimulator) -> None:
    """With the ETag in hand, and without."""
    etag = get(vm, PREEMPTED).headers["ETag"]
    held = [Held(vm, f"{PREEMPTED}{WAIT}&last_etag={etag}"), Held(vm, f"{PREEMPTED}{WAIT}")]
    assert vm.wait_for_held(2)
    vm.maintain("migrate")
    assert vm.wait_for_held(2)
    assert [one.answer for one in held] == [None, None]
    vm.preempt()
    answers = [one.answered() for one in held]
    assert [answer.text for answer in answers] == ["TRUE", "TRUE"]
    assert etag not in [answer.headers["ETag"] for answer in answers]


def test_without_last_etag_a_change_that_has_been_is_never_told(vm: GcpSimulator, clock: ManualClock) -> None:
    """The trap that a careless client falls into."""
    vm.preempt()
    held = Held(vm, f"{PREEMPTED}{WAIT}&timeout_sec=600")
    assert vm.wait_for_held()
    clock.advance(599)
    assert vm.wait_for_held()
    assert held.answer is None
    clock.advance(1)
    assert held.answered().text == "TRUE"


@pytest.mark.parametrize("etag", ["NONE", "0", "411261ca6c9e4ad5"])
def test_another_etag_than_the_values_is_answered_at_once(vm: GcpSimulator, etag: str) -> None:
    """Whether it was ever its own or not."""
    assert get(vm, f"{PREEMPTED}{WAIT}&last_etag={etag}").text == "FALSE"


def test_when_its_time_is_over_the_old_value_comes_under_the_old_etag(
    vm: GcpSimulator, clock: ManualClock
) -> None:
    """With 200: nothing went wrong."""
    etag = get(vm, PREEMPTED).headers["ETag"]
    held = Held(vm, f"{PREEMPTED}{WAIT}&last_etag={etag}&timeout_sec=20")
    assert vm.wait_for_held()
    clock.advance(20)
    answer = held.answered()
    assert (answer.status_code, answer.text, answer.headers["ETag"]) == (200, "FALSE", etag)


def test_a_folder_can_be_waited_for(vm: GcpSimulator) -> None:
    """Its ETag is another than its keys', and changes with them."""
    folder = f"{ROOT}instance/?recursive=true&alt=json"
    etag = get(vm, folder).headers["ETag"]
    held = Held(vm, f"{folder}&wait_for_change=true&last_etag={etag}")
    assert vm.wait_for_held()
    vm.preempt()
    assert held.answered().json()["preempted"] == "TRUE"


@pytest.mark.parametrize("path", [f"{ROOT}instance/nothing{WAIT}", f"{PREEMPTED}{WAIT}&timeout_sec=soon"])
def test_a_hanging_get_that_cannot_wait_is_refused_at_once(vm: GcpSimulator, path: str) -> None:
    """A key that is not there, a time that is none."""
    assert get(vm, path).status_code in (400, 404)


def test_stopping_lets_go_of_what_is_held() -> None:
    simulator = GcpSimulator()
    simulator.start()
    held = Held(simulator, f"{PREEMPTED}{WAIT}")
    assert simulator.wait_for_held()
    simulator.stop()
    held.let_go()


# --- faults -------------------------------------------------------------------------------------------------


def test_a_storm_meets_what_is_held_too(vm: GcpSimulator) -> None:
    """A held request gets 503 in its middle."""
    held = Held(vm, f"{PREEMPTED}{WAIT}")
    assert vm.wait_for_held()
    vm.fault("503")
    assert held.answered().status_code == 503


def test_faults_of_held_requests_leave_the_others_alone(vm: GcpSimulator) -> None:
    """Refused, or answered at once."""
    vm.fault("held-503", count=1)
    assert get(vm, PREEMPTED).status_code == 200
    assert get(vm, f"{PREEMPTED}{WAIT}").status_code == 503
    vm.fault("held-not", count=1)
    assert get(vm, f"{PREEMPTED}{WAIT}").text == "FALSE"
    assert vm.count(path="instance/preempted", status=200) == 1


def test_an_etag_may_change_and_the_value_not(vm: GcpSimulator) -> None:
    """Also for who is held."""
    vm.fault("etag")
    etags = {get(vm, PREEMPTED).headers["ETag"] for _ in range(3)}
    answer = get(vm, f"{PREEMPTED}{WAIT}&last_etag={etags.pop()}")
    assert (answer.text, answer.headers["ETag"] in etags) == ("FALSE", False)


@pytest.mark.parametrize(
    ("fault", "status", "flavor"),
    [
        ("flavor", 200, "Vanilla"),
        ("foreign", 200, None),
        ("404-unsigned", 404, None),
        ("garbage", 200, "Google"),
    ],
)
def test_signatures_may_be_wrong_or_missing(
    vm: GcpSimulator, fault: str, status: int, flavor: str | None
) -> None:
    vm.fault(fault)
    answer = get(vm, PREEMPTED)
    assert (answer.status_code, answer.headers.get("Metadata-Flavor")) == (status, flavor)


# --- maintenance and stops ------------------------------------------------------------------------------------


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_planned_maintenance_in_every_spelling(vm: GcpSimulator, spelling: str) -> None:
    """Each names the start of its window, an hour from now."""
    vm.plan(3600, spelling=spelling)
    answer = get(vm, f"{ROOT}instance/upcoming-maintenance?alt=json")
    assert (answer.status_code, answer.headers["Content-Type"]) == (200, "application/json")
    assert "2026-11-20T11:00:00Z" in answer.text
    assert "SCHEDULED" in answer.text


@pytest.mark.parametrize("spelling", NOTHING)
def test_no_maintenance_in_every_spelling(vm: GcpSimulator, spelling: str) -> None:
    vm.plan()
    vm.plan_nothing(spelling)
    answer = get(vm, f"{ROOT}instance/upcoming-maintenance?alt=json")
    assert answer.status_code == {"error-503": 503, "missing": 404}.get(spelling, 200)
    assert "SCHEDULED" not in answer.text


def test_a_stop_that_was_asked_for_says_by_when(vm: GcpSimulator) -> None:
    """Before it the folder is not there."""
    assert get(vm, f"{ROOT}instance/shutdown-details/").status_code == 404
    vm.ask_to_stop(600)
    texts = [
        get(vm, f"{ROOT}instance/shutdown-details/{name}").text
        for name in ("stop-state", "max-duration", "request-timestamp")
    ]
    assert texts == ["PENDING_STOP", "600s", "2026-11-20T10:00:00Z"]


def test_clear_takes_everything_back(vm: GcpSimulator) -> None:
    vm.preempt()
    vm.maintain("migrate")
    vm.plan()
    vm.ask_to_stop()
    vm.fault("503")
    vm.clear()
    assert get(vm, PREEMPTED).text == "FALSE"
    assert get(vm, f"{ROOT}instance/maintenance-event").text == "NONE"
    assert get(vm, f"{ROOT}instance/upcoming-maintenance").status_code == 503
    assert get(vm, f"{ROOT}instance/shutdown-details/stop-state").text == "UNSPECIFIED"
    assert vm.deadline is None


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda vm: vm.maintain("reboot"), "maintenance 'reboot': expected one of none, migrate, terminate"),
        (lambda vm: vm.plan(spelling="x"), "upcoming maintenance 'x': expected one of snake, camel"),
        (lambda vm: vm.plan_nothing("x"), "no maintenance 'x': expected one of empty, bare"),
        (lambda vm: vm.preempt(pid=2**22 + 1), "pid 4194305: cannot be signalled: No such process"),
    ],
)
def test_a_call_that_compute_engine_lacks_is_refused(vm: GcpSimulator, call: object, message: str) -> None:
    assert callable(call)
    with pytest.raises(UsageError, match=message):
        call(vm)
    assert (vm.deadline, get(vm, PREEMPTED).text) == (None, "FALSE")


# --- the notice, and the power ------------------------------------------------------------------------------


@pytest.mark.parametrize(("notice", "window", "left"), [(0, None, 30), (120, None, 150), (0, 10, 10)])
def test_the_vm_is_gone_30_seconds_after_the_button(
    vm: GcpSimulator, clock: ManualClock, notice: float, window: float | None, left: float
) -> None:
    assert vm.preempt(window, notice=notice) == vm.deadline == clock.monotonic() + left


def test_each_event_is_printed(simulate_gcp: SimulateGcp, clock: ManualClock) -> None:
    """Also when a client sees the notice for the first time, and only then."""
    told: list[str] = []
    vm = simulate_gcp(clock, tell=told.append)
    vm.preempt(notice=120)
    clock.advance(0.4)
    get(vm, PREEMPTED)
    get(vm, PREEMPTED)
    assert told == [
        "notice: preempted, power button in 120 s, gone in 150 s",
        "the notice is read for the first time, 0.4 s later",
    ]


#: Ignores SIGTERM, and so does its child; says so, and of each one that comes.
STUBBORN = f"""
import os, signal, sys
signal.signal(signal.SIGTERM, lambda *_: os.write(1, b"term\\n"))
child = os.fork()
{STAYS_AWAKE}
if child:
    os.write(1, f"{{child}}\\n".encode())
while True:
    signal.pause()
"""


@pytest.fixture
def stubborn() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", STUBBORN]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        yield process
        with contextlib.suppress(ProcessLookupError):  # nobody of it is left
            os.killpg(process.pid, signal.SIGKILL)  # its child too


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.parametrize("notice", [0, 120])
def test_the_button_is_sigterm_and_the_end_is_the_end_of_all(
    vm: GcpSimulator, clock: ManualClock, stubborn: subprocess.Popen[str], notice: float
) -> None:
    """SIGTERM to the one process, 30 s later SIGKILL to it and to what it started."""
    child = os.pidfd_open(int(line(stubborn)))
    vm.preempt(notice=notice, pid=stubborn.pid)
    if notice:
        assert clock.wait_for_waiters()
        clock.advance(notice)
    assert line(stubborn) == "term"
    assert clock.wait_for_waiters()
    assert stubborn.poll() is None
    clock.advance(30)
    assert stubborn.wait(100) == -signal.SIGKILL
    assert line(stubborn) == "", "its child holds the pipe, so it lives"
    os.close(child)


def test_a_vm_that_is_spared_harms_nobody(
    vm: GcpSimulator, clock: ManualClock, stubborn: subprocess.Popen[str]
) -> None:
    line(stubborn)
    vm.preempt(notice=120, pid=stubborn.pid)
    vm.clear()
    clock.advance(200)
    assert stubborn.poll() is None
