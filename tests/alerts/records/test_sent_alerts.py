"""The records of alerts that people were sent: which of them are over for a later agent, and that one agent alone ends each."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from spotguard.alerts.records.sent_alerts import SentAlerts, is_over, may_be_over
from spotguard.alerts.records.writer import StoreProcesses
from spotguard.hooks.checkpoint.attempts import claim_attempt
from spotguard.hooks.consensus.topology import Host, machine_id
from spotguard.providers.clock import SystemClock
from spotguard.providers.stores.factory import open_store
from tests.cases import cases
from tests.e2e.processes import eventually

ENDED_BY = ("stall", "failure")


def message(status: str = "firing", incident: str = "failure", **labels: str) -> dict[str, Any]:
    return {
        "alert": incident or "disk-full",
        "status": status,
        "severity": "critical",
        "summary": "training failed",
        "labels": {"alertname": incident or "disk-full", "run_id": "gpt", "instance": "old", **labels},
        "startsAt": "2026-11-20T10:00:00.000Z",
        "endsAt": None,
        "incident": incident,
    }


def id_of(host: str, boot: str = "", place: str = "") -> str:
    return machine_id(Host(f"{boot or host} {place}", (host,)))


class Helpers:
    """Helpers of several machines on one store."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes = StoreProcesses(SystemClock())
        self.ended: list[dict[str, Any]] = []

    def on(self, host: str, boot: str = "", place: str = "") -> SentAlerts:
        helper = SentAlerts(host, id_of(host, boot, place), self.processes.start)
        helper.know("gpt", self.folder.as_uri())
        return helper

    def done(self) -> None:
        eventually(lambda: not self.processes.busy(), "the store has it")

    def trains(
        self, *helpers: SentAlerts, machines: list[str] | None = None, every: bool = True
    ) -> list[str]:
        """Let the run train on these helpers' machines at once; return the classes and hosts of what was ended."""
        info = {"machine_ids": [each._machine for each in helpers]}
        info = info if machines is None else {"machine_ids": [*map(id_of, machines)]}
        claim_attempt(open_store(self.folder.as_uri()), "gpt", info)
        before = len(self.ended)
        for helper in helpers:
            helper.end_earlier("gpt", ENDED_BY, self.ended.extend, every=every)
        self.done()
        return self.since(before)

    def since(self, before: int) -> list[str]:
        return sorted(f"{each['alert']} on {each['host']}" for each in self.ended[before:])


@pytest.fixture
def helpers(folder: Path) -> Helpers:
    return Helpers(folder)


def names(folder: Path) -> list[str]:
    """The kinds of the objects of alerts."""
    found = (path.stem.split("-")[6:] for path in (folder / "gpt" / "alerts").glob("*"))
    return sorted(kind[0] if kind else "record" for kind in found)


def test_what_fired_on_a_machine_that_is_gone_is_ended_once_by_one_of_two_helpers(
    helpers: Helpers, folder: Path
) -> None:
    gone = helpers.on("old")
    gone.sent([message(), message(incident="")])
    helpers.done()
    assert helpers.trains(helpers.on("a"), helpers.on("b"), machines=["a", "b"]) == [
        "disk-full on old",
        "failure on old",
    ]
    assert helpers.ended[0]["labels"]["instance"] == "old"
    assert set(names(folder)) == {"claimed", "record"}
    assert helpers.trains(helpers.on("c"), machines=["c"]) == []


def test_what_has_ended_by_itself_is_not_ended_again(helpers: Helpers, folder: Path) -> None:
    gone = helpers.on("old")
    gone.sent([message()])
    gone.sent([message()])  # another receiver has it, too
    gone.sent([message("resolved")])
    helpers.done()
    assert names(folder) == ["ended", "record"]
    assert helpers.trains(helpers.on("a"), machines=["a"]) == []
    gone.sent([message("resolved")])
    helpers.done()
    assert len(names(folder)) == 2


def test_a_run_without_a_store_has_no_record(helpers: Helpers, folder: Path) -> None:
    helper = SentAlerts("old", id_of("old"), helpers.processes.start)
    helper.sent([message()])
    helper.end_earlier("gpt", ENDED_BY, helpers.ended.extend, every=True)
    assert not helpers.processes.busy()
    assert not (folder / "gpt").exists()


@cases(
    "incident, owner, machines, every, over",
    [
        ("failure", "me", ["me"], False, True),
        ("stall", "me", None, False, True),
        ("", "me", ["me"], False, True),  # a metric: it is evaluated anew
        ("agent-lost", "me", ["me"], False, True),
        ("kernel", "me", ["me"], False, False),  # the machine still has what broke
        ("outcome", "me", ["me"], False, False),  # until an hour is over
        ("failure", "other", ["me", "other"], True, False),  # its own helper ends it
        ("", "other", ["me", "other"], True, False),
        ("kernel", "gone", ["me"], True, True),
        ("", "gone", ["me"], True, True),
        ("", "gone", ["me"], False, False),  # rank 0's helper ends it
        ("failure", "other", None, True, True),  # the run trains, wherever that is
        ("", "other", None, True, False),
        ("", "my place before", ["me"], False, True),
        ("kernel", "my place before", ["me"], True, False),
        ("", "my neighbour", ["me", "my neighbour"], True, False),
    ],
)
def test_an_alert_is_over_if_that_is_known_and_nobody_else_ends_it(
    incident: str, owner: str, machines: list[str] | None, every: bool, over: bool
) -> None:
    ids = {each: id_of(each) for each in ("me", "other", "gone")}
    ids |= {each: id_of("me", place=each) for each in ("my place before", "my neighbour")}
    given: dict[str, Any] = {
        "machine": ids["me"],
        "machines": None if machines is None else [ids[each] for each in machines],
    }
    record = {"incident": incident, "helper": "its", "until": 1001.0}
    found = may_be_over(ids[owner], every=every, **given) and is_over(
        record, ids[owner], helper="mine", ended_by=ENDED_BY, now=1000.0, **given
    )
    assert found is over
    assert not is_over(
        {**record, "helper": "mine"}, ids[owner], helper="mine", ended_by=ENDED_BY, now=1000.0, **given
    )


def test_a_pod_s_name_is_no_machine(helpers: Helpers) -> None:
    """A pod of an indexed job keeps its name on another node, and one of a job gets another name on the same node."""
    for host, boot in (("gpt-0", "b1"), ("gpt-x7", "b2")):
        helpers.on(host, boot).sent([message(incident="kernel", instance=host)])
    helpers.done()
    found = helpers.trains(helpers.on("gpt-0", "b3"), helpers.on("gpt-k2", "b2"))
    assert found == ["kernel on gpt-0"]


def test_of_a_large_job_s_machines_all_are_known(helpers: Helpers) -> None:
    """A machine that is none of the newest attempt is gone, and the others have helpers of their own."""
    for host in ("m99", "gone"):
        helpers.on(host).sent([message(incident="")])
    helpers.done()
    many = [f"m{each}" for each in range(200)]
    assert helpers.trains(helpers.on("m0"), machines=many) == ["disk-full on gone"]


def test_what_lasts_an_hour_is_over_after_it_although_its_agent_is_gone(helpers: Helpers) -> None:
    now = time.time()
    earlier = helpers.on("a")
    earlier.sent([{**message(incident="outcome"), "until": now - 1}])
    earlier.sent([{**message(incident="kernel"), "until": now + 3600}])
    helpers.done()
    assert helpers.trains(helpers.on("a")) == ["outcome on a"]


def aged(folder: Path, kind: str, seconds: float) -> None:
    """Make the objects of a kind older."""
    for path in (folder / "gpt" / "alerts").glob(f"*{kind}*"):
        os.utime(path, (time.time() - seconds,) * 2)


def test_an_end_that_its_helper_could_not_send_is_sent_by_a_later_one(helpers: Helpers, folder: Path) -> None:
    """It was killed behind its claim, or the receiver did not answer. An end that comes twice harms less than none."""
    helpers.on("old").sent([message()])
    helpers.done()
    first, second = helpers.on("a"), helpers.on("b")
    assert helpers.trains(first) == ["failure on old"]
    assert helpers.trains(second) == []
    aged(folder, "claimed", 601)
    before = len(helpers.ended)
    second.look_back()
    helpers.done()
    assert helpers.since(before) == ["failure on old"]
    second.sent([message("resolved")])
    helpers.done()
    assert names(folder) == ["claimed", "claimed", "ended", "record"]
    aged(folder, "claimed", 601)
    assert helpers.trains(helpers.on("c")) == []


def test_a_store_that_fails_between_two_claims_loses_no_end(
    helpers: Helpers, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gone = helpers.on("old")
    gone.sent([message(), message(incident="")])
    helpers.done()
    _, second = sorted((folder / "gpt" / "alerts").glob("*.json"))
    second.unlink()
    second.symlink_to(
        "/sys/devices/system/cpu/online"
    )  # it has fewer bytes than it claims, which is an error
    assert len(helpers.trains(helpers.on("a"))) == 1
    assert "are not ended [SG113]" in caplog.text


def test_what_ended_a_day_ago_is_deleted_by_whoever_lists_it(helpers: Helpers, folder: Path) -> None:
    gone = helpers.on("old")
    gone.sent([message(incident="kernel")])
    gone.sent([message(rank="1")])
    helpers.done()
    gone.sent([message("resolved", rank="1")])
    helpers.done()
    aged(folder, "ended", 86401)
    assert helpers.trains(helpers.on("a"), machines=["a", "old"], every=False) == []
    assert names(folder) == ["record"]
    assert helpers.trains(helpers.on("b"), machines=["b"]) == ["kernel on old"]


def test_records_that_are_none_are_passed_over(helpers: Helpers, folder: Path) -> None:
    """Another program may write anything to the store."""
    below = folder / "gpt" / "alerts"
    below.mkdir(parents=True)
    (below / "a.json").write_text("{}")
    for number, text in enumerate(("{", "[]", "[" * 100_000, json.dumps({"host": 3}))):
        (below / f"2026-11-20T100000-{id_of('old')}-{number:012x}.json").write_text(text)
    assert helpers.trains(helpers.on("a"), machines=["a"]) == []
