"""A store that is a folder: whether it outlives the machine, and has room."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from spotguard.doctor.checks import disk
from spotguard.providers.clock import SystemClock
from tests.doctor.test_run import visited
from tests.fakes.nobody import nobody
from tests.fakes.patient import patient

CLOCK = SystemClock()


def mounted(folder: Path, *kinds: tuple[str, str]) -> Path:
    """What is mounted where, as the kernel writes it."""
    (folder / "mounts").write_text("".join(f"source {point} {kind} rw 0 0\n" for point, kind in kinds))
    return folder / "mounts"


def test_a_disk_of_a_machine_that_goes_is_a_warning(tmp_path: Path) -> None:
    mounts = mounted(tmp_path, ("/", "ext4"))
    (found,) = disk.look((tmp_path / "not" / "yet").as_uri(), "aws", 0, CLOCK, mounts)
    assert found.state == "warning"
    assert "a disk of THIS machine" in found.found
    assert "--store" in found.advice
    assert not (tmp_path / "not").exists()


@pytest.mark.parametrize(
    "kind", ["nfs4", "ceph", "lustre", "fuse.gcsfuse", "cifs", "wekafs", "9p", "virtiofs"]
)
def test_a_folder_that_lies_elsewhere_outlives_it(tmp_path: Path, kind: str) -> None:
    mounts = mounted(tmp_path, ("/", "ext4"), (str(tmp_path), kind), (f"{tmp_path}-other", "ext4"))
    (found,) = disk.look(tmp_path.as_uri(), "aws", 0, CLOCK, mounts)
    assert (found.state, found.facts["filesystem"], found.facts["outlives"]) == ("ok", kind, True)


@pytest.mark.parametrize(
    ("kind", "at_root"),
    [("fuseblk", False), ("fuse.fuse-overlayfs", True), ("9p", True), ("virtiofs", True)],
)
def test_file_systems_that_die_with_the_machine_are_named(tmp_path: Path, kind: str, at_root: bool) -> None:
    """A disk with NTFS, a rootless container's own layer, and what a sandbox (gVisor, Kata) has for its root."""
    mounts = mounted(tmp_path, ("/", "ext4"), ("/" if at_root else str(tmp_path), kind))
    (found,) = disk.look(tmp_path.as_uri(), "aws", 0, CLOCK, mounts)
    assert (found.state, found.facts["filesystem"], found.facts["outlives"]) == ("warning", kind, False)


def test_without_a_cloud_a_local_directory_is_well(tmp_path: Path) -> None:
    (found,) = disk.look(tmp_path.as_uri(), "none", 0, CLOCK, mounted(tmp_path, ("/", "ext4")))
    assert found.state == "ok"


def test_a_state_that_has_no_room_fails(tmp_path: Path) -> None:
    free = disk.free(tmp_path)
    (found,) = disk.look(tmp_path.as_uri(), "none", 10 * free, CLOCK)
    assert (found.state, "free some room" in found.advice) == ("fails", True)
    (found,) = disk.look(tmp_path.as_uri(), "none", int(0.7 * free), CLOCK)
    assert (found.state, "--keep" in found.advice) == ("warning", True)


def test_an_unknown_file_system_is_no_failure(tmp_path: Path) -> None:
    (found,) = disk.look(tmp_path.as_uri(), "none", 0, CLOCK, tmp_path / "nothing")
    assert (found.state, found.facts["filesystem"]) == ("ok", "")


def test_a_file_system_that_does_not_say_its_size_is_no_full_one() -> None:
    """As some that are programs (FUSE), and /proc."""
    (found,) = disk.look("file:///proc/store", "none", 2**40, CLOCK)
    assert (found.state, found.facts["free_bytes"]) == ("ok", None)
    assert found.found == "how much is free is not known, and free on proc"


def test_a_folder_that_may_not_be_looked_into_has_the_room_of_what_is_above_it(tmp_path: Path) -> None:
    """Another user's home. Its rights are told by who puts."""
    private = tmp_path / "private"
    private.mkdir(mode=0)
    with nobody():
        (found,) = disk.look((private / "store").as_uri(), "none", 0, CLOCK)
    private.chmod(0o700)
    assert (found.state, found.facts["free_bytes"] > 0) == ("ok", True)


def test_a_name_that_no_folder_can_have_ends_nothing(tmp_path: Path) -> None:
    (found,) = disk.look((tmp_path / ("x" * 300)).as_uri(), "none", 0, CLOCK)
    assert found.state == "ok"


def test_a_folder_that_stands_still_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one of a file server that is gone: statvfs(2) never comes back."""
    never = threading.Event()
    monkeypatch.setattr(disk, "STEP", 0.05)
    monkeypatch.setattr("shutil.disk_usage", lambda path: never.wait(60))
    try:
        found = visited(patient(tmp_path))
    finally:
        never.set()
    states = {each.check: each.state for each in found}
    assert (states["disk"], states["verdict"]) == ("fails", "fails")
    (of,) = (each for each in found if each.check == "disk")
    assert "no answer in 0.05 s" in of.found
    assert "df, mount" in of.advice
    assert not {"put", "rate"} & set(states), "it is asked nothing more"
    assert not (tmp_path / "store").exists()
