"""A store that is a folder: whether it outlives the machine, and has room."""

from __future__ import annotations

from pathlib import Path

import pytest

from spotguard.doctor import disk


def mounted(folder: Path, *kinds: tuple[str, str]) -> Path:
    """What is mounted where, as the kernel writes it."""
    lines = [
        f"{number} 1 0:{number} / {point} rw,relatime shared:1 - {kind} source rw"
        for number, (point, kind) in enumerate(kinds)
    ]
    (folder / "mountinfo").write_text("\n".join(lines))
    return folder / "mountinfo"


def test_a_disk_of_a_machine_that_goes_is_a_warning(tmp_path: Path) -> None:
    mounts = mounted(tmp_path, ("/", "ext4"))
    (found,) = disk.look((tmp_path / "not" / "yet").as_uri(), "aws", 0, mounts)
    assert found.state == "warning"
    assert "a disk of THIS machine" in found.found
    assert "--store" in found.advice
    assert not (tmp_path / "not").exists()


@pytest.mark.parametrize("kind", ["nfs4", "ceph", "lustre", "fuse.gcsfuse", "cifs"])
def test_a_folder_that_lies_elsewhere_outlives_it(tmp_path: Path, kind: str) -> None:
    mounts = mounted(tmp_path, ("/", "ext4"), (str(tmp_path), kind), (f"{tmp_path}-other", "ext4"))
    (found,) = disk.look(tmp_path.as_uri(), "aws", 0, mounts)
    assert (found.state, found.facts["filesystem"], found.facts["outlives"]) == ("ok", kind, True)


def test_where_no_cloud_is_a_folder_is_well(tmp_path: Path) -> None:
    (found,) = disk.look(tmp_path.as_uri(), "none", 0, mounted(tmp_path, ("/", "ext4")))
    assert found.state == "ok"


def test_a_state_that_has_no_room_fails(tmp_path: Path) -> None:
    free = disk.free(tmp_path.as_uri())
    (found,) = disk.look(tmp_path.as_uri(), "none", 10 * free)
    assert (found.state, "free some room" in found.advice) == ("fails", True)
    (found,) = disk.look(tmp_path.as_uri(), "none", int(0.7 * free))
    assert (found.state, "--keep" in found.advice) == ("warning", True)


def test_what_is_mounted_is_not_always_told(tmp_path: Path) -> None:
    (found,) = disk.look(tmp_path.as_uri(), "none", 0, tmp_path / "nothing")
    assert (found.state, found.facts["filesystem"]) == ("ok", "")


def test_a_store_on_a_network_is_none(tmp_path: Path) -> None:
    assert list(disk.look("s3://bucket/prefix", "aws", 10**15)) == []
