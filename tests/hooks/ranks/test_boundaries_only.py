"""One rank can be saved at its boundaries only, the other wherever it stands: both leave in order, and in one place."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hooks.ranks.checking import saved_together
from tests.hooks.ranks.gang import Gang, event

pytest.importorskip("torch")
pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    ("way", "rank", "phase"),
    [
        pytest.param("ddp", 0, "loading", id="who saves anywhere is noticed before its step"),
        pytest.param("ddp", 1, "backward", id="who saves at boundaries is noticed in its step"),
        pytest.param("fsdp", 1, "evaluation", id="who saves at boundaries is noticed behind its boundary"),
    ],
)
def test_none_ends_with_an_error_of_the_others_end(
    gang: Gang, way: str, rank: int, phase: str, folder: Path
) -> None:
    """Behind the commit, who stands at its boundary joins the other in the collectives of the next step, and leaves then."""
    said = gang.play(2, way, folder, event(rank, 4, phase), training="some at boundaries")
    assert saved_together(gang, folder, said) >= 4
    assert [each["completed"] for each in said] == [said[0]["last"]] * 2
