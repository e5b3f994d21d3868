"""The readings of the machine: memory, pressure, the quota of CPU, the clock; nothing is guessed where the kernel does not tell."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from spotguard.alerts.readings.host import ClockSteps, CpuThrottle, memory, pressure


def proc(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_memory_is_that_of_the_cgroup_where_it_has_a_limit(tmp_path: Path) -> None:
    """Without the files that the kernel drops first."""
    group = tmp_path / "cgroup" / "job"
    group.mkdir(parents=True)
    (group / "memory.max").write_text("1000\n")
    (group / "memory.current").write_text("900\n")
    (group / "memory.stat").write_text("anon 500\ninactive_file 150\n")
    source = proc(tmp_path / "proc", self__cgroup="0::/job\n")
    assert list(memory(tmp_path / "cgroup", source)) == [("spotguard_memory_used_ratio", (), 0.75)]


def test_memory_is_the_machine_s_without_a_limit(tmp_path: Path) -> None:
    meminfo = "MemTotal:       1000 kB\nMemFree: 1 kB\nMemAvailable:    400 kB\n"
    source = proc(tmp_path / "proc", self__cgroup="0::/job\n", meminfo=meminfo)
    assert list(memory(tmp_path / "cgroup", source)) == [("spotguard_memory_used_ratio", (), 0.6)]
    assert list(memory(tmp_path / "cgroup", tmp_path / "none")) == []


def test_pressure_is_the_share_of_the_last_minute(tmp_path: Path) -> None:
    text = "some avg10=1.00 avg60=12.50 avg300=0.00 total=1\nfull avg10=0.00 avg60=3.00 avg300=0.00 total=1\n"
    source = proc(tmp_path / "proc", pressure__memory=text)
    assert list(pressure(source)) == [("spotguard_pressure_ratio", ("memory",), 0.125)]


# --- a quota of CPU ---


def stat(folder: Path, periods: int, throttled: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cpu.stat").write_text(f"usage_usec 7\nnr_periods {periods}\nnr_throttled {throttled}\n")


@pytest.mark.parametrize(
    ("membership", "group"), [("0::/job\n", "job"), ("3:cpu,cpuacct:/job\n0::/\n", "cpu/job")]
)
def test_throttled_is_the_share_of_the_last_minute_s_periods(
    tmp_path: Path, membership: str, group: str
) -> None:
    """The group that has most counts: an outer group's quota holds the inner one back, too."""
    root = tmp_path / "cgroup"
    throttle = CpuThrottle(root, proc(tmp_path / "proc", self__cgroup=membership))
    found = []
    for now, periods, throttled in ((0.0, 100, 50), (10.0, 200, 60), (60.0, 300, 90), (90.0, 400, 180)):
        stat(root / group, periods, throttled)
        stat((root / group).parent, 1000 + periods, 0)
        ((name, labels, share),) = throttle.read(now)
        assert (name, labels) == ("spotguard_cpu_throttled_ratio", ())
        found.append(share)
    assert found == pytest.approx([0.0, 0.1, 0.2, 0.9])


def test_no_quota_is_no_reading(tmp_path: Path) -> None:
    """Without one, the kernel counts no periods."""
    stat(tmp_path / "cgroup" / "job", 0, 0)
    source = proc(tmp_path / "proc", self__cgroup="0::/job\n")
    assert list(CpuThrottle(tmp_path / "cgroup", source).read(1.0)) == []
    assert list(CpuThrottle(tmp_path / "cgroup", tmp_path / "none").read(1.0)) == []


_BUSY = """
import sys, time
from pathlib import Path
from spotguard.alerts.readings.host import CpuThrottle

(Path(sys.argv[1]) / "cgroup.procs").write_text("0")
throttle = CpuThrottle()
share = 0.0
while share < 0.5:  # it computes without a pause, at a tenth of a CPU
    for _, _, share in throttle.read(time.monotonic()):
        pass
print(share)
"""


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_the_kernel_counts_so_under_a_real_quota() -> None:
    """Version 1, at the place where systemd and containers mount it."""
    top = Path("/sys/fs/cgroup/cpu")
    if not os.access(top / "cgroup.procs", os.W_OK):
        pytest.skip(f"{top} is not there, or not ours")
    group = top / f"spotguard-{os.getpid()}"
    group.mkdir()
    try:
        (group / "cpu.cfs_quota_us").write_text("10000")
        done = subprocess.run(
            [sys.executable, "-c", _BUSY, str(group)], capture_output=True, text=True, check=True
        )
        assert 0.5 <= float(done.stdout) <= 1.0
    finally:
        group.rmdir()


# --- steps of the clock ---


class Clocks:
    """The wall clock and the time since boot, set by hand."""

    def __init__(self) -> None:
        self.wall, self.boot = 1_000_000.0, 50.0
        #: Seconds that pass at each reading of the time since boot: the reader was interrupted.
        self.lost = 0.0

    def since_boot(self) -> float:
        self.boot, self.wall = self.boot + self.lost, self.wall + self.lost
        return self.boot

    def pass_by(self, seconds: float) -> None:
        self.wall, self.boot = self.wall + seconds, self.boot + seconds

    def steps(self) -> ClockSteps:
        return ClockSteps(lambda: self.wall, self.since_boot)


def seconds(steps: ClockSteps) -> dict[str, float]:
    return {direction: value for _, (direction,), value in steps.read()}


def test_a_clock_that_is_set_counts_by_direction() -> None:
    clocks = Clocks()
    steps = clocks.steps()
    assert seconds(steps) == {"forward": 0.0, "back": 0.0}
    for step in (400.0, -30.0, 1.0):
        clocks.pass_by(10.0)
        clocks.wall += step
        seconds(steps)
    assert seconds(steps) == pytest.approx({"forward": 401.0, "back": 30.0})


def test_a_suspended_machine_and_a_small_correction_are_no_step() -> None:
    """The time since boot goes on while a machine sleeps."""
    clocks = Clocks()
    steps = clocks.steps()
    clocks.pass_by(7200.0)
    clocks.wall += 0.2
    assert seconds(steps) == {"forward": 0.0, "back": 0.0}


def test_a_reading_that_was_interrupted_is_left_out() -> None:
    clocks = Clocks()
    steps = clocks.steps()
    clocks.lost = 3.0
    clocks.wall += 100.0
    assert seconds(steps) == {"forward": 0.0, "back": 0.0}
    clocks.lost = 0.0
    assert seconds(steps) == pytest.approx({"forward": 100.0, "back": 0.0}), "it is found by the next one"


def test_the_machine_s_own_clocks_are_read() -> None:
    assert seconds(ClockSteps()) == {"forward": 0.0, "back": 0.0}
