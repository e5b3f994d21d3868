"""Where a stage lies, and in which order both places are looked at."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from spotguard.hooks.checkpoint.attempts import claim_attempt
from spotguard.hooks.checkpoint.catalog import whole_checkpoints
from spotguard.hooks.checkpoint.local_stage import Stage, StagedCheckpoint, file_system, newest_first
from spotguard.providers.errors import UnavailableError
from tests.fakes.checkpoint import Save
from tests.fakes.store import FakeStore, Fault

MOUNTS = """\
/dev/sda1 / ext4 rw 0 0
tmpfs /run tmpfs rw 0 0
/dev/nvme0n1 /mnt/local\\040disk xfs rw 0 0
tmpfs /mnt/twice tmpfs rw 0 0
/dev/nvme1n1 /mnt/twice xfs rw 0 0
server:/d /mnt/données nfs4 rw 0 0
server:/t /mnt/a\\011b\\134040c\u3000d\u2028e ceph rw 0 0
server:/b /mnt/\udcff cifs rw 0 0
"""


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/srv/stage", "ext4"),
        ("/run/stage", "tmpfs"),
        ("/runner", "ext4"),
        ("/mnt/local disk/a/b", "xfs"),
        ("/mnt/twice", "xfs"),
        ("/mnt/données/run", "nfs4"),
        ("/mnt/a\tb\\040c\u3000d\u2028e", "ceph"),
        ("/mnt/\udcff", "cifs"),  # a name that is no UTF-8
    ],
)
def test_a_folder_lies_on_the_mount_that_is_nearest_and_latest(
    tmp_path: Path, folder: str, kind: str
) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_bytes(os.fsencode(MOUNTS))
    assert file_system(Path(folder), mounts) == kind
    assert file_system(Path(folder), tmp_path / "none") == ""


def test_a_disk_with_too_little_room_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    Stage(tmp_path / "small", "run", 2**60)
    assert "has room for" in caplog.text
    caplog.clear()
    Stage(tmp_path / "large", "run", 1)
    assert "has room for" not in caplog.text


def staged_and_stored(tmp_path: Path, *, near: range, far: range) -> tuple[Stage, FakeStore]:
    """Steps on the disk and in the store, of attempt 1, whose record lies in both."""
    store, stage = FakeStore(), Stage(tmp_path, "run")
    stage.begin(store, claim_attempt(store, "run", {}))
    for place, steps in ((stage.files, near), (store, far)):
        for step in steps:
            Save(attempt=1, step=step, save=step, world=1).write(place)
    return stage, store


def order(stage: Stage, store: FakeStore) -> list[tuple[int, bool]]:
    found = newest_first(stage.wholes(store), whole_checkpoints(store, "run"))
    return [(whole.name.step, isinstance(whole, StagedCheckpoint)) for whole in found]


def test_both_are_looked_at_by_age_and_the_disk_first_on_a_tie(tmp_path: Path) -> None:
    stage, store = staged_and_stored(tmp_path, near=range(3, 5), far=range(2, 4))
    assert order(stage, store) == [(4, True), (3, True), (3, False), (2, False)]


@pytest.mark.parametrize("record", ["another", "none here", "none there"])
def test_a_stage_beside_another_record_is_ignored(tmp_path: Path, record: str) -> None:
    stage, store = staged_and_stored(tmp_path, near=range(3, 5), far=range(2, 4))
    if record == "another":
        store.objects["run/attempts/0001.json"] += b" "
    elif record == "none here":
        stage.files.delete(["run/attempts/0001.json"])
    else:
        store.delete(["run/attempts/0001.json"])
    assert order(stage, store) == [(3, False), (2, False)]


def test_a_disk_that_cannot_be_read_is_said_and_left_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stage, store = staged_and_stored(tmp_path, near=range(3, 5), far=range(2, 4))
    broken = FakeStore()
    broken.faults = [Fault(0, error=lambda: UnavailableError("an I/O error"))]
    stage.files = broken  # type: ignore[assignment]
    with caplog.at_level(logging.WARNING):
        assert order(stage, store) == [(3, False), (2, False)]
    assert ", and uses those in the store: an I/O error" in caplog.text


def test_a_store_that_cannot_be_read_is_no_reason_to_take_what_is_here(tmp_path: Path) -> None:
    """What cannot be seen is neither damaged nor older."""
    stage, store = staged_and_stored(tmp_path, near=range(3, 5), far=range(2, 4))
    store.calls.clear()
    store.faults = [Fault(0, error=lambda: UnavailableError("gone"))]
    with pytest.raises(UnavailableError):
        order(stage, store)
