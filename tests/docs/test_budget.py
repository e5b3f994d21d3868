"""The page of the budget says what the planner and the interval say."""

from __future__ import annotations

import re

from spotguard.hooks.commit.plan.throughput import LinkRate
from spotguard.hooks.save.emergency.budget import BudgetChoice, BudgetInputs, SaveSizes, plan
from spotguard.hooks.save.schedule import best_interval
from tests.docs.pages import ROOT, section

PAGE = ROOT / "docs" / "explanation" / "budget.md"
MIB = 2**20


def test_the_example_is_what_is_said() -> None:
    at = BudgetInputs(
        0.0, 10.0, 120, SaveSizes(400 * MIB, 800 * MIB), LinkRate.exactly(100 * MIB), commit=0.5
    )
    assert plan(at).reason in PAGE.read_text()


def test_every_choice_has_its_row() -> None:
    rows = re.findall(r"^\| \*\*", section(PAGE, "## What is saved"), re.MULTILINE)
    assert len(rows) == len(BudgetChoice)


def test_the_intervals_are_those_that_are_kept() -> None:
    below = section(PAGE, "## How often, before any notice")
    rows = re.findall(r"^\| ([\d.]+) s \| (.*) \|$", below, re.MULTILINE)
    assert len(rows) == 4
    for cost, said in rows:
        minutes = [best_interval(6.0, float(cost), hours * 3600) / 60 for hours in (0.5, 3, 24)]
        assert [f"{round(each, 1):g} min" for each in minutes] == said.split(" | ")
