"""`ls`, `inspect`, `verify` and `prune` on what several ranks have written together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spotguard.cli.main import main
from spotguard.hooks.checkpoint.format.keys import manifest_name
from spotguard.providers.stores.factory import open_store
from tests.fakes.checkpoint import TENSORS, Save


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Whole ones of four ranks and of six, and a newer one that lacks the manifests of two of eight."""
    store = open_store(tmp_path.as_uri())
    Save(step=10, world=4, target=1024).write(store)
    Save(step=20, save=1, world=6).write(store)
    late = Save(step=30, save=2, world=8)
    for rank in range(8):
        if rank in (2, 5):
            late.write_objects(store, rank)
        else:
            late.write_rank(store, rank)
    return tmp_path.as_uri()


def asked(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    main([*words, "--json"])
    return json.loads(capsys.readouterr().out)


def test_each_is_listed_with_its_ranks(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Also the one that is not whole: how many there are stands in every name."""
    found = asked(capsys, "ls", url)["checkpoints"]
    assert [(each["step"], each["world"], each["status"], each["next"]) for each in found] == [
        (30, 8, "partial", False),
        (20, 6, "complete", True),
        (10, 4, "complete", False),
    ]
    assert found[0]["reason"] == f"2 of 8 manifests are missing ({manifest_name(2, 8)} is the first)"


def test_inspect_shows_the_whole_and_each_ranks_share(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    body = asked(capsys, "inspect", url, "--step", "10")
    shapes = {tensor["name"]: tuple(tensor["shape"]) for tensor in body["tensors"]}
    assert shapes == {name: shape for name, (_, shape) in TENSORS.items()} | {
        f"@{rank:05d}/rng": (16,) for rank in range(4)
    }
    assert [rank["rank"] for rank in body["ranks"]] == [0, 1, 2, 3]
    assert sum(rank["bytes"] for rank in body["ranks"]) == body["bytes"]
    assert sum(rank["objects"] for rank in body["ranks"]) == len(body["objects"])


def test_private_state_of_each_rank_is_one_line(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """128 ranks would fill the terminal with their generators."""
    assert main(["inspect", url]) == 0
    said = capsys.readouterr().out
    (line,) = [line for line in said.splitlines() if "/rng" in line]
    assert line.split() == ["@…/rng", "uint8", "16", "96", "B", "6"]
    assert "6 ranks, " in said
    assert "written by each rank: " in said


def test_each_ranks_bytes_are_verified(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The partial one is passed over; damage in the last rank's file is found."""
    found = asked(capsys, "verify", url)["checkpoints"]
    assert [(each["step"], each["status"]) for each in found] == [(30, "partial"), (20, "complete")]
    path = next((tmp_path / "run/checkpoints/000000020-0001-0001/00005-of-00006").iterdir())
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    found = asked(capsys, "verify", url)["checkpoints"]
    assert [(each["step"], each["status"]) for each in found] == [
        (30, "partial"),
        (20, "damaged"),
        (10, "complete"),
    ]
    assert "00005-of-00006" in found[1]["damage"][0]


def test_pruning_keeps_what_is_newer_than_the_last_whole_one(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two ranks may be writing still."""
    done = asked(capsys, "prune", url, "--keep", "1")["runs"]
    assert [each["deleted"] for each in done] == [["000000010-0001-0000"]]
    left = sorted(path.name for path in (tmp_path / "run/checkpoints").iterdir())
    assert left == ["000000020-0001-0001", "000000030-0001-0002"]
