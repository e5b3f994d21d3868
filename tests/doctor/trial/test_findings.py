"""The findings about a trial, from the lines that its ranks have written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from spotguard.agent.core.budget import Fit
from spotguard.doctor.finding import Finding
from spotguard.doctor.trial import findings as about
from spotguard.doctor.trial.harness import MeasuredTrial, TrialRequest
from spotguard.doctor.trial.measured import MeasuredRecord
from spotguard.doctor.trial.memory import MemoryPeak
from spotguard.prove.copies import Original
from spotguard.prove.record import OpenedFiles
from spotguard.prove.runner import Life
from tests.fakes.patient import options

MIB = 2**20
POSITION = {"step": 3, "mode": "window", "detail": "", "misuse": "", "unmarked_steps": 0}
SAVED = {
    "what": "saved",
    "kind": "emergency",
    "bytes": 8 * MIB,
    "seconds": 2.0,
    "waited": 0.5,
    "level": "full",
    "why": "",
}


def rank(*lines: dict[str, Any], number: int = 0, world: int = 1) -> MeasuredRecord:
    record = MeasuredRecord()
    begin = {"what": "begin", "rank": number, "world": world, "pid": 1, "seed": 0, "early": True}
    record.take({**begin, "kinds": {"model": "Linear"}, "said": "- -"})
    for line in ({"what": "began", "step": 0}, *lines):
        record.take(line)
    return record


def step(seconds: float = 1.0, waited: float = 0.0, batches: int = 1) -> dict[str, Any]:
    phases = {"forward": 3, "data": 1}
    numbers = {"waited": waited, "batches": batches, "samples": 8 * batches, "phases": phases}
    return {"what": "step", "step": 1, "seconds": seconds, **numbers}


def facts(share: int = 8 * MIB, **position: Any) -> dict[str, Any]:
    loaders = {"_MultiProcessingDataLoaderIter": 0}
    body = {"position": POSITION | position, "held": share, "share": share, "devices": [], "loaders": loaders}
    return {"what": "facts", **body}


def trial(*ranks: MeasuredRecord, memory: int = 10 * MIB) -> MeasuredTrial:
    life = Life("trial", list(ranks), 75, True, 5.0, OpenedFiles({}), "", Path("/none"), Path("/none"))
    request = TrialRequest(Original(Path("/none")), steps=3)
    return MeasuredTrial(request, ["python", "train.py"], False, life, None, MemoryPeak(memory))


def found(*ranks: MeasuredRecord, **of: int) -> dict[str, Finding]:
    return {each.check: each for each in about.findings(trial(*ranks, **of))}


def test_the_first_step_is_told_apart_from_the_others() -> None:
    one = found(rank(step(9.0), step(1.0), step(3.0), step(2.0), facts(), SAVED))["step"]
    assert one.found.startswith("9.00 s the first, then 2.00 s (median; 1.00 s to 3.00 s)")
    assert one.facts["phases"] == {"forward": 0.75, "data": 0.25}


@pytest.mark.parametrize(("waited", "state"), [(0.1, "ok"), (0.5, "warning")])
def test_a_loader_that_training_waits_for_is_named_with_what_to_do(waited: float, state: str) -> None:
    one = found(rank(step(9.0, 9.0), *[step(1.0, waited)] * 3, facts(), SAVED))["loader"]
    assert (one.state, one.facts["share"], one.facts["batches_per_second"]) == (state, waited, 1.0)
    assert ("num_workers=" in one.advice) == (state == "warning")


def test_without_a_loader_of_torch_nothing_is_claimed() -> None:
    one = found(rank(*[step(batches=0)] * 3, facts(), SAVED))["loader"]
    assert (one.state, one.facts["share"]) == ("ok", None)


def test_memory_near_the_limit_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(about, "limit", lambda: (100 * MIB, "cgroup"))
    steps = (*[step()] * 3, facts(), SAVED)
    assert found(rank(*steps), memory=50 * MIB)["memory"].state == "ok"
    one = found(rank(*steps), memory=90 * MIB)["memory"]
    assert (one.state, "the limit of this cgroup" in one.found) == ("warning", True)
    assert "fewer loader workers" in one.advice


def test_a_gpu_is_shown_with_its_fullest_rank() -> None:
    body = {"device": 0, "name": "H100", "allocated": 40 * 2**30, "total": 80 * 2**30}
    ranks = [
        rank(
            *[step()] * 3,
            facts() | {"devices": [body | {"reserved": reserved * 2**30}]},
            SAVED,
            number=n,
            world=2,
        )
        for n, reserved in enumerate((50, 79))
    ]
    one = found(*ranks)["device"]
    assert (one.state, "(rank 1, the fullest of 2)" in one.found) == ("warning", True)


def test_a_trial_without_room_for_a_checkpoint_measures_no_save() -> None:
    full = {"what": "full", "free": MIB, "needed": 16 * MIB}
    one = found(rank(*[step()] * 3, full, facts()))["save"]
    assert (one.state, one.facts["seconds"]) == ("warning", None)
    assert "--folder" in one.advice


def test_the_ranks_count_with_what_each_writes() -> None:
    ranks = [
        rank(*[step()] * 3, facts(share), SAVED, number=n, world=2)
        for n, share in enumerate((3 * MIB, 5 * MIB))
    ]
    sessions = about.sessions(trial(*ranks), "mine", "s3://bucket")
    assert [(each["bytes"], each["run_id"], each["store"]) for each in sessions] == [
        (3 * MIB, "mine", "s3://bucket"),
        (5 * MIB, "mine", "s3://bucket"),
    ]
    assert found(*ranks)["state"].facts["bytes_by_rank"] == {0: 3 * MIB, 1: 5 * MIB}


def test_a_save_at_a_boundary_may_wait_for_a_whole_step() -> None:
    assert about.waits(trial(rank(*[step(4.0)] * 3, facts(), SAVED))) == 0.5
    assert about.waits(trial(rank(*[step(4.0)] * 3, facts(mode="boundary"), SAVED))) == 4.0


def test_each_clouds_window_has_its_own_answer() -> None:
    fit = Fit(1000 * MIB, 20.0 * MIB, 25.0, 3.0)  # 50 s
    one = about.windows(fit, options(), ["a nearer store"])
    assert (one.state, one.advice) == ("warning", "a nearer store")
    assert {cloud: each["fits"] for cloud, each in one.facts["clouds"].items()} == {
        "aws": True,
        "gcp": False,
        "azure": False,
    }
    assert "AWS 120 s: fits, 58.0 s to spare; GCP 30 s: does not fit, 23.0 s are missing" in one.found


def test_a_command_in_which_nothing_was_attached_fails_with_why() -> None:
    life = Life(
        "trial",
        [],
        0,
        False,
        5.0,
        OpenedFiles({}),
        "spotguard run --attach: nothing was attached: no Trainer",
        Path("/"),
        Path("/"),
    )
    ended = MeasuredTrial(TrialRequest(Original(Path("/none"))), ["python", "train.py"], False, life)
    (one,) = about.findings(ended)
    assert (one.state, one.found) == ("fails", "it ended, and --attach has attached nothing: no Trainer")
