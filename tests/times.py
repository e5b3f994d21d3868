"""Where the suite's time goes: the record of a run of each tier, and the table of it in CONTRIBUTING.md.

`make times` runs both tiers with SPOTGUARD_TIMES, which names the file of the record, and prints the table. A tier of several
runs is the sum of them. Run it on a machine that does nothing else. `tests/test_times.py` refuses a table that is not the
record's. No test judges the seconds: machines differ by a factor of two.
"""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.tiers import tier

RECORD = Path(__file__).with_suffix(".json")
TIERS = ("fast", "slow")
#: Parts that are no folder: imports and collection of every worker, and servers that several folders share.
STARTS, SERVERS = "imports, collection", "servers"
HEAD = ["| tier | part | tests | seconds of workers | seconds of processors |", "|---|---|---|---|---|"]

#: By tier: the seconds by the clock, and each part's tests, seconds of workers, seconds of processors.
Record = Mapping[str, Any]


def part_of(node: str) -> str:
    """The folder of a node id, as in `tests/agent`; below hooks/ its sub-folder."""
    folders = [name for name in node.partition("::")[0].split("/") if not name.endswith(".py")]
    return "/".join(folders[: 3 if folders[1:2] == ["hooks"] else 2])


def table(record: Record) -> list[str]:
    lines = list(HEAD)
    for name in TIERS:
        parts: dict[str, list[float]] = record[name]["parts"]
        for part, (tests, workers, processors) in sorted(parts.items(), key=lambda row: -row[1][2]):
            lines.append(f"| {name} | {part} | {tests} | {workers:.0f} | {processors:.0f} |")
        tests, workers, processors = (sum(column) for column in zip(*parts.values(), strict=True))
        seconds = record[name]["seconds"]
        lines.append(
            f"| **{name}** | **all, in {seconds:.0f} s** | {tests} | {workers:.0f} | {processors:.0f} |"
        )
    return lines


class Times:
    """pytest's plug-in. Where tests run it measures them; where reports come together it writes the record.

    Processor time is what the kernel has charged to a worker, and to the children whose end it has waited for.
    """

    def __init__(self, path: Path, *, writes: bool) -> None:
        self._path = path
        self._writes = writes
        self._began = time.monotonic()
        self._part = STARTS
        self._charged = 0.0
        self._spent: dict[str, float] = defaultdict(float)
        self._durations: dict[str, float] = defaultdict(float)
        self._rows: dict[str, dict[str, list[float]]] = defaultdict(
            lambda: defaultdict(lambda: [0, 0.0, 0.0])
        )

    # --- where tests run ---

    def pytest_collection_finish(self) -> None:
        self._charge(STARTS)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        self._part = part_of(item.nodeid)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_teardown(self) -> None:
        self._charge(self._part)

    def pytest_fixture_post_finalizer(self, fixturedef: pytest.FixtureDef[Any]) -> None:
        """What a fixture of the whole session has used is known at its end, which is in the last test's teardown."""
        if fixturedef.scope != "session":
            self._charge(self._part)
        else:
            self._charge(part_of(fixturedef.baseid) if fixturedef.baseid else SERVERS)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> None:
        if call.when == "teardown":
            self._charge(self._part)
            item.user_properties += [("tier", tier(item)), ("spent", dict(self._spent))]
            self._spent.clear()

    def _charge(self, part: str) -> None:
        used = sum(os.times()[:4])
        self._spent[part] += used - self._charged
        self._charged = used

    # --- where reports come together ---

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._durations[report.nodeid] += report.duration
        if report.when != "teardown":
            return
        said: dict[str, Any] = dict(report.user_properties)
        rows = self._rows[said["tier"]]
        for part, seconds in said["spent"].items():
            rows[part][2] += seconds
        row = rows[part_of(report.nodeid)]
        row[0] += 1
        row[1] += self._durations.pop(report.nodeid)

    def pytest_terminal_summary(self) -> None:
        if not self._writes:
            return
        record = json.loads(self._path.read_text()) if self._path.exists() else {}
        for name, rows in self._rows.items():
            earlier = record.get(name, {"seconds": 0.0, "parts": {}})
            for part, before in earlier["parts"].items():
                rows[part] = [sum(column) for column in zip(rows[part], before, strict=True)]
            parts = {part: [row[0], round(row[1], 1), round(row[2], 1)] for part, row in sorted(rows.items())}
            seconds = earlier["seconds"] + time.monotonic() - self._began
            record[name] = {"seconds": round(seconds, 1), "parts": parts}
        self._path.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":  # to be pasted into CONTRIBUTING.md
    print("\n".join(table(json.loads(RECORD.read_text()))))
