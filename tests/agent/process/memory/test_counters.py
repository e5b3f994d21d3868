"""The kernel's counters of memory, under both versions of cgroups: use, limit, pressure and kills."""

from __future__ import annotations

from pathlib import Path

import pytest

from spotguard.agent.core.failures.memory import MemoryReading
from spotguard.agent.process.memory.counters import MemoryCounters

V1 = {
    "cgroup/memory/job/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n",
    "cgroup/memory/job/memory.limit_in_bytes": "1000\n",
    "cgroup/memory/job/memory.usage_in_bytes": "900\n",
    "cgroup/memory/job/memory.stat": "cache 800\nactive_file 1\ntotal_active_file 100\ntotal_inactive_file 200\n",
}
V2 = {
    "cgroup/job/memory.events": "low 0\noom 4\noom_kill 3\noom_group_kill 0\n",
    "cgroup/job/memory.max": "1000\n",
    "cgroup/job/memory.current": "900\n",
    "cgroup/job/memory.stat": "anon 500\nactive_file 100\ninactive_file 150\nslab_reclaimable 50\nfile 250\n",
    "cgroup/job/memory.pressure": (
        "some avg10=40.00 avg60=1.00 avg300=0.00 total=7\nfull avg10=12.50 avg60=0.10 avg300=0.00 total=5\n"
    ),
}
MEMINFO = "MemTotal:          1000 kB\nMemFree:     1 kB\nMemAvailable:       990 kB\n"


def counters(folder: Path, membership: str, files: dict[str, str]) -> MemoryCounters:
    for name, text in {**files, "proc/self/cgroup": membership, "proc/meminfo": MEMINFO}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return MemoryCounters(folder / "cgroup", folder / "proc")


@pytest.mark.parametrize(
    ("membership", "files", "pressure"),
    [
        pytest.param("4:memory:/job\n0::/\n", V1, 0.0, id="v1"),
        pytest.param("0::/job\n", V2, 0.125, id="v2"),
        pytest.param("0::/job/step_0/task_0\n", V2, 0.125, id="an outer group's limit"),
        pytest.param(
            "0::/outside\n",
            {name.replace("/job", ""): text for name, text in V2.items()},
            0.125,
            id="a namespace",
        ),
    ],
)
def test_a_cgroup_is_read(membership: str, files: dict[str, str], pressure: float, tmp_path: Path) -> None:
    read = counters(tmp_path, membership, files)
    assert read.kills() == 3
    assert read.limit() == 1000
    assert read.reading() == MemoryReading("this job's cgroup", 600, 1000, pressure)


def test_the_tightest_of_several_limits_counts(tmp_path: Path) -> None:
    outer = {name.replace("/job", ""): text.replace("1000", "800") for name, text in V2.items()}
    read = counters(tmp_path, "0::/job\n", {**V2, **outer})
    assert read.limit() == 800
    assert (found := read.reading()) is not None
    assert found.limit == 800


@pytest.mark.parametrize(("most", "limit"), [("max\n", 0), ("1000\n", 1000)])
def test_a_limit_that_only_slows_down_fills_up_too(most: str, limit: int, tmp_path: Path) -> None:
    """The kernel does not kill there: such a limit is no cause of a kill."""
    files = {**V2, "cgroup/job/memory.max": most, "cgroup/job/memory.high": "700\n"}
    read = counters(tmp_path, "0::/job\n", files)
    assert read.limit() == limit
    assert read.reading() == MemoryReading("this job's cgroup", 600, 700, 0.125)


@pytest.mark.parametrize("limit", ["max\n", "9223372036854771712\n"])
def test_without_a_limit_the_machine_is_read(limit: str, tmp_path: Path) -> None:
    read = counters(tmp_path, "0::/job\n", {**V2, "cgroup/job/memory.max": limit})
    assert read.limit() == 0
    assert read.reading() == MemoryReading("this machine", 10 * 1024, 1000 * 1024, 0.0)


def test_reserved_huge_pages_fill_nothing(tmp_path: Path) -> None:
    read = counters(tmp_path, "0::/job\n", {})
    huge = "MemTotal: 1000 kB\nMemAvailable: 300 kB\nHugePages_Free:    5\nHugepagesize:  100 kB\n"
    (tmp_path / "proc" / "meminfo").write_text(huge)
    assert read.reading() == MemoryReading("this machine", 200 * 1024, 1000 * 1024, 0.0)


def test_a_machine_without_counters_has_none(tmp_path: Path) -> None:
    read = MemoryCounters(tmp_path / "nowhere", tmp_path / "nothing")
    assert (read.kills(), read.limit(), read.reading()) == (0, 0, None)
