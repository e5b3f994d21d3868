"""The page of alerts names every incident and every shipped rule, and each trouble has one of them."""

from __future__ import annotations

import json
import re
from datetime import datetime
from importlib.resources import files
from typing import Any

import pytest

from spotguard.alerts.incidents import KINDS, Incident
from spotguard.alerts.receivers import Origin, Receiver
from tests.docs.pages import ROOT, section

PAGE = ROOT / "docs" / "how-to" / "alerts.md"
#: The troubles that somebody has to be told of, whatever else is.
TROUBLES = (
    "training failed",
    "training stands still",
    "a preemption cost steps",
    "the agent died",
    "Xid in the kernel log",
    "broken disk, machine check",
    "kill for memory",
    "old or failing checkpoints",
    "blind source",
    "slow steps",
    "slow machine",
    "bad losses",
    "long run",
    "full disk",
    "short memory",
    "memory pressure",
    "CPU quota that runs out",
    "clock that was set",
    "lost GPU",
    "memory errors of a GPU",
    "slowed GPU",
)


def table(head: str, columns: int) -> list[list[str]]:
    """Return the cells of each row of the table in a section."""
    lines = [line for line in section(PAGE, head).splitlines() if line.startswith("| ")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in rows if len(row) == columns][1:]


def names(cell: str) -> list[str]:
    return re.findall("`([^`]+)`", cell)


def test_the_example_has_the_form_of_what_is_posted() -> None:
    (block,) = re.findall(r"```json\n(.*?)```", PAGE.read_text(), re.DOTALL)
    shown = json.loads(block)
    (failure,) = shown["incidents"]
    labels = {name: value for name, value in failure["labels"].items() if name in ("run_id", "rank", "class")}
    incident = Incident("failure", tuple(labels.items()), failure["summary"], began=0.0)
    origin = Origin(shown["host"], shown["run_id"])
    began = datetime.fromisoformat(failure["startsAt"]).timestamp()
    assert Receiver.of("https://example.com/hook").body([incident], origin, 0.0, lambda _: began) == shown


def test_each_incident_has_its_row_and_its_severity() -> None:
    rows = {name: row[2] for row in table("## Send incidents to one receiver", 4) for name in names(row[0])}
    assert rows == {name: kind.severity for name, kind in KINDS.items()}


def test_each_trouble_is_an_incident_or_a_rule_and_none_is_left_out() -> None:
    yaml: Any = pytest.importorskip("yaml")
    text = (files("spotguard.deploy") / "template-files" / "rules.yml").read_text()
    groups = yaml.safe_load(text)["groups"]
    rows = table("## Let Prometheus evaluate numbers", 3)
    assert tuple(row[0] for row in rows)[: len(TROUBLES)] == TROUBLES
    assert [row[0] for row in rows if not names(row[1]) and not names(row[2])] == []
    assert {name for row in rows for name in names(row[1])} == set(KINDS)
    assert {name for row in rows for name in names(row[2])} == {
        rule["alert"] for group in groups for rule in group["rules"] if "alert" in rule
    }
