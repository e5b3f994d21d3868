"""The whole proof, of lives that are told: what is said meanwhile, and the verdict that is left beside the script."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from spotguard.hooks.recorder.plan import Action
from spotguard.prove.copies import Original
from spotguard.prove.proof import Proof, ProofRequest, ProofVerdict, _keep, _prove
from spotguard.prove.record import OpenedFiles, Record
from spotguard.prove.runner import Ground, Life
from spotguard.prove.series import SeriesRunner
from tests.prove.recorded import boundary, record
from tests.prove.test_series import Scripted


@pytest.fixture
def trial(tmp_path: Path) -> ProofRequest:
    (tmp_path / "job" / "scripts").mkdir(parents=True)
    return ProofRequest(["python", "scripts/train.py"], {}, Original(tmp_path / "job"), 50, 2, 1.0, 1, 1)


def kept(trial: ProofRequest, script: str, *code: str) -> tuple[str, dict[str, object]]:
    """Return what `prove` says of the file, and the file's proofs, for a life in a copy of the working directory."""
    copy = Path(f"{trial.original.folder.parent}/copy{trial.original.folder}")
    ranks = [
        Record(
            script=str(copy / script) if script else "",
            arguments=["--data", f"{copy}/data"],
            code={os.path.normpath(copy / path): "1"},
        )
        for path in code or ("",)
    ]
    life = Life("plain-1", ranks, 0, False, 1.0, OpenedFiles({}), "", copy / "console", copy)
    said = _keep(trial, Proof(ProofVerdict.EXACT, 50, 1, {"model": "Linear"}), life)
    path = trial.original.folder / "scripts" / ".spotguard" / "proof.json"
    return said, json.loads(path.read_text())["proofs"] if path.exists() else {}


def test_the_verdict_is_kept_beside_the_original_script_with_the_code_of_all_ranks(
    trial: ProofRequest,
) -> None:
    said, proofs = kept(trial, "scripts/train.py", "scripts/train.py", "src/layers.py", "../shared.py")
    assert said == str(trial.original.folder / "scripts" / ".spotguard" / "proof.json")
    assert proofs["train.py"] == {
        "verdict": "EXACT",
        "steps": 50,
        "arguments": ["--data", f"{trial.original.folder}/data"],
        "registered": {"model": "Linear"},
        "versions": {},
        "files": {"train.py": "1", "../src/layers.py": "1", "../../shared.py": "1"},
    }
    assert not (trial.original.folder.parent / "copy").exists()


def test_a_command_without_a_script_keeps_nothing(trial: ProofRequest) -> None:
    assert kept(trial, "") == ("", {})


def test_a_directory_that_cannot_be_written_is_named_and_no_error(trial: ProofRequest) -> None:
    (trial.original.folder / "scripts" / ".spotguard").write_text("")
    said, _ = kept(trial, "nowhere/train.py")
    assert said.startswith("not kept for the script's next starts: ")


def test_a_proof_file_of_another_format_is_named_and_no_error(trial: ProofRequest) -> None:
    path = trial.original.folder / "scripts" / ".spotguard" / "proof.json"
    path.parent.mkdir()
    path.write_text('{"format": 2, "proofs": {}}')
    said, proofs = kept(trial, "scripts/train.py")
    assert (said, proofs) == (
        f"not kept for the script's next starts: {path} is not a proof file of format 1",
        {},
    )


class Trained(Scripted):
    """Lives of ten steps, each ended as its action asks for; a life resumed in `differs` has another state.

    Args:
        differs: the series that differs.
        best: what a file of each series has at the end.
    """

    def __init__(self, differs: str, best: dict[str, str]) -> None:
        super().__init__([])
        self._differs, self._best = differs, best
        self._reached: dict[str, int] = {}

    def live(self, ground: Ground, name: str, action: Action | None, every: int = 0) -> Life:
        series = name.partition(",")[0]
        began, last = self._reached.get(series, 0), 10 if action is None else action.step
        self._reached[series] = last
        other = began > 0 and series == self._differs
        looks = record(
            *(
                boundary(n, state={"ema": f"{n}{'!' if other and n > began else ''}"})
                for n in range(began, last + 1)
            ),
            kinds={"ema": "dict"},
        )
        (ground.workdir / "best.txt").write_text(self._best.get(series, "0.5"))
        taken = action is not None
        return Life(name, [looks], 0, taken, 2.0, OpenedFiles({}), "", Path("/console"), ground.workdir)


def proven(
    trial: ProofRequest, differs: str = "", best: dict[str, str] | None = None, *, fail_fast: bool = False
) -> tuple[Proof, list[str]]:
    base = trial.original.folder.parent / "base"
    base.mkdir()
    said: list[str] = []
    lived = SeriesRunner(Trained(differs, best or {}), trial.original, base, base / "startup", 1, said.append)
    return _prove(replace(trial, fail_fast=fail_fast), lived, base, said.append), said


def test_the_number_of_runs_is_told_before_the_first_and_their_time_after_the_second(
    trial: ProofRequest,
) -> None:
    proof, said = proven(trial)
    assert proof.verdict == "EXACT"
    assert said[0].startswith("7 to 22 runs of up to 50 steps, ")
    assert said[3] == "5 more runs, about 10 s"
    assert len(said) == 2 + 7


@pytest.mark.parametrize(("fail_fast", "runs"), [(False, 6), (True, 4)])
def test_an_inexact_run_is_told_at_once(trial: ProofRequest, fail_fast: bool, runs: int) -> None:
    proof, said = proven(trial, "preempted", fail_fast=fail_fast)
    assert (proof.verdict, proof.where) == ("INEXACT", "preempted, run 2")
    assert said[6] == "preempted, run 2: INEXACT: ema differs at step 4"
    assert sum(" to " in line and " in " in line for line in said[1:]) >= runs


def test_a_file_that_only_a_resumed_run_writes_otherwise_is_listed(trial: ProofRequest) -> None:
    proof, _ = proven(trial, best={"killed": "0.7"})
    assert (proof.verdict, proof.files_differ) == ("EXACT", ["best.txt"])


def test_lines_that_a_killed_run_repeats_are_no_difference(trial: ProofRequest) -> None:
    """A notice loses no step, so a run that repeats a line after it has trained a step twice."""
    log = {"plain-1": "1\n2\n3\n", "plain-2": "1\n2\n3\n", "preempted": "1\n2\n3\n"}
    proof, _ = proven(trial, best={**log, "killed": "1\n2\n2\n3\n"})
    assert (proof.verdict, proof.files_differ) == ("EXACT", [])


def test_lines_that_a_preempted_run_repeats_are_a_difference(trial: ProofRequest) -> None:
    log = {"plain-1": "1\n2\n3\n", "plain-2": "1\n2\n3\n", "killed": "1\n2\n3\n"}
    proof, _ = proven(trial, best={**log, "preempted": "1\n2\n2\n3\n"})
    assert (proof.verdict, proof.files_differ) == ("EXACT", ["best.txt"])


def test_a_file_that_differs_in_each_run_is_not_listed(trial: ProofRequest) -> None:
    proof, _ = proven(trial, best={"plain-2": "0.6", "killed": "0.7"})
    assert (proof.verdict, proof.files_differ) == ("EXACT", [])
