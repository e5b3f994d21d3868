"""How incidents are sent: tried again, never twice at once, never without bounds, and nobody waits for it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from spotguard.alerts.incidents import Incident
from spotguard.alerts.receivers import Origin, Receiver
from spotguard.alerts.sender import IncidentSender
from tests.e2e.processes import eventually
from tests.fakes.clock import ManualClock
from tests.fakes.webhook import Webhook, webhook

STALL = Incident("stall", (("run_id", "gpt"),), "it stands", began=1000.0)
WARNING = Incident("memory-kill", (), "", began=1000.0)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def _has_sent(sender: IncidentSender, number: int) -> bool:
    return sender.counts["sent"] == number


class Sending:
    """A sender to a receiver of a test, ended with it."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.senders: list[IncidentSender] = []

    def __call__(self, given: str) -> IncidentSender:
        sender = IncidentSender(Receiver.of(given), Origin("node", "gpt"), self.clock)
        self.senders.append(sender)
        return sender

    def close(self, sender: IncidentSender, seconds: float) -> None:
        """Close it, and let the time go by until it has ended."""
        closing = threading.Thread(target=sender.close, args=(self.clock.monotonic() + seconds,))
        closing.start()
        while closing.is_alive():
            self.clock.advance(0.5)
            closing.join(0.001)


@pytest.fixture
def sending(clock: ManualClock) -> Iterator[Sending]:
    sending = Sending(clock)
    yield sending
    for sender in sending.senders:
        sending.close(sender, 0.0)


def test_an_incident_is_sent_at_once(receiver: Webhook, sending: Sending) -> None:
    sender = sending(receiver.url)
    sender.offer([STALL])
    (body,) = receiver.until(1)
    assert body["incidents"][0]["incident"] == "stall"
    eventually(lambda: sender.counts["sent"] == 1, "it is counted")


def test_certificates_that_are_not_there_are_named_and_end_no_sender(
    sending: Sending, monkeypatch: pytest.MonkeyPatch, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """requests raises an error that is none of its own then."""
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(folder / "none.pem"))
    sender = sending("https://127.0.0.1:9/hook")
    sender.offer([STALL])
    eventually(lambda: bool(caplog.messages), "it is told")
    assert "names no file of certificates [SG114]" in caplog.text
    assert sender._thread.is_alive()


def test_a_mistake_in_one_message_costs_no_other(
    receiver: Webhook, sending: Sending, caplog: pytest.LogCaptureFixture
) -> None:
    sender = sending(receiver.url)
    sender.offer([replace(STALL, name="no kind of incident")])
    eventually(lambda: "an error in the message to json" in caplog.text, "it is logged")
    sender.offer([STALL])
    receiver.until(1)


def test_a_number_that_is_none_in_retry_after_ends_no_sender(receiver: Webhook, sending: Sending) -> None:
    receiver.statuses, receiver.headers = [400], {"Retry-After": "\xb2"}
    sender = sending(receiver.url)
    sender.offer([STALL])
    eventually(lambda: sender.counts["failed"] == 1, "it is counted")
    sender.offer([STALL])
    receiver.until(1)


def test_an_answer_of_500_is_tried_again_after_a_while(
    receiver: Webhook, sending: Sending, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The first failure and the return are logged, and no more; the path, which may be a secret, is not."""
    caplog.set_level(logging.INFO, "spotguard")
    receiver.statuses = [500, 503, 200]
    sender = sending(f"{receiver.url}/secret-path")
    sender.offer([STALL])
    receiver.until(1)
    assert clock.wait_for_waiters()
    clock.advance(1.0)
    receiver.until(2)
    assert clock.wait_for_waiters()
    clock.advance(1.0)
    assert len(receiver.got) == 2
    clock.advance(1.0)
    receiver.until(3)
    eventually(lambda: sender.counts["sent"] == 1, "it is sent")
    host = receiver.url.removeprefix("http://")
    assert caplog.messages == [
        f"incidents cannot be sent to json {host}: it answered 500 [SG114]",
        f"incidents are sent to json {host} again",
    ]


@pytest.mark.parametrize("status", [400, 404, 302])
def test_an_incident_that_a_receiver_refuses_is_not_sent_again(
    receiver: Webhook, sending: Sending, status: int
) -> None:
    """A redirect neither: it would give the message to another server."""
    receiver.statuses = [status]
    receiver.headers = {"Location": f"{receiver.url}/elsewhere"}
    sender = sending(receiver.url)
    sender.offer([STALL])
    eventually(lambda: sender.counts["failed"] == 1, "it has failed")
    assert len(receiver.got) == 1


def test_a_receiver_that_wants_more_time_gets_it(
    receiver: Webhook, sending: Sending, clock: ManualClock
) -> None:
    receiver.statuses, receiver.headers = [429], {"Retry-After": "7"}
    sending(receiver.url).offer([STALL])
    receiver.until(1)
    assert clock.wait_for_waiters()
    clock.advance(6.9)
    assert len(receiver.got) == 1
    clock.advance(0.2)
    receiver.until(2)


def test_a_receiver_that_is_not_there_is_given_up_after_a_while(sending: Sending, clock: ManualClock) -> None:
    with webhook() as dead:
        url = dead.url
    sender = sending(url)
    sender.offer([STALL])
    while sender.counts["failed"] == 0:
        assert clock.wait_for_waiters()
        clock.advance(60.0)
    assert sender.counts["sent"] == 0


def test_incidents_in_a_row_go_together_and_not_twice(
    receiver: Webhook, sending: Sending, clock: ManualClock
) -> None:
    """People get at most one message in ten seconds."""
    sender = sending(f"slack:{receiver.url}")
    sender.offer([STALL])
    receiver.until(1)
    others = [replace(STALL, labels=(("rank", str(rank)),), summary=f"rank {rank}") for rank in range(3)]
    for each in (*others, *others):
        sender.offer([each])
    assert clock.wait_for_waiters()
    clock.advance(10.0)
    (_, second) = receiver.until(2)
    assert second["text"].count("rank") == 3


def test_alertmanager_gets_each_at_once(receiver: Webhook, sending: Sending) -> None:
    sender = sending(f"alertmanager:{receiver.url}")
    for count in range(1, 4):
        sender.offer([STALL])
        receiver.until(count)


def test_each_try_has_the_end_and_the_wall_clock_of_its_own_moment(
    receiver: Webhook, sending: Sending, clock: ManualClock
) -> None:
    """An incident that began ten minutes ago ends in the future; Alertmanager would take another end for the end."""
    clock.advance(600.0)
    receiver.statuses = [503]
    sending(f"alertmanager:{receiver.url}").offer([STALL])
    receiver.until(1)
    assert clock.wait_for_waiters()
    clock.step_wall(3600.0)
    clock.advance(1.0)
    (first,), (second,) = receiver.until(2)
    assert (first["startsAt"], first["endsAt"]) == ("2026-11-20T10:00:00.000Z", "2026-11-20T10:14:00.000Z")
    assert (second["startsAt"], second["endsAt"]) == ("2026-11-20T11:00:00.000Z", "2026-11-20T11:14:01.000Z")


def test_the_newest_state_is_sent_also_a_second_failure_after_an_end(
    receiver: Webhook, sending: Sending, clock: ManualClock
) -> None:
    sender = sending(receiver.url)
    sender.offer([STALL])
    receiver.until(1)
    over, second = replace(STALL, ended=1005.0), replace(STALL, summary="it stands again", began=1006.0)
    for each in (STALL, over, second):
        sender.offer([each])
    assert clock.wait_for_waiters()
    clock.advance(10.0)
    assert [each["summary"] for each in receiver.until(2)[1]["incidents"]] == ["it stands again"]
    eventually(lambda: sender.counts["sent"] == 2, "it is sent")
    for each in (second, replace(second, ended=1020.0)):  # an end does not hide its begin
        sender.offer([each])
    assert clock.wait_for_waiters()
    clock.advance(10.0)
    assert [each["status"] for each in receiver.until(3)[2]["incidents"]] == ["firing", "resolved"]


def test_the_limit_is_each_kind_s_and_run_s_own_logged_once_and_loses_nothing(
    receiver: Webhook, sending: Sending, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A flapping warning keeps no failure back, and its newest state goes when the hour is over."""
    sender = sending(receiver.url)
    for number in range(1, 21):
        sender.offer([replace(WARNING, summary=str(number))])
        receiver.until(number)
        eventually(partial(_has_sent, sender, number), "it is sent")
        assert clock.wait_for_waiters()
        clock.advance(10.0)
    for last in ("21", "22"):
        sender.offer([replace(WARNING, summary=last)])
        eventually(lambda: "in an hour are the most" in caplog.text, "it is over its limit")
    sender.offer([STALL])
    assert [each["incident"] for each in receiver.until(21)[20]["incidents"]] == ["stall"]
    assert caplog.text.count("in an hour are the most") == 1
    while len(receiver.got) < 22:
        assert clock.wait_for_waiters()
        clock.advance(60.0)
    assert [each["summary"] for each in receiver.until(22)[21]["incidents"]] == ["22"]


def test_critical_incidents_come_first_and_are_dropped_last(receiver: Webhook, sending: Sending) -> None:
    receiver.hangs.set()
    sender = sending(receiver.url)
    sender.offer([WARNING])
    receiver.until(1)
    sender.offer([STALL])
    sender.offer([replace(WARNING, labels=(("rank", str(rank)),)) for rank in range(250)])
    assert sender._take()[0] is STALL


def test_no_netrc_no_proxy_for_loopback_and_the_environment_s_for_others(
    receiver: Webhook, sending: Sending, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "netrc").write_text("default login me password swordfish7\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "")
    monkeypatch.setenv("no_proxy", "")
    sending(receiver.url).offer([STALL])
    receiver.until(1)
    assert "authorization" not in {name.lower() for name in receiver.server.asked[0].headers}
    assert sending("http://alerts.example/hook")._session.proxies["http"] == "http://127.0.0.1:9"


def test_a_storm_is_dropped_from_its_oldest_end_and_counted(receiver: Webhook, sending: Sending) -> None:
    receiver.hangs.set()
    sender = sending(receiver.url)
    sender.offer([STALL])
    receiver.until(1)
    sender.offer([replace(STALL, labels=(("rank", str(rank)),)) for rank in range(250)])
    assert sender.counts["dropped"] == 50


def test_a_receiver_that_hangs_holds_nobody_up_at_the_end(
    receiver: Webhook, sending: Sending, caplog: pytest.LogCaptureFixture
) -> None:
    """The log tells that the incident may be lost."""
    receiver.hangs.set()
    sender = sending(receiver.url)
    sender.offer([STALL])
    receiver.until(1)
    sender.close(sending.clock.monotonic())
    assert sender.counts["sent"] == 0
    assert "has not answered in time: the last incidents may be lost [SG114]" in caplog.text
