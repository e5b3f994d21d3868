"""`--stage`: what a folder on this machine's own disk is good for, and that nothing of us stays there."""

from __future__ import annotations

from pathlib import Path

import pytest

from spotguard.doctor.checks import stage
from spotguard.doctor.finding import Finding
from spotguard.hooks.checkpoint.local_stage import usable
from spotguard.providers.clock import SystemClock
from spotguard.providers.errors import UsageError


def looked(folder: Path, nbytes: int = 0) -> Finding:
    (found,) = stage.look(folder, "gpt-small-7", nbytes, SystemClock())
    return found


def test_a_folder_that_can_be_made_is_well_and_not_made(tmp_path: Path) -> None:
    found = looked(tmp_path / "a" / "stage")
    assert found.facts["free_bytes"] > 0
    assert found.found.startswith(f"{tmp_path / 'a' / 'stage'}, on ")
    assert list(tmp_path.iterdir()) == []


def test_one_that_is_there_stays_as_it_was(tmp_path: Path) -> None:
    looked(tmp_path)
    assert tmp_path.is_dir()
    assert list(tmp_path.iterdir()) == []


def test_one_that_cannot_be_made_fails_with_registers_own_words() -> None:
    folder = Path("/proc/spotguard-stage")
    found = looked(folder)
    with pytest.raises(UsageError) as caught:
        usable(folder, "gpt-small-7")
    assert found.state == "fails"
    assert found.found.startswith(f"--stage {folder} (SPOTGUARD_STAGE) cannot be used: ")
    assert found.found.split(": put ")[0] == str(caught.value).split(": put ")[0]
    assert found.advice


def test_one_in_memory_is_a_warning() -> None:
    memory = Path("/dev/shm")
    if not memory.is_dir():
        pytest.skip("no memory file system is mounted here")
    found = looked(memory / "spotguard-stage-of-a-test")
    assert (found.state, "memory" in found.advice) == ("warning", True)
    assert not (memory / "spotguard-stage-of-a-test").exists()


def test_one_without_room_for_two_checkpoints_is_a_warning(tmp_path: Path) -> None:
    found = looked(tmp_path, nbytes=2**60)
    assert found.state == "warning"
    assert "free some room" in found.advice
