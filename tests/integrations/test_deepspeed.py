"""A loop around DeepSpeed's engine: cut anywhere, it ends as one that never was."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.integrations.frameworks import ALONE, Training, differences
from tests.tiers import with_nights

# Ten lives of two ranks beside other tests take minutes.
pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(900)]

#: Two steps into the second epoch, the last step of an epoch, and a kill after a save. An epoch has three steps.
EVENTS = ("step:4", "step:6", "kill:8")
CASES = (
    "0-fp32",
    "0-bf16",
    "0-fp16",
    "1-bf16",
    "1-fp16",
    "2-fp32-frozen",
    "2-bf16",
    "3-bf16",
    "3-fp32-frozen",
)
NIGHTS = ("0-fp32", "0-bf16", "0-fp16", "1-bf16", "1-fp16", "2-fp32-frozen", "2-bf16", "3-bf16")


@pytest.mark.parametrize("case", with_nights(CASES, NIGHTS))
def test_two_ranks_that_are_cut_end_as_ones_that_never_were(case: str, tmp_path: Path) -> None:
    training = Training("deepspeed", "ds.py", case, tmp_path, ranks=2)
    training.plain()
    _, lives = training.cut(*EVENTS)
    for rank in ("", "1"):
        assert differences(training.result(f"plain{rank}"), training.result(f"cut{rank}")) == []
    assert lives == len(EVENTS) + 1


def test_another_number_of_ranks_is_refused(tmp_path: Path) -> None:
    training = Training("deepspeed", "ds.py", "1-bf16", tmp_path, ranks=2)
    training.run("cut", str(tmp_path / "store"), "step:4")
    alone = Training("deepspeed", "ds.py", "1-bf16", tmp_path)
    alone.env |= ALONE
    done = alone.run("cut", str(tmp_path / "store"))
    assert done.returncode == 1
    assert (
        "The checkpoint is of 2 ranks, and this job has 1: if each rank held a part of masters0, start 2 again"
        in done.stderr
    )
    assert not (tmp_path / "cut").exists()


@pytest.mark.parametrize(
    ("case", "ranks", "said"),
    [("2-fp32-offload", 1, "offload_optimizer"), ("1-fp32-parallel", 2, "model parallelism")],
)
def test_settings_without_an_exact_resume_are_refused_by_name(
    case: str, ranks: int, said: str, tmp_path: Path
) -> None:
    training = Training("deepspeed", "ds.py", case, tmp_path, ranks)
    if ranks == 1:
        training.env |= ALONE
    done = training.run("out", str(tmp_path / "store"))
    assert done.returncode == 1
    assert f"UsageError: DeepSpeed's {said} keeps state that spotguard does not read" in done.stderr
    assert not (tmp_path / "out").exists()
