"""Names in, keys out, and back; and nothing else comes back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotguard.hooks.checkpoint.format.keys import (
    CheckpointName,
    attempt_key,
    check_run_id,
    checkpoint_prefix,
    manifest_name,
    object_name,
    parse_attempt,
    parse_manifest_name,
    parse_object_name,
)
from spotguard.providers.errors import UsageError
from spotguard.providers.stores.base import check_key

numbers = st.integers(0, 10**14)


def test_the_layout_is_as_designed() -> None:
    """These are what stores hold for ever."""
    name = CheckpointName(attempt=3, step=1200, save=7)
    assert checkpoint_prefix("run", name) == "run/checkpoints/000001200-0003-0007/"
    assert object_name(0, 8, 0) == "00000-of-00008/0000.safetensors"
    assert manifest_name(0, 8) == "00000-of-00008.json"
    assert attempt_key("run", 3) == "run/attempts/0003.json"


@given(numbers, numbers, numbers)
def test_a_checkpoints_name_comes_back(attempt: int, step: int, save: int) -> None:
    """Also where numbers outgrow their digits."""
    name = CheckpointName(attempt, step, save)
    assert CheckpointName.parse(str(name)) == name
    assert check_key(checkpoint_prefix("run", name) + object_name(0, 1, 0))


@given(numbers, st.integers(0, 10**6 - 1))
def test_other_names_come_back(attempt: int, rank: int) -> None:
    """Attempts, manifests, objects."""
    assert parse_attempt("run", attempt_key("run", attempt)) == attempt
    assert parse_manifest_name(manifest_name(rank, 10**6)) == (rank, 10**6)
    assert parse_object_name(object_name(rank, 10**6, attempt % 1000)) == (rank, 10**6, attempt % 1000)


def test_newer_is_larger() -> None:
    """A later attempt beats a higher step: it began from what it chose."""
    names = [
        CheckpointName(1, 900, 9),
        CheckpointName(2, 100, 0),
        CheckpointName(2, 100, 1),
        CheckpointName(2, 200, 0),
    ]
    assert sorted(names) == names


@pytest.mark.parametrize(
    "text",
    ["", "1-1-1", "000000001-0001", "000000001-0001-0001-0001", "0000000001-0001-0001", "00000000١-0001-0001",
     "-00000001-0001-0001", "000000001-0001-0001/", "000000001-0001-0001\n", "9" * 16 + "-0001-0001"],
)  # fmt: skip
def test_a_name_in_another_form_is_not_ours(text: str) -> None:
    """One name for one checkpoint."""
    assert CheckpointName.parse(text) is None


@pytest.mark.parametrize(
    "text",
    ["00008-of-00008.json", "0-of-1.json", "00000-of-00000.json", "../00000-of-00001.json", "COMMIT.json"],
)
def test_an_invalid_manifest_name_is_none(text: str) -> None:
    """A rank is below its world."""
    assert parse_manifest_name(text) is None


@pytest.mark.parametrize("run_id", ["", "a/b", "..", ".a", "-a", "a b", "ä", "a" * 65, "a\n"])
def test_a_run_id_that_is_no_folder_is_refused(run_id: str) -> None:
    """With what may be used."""
    with pytest.raises(UsageError, match="use up to 64 letters"):
        check_run_id(run_id)


@pytest.mark.parametrize("run_id", ["a", "gpt-small-7", "_x", "A.b_c-9", "a" * 64])
def test_a_run_id_that_is_one_passes(run_id: str) -> None:
    """Unchanged, and good in a key."""
    assert check_run_id(run_id) == run_id
    check_key(attempt_key(run_id, 1))
