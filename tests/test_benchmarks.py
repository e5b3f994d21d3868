"""Each benchmark runs to its end, with sizes that say nothing about speed, and yields the rows that are promised."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

# The root is on sys.path for these two lines only: left there, `import hooks` would make a second class of each name.
sys.path.append(root := str(Path(__file__).parent.parent))
from benchmarks.__main__ import NAMES, run
from benchmarks.rows import Row, table
from benchmarks.scenes import SCENES
from benchmarks.watched import CLOUDS

sys.path.remove(root)

pytestmark = [pytest.mark.torch, pytest.mark.wholepath]

#: Benchmark -> how its rows begin, in order.
ROWS = {
    "step": [
        "a Python call of nothing",
        "guard.step(), MLP",
        "guard.step(), the same",
        *["  of which"] * 4,
        "guard.step(), ResNet-50",
    ],
    "notice": [
        line
        for cloud in CLOUDS.values()
        for line in (f"notice visible → hook told, {cloud.name}", "  of which after the agent read it")
    ],
    "scenarios": [next(scene.row for scene in SCENES if scene.provider == cloud) for cloud in CLOUDS],
    "first_byte": ["hook told → first byte, main thread in torch"],
    "agent": [
        f"spotguard {way}, {cloud.name}: {what}"
        for cloud in CLOUDS.values()
        for way in ("run", "agent")
        for what in ("resident", "its proportional", "CPU")
    ],
    "rate": [
        f"{verb} in memory (tmpfs){what}: spotguard"
        for verb in ("save", "restore")
        for what in ("", ", CPU", ", memory beyond the state")
    ],
    "background": [
        "training time",
        "  as a share of step time, one",
        "  as a share of step time, one every 60 s",
    ],
    "manifests": ["manifests of 4 ranks × 20 tensors"],
}


@pytest.mark.parametrize("name", NAMES)
def test_each_benchmark_yields_its_rows(name: str) -> None:
    """Tiny, every benchmark yields rows with at least one value each, in the order of the table."""
    rows = run(name, tiny=True)

    expected = ROWS[name]
    assert expected == [row.what[: len(start)] for row, start in zip(rows, expected, strict=False)]
    assert all(row.values for row in rows)


def test_the_table_shows_spread_figure_and_peer() -> None:
    """A row shows its median and extremes, how far its figure is, and how it stands to its peer."""
    row = Row("a thing", "ms", (3.0, 1.0, 2.0), figure=4.0, peer=8.0, peer_name="other")

    line = table([row]).splitlines()[2]

    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells == ["a thing", "2.00 ms", "1.00 … 3.00", "3", "≤ 4.00", "0.50", "0.25 × other"]


def test_a_bound_is_judged_by_the_worst_value() -> None:
    """Where a figure holds for every value, one slow value is what the ratio says."""
    row = Row("a thing", "ms", (3.0, 1.0, 2.0), figure=4.0, worst=True)

    assert "0.75" in table([row])
