"""The verdict of `prove` beside a script, and what a process says of its own code by it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from spotguard.hooks.restore import proof_file
from spotguard.hooks.restore.proof_file import NEVER, judged

STATE: dict[str, object] = {"model": [], "progress": {}}


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The script that this process seems to run, with a module of its own."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "train.py"
    for name, own in (("__main__", path), ("layers", tmp_path / "lib" / "layers.py")):
        own.parent.mkdir(exist_ok=True)
        own.write_text("pass\n")
        module = ModuleType(name)
        module.__file__ = str(own)
        monkeypatch.setitem(sys.modules, name, module)
    return path


def prove(script: Path, verdict: str = "EXACT") -> None:
    registered = {name: type(value).__name__ for name, value in STATE.items()}
    proof = {"verdict": verdict, "steps": 50, "registered": registered, "versions": proof_file.versions()}
    proof_file.write(script, proof, proof_file.running_code())


@pytest.mark.parametrize("verdict", ["EXACT", "INEXACT", "UNSURE"])
def test_proven_code_has_its_verdict(script: Path, verdict: str) -> None:
    prove(script, verdict)
    assert judged(STATE) == f"{verdict} over 50 steps"


def test_code_without_a_proof_is_never_proven(script: Path) -> None:
    assert judged(STATE) == NEVER
    prove(script.with_name("other.py"))
    assert judged(STATE) == NEVER
    for broken in ("", "[]", '{"format": 1, "proofs": {"train.py": 1}}', '{"format": 2}'):
        (script.parent / ".spotguard" / "proof.json").write_text(broken)
        assert judged(STATE) == NEVER


def test_a_proof_keeps_those_of_other_scripts(script: Path) -> None:
    prove(script, "INEXACT")
    prove(script.with_name("other.py"))
    assert judged(STATE) == "INEXACT over 50 steps"
    assert [path.name for path in (script.parent / ".spotguard").iterdir()] == ["proof.json"]


def test_a_proof_travels_with_the_code(script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prove(script)
    script.parent.joinpath("image").mkdir()
    for name in (".spotguard", "lib", "train.py"):
        (tmp_path / name).rename(tmp_path / "image" / name)
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(tmp_path / "image" / "train.py"))
    monkeypatch.setattr(sys.modules["layers"], "__file__", str(tmp_path / "image" / "lib" / "layers.py"))
    assert judged(STATE) == "EXACT over 50 steps"


CHANGES: dict[str, Callable[[Path, pytest.MonkeyPatch], object]] = {
    "other code: train.py has changed": lambda path, patch: path.write_text("pass  # new\n"),
    "other code: lib/layers.py has changed": lambda path, patch: (path.parent / "lib" / "layers.py").unlink(),
    "other code: added.py is new": lambda path, patch: (
        path.with_name("added.py").write_text(""),
        patch.setattr(sys.modules["layers"], "__file__", str(path.with_name("added.py"))),
    ),
    "another registered state: model differs": lambda path, patch: patch.setitem(STATE, "model", ()),
    "another registered state: ema differs": lambda path, patch: patch.setitem(STATE, "ema", {}),
    "another registered state: progress differs": lambda path, patch: patch.delitem(STATE, "progress"),
    "python 3, and this is 4": lambda path, patch: patch.setattr(
        proof_file, "versions", lambda: {"python": "4"}
    ),
}


@pytest.mark.parametrize("words", CHANGES)
def test_a_proof_of_other_code_names_what_differs(
    script: Path, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proof_file, "versions", lambda: {"python": "3"})
    prove(script)
    CHANGES[words](script, monkeypatch)
    assert judged(STATE) == f"proven with {words}"


def test_a_process_without_a_script_of_its_own_has_no_proof(
    script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An installed program such as pytest, a notebook, and a trial, which is no run to be proven."""
    for variable in ("SPOTGUARD_PROVE", "SPOTGUARD_SIMULATED_FAILURE"):
        with monkeypatch.context() as patched:
            patched.setenv(variable, "plan.json")
            assert judged(STATE) == ""
    for file in (pytest.__file__, str(Path(sys.executable).with_name("pytest")), None):
        monkeypatch.setattr(sys.modules["__main__"], "__file__", file)
        assert judged(STATE) == ""
    assert not (script.parent / ".spotguard").exists()
