"""The Trainer of transformers: cut at any moment, it ends with the weights, the moments, the generators and the log of a run
that was never cut."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.integrations.frameworks import ENDED, Training, differences, warnings_in
from tests.tiers import with_nights

# Ten lives of two ranks beside other tests take minutes.
pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(900)]

#: By case: where lives end. A step in the middle of an epoch, the first one of an epoch, an evaluation, an epoch's last step. A
#: life that is killed has saved by hand, also between micro-batches, and behind the backward pass.
EVENTS = {
    "plain": "step:4 kill:12 half:13 ready:20 step:24",
    "eval": "eval:4 step:8 eval:12 step:13 kill:17 eval:24 eval:36",
    "epochs": "step:5 eval:12 step:12 log:24 eval:36",
    "steps": "step:3 step:16 eval:17",
    "best": "eval:4 step:8 kill:17",
    "early": "eval:2 step:5 eval:8",
    "workers": "step:11 step:23 kill:30",
    "grouped": "step:4 step:12 kill:20",
    "bf16": "step:4 kill:20",
    "plateau": "eval:4 step:8 kill:18",
    "compile": "step:4 kill:14",
    "peft": "step:4 step:12 kill:20",
    "start": "kill:5 eval:12 step:24",
    "leaves": "step:3 kill:4 step:5 kill:16 step:17",
    "stream": "step:3 kill:12 step:13 step:24 kill:30",
}
NIGHTS = ("best", "epochs", "steps", "grouped", "plateau", "compile", "start", "leaves", "stream")


@pytest.mark.parametrize("case", with_nights(EVENTS, NIGHTS))
def test_a_trainer_that_is_cut_ends_as_one_that_never_was(case: str, tmp_path: Path) -> None:
    training = Training("transformers", "hf.py", case, tmp_path)
    plain = training.plain()
    resumed, lives = training.cut(*EVENTS[case].split())
    assert differences(plain, resumed) == []
    assert lives > 2


@pytest.mark.parametrize("case", with_nights(["sft", "dpo"], ["dpo"]))
def test_a_trainer_of_trl_that_is_cut_ends_as_one_that_never_was(case: str, tmp_path: Path) -> None:
    training = Training("transformers", "trl_trainers.py", case, tmp_path)
    plain = training.plain()
    resumed, lives = training.cut("step:3", "eval:5", "step:8", "kill:11", "eval:15")
    assert differences(plain, resumed) == []
    assert lives == 6


@pytest.mark.parametrize(
    ("case", "launched"),
    [
        *(pytest.param("eval", launched, marks=pytest.mark.soak) for launched in (False, True)),
        ("fsdp2", False),
    ],
)
def test_two_ranks_of_a_trainer(case: str, launched: bool, tmp_path: Path) -> None:
    training = Training("transformers", "hf.py", case, tmp_path, ranks=2, launched=launched)
    training.plain()
    _, lives = training.cut("step:2", "eval:4", "step:9")
    for rank in ("", "1"):
        assert differences(training.result(f"plain{rank}"), training.result(f"cut{rank}")) == []
    assert lives == 4


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_trainer_whose_best_weights_are_in_place_loses_nothing_at_a_notice(
    ranks: int, tmp_path: Path
) -> None:
    training = Training("transformers", "hf.py", "best", tmp_path, ranks)
    plain = training.plain()
    done = training.run("cut", str(tmp_path / "store"), "end")
    assert done.returncode == 0
    assert warnings_in(done.stderr) == []
    steps = plain["step"]
    assert [int(each.name[:9]) for each in (tmp_path / "store").glob("*/checkpoints/*")] == [steps]
    assert differences(plain, training.result("cut")) == []


def test_a_resume_without_its_best_weights_is_refused(tmp_path: Path) -> None:
    """The machine is gone that had them, and the Trainer would end with the last ones without a word."""
    training = Training("transformers", "hf.py", "best", tmp_path)
    assert training.run("cut", str(tmp_path / "store"), "step:8").returncode in ENDED
    (folder,) = (each for each in tmp_path.glob("cut*") if (each / "checkpoint-4").is_dir())
    folder.rename(tmp_path / "gone")
    refused = training.run("cut", str(tmp_path / "store"))
    assert refused.returncode == 1
    assert "which is not on this machine: bring it back" in refused.stderr
    (tmp_path / "gone").rename(folder)
    assert training.run("cut", str(tmp_path / "store")).returncode == 0
    assert differences(training.plain(), training.result("cut")) == []


def test_a_guarded_trainer_that_is_not_disturbed_is_a_plain_one(tmp_path: Path) -> None:
    training = Training("transformers", "hf.py", "eval", tmp_path)
    plain = training.plain()
    guarded, lives = training.cut()
    assert differences(plain, guarded) == []
    assert lives == 1


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("finds-size", "auto_find_batch_size=True begins again with another batch size"),
        ("skips-nothing", "ignore_data_skip=True trains on batches again after a resume: leave it out"),
        ("twice", "trainer.train() was called twice"),
        ("stay", "dataloader_persistent_workers=True: the resumed epoch has workers of its own"),
        ("buffers", "Trainer trains on answers that it has generated"),
    ],
)
def test_settings_without_an_exact_resume_are_refused_by_name(case: str, said: str, tmp_path: Path) -> None:
    done = Training("transformers", "hf.py", case, tmp_path).run("out", str(tmp_path / "store"))
    assert done.returncode == 1
    assert f"UsageError: {said}" in done.stderr
    assert "[SG428]" in done.stderr
    assert not (tmp_path / "out").exists()
