"""The verdict that `prove` leaves beside the script."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spotguard.prove.copies import Original
from spotguard.prove.proof import Proof, ProofRequest, ProofVerdict, _keep
from spotguard.prove.record import OpenedFiles, Record
from spotguard.prove.runner import Life


@pytest.fixture
def trial(tmp_path: Path) -> ProofRequest:
    (tmp_path / "job" / "scripts").mkdir(parents=True)
    return ProofRequest(["python", "scripts/train.py"], {}, Original(tmp_path / "job"), 50, 2, 1.0, 1, 1)


def kept(trial: ProofRequest, script: str, *code: str) -> tuple[str, dict[str, object]]:
    """Return what `prove` says of the file, and the file's proofs, for a life in a copy of the working directory."""
    copy = trial.original.folder.parent / "copy"
    record = Record(
        script=str(copy / script) if script else "", code={str(copy / path): "1" for path in code}
    )
    life = Life("plain-1", [record], 0, False, 1.0, OpenedFiles({}), "", copy / "console", copy)
    said = _keep(trial, Proof(ProofVerdict.EXACT, 50, 1, {"model": "Linear"}), life)
    path = trial.original.folder / "scripts" / ".spotguard" / "proof.json"
    return said, json.loads(path.read_text())["proofs"] if path.exists() else {}


def test_the_verdict_is_kept_beside_the_original_script(trial: ProofRequest) -> None:
    said, proofs = kept(trial, "scripts/train.py", "scripts/train.py", "src/layers.py")
    assert said == str(trial.original.folder / "scripts" / ".spotguard" / "proof.json")
    assert proofs["train.py"] == {
        "verdict": "EXACT",
        "steps": 50,
        "command": ["python", "scripts/train.py"],
        "registered": {"model": "Linear"},
        "versions": {},
        "files": {"train.py": "1", "../src/layers.py": "1"},
    }
    assert not (trial.original.folder.parent / "copy").exists()


def test_a_command_without_a_script_keeps_nothing(trial: ProofRequest) -> None:
    assert kept(trial, "") == ("", {})


def test_a_directory_that_cannot_be_written_is_named_and_no_error(trial: ProofRequest) -> None:
    (trial.original.folder / "scripts" / ".spotguard").write_text("")
    said, _ = kept(trial, "nowhere/train.py")
    assert said.startswith("not kept for the script's next starts: ")
