"""A notice is agreed on, saved and committed without a collective: the training threads are in one, or in none."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hooks.ranks.gang import Gang, event, marked

pytest.importorskip("torch")
pytestmark = pytest.mark.torch


def test_no_group_sees_a_collective_while_a_notice_is_handled(tmp_path: Path, folder: Path) -> None:
    """Both training threads stand in their loaders from before the notice until the commit."""
    gang = Gang(2, tmp_path)
    try:
        for way in ("ddp", "fsdp"):
            store = folder / way
            counted = [event(rank, 4, "loading", "counts", least=4) for rank in range(2)]
            said = gang.play(2, way, store, event(0, 4, "loading"), *counted)
            assert [each["last"] for each in said] == [4, 4], gang.errors()
            assert len(marked(store)) == 1
            for each in said:
                before, after = each["collectives"]
                assert before > 4  # those of training are counted
                assert after == before
    finally:
        gang.close()
