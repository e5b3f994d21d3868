"""`make quick` runs the fast tests that a change concerns."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
QUICK: Any = SimpleNamespace(**runpy.run_path(str(ROOT / "scripts" / "quick")))


@pytest.mark.parametrize(
    ("changed", "tests"),
    [
        ("agent/core/machine.py", ["tests/agent/core"]),
        ("agent/loop.py", ["tests/agent"]),
        ("hooks/state/parts/optimizers/groups.py", ["tests/hooks/state/parts/optimizers"]),
        ("packaging/spotguard/doctor/checks/store.py", ["tests/doctor/checks"]),
        ("packaging/spotguard/testing.py", []),
        ("tests/test_house.py", ["tests/test_house.py"]),
        ("tests/test_gone.py", []),
        ("tests/fakes/clock.py", ["tests/fakes"]),
        ("docs/index.md", ["tests/docs"]),
        ("benchmarks/rate.py", ["tests/test_benchmarks.py"]),
        ("CHANGELOG.md", []),
    ],
)
def test_a_changed_path_leads_to_its_tests(changed: str, tests: list[str]) -> None:
    places = QUICK.tests_for([changed])
    assert len(places) == len(tests)
    for place, expected in zip(places, tests, strict=True):
        assert (ROOT / place).exists()
        assert Path(expected).is_relative_to(place), "its own folder, or one around it"


def test_tests_below_a_chosen_folder_are_run_once() -> None:
    changed = ["agent/core/machine.py", "agent/loop.py", "tests/agent/core/test_machine.py"]
    assert QUICK.tests_for(changed) == ["tests/agent"]


def test_an_unknown_commit_is_named() -> None:
    with pytest.raises(SystemExit, match="git knows no commit 'no-such-commit'"):
        QUICK.main("no-such-commit")
