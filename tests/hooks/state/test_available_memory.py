"""How much host memory there is: the machine's, or the container's where that is less."""

from __future__ import annotations

from pathlib import Path

import pytest

from spotguard.hooks.state.memory_access import available_memory

pytestmark = pytest.mark.torch

MEMINFO = "MemTotal:       500000000 kB\nMemFree:  1 kB\nMemAvailable:   400000000 kB\n"


def machine(tmp_path: Path, **files: str) -> tuple[Path, Path]:
    (tmp_path / "meminfo").write_text(MEMINFO)
    for name, text in files.items():
        path = tmp_path / "cgroup" / name.replace("__", "/").replace("_DOT_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "meminfo", tmp_path / "cgroup"


def test_without_a_limit_the_machines_counts(tmp_path: Path) -> None:
    """MemAvailable, in bytes."""
    assert available_memory(*machine(tmp_path)) == 400000000 * 1024


def test_a_container_limit_counts_where_it_is_less(tmp_path: Path) -> None:
    """What can be reclaimed is available; cgroup v2."""
    files = {
        "memory_DOT_max": "1000\n",
        "memory_DOT_current": "700\n",
        "memory_DOT_stat": "anon 1\ninactive_file 50\n",
    }
    assert available_memory(*machine(tmp_path, **files)) == 350


def test_an_unlimited_container_is_the_machine(tmp_path: Path) -> None:
    """`max` is no number."""
    files = {"memory_DOT_max": "max\n", "memory_DOT_current": "700\n", "memory_DOT_stat": ""}
    assert available_memory(*machine(tmp_path, **files)) == 400000000 * 1024


def test_a_container_of_the_first_kind(tmp_path: Path) -> None:
    """cgroup v1 has other names."""
    files = {
        "memory__memory_DOT_limit_in_bytes": "1000",
        "memory__memory_DOT_usage_in_bytes": "1200",
        "memory__memory_DOT_stat": "total_inactive_file 100\n",
    }
    assert available_memory(*machine(tmp_path, **files)) == 0


def test_here_it_is_a_real_number() -> None:
    """On the machine that runs this."""
    assert available_memory() > 0
