"""A loop that accelerate prepared: cut anywhere, it ends as one that never was."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.integrations.frameworks import Training, differences
from tests.tiers import with_nights

# Ten lives of two ranks beside other tests take minutes.
pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(900)]

#: Steps in the middle of an epoch, at its last batch (6, 12), and a kill after a save.
EVENTS = ("step:2", "step:5", "step:6", "kill:8", "step:11", "step:12")


@pytest.mark.parametrize("case", ["seedable", "shuffled", "stateful", "by-hand"])
def test_a_loop_that_is_cut_ends_as_one_that_never_was(case: str, tmp_path: Path) -> None:
    training = Training("transformers", "accel.py", case, tmp_path)
    plain = training.plain()
    resumed, lives = training.cut(*EVENTS)
    assert differences(plain, resumed) == []
    assert lives == len(EVENTS) + 1


@pytest.mark.parametrize("case", with_nights(["seedable", "fsdp2"], ["seedable"]))
def test_two_ranks_of_a_loop(case: str, tmp_path: Path) -> None:
    training = Training("transformers", "accel.py", case, tmp_path, ranks=2)
    training.plain()
    _, lives = training.cut("step:2", "step:4", "step:6")
    for rank in ("", "1"):
        assert differences(training.result(f"plain{rank}"), training.result(f"cut{rank}")) == []
    assert lives == 4


def test_fsdp1_is_refused_by_name(tmp_path: Path) -> None:
    done = Training("transformers", "accel.py", "fsdp1", tmp_path, ranks=2).run(
        "out", str(tmp_path / "store")
    )
    assert done.returncode == 1
    assert "the Accelerator uses FSDP1, which spotguard cannot save: pass FullyShardedData" in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_stateful_loader_with_another_order_after_a_resume_is_refused(tmp_path: Path) -> None:
    done = Training("transformers", "accel.py", "unseeded", tmp_path).run("out", str(tmp_path / "store"))
    assert done.returncode == 1
    assert "use_seedable_sampler=True is passed too: pass both, or neither" in done.stderr
    assert not (tmp_path / "out").exists()
