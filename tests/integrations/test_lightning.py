"""Lightning's Trainer and Fabric: cut at any moment, also at an epoch's last batch, a training ends as one that was never cut."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.integrations.frameworks import Training, differences, environment, warnings_in
from tests.tiers import with_nights

# Ten lives of two ranks beside other tests take minutes.
pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(900)]

#: By case: where lives end. Steps in the middle of an epoch, at its last batch, the first one of an epoch, validations.
EVENTS = {
    "plain": "step:5 step:11 val:11 step:12 kill:22",
    "stateful": "step:5 step:11 val:11 step:12 kill:20",
    "accumulation": "step:3 step:6 val:6 step:7 kill:12",
    "half": "step:2 val:2 step:4 val:8",
    "manual": "step:5 val:11 step:12",
    "gathers": "step:3 step:7 step:10 kill:20",
    "drops": "step:3 step:7 step:10 kill:20",
    "saves": "step:4 val:5 val:11 kill:20 val:22",
    "averaged+norms": "step:4 val:22 kill:39 step:44 val:44 kill:44",
    "plateau": "step:5 val:11 kill:22",
    "steps": "step:5 val:11 step:14",
    "workers": "step:5 step:12",
    "kept": "step:5 step:11 val:11 step:14 val:22 kill:24",
    "stops": "step:5 step:14 step:18 val:22",
    "early": "step:5 val:11 step:12 kill:20",
    "sanity": "step:5 val:11",
    "older": "step:5 val:11",
    "scheduled": "step:5 val:11 kill:17",
    "stream": "step:5 val:11 kill:20",
    "several": "step:5 val:11 kill:20",
    "tuned": "step:5 val:11 kill:20",
    "tested": "step:5 val:11 kill:20",
    "means": "step:1 step:2 val:3 step:5 val:6 step:7 kill:11 step:16",
}


#: Those that the nightly run tries alone.
NIGHTS = [
    "half",
    "manual",
    "drops",
    "plateau",
    "steps",
    "sanity",
    "stops",
    "scheduled",
    "stream",
    "several",
    "tuned",
    "tested",
]


@pytest.mark.parametrize("case", with_nights(EVENTS, NIGHTS))
def test_a_trainer_that_is_cut_ends_as_one_that_never_was(case: str, tmp_path: Path) -> None:
    training = Training("lightning", "pl_older.py" if case == "older" else "pl.py", case, tmp_path)
    training.env["SPOTGUARD_EVERY"] = "0.1"  # what a kill leaves
    plain = training.plain()
    resumed, lives = training.cut(*EVENTS[case].split())
    assert differences(plain, resumed) == []
    assert lives > 2


def test_the_states_of_metrics_are_no_cause_for_a_warning(tmp_path: Path) -> None:
    done = Training("lightning", "pl.py", "means", tmp_path).run("out", str(tmp_path / "store"))
    assert done.returncode == 0
    assert "state_dict() leaves out" not in done.stderr


def test_a_trainer_whose_averaged_weights_are_in_place_loses_nothing_at_a_notice(tmp_path: Path) -> None:
    training = Training("lightning", "pl.py", "averaged", tmp_path)
    plain = training.plain()
    done = training.run("cut", str(tmp_path / "store"), "end")
    assert done.returncode == 0
    assert warnings_in(done.stderr) == []
    assert [each.name[:9] for each in (tmp_path / "store").glob("*/checkpoints/*")] == ["000000044"]
    assert differences(plain, training.result("cut")) == []


@pytest.mark.parametrize("case", ["ddp", "fsdp2"])
def test_two_ranks_of_a_trainer(case: str, tmp_path: Path) -> None:
    training = Training("lightning", "pl.py", case, tmp_path, ranks=2)
    training.plain()
    _, lives = training.cut("step:2", "val:6", "step:7")
    for rank in ("", "1"):
        assert differences(training.result(f"plain{rank}"), training.result(f"cut{rank}")) == []
    assert lives == 4


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("twice", "fit() was called twice on one Trainer"),
        ("keeps", "WeightAveraging keeps its state in Lightning's own checkpoints"),
        ("unequal", 'pass CombinedLoader(loaders, "min_size"), or loaders of equal length'),
        ("iterator", "take training_step(batch, batch_idx)"),
        ("exception", "OnExceptionCheckpoint writes a checkpoint when a preemption ends training"),
        ("finds", "LearningRateFinder trains within fit()"),
        ("thaws", "Thaws adds parameter groups while it trains"),
        ("reloads", "reload_dataloaders_every_n_epochs counts from the epoch of the restart"),
        ("own", "Lightning has loaded a checkpoint of its own"),
    ],
)
def test_settings_without_an_exact_resume_are_refused_by_name(case: str, said: str, tmp_path: Path) -> None:
    done = Training("lightning", "pl.py", case, tmp_path).run("out", str(tmp_path / "store"))
    assert done.returncode == 1
    assert said in done.stderr
    assert "[SG428]" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("case", "ranks"), [("auto", 1), pytest.param("ddp", 2, marks=pytest.mark.soak), ("fsdp2", 2)]
)
def test_a_loop_with_fabric(case: str, ranks: int, tmp_path: Path) -> None:
    training = Training("lightning", "fab.py", case, tmp_path, ranks=ranks)
    training.plain()
    _, lives = training.cut("step:2", "step:6", "kill:9")
    for rank in ["", "1"][:ranks]:
        assert differences(training.result(f"plain{rank}"), training.result(f"cut{rank}")) == []
    assert lives == 4


def test_a_strategy_that_cannot_be_saved_is_refused_by_name() -> None:
    """Lightning refuses FSDP1 on CPUs itself, so the strategies are asked without a Trainer."""
    script = (
        "from lightning.pytorch.strategies import FSDPStrategy\n"
        "from spotguard.integrations.refusals import check_lightning_strategy\n"
        "check_lightning_strategy(FSDPStrategy())"
    )
    words = [str(environment("lightning")), "-c", script]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    assert (
        "FSDPStrategy is FSDP1, which spotguard cannot save: pass strategy=ModelParallelStrategy(data_parallel_size="
        in done.stderr
    )
