"""Azure's notices over real sockets, scenario by scenario, against the simulated machine of a scale set."""

from __future__ import annotations

import itertools
import json
import logging
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, Protocol

import pytest

from spotguard.providers.azure import ScheduledEvents
from spotguard.providers.azure_imds import EVENTS_PATH, NAME_PATH, Imds
from spotguard.providers.health import SEEING, Sight
from spotguard.providers.notice import Acknowledging, Notice, NoticeKind, NoticeSource, Severity, Sighting
from spotguard.providers.simulator.azure import AzureSimulator
from spotguard.providers.simulator.faults import REDIRECTED
from spotguard.providers.simulator.server import LoopbackServer, Reply, Request
from tests.fakes.clock import ManualClock
from tests.fixtures_simulator import SimulateAzure
from tests.providers.blindness import EVERYWHERE, assert_blind

#: Seconds for tests in which an answer never comes: each such request takes them all.
IMPATIENT = 0.5


class Looker:
    """A source, and the time it takes from one look to the next."""

    def __init__(self, source: ScheduledEvents, clock: ManualClock) -> None:
        self.source = source
        self.clock = clock

    def look(self, after: float = 1.0) -> Sighting:
        self.clock.advance(after)
        return self.source.poll()

    def the_notice(self, after: float = 1.0) -> Notice:
        """Look once, and see exactly one notice."""
        sighting = self.look(after)
        assert sighting.health.seeing, sighting.health
        (notice,) = sighting.notices
        return notice


class Watch(Protocol):
    """Makes the source that looks at a simulated machine, on the machine's own clock."""

    def __call__(self, simulator: AzureSimulator, *, timeout: float = 5.0, **how: Any) -> Looker: ...


@pytest.fixture
def watch(clock: ManualClock) -> Iterator[Watch]:
    """As `Watch` says; the sources are closed when the test ends."""
    with ExitStack() as closing:

        def make(simulator: AzureSimulator, *, timeout: float = 5.0, **how: Any) -> Looker:
            source = ScheduledEvents(Imds(simulator.endpoint, clock, timeout=timeout), clock, **how)
            closing.callback(source.close)
            return Looker(source, clock)

        yield make


@pytest.fixture
def vm(simulate_azure: SimulateAzure, clock: ManualClock) -> AzureSimulator:
    """A simulated machine on the clock by hand, whose events are on."""
    return simulate_azure(clock, enabling=0)


def most_in_a_second(simulator: AzureSimulator) -> int:
    """How many requests came within any second."""
    times = [seen.at for seen in simulator.requests]
    return max(sum(1 for other in times if 0 <= other - at < 1.0) for at in times)


# --- S12: the first call, the limit, and bad days ------------------------------------------------------------


def test_s12_the_first_call_takes_two_minutes_and_nothing_waits_for_it(
    simulate_azure: SimulateAzure, clock: ManualClock, watch: Watch
) -> None:
    """It is said meanwhile what goes on; then it sees, and has asked about once a second all the time."""
    vm = simulate_azure(clock, enabling=120)
    looker, looks = watch(vm, patience=0.01), itertools.count(1)
    for _ in range(115):
        next(looks)
        health = looker.look().health
        assert (health.sight, health.reason) == (Sight.BLIND, "starting")
        assert health.detail.startswith("enabling: ")
    clock.advance(10)
    seen = threading.Event()
    while not looker.look().health.seeing:  # the answer is on its way
        next(looks)
        assert not seen.wait(0.01)
    assert looker.look().health is SEEING
    # One a look, the call that takes long, and the name. (In which second of a clock by hand one arrives is a matter of load.)
    assert len(vm.requests) <= next(looks) + 3
    assert vm.count(status=429) == 0


def test_s12_a_notice_that_the_slow_call_brings_counts(
    simulate_azure: SimulateAzure, clock: ManualClock, watch: Watch
) -> None:
    """It came while the events were being switched on; by then it has nothing left."""
    vm = simulate_azure(clock, enabling=60)
    vm.preempt(30)
    looker = watch(vm, patience=0.05)
    assert looker.look().notices == ()
    clock.advance(60)
    never = threading.Event()
    while not (sighting := looker.look(0.0)).notices:
        assert not never.wait(0.01)
    (notice,) = sighting.notices
    assert (notice.kind, notice.deadline) == (NoticeKind.PREEMPT, clock.monotonic())


def test_s12_a_server_that_takes_the_first_call_and_dies_costs_a_look(
    simulate_azure: SimulateAzure, clock: ManualClock, watch: Watch
) -> None:
    """The long call hangs on; a short one beside it sees."""
    vm = simulate_azure(clock, enabling=0)
    vm.fault("hang", count=1, path=EVENTS_PATH)
    looker = watch(vm, patience=0.2)
    assert looker.look().health.reason == "starting"
    assert looker.look().health is SEEING
    vm.preempt()
    looker.the_notice()


def test_s12_after_long_silence_a_call_may_take_long_again(
    simulate_azure: SimulateAzure, clock: ManualClock, watch: Watch
) -> None:
    """After 24 hours without a request the events are off, as on a machine that slept; what the long call of the morning
    brings is not taken for the evening's."""
    vm = simulate_azure(clock, enabling=0)
    looker = watch(vm, timeout=IMPATIENT, patience=IMPATIENT)
    assert looker.look().health is SEEING
    vm.fault("hang")
    assert looker.look(86400).health.reason == "timeout"
    assert looker.look().health.reason == "timeout"
    vm.clear()
    vm.preempt()
    assert looker.the_notice().kind is NoticeKind.PREEMPT
    vm.cancel()
    assert looker.look(61).notices == ()


def test_s12_looks_that_come_too_fast_send_nothing(vm: AzureSimulator, watch: Watch) -> None:
    """Whoever makes them: four requests in a second, and the rest see what was seen."""
    looker = watch(vm)
    first = looker.look()
    assert [looker.look(0.0) for _ in range(20)] == [first] * 20
    assert len(vm.requests) == 4
    assert looker.look().health is SEEING


@pytest.mark.parametrize("fault", ["reset", "500", "429"])
def test_s12_the_rate_stays_within_the_limit_whatever_goes_wrong(
    simulate_azure: SimulateAzure, clock: ManualClock, watch: Watch, fault: str
) -> None:
    """A name that is not told, events, an acknowledgement and second tries, all in one second."""
    vm = simulate_azure(clock, enabling=0, limit=None)
    looker = watch(vm)
    vm.fault("500", path=NAME_PATH)
    vm.preempt()
    for look in range(30):
        notice = looker.look(0.9).notices
        if look == 3:
            looker.source.acknowledge(notice[0].id)
            vm.fault(fault)
    assert 2 <= most_in_a_second(vm) <= 4


def test_s12_throttled_by_others_it_is_blind_and_asks_on(
    simulate_azure: SimulateAzure, clock: ManualClock, watch: Watch
) -> None:
    """429 says nothing of notices."""
    vm = simulate_azure(clock, enabling=0, limit=1)
    looker = watch(vm)
    assert looker.look().health.reason == "throttled"  # its name was the one request
    assert looker.look().health is SEEING
    assert len(vm.requests) == 3


def test_s12_410_for_70_s_is_blindness_that_ends(vm: AzureSimulator, watch: Watch) -> None:
    """As the pages have it; the notice that came meanwhile is seen at once."""
    looker = watch(vm)
    looker.look()
    vm.fault("410", seconds=70)
    for _ in range(69):
        health = looker.look().health
        assert (health.sight, health.reason) == (Sight.BLIND, "server-error")
        assert "410" in health.detail
    vm.preempt(30)
    looker.the_notice()


# --- S13: whose events ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("capitals", [False, True])
def test_s13_of_a_whole_sets_events_ours_are_found(
    simulate_azure: SimulateAzure, clock: ManualClock, watch: Watch, capitals: bool
) -> None:
    """Another's is nothing to us; among many we are found, in any case."""
    vm = simulate_azure(clock, enabling=0, others=40, capitals=capitals)
    looker = watch(vm)
    vm.preempt(of="other")
    vm.schedule("Reboot", of="other")
    assert looker.look() == Sighting(SEEING)
    vm.preempt(of="all")
    assert looker.the_notice().kind is NoticeKind.PREEMPT


def test_s13_a_thousand_evictions_at_once_are_read(
    simulate_azure: SimulateAzure, clock: ManualClock, watch: Watch
) -> None:
    """Each machine of the set is told of all: far more than other services ever answer."""
    vm = simulate_azure(clock, enabling=0, others=999)
    for _ in range(40):
        vm.preempt(of="all")
    sighting = watch(vm).look()
    assert sighting.health is SEEING
    assert len(sighting.notices) == 40


def test_s13_without_a_name_any_event_counts_and_that_is_said(
    vm: AzureSimulator, watch: Watch, caplog: pytest.LogCaptureFixture
) -> None:
    """As soon as the name is known, another's event stands no more."""
    vm.fault("500", path=NAME_PATH)
    looker = watch(vm)
    assert "own name not known" in looker.look().health.detail
    vm.preempt(of="other")
    with caplog.at_level(logging.WARNING, "spotguard"):
        notice = looker.the_notice()
        assert looker.the_notice() is notice
    assert "may be another machine's" in notice.detail
    assert [record.getMessage().count("say --vm-name") for record in caplog.records] == [1]
    vm.clear()
    vm.preempt(of="other")
    assert looker.look() == Sighting(SEEING)


def test_s13_the_name_is_asked_for_again_now_and_then_and_at_an_event(
    vm: AzureSimulator, watch: Watch
) -> None:
    """Once it is known, nobody asks."""
    vm.fault("500", path=NAME_PATH)
    looker = watch(vm)
    for _ in range(12):
        looker.look()
    assert vm.count("GET", NAME_PATH) == 2
    vm.preempt(of="other")
    looker.look()
    assert vm.count("GET", NAME_PATH) == 3
    vm.clear()
    for _ in range(30):
        looker.look()
    assert vm.count("GET", NAME_PATH, 200) == 1


def test_s13_the_name_that_the_user_gives_counts_too(
    vm: AzureSimulator, watch: Watch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where the service cannot be asked it is the only one; where the two differ, both count, and it is said."""
    vm.fault("500", path=NAME_PATH)
    looker = watch(vm, vm_name="POOL-vmss_100")
    assert looker.look() == Sighting(SEEING)
    vm.preempt(of="other")
    looker.the_notice()
    vm.clear()
    with caplog.at_level(logging.WARNING, "spotguard"):
        looker.look(11)
    assert "calls this machine 'pool-vmss_12'" in caplog.text
    vm.preempt()
    looker.the_notice()


@pytest.mark.parametrize(
    "body", [b"", b"<html>Sign in</html>", b"not found", b'{"error":"x"}', b"x" * 200, b"\xff\xfe"]
)
def test_s13_a_name_is_one_word(clock: ManualClock, body: bytes) -> None:
    """To believe in a page would make every notice somebody else's."""

    def answer(request: Request) -> Reply:
        if request.path == NAME_PATH:
            return Reply(200, body)
        return Reply(
            200, b'{"DocumentIncarnation": 2, "Events": [{"EventType": "Preempt", "Resources": ["vm_1"]}]}'
        )

    server = LoopbackServer(answer, clock)
    source = ScheduledEvents(Imds(server.start(), clock), clock)
    sighting = source.poll()
    source.close()
    server.stop()
    assert len(sighting.notices) == (0 if body == b"\xff\xfe" else 1)


# --- S14: the life of an event -------------------------------------------------------------------------------


def test_s14_an_eviction_is_scheduled_begins_and_is_over(
    simulate_azure: SimulateAzure, clock: ManualClock, watch: Watch
) -> None:
    """One notice all the way, though its id changes when it begins and its date is blank from then on."""
    vm = simulate_azure(clock, enabling=0, new_ids=True)
    looker = watch(vm)
    looker.look()
    deadline = vm.preempt(30)
    first = looker.the_notice()
    assert (first.deadline, first.window) == (deadline, 30)
    assert (first.kind, first.severity) == (NoticeKind.PREEMPT, Severity.TERMINAL)
    for _ in range(60):
        assert looker.the_notice() is first
    vm.finish()
    assert looker.look() == Sighting(SEEING)


def test_s14_what_is_called_off_stands_no_more(vm: AzureSimulator, watch: Watch) -> None:
    """And the next one is a new notice."""
    looker = watch(vm)
    vm.preempt()
    first = looker.the_notice()
    vm.cancel()
    assert looker.look() == Sighting(SEEING)
    vm.preempt()
    assert looker.the_notice().id != first.id


def test_s14_what_nobody_warned_of_has_nothing_left(
    vm: AzureSimulator, watch: Watch, clock: ManualClock
) -> None:
    """A failed host's reboot has begun when it is first seen."""
    looker = watch(vm)
    looker.look()
    vm.fail()
    notice = looker.the_notice()
    assert (notice.kind, notice.severity) == (NoticeKind.REBOOT, Severity.TERMINAL)
    assert notice.deadline == clock.monotonic()


@pytest.mark.parametrize("dates", ["rfc1123", "iso"])
@pytest.mark.parametrize("kind", ["Terminate", "Reboot", "Redeploy"])
def test_s14_what_comes_later_is_terminal_when_it_begins(
    simulate_azure: SimulateAzure, clock: ManualClock, watch: Watch, dates: str, kind: str
) -> None:
    """Until then its deadline is its own."""
    vm = simulate_azure(clock, enabling=0, dates=dates)
    looker = watch(vm)
    at = clock.monotonic() + 86400
    vm.schedule(kind, 86400)
    later = looker.the_notice()
    assert (later.severity, later.deadline) == (Severity.LATER, at)
    vm.begin()
    begun = looker.the_notice()
    assert (begun.id, begun.severity, begun.deadline) == (later.id, Severity.TERMINAL, clock.monotonic())


def test_s14_a_freeze_is_advice_also_when_it_begins(vm: AzureSimulator, watch: Watch) -> None:
    """Some seconds, and nothing is lost."""
    looker = watch(vm)
    vm.schedule("Freeze")
    assert looker.the_notice().severity is Severity.ADVISORY
    vm.begin()
    assert looker.the_notice().severity is Severity.ADVISORY
    vm.finish()
    assert looker.look().notices == ()


def test_what_nobody_knows_is_the_end_soon(vm: AzureSimulator, watch: Watch, clock: ManualClock) -> None:
    """A type of a later time, though its date is far."""
    looker = watch(vm)
    vm.schedule("Defrag", 86400)
    notice = looker.the_notice()
    assert (notice.kind, notice.severity) == (NoticeKind.UNKNOWN, Severity.TERMINAL)
    assert notice.deadline == clock.monotonic() + 30


# --- S17, S18 ------------------------------------------------------------------------------------------------

BLIND = EVERYWHERE | {"410": "server-error", "garbage": "garbage"}


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
    clock: ManualClock, status: int, body: bytes, reason: str, notices: int
) -> None:
    """A notice is believed under any status where it is one, and nothing passes for "no notice" that is not."""

    def answer(request: Request) -> Reply:
        return Reply(200, b"vm_1") if request.path == NAME_PATH else Reply(status, body)

    server = LoopbackServer(answer, clock)
    source = ScheduledEvents(Imds(server.start(), clock), clock)
    sighting = source.poll()
    source.close()
    server.stop()
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


@pytest.mark.parametrize(("skew", "left"), [(60, 29), (-60, 29), (3600, 29), (-4, 26), (4, 30)])
def test_s18_a_clock_that_is_off_makes_no_window_longer_than_azure_gives(
    vm: AzureSimulator, watch: Watch, clock: ManualClock, skew: float, left: float
) -> None:
    """By Azure's own time, where ours is clearly another. And a clock put right later moves the deadline only to an
    earlier instant."""
    looker = watch(vm)
    looker.look()
    vm.preempt(30, skew=skew)
    first = looker.the_notice(0.0)
    assert first.deadline == clock.monotonic() + left
    clock.step_wall(-3600)
    assert looker.the_notice() is first
    clock.step_wall(3 * 3600)
    assert looker.the_notice().deadline <= first.deadline


@pytest.mark.parametrize("skew", [-1200.0, 1200.0, -86400.0])
def test_s18_what_azure_begins_in_a_quarter_of_an_hour_is_not_past_by_a_clock_that_is_ahead(
    vm: AzureSimulator, watch: Watch, clock: ManualClock, skew: float
) -> None:
    """Nor is it further off by one that is behind: each answer says what time it is there."""
    looker = watch(vm)
    vm.schedule("Reboot", 900, skew=skew)
    notice = looker.the_notice(0.0)
    assert notice.severity is Severity.LATER
    assert notice.deadline == clock.monotonic() + 899
    vm.begin()
    assert looker.the_notice().severity is Severity.TERMINAL


@pytest.mark.parametrize("said", ["", "yesterday", "0"])
def test_s18_a_date_that_is_none_leaves_our_own_clock(clock: ManualClock, said: str) -> None:
    """A service of old, or a proxy that rewrites it."""
    event = {"EventId": "A", "EventType": "Preempt", "EventStatus": "Scheduled", "Resources": ["vm"]}
    events = [event | {"NotBefore": "2026-11-20T10:00:20Z"}]
    reply = Reply(200, json.dumps({"DocumentIncarnation": 1, "Events": events}).encode(), {"Date": said})
    server = LoopbackServer(lambda request: reply, clock)
    source = ScheduledEvents(Imds(server.start(), clock), clock, vm_name="vm")
    (notice,) = source.poll().notices
    source.close()
    server.stop()
    assert notice.deadline == clock.monotonic() + 20


# --- acknowledging -------------------------------------------------------------------------------------------


def test_an_event_of_ours_alone_is_acknowledged_when_somebody_asks_and_not_before(
    vm: AzureSimulator, watch: Watch
) -> None:
    """From any thread; the thread that looks sends it, once."""
    looker = watch(vm)
    vm.preempt()
    notice = looker.the_notice()
    for _ in range(5):
        looker.look()
    assert vm.count("POST") == 0
    asking = threading.Thread(target=looker.source.acknowledge, args=(notice.id,), name="asker")
    asking.start()
    asking.join()
    assert vm.count("POST") == 0
    for _ in range(5):
        looker.look()
    assert vm.count("POST", status=200) == vm.count("POST") == 1


@pytest.mark.parametrize("how", ["all", "no name", "two names", "another id", "begun", "gone"])
def test_what_is_not_known_to_be_ours_alone_is_never_acknowledged(
    vm: AzureSimulator, watch: Watch, how: str
) -> None:
    """It would begin for all that it is about. What has begun, or is gone, needs nothing."""
    if how == "no name":
        vm.fault("500", path=NAME_PATH)
    looker = watch(vm, vm_name="pool-vmss_7" if how == "two names" else "")
    vm.preempt(of="all" if how == "all" else "us")
    notice = looker.the_notice()
    if how == "begun":
        vm.begin()
    elif how == "gone":
        vm.cancel()
    looker.source.acknowledge("azure/another" if how == "another id" else notice.id)
    for _ in range(5):
        looker.look()
    looker.source.close()
    assert vm.count("POST") == 0


def test_the_id_of_now_is_acknowledged(
    simulate_azure: SimulateAzure, clock: ManualClock, watch: Watch
) -> None:
    """The notice's own is the first that its event had."""
    vm = simulate_azure(clock, enabling=0)
    looker = watch(vm)
    vm.schedule("Reboot")
    later = looker.the_notice()
    vm.cancel()
    vm.schedule("Reboot", 890)
    assert looker.the_notice().id == later.id
    looker.source.acknowledge(later.id)
    assert looker.look().health is SEEING
    assert looker.the_notice().severity is Severity.TERMINAL


@pytest.mark.parametrize(("status", "sent"), [(200, 1), (400, 1), (410, 5), (429, 5), (500, 5)])
def test_an_acknowledgement_that_fails_is_tried_again_and_not_for_ever(
    clock: ManualClock, status: int, sent: int
) -> None:
    """Five times, a look apart; a refusal is an answer."""
    posted: list[bytes] = []

    def answer(request: Request) -> Reply:
        if request.path == NAME_PATH:
            return Reply(200, b"vm_1")
        if request.method == "POST":
            posted.append(request.body)
            return Reply(status)
        return Reply(
            200,
            b'{"DocumentIncarnation": 2, "Events": [{"EventId": "A", "EventType": "Reboot", "Resources": ["vm_1"],'
            b' "EventStatus": "Scheduled", "NotBefore": "Fri, 20 Nov 2026 12:00:00 GMT"}]}',
        )

    server = LoopbackServer(answer, clock)
    looker = Looker(ScheduledEvents(Imds(server.start(), clock), clock), clock)
    looker.source.acknowledge(looker.the_notice().id)
    for _ in range(10):
        looker.look()
    looker.source.close()
    server.stop()
    assert posted == [b'{"StartRequests": [{"EventId": "A"}]}'] * sent


def test_the_last_acknowledgement_is_sent_at_the_end(vm: AzureSimulator, watch: Watch) -> None:
    """A run exits right after its commit."""
    looker = watch(vm)
    vm.preempt()
    notice = looker.the_notice()
    looker.source.acknowledge(notice.id)
    looker.source.close()
    assert vm.count("POST", status=200) == 1


# --- as a source ---------------------------------------------------------------------------------------------


def test_nobody_there_is_unreachable(clock: ManualClock) -> None:
    """As on a laptop; the advice says how to go without."""
    source = ScheduledEvents(Imds("http://127.0.0.1:9", clock), clock)
    health = source.poll().health
    source.close()
    assert (health.sight, health.reason) == (Sight.BLIND, "unreachable")
    assert "--provider none" in health.advice


def test_a_bug_makes_blind_and_not_dead(vm: AzureSimulator, clock: ManualClock) -> None:
    """`poll` never raises: an agent that dies is blind for good."""

    class Broken(Imds):
        def name(self) -> None:
            raise RuntimeError("a bug")

    source = ScheduledEvents(Broken(vm.endpoint, clock), clock)
    health = source.poll().health
    source.close()
    assert (health.sight, health.detail) == (Sight.BLIND, "RuntimeError: a bug")


def test_it_is_a_source_as_the_agent_knows_one(vm: AzureSimulator, watch: Watch) -> None:
    """What it no longer shows was withdrawn, and it can acknowledge."""
    source: NoticeSource = watch(vm).source
    assert (source.name, source.interval, source.withdraws) == ("azure scheduledevents", 1.0, True)
    assert isinstance(source, Acknowledging)
