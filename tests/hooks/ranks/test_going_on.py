"""A job of several ranks that was preempted goes on as if it had not been; on fewer or more ranks too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hooks.ranks.gang import Gang, event, losses, marked, newest

pytest.importorskip("torch")
pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def gang(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gang]:
    gang = Gang(4, tmp_path_factory.mktemp("gang"))
    yield gang
    gang.close()


@pytest.mark.parametrize(
    ("way", "world"),
    [("ddp", 2), ("ddp", 4), ("fsdp", 2), ("fsdp", 4), ("tp_fsdp", 4)],
)
def test_a_run_that_was_preempted_goes_on_bit_for_bit(gang: Gang, way: str, world: int, folder: Path) -> None:
    straight = gang.play(world, way, folder / "straight", digests=True, total=8)
    store = folder / "preempted"
    first = gang.play(world, way, store, event(world - 1, 4, "forward"), total=8)
    step = first[0]["last"]
    assert [each["ended"] for each in first] == ["preempted"] * world, gang.errors()
    assert [each["last"] for each in first] == [step] * world
    assert len(marked(store)) == 1
    whole = newest(store)
    assert whole is not None
    assert whole.name.step == step
    then = gang.play(world, way, store, digests=True, total=8)
    for rank in range(world):
        assert then[rank]["start"] == step
        assert then[rank]["digests"] == {
            at: digest for at, digest in straight[rank]["digests"].items() if int(at) >= step
        }
        assert {**first[rank]["losses"], **then[rank]["losses"]} == straight[rank]["losses"]


def test_a_job_goes_on_with_fewer_ranks_and_with_more(gang: Gang, folder: Path) -> None:
    straight = gang.play(4, "fsdp", folder / "straight", digests=True)
    store = folder / "changing"
    four = gang.play(4, "fsdp", store, event(2, 3, "backward"))
    two = gang.play(2, "fsdp", store, total=7, saves=[7])
    three = gang.play(3, "fsdp", store)
    assert two[0]["digests"][str(four[0]["last"])] == straight[0]["digests"][str(four[0]["last"])]
    assert three[0]["start"] == 7
    assert losses(two) == pytest.approx({step: losses(straight)[step] for step in losses(two)}, abs=1e-5)
    assert losses(three) == pytest.approx({step: losses(straight)[step] for step in losses(three)}, abs=1e-5)
