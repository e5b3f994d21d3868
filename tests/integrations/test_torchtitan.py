"""torchtitan's Trainer: cut at any moment, on one rank or on two with FSDP2, it ends as one that was never cut."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.integrations.frameworks import Training, differences

# Ten lives of two ranks beside other tests take minutes.
pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(900)]

#: By case: where lives end. `val` is in the middle of a validation, and 10 is the last step.
EVENTS = {
    "plain": "step:3 step:6 kill:8",
    "override": "step:3 step:6 kill:8",
    "validation": "val:3 step:5 val:9",
    "accumulation": "step:2 step:7",
    "workers": "step:3 step:7",
    "own": "step:4 step:9",
}


@pytest.mark.parametrize("case", EVENTS)
def test_a_trainer_that_is_cut_ends_as_one_that_never_was(case: str, tmp_path: Path) -> None:
    training = Training("torchtitan", "titan.py", case, tmp_path)
    training.env["SPOTGUARD_EVERY"] = "0.1"  # what a kill leaves
    plain = training.plain()
    resumed, lives = training.cut(*EVENTS[case].split())
    assert differences(plain, resumed) == []
    assert lives == len(EVENTS[case].split()) + 1


def test_two_ranks_with_fsdp2(tmp_path: Path) -> None:
    training = Training("torchtitan", "titan.py", "fsdp", tmp_path, ranks=2)
    training.plain()
    _, lives = training.cut("step:3", "step:6", "step:8")
    for rank in ("", "1"):
        assert differences(training.result(f"plain{rank}"), training.result(f"cut{rank}")) == []
    assert lives == 4


def test_a_second_training_is_refused(tmp_path: Path) -> None:
    done = Training("torchtitan", "titan.py", "twice", tmp_path).run("out", str(tmp_path / "store"))
    assert done.returncode == 1
    assert "trainer.train() was called twice" in done.stderr
    assert not (tmp_path / "out").exists()
