"""Names the tests that failed and then passed alone: a flake may let a change pass, but never unseen.

`SPOTGUARD_FLAKY` names a file that a series of runs shares. Each run notes there what failed, and prints the list so far
above its own last lines. `scripts/again` makes such series.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest


@dataclass
class Record:
    """What the runs of one series leave for the next.

    Args:
        failed: the tests that failed in the last run, and the files that could not be collected.
        flaky: the tests that failed and passed in the run behind it, with their environments.
    """

    failed: list[str] = field(default_factory=list)
    flaky: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, text: str) -> Record:
        return cls(**json.loads(text)) if text.strip() else cls()

    def then(self, passed: set[str], failed: set[str], environment: str) -> Record:
        """The record after one more run."""
        mended = [f"{environment}: {name}" for name in self.failed if name in passed - failed]
        flaky = self.flaky + [name for name in mended if name not in self.flaky]
        return Record(sorted(failed), flaky)

    def lines(self) -> list[str]:
        return ["FLAKY:", *(f"  {name}" for name in self.flaky)] if self.flaky else ["FLAKY: none"]


class Flaky:
    """pytest's plug-in, of the process that prints the summary."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._passed: set[str] = set()
        self._failed: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed.add(report.nodeid)
        elif report.passed and report.when == "call":
            self._passed.add(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.nodeid:
            (self._failed if report.failed else self._passed).add(report.nodeid)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        said = self._path.read_text() if self._path.exists() else ""
        record = Record.of(said).then(self._passed, self._failed, Path(sys.prefix).name)
        self._path.write_text(json.dumps(asdict(record)))
        for line in record.lines():
            terminalreporter.write_line(line)
