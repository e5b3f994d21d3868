"""The records of alerts that people were sent: which of them are over for a later agent, and that one agent alone ends each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spotguard.alerts.records.sent_alerts import SentAlerts, is_over
from spotguard.alerts.records.writer import StoreProcesses
from spotguard.hooks.checkpoint.attempts import claim_attempt
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


class Helpers:
    """Helpers of several machines on one store."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes = StoreProcesses(SystemClock())
        self.ended: list[dict[str, Any]] = []

    def on(self, host: str) -> SentAlerts:
        helper = SentAlerts(host, self.processes.start)
        helper.know("gpt", self.folder.as_uri())
        return helper

    def done(self) -> None:
        eventually(lambda: not self.processes.busy(), "the store has it")

    def trains(self, *helpers: SentAlerts, machines: list[str] | None = None) -> list[str]:
        """Let the run train on these helpers' machines at once; return the classes and hosts of what was ended."""
        info = {"machines": machines, "machine_count": len(machines)} if machines is not None else {}
        claim_attempt(open_store(self.folder.as_uri()), "gpt", info)
        before = len(self.ended)
        for helper in helpers:
            helper.end_earlier("gpt", ENDED_BY, self.ended.extend)
        self.done()
        return sorted(f"{each['alert']} on {each['host']}" for each in self.ended[before:])


@pytest.fixture
def helpers(folder: Path) -> Helpers:
    return Helpers(folder)


def names(folder: Path) -> list[str]:
    return sorted(path.name.split("-")[-1] for path in (folder / "gpt" / "alerts").glob("*"))


def test_what_fired_on_a_machine_that_is_gone_is_ended_once_by_one_of_two_helpers(helpers: Helpers) -> None:
    gone = helpers.on("old")
    gone.sent([message(), message(incident="")])
    helpers.done()
    assert helpers.trains(helpers.on("a"), helpers.on("b"), machines=["a", "b"]) == [
        "disk-full on old",
        "failure on old",
    ]
    assert helpers.ended[0]["labels"]["instance"] == "old"
    assert helpers.trains(helpers.on("c"), machines=["c"]) == []


def test_what_has_ended_by_itself_is_not_ended_again(helpers: Helpers, folder: Path) -> None:
    gone = helpers.on("old")
    gone.sent([message()])
    gone.sent([message()])  # another receiver has it, too
    gone.sent([message("resolved")])
    helpers.done()
    assert (len(names(folder)), names(folder).count("ended.json")) == (2, 1)
    assert helpers.trains(helpers.on("a"), machines=["a"]) == []
    gone.sent([message("resolved")])
    helpers.done()
    assert len(names(folder)) == 2


def test_a_run_without_a_store_has_no_record(helpers: Helpers, folder: Path) -> None:
    helper = SentAlerts("old", helpers.processes.start)
    helper.sent([message()])
    helper.end_earlier("gpt", ENDED_BY, helpers.ended.extend)
    assert not helpers.processes.busy()
    assert not (folder / "gpt").exists()


@cases(
    "incident, host, helper, machines, over",
    [
        ("failure", "me", "mine", ["me"], False),  # this helper's own
        ("failure", "me", "earlier", ["me"], True),
        ("stall", "me", "earlier", None, True),
        ("", "me", "earlier", ["me"], True),  # a metric: it is evaluated anew
        ("agent-lost", "me", "earlier", ["me"], True),
        ("kernel", "me", "earlier", ["me"], False),  # the machine still has what broke
        ("failure", "other", "its", ["me", "other"], False),  # its own helper ends it
        ("", "other", "its", ["me", "other"], False),
        ("kernel", "gone", "its", ["me"], True),
        ("", "gone", "its", ["me"], True),
        ("failure", "other", "its", None, True),  # the run trains, wherever that is
        ("", "other", "its", None, False),
    ],
)
def test_an_alert_is_over_if_that_is_known_and_nobody_else_ends_it(
    incident: str, host: str, helper: str, machines: list[str] | None, over: bool
) -> None:
    record = {"incident": incident, "host": host, "helper": helper}
    assert is_over(record, host="me", helper="mine", machines=machines, ended_by=ENDED_BY) is over


def test_records_that_are_none_are_passed_over(helpers: Helpers, folder: Path) -> None:
    """Whoever may write to the store may write anything."""
    below = folder / "gpt" / "alerts"
    below.mkdir(parents=True)
    for name, text in (("a", "{"), ("b", "[]"), ("c", "[" * 100_000), ("d", json.dumps({"host": 3}))):
        (below / f"{name}.json").write_text(text)
    assert helpers.trains(helpers.on("a"), machines=["a"]) == []
