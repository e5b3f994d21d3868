"""Lightning's Trainer: cut at any moment, also at an epoch's last batch, it ends as one that was never cut."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.integrations.frameworks import Training, differences

# Each life of a training loads torch and a framework: ten of them beside other tests take minutes.
pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(900)]

#: By case: where lives end. Steps in the middle of an epoch, at its last batch, the first one of an epoch, validations.
EVENTS = {
    "plain": "step:5 step:11 val:11 step:12 kill:22",
    "stateful": "step:5 step:11 val:11 step:12 kill:20",
    "accumulation": "step:3 step:6 val:6 step:7 kill:12",
    "half": "step:2 val:2 step:4 val:8",
    "manual": "step:5 val:11 step:12",
    "plateau": "step:5 val:11 kill:22",
    "steps": "step:5 val:11 step:14",
    "workers": "step:5 step:12",
    "early": "step:5 val:11 step:12 kill:20",
    "sanity": "step:5 val:11",
}


@pytest.mark.parametrize("case", EVENTS)
def test_a_trainer_that_is_cut_ends_as_one_that_never_was(case: str, tmp_path: Path) -> None:
    training = Training("lightning", "pl.py", case, tmp_path)
    training.env["SPOTGUARD_EVERY"] = "0.1"  # what a kill leaves
    plain = training.plain()
    resumed, lives = training.cut(*EVENTS[case].split())
    assert differences(plain, resumed) == []
    assert lives > 2


def test_two_ranks_of_a_trainer(tmp_path: Path) -> None:
    training = Training("lightning", "pl.py", "ddp", tmp_path, ranks=2)
    plain = training.plain()
    resumed, lives = training.cut("step:2", "val:6", "step:7")
    assert differences(plain, resumed) == []
    assert lives == 4


def test_a_second_fit_is_refused(tmp_path: Path) -> None:
    done = Training("lightning", "pl.py", "twice", tmp_path).run("out", str(tmp_path / "store"))
    assert done.returncode == 1
    assert "trainer.fit() was called twice with one SpotguardCallback" in done.stderr
    assert not (tmp_path / "out").exists()
