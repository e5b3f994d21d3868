"""The reference pages say what the program says: their generated parts are as the code has them now."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

import pytest

from spotguard.agent.outcome import Outcome, SessionOutcome
from spotguard.providers.simulator.aws import cli as aws_cli
from spotguard.providers.simulator.gcp import cli as gcp_cli
from tests.cases import cases
from tests.docs import generated
from tests.docs.pages import ROOT, section

COMMANDS = ROOT / "docs" / "reference" / "commands.md"
HOW = "write it again: .venv/bin/python -m tests.docs.generated"


@cases("page", generated.pages())
def test_a_generated_part_is_as_the_code_has_it(page: Path) -> None:
    text = page.read_text()
    assert generated.renewed(text) == text, HOW


def test_the_list_of_messages_is_as_the_code_has_it() -> None:
    """So that a change of what a person reads is seen in review."""
    assert generated.MESSAGES.read_text() == generated.message_list(), HOW


def test_every_command_option_metric_and_outcome_is_generated() -> None:
    found = {part for page in generated.pages() for part in generated.parts(page.read_text())}
    assert {("command", name) for name, _ in generated.parsers()} <= found
    assert {("settings", ""), ("metrics", ""), ("fields", "Outcome"), ("fields", "SessionOutcome")} <= found


@cases("command", [name for name, _ in generated.parsers()])
def test_each_command_has_a_section(command: str) -> None:
    below = section(COMMANDS, f"{'###' if ' ' in command else '##'} spotguard {command}")
    assert f"<!-- generated: command {command} -->" in below


@pytest.mark.parametrize(("cloud", "verbs"), [("aws", aws_cli.VERBS), ("gcp", gcp_cli.VERBS)])
def test_each_verb_of_a_simulators_scripts_is_explained_and_no_other(
    cloud: str, verbs: Mapping[str, object]
) -> None:
    table = section(COMMANDS, f"### spotguard simulate {cloud}").partition("\n| verb |")[2]
    assert re.findall(r"^\| ([a-z-]+) \| ", table, re.MULTILINE) == list(verbs)


@cases("kind", [Outcome, SessionOutcome])
def test_each_field_of_an_outcome_has_a_meaning(kind: type[Outcome | SessionOutcome]) -> None:
    text = generated.renewed(f"<!-- generated: fields {kind.__name__} -->\n<!-- end -->")
    rows = re.findall(r"^\| `(\w+)` \| .* \| (.+) \|$", text, re.MULTILINE)
    assert [name for name, _ in rows] == [each.name for each in fields(kind)]


def test_a_text_between_generated_parts_stays() -> None:
    page = "# A\n\n<!-- generated: metrics -->\nold\n<!-- end -->\n\nBy hand.\n"
    renewed = generated.renewed(page)
    assert renewed.startswith("# A\n\n<!-- generated: metrics -->\n")
    assert "spotguard_" in renewed
    assert "old" not in renewed
    assert renewed.endswith("<!-- end -->\n\nBy hand.\n")
