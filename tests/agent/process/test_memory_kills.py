"""The kernel's counters of processes killed for memory, under both versions of cgroups."""

from __future__ import annotations

from pathlib import Path

import pytest

from spotguard.agent.process.memory_kills import memory_kills, memory_limit


def cgroup(folder: Path, membership: str, **files: str) -> tuple[Path, Path]:
    root = folder / "cgroup"
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    member = folder / "membership"
    member.write_text(membership)
    return root, member


V1 = {
    "memory__job__memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n",
    "memory__job__memory.limit_in_bytes": "1048576\n",
}
V2 = {"job__memory.events": "low 0\noom 4\noom_kill 3\noom_group_kill 0\n", "job__memory.max": "1048576\n"}


@pytest.mark.parametrize(
    ("membership", "files"),
    [
        pytest.param("4:memory:/job\n0::/\n", V1, id="v1"),
        pytest.param("0::/job\n", V2, id="v2"),
        pytest.param(
            "0::/outside\n", {name.removeprefix("job__"): text for name, text in V2.items()}, id="a namespace"
        ),
    ],
)
def test_the_counter_and_the_limit_are_read(membership: str, files: dict[str, str], tmp_path: Path) -> None:
    root, member = cgroup(tmp_path, membership, **files)
    assert memory_kills(root, member) == 3
    assert memory_limit(root, member) == 1 << 20


@pytest.mark.parametrize("limit", ["max\n", "9223372036854771712\n"])
def test_no_limit_is_none(limit: str, tmp_path: Path) -> None:
    root, member = cgroup(tmp_path, "0::/job\n", **{"job__memory.max": limit})
    assert memory_limit(root, member) == 0


def test_a_machine_without_cgroups_has_killed_nobody(tmp_path: Path) -> None:
    assert memory_kills(tmp_path / "nowhere", tmp_path / "nothing") == 0
