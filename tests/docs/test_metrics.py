"""The page of metrics says what is exported, and what to do about each alert that is shipped."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Any

import pytest

from spotguard.agent.telemetry.metrics.definitions import METRICS, PHASES, RESULTS, STAGES, STATES
from spotguard.deploy.monitoring import FILES
from tests.docs.pages import ROOT, section

PAGE = ROOT / "docs" / "reference" / "metrics.md"


@pytest.mark.parametrize("words", [PHASES, RESULTS, STAGES, STATES])
def test_each_word_of_a_label_is_one_that_the_help_names(words: tuple[str, ...]) -> None:
    """Where it is a closed set."""
    helps = " ".join(each.help for each in METRICS)
    assert [word for word in words if word not in helps] == []


def test_each_alert_has_its_advice_and_no_other() -> None:
    yaml: Any = pytest.importorskip("yaml")
    groups = yaml.safe_load((files("spotguard.deploy") / "template-files" / "rules.yml").read_text())[
        "groups"
    ]
    alerts = [rule["alert"] for group in groups for rule in group["rules"] if "alert" in rule]
    said = re.findall(r"^\| `(Spotguard\w+)` \| .+ \| .+ \|$", section(PAGE, "## Alerts"), re.MULTILINE)
    assert said == alerts


def test_each_file_that_is_shipped_is_named() -> None:
    text = PAGE.read_text()
    assert [name for name in FILES if f"`{name}`" not in text] == []
