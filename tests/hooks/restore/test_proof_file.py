"""The verdict of `prove` beside a script, and what a process says of its own code by it."""

from __future__ import annotations

import fcntl
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from spotguard.hooks.restore import proof_file
from spotguard.hooks.restore.proof_file import NEVER, judged

STATE: dict[str, object] = {"model": [], "progress": {}}


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The script that this process seems to run, with a module of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["train.py", "--lr", "0.1"])
    library = (
        *proof_file._library(),
        f"{Path(__file__).parents[3]}{os.sep}",
    )  # the tests are not the script's
    monkeypatch.setattr(proof_file, "_library", lambda: library)
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
    proof_file.write(script, {**proof, "arguments": sys.argv[1:]}, proof_file.running_code())


def change(script: Path, **values: object) -> None:
    """Write other values into the proof."""
    path = script.parent / ".spotguard" / "proof.json"
    body: dict[str, Any] = json.loads(path.read_text())
    body["proofs"]["train.py"] |= values
    path.write_text(json.dumps(body))


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


HOSTILE: dict[str, dict[str, object]] = {
    "endless steps": {"steps": float("inf")},
    "steps before the first": {"steps": -3},
    "a truth value for steps": {"steps": True},
    "a verdict with an escape": {"verdict": "EXACT \x1b[2J"},
    "a list of verdicts": {"verdict": ["EXACT"]},
    "a list of files": {"files": ["train.py"]},
}


@pytest.mark.parametrize("values", HOSTILE.values(), ids=HOSTILE)
def test_values_that_prove_never_writes_prove_nothing(script: Path, values: dict[str, object]) -> None:
    prove(script)
    change(script, **values)
    assert judged(STATE) == NEVER


@pytest.mark.parametrize("name", ["pipe", "/dev/zero", "large", "\x1b[31mX\n" + "x" * 300])
def test_a_file_that_has_no_end_is_not_read_and_its_name_is_one_short_line(script: Path, name: str) -> None:
    prove(script)
    os.mkfifo(script.with_name("pipe"))
    with script.with_name("large").open("wb") as large:
        large.truncate(2**24 + 1)
    change(script, files={name: ""})
    said = judged(STATE)
    assert said.startswith("proven with other code: ")
    assert said.isprintable()
    assert len(said) <= 200


def test_a_pipe_or_a_large_file_is_no_proof(script: Path) -> None:
    prove(script)
    path = script.parent / ".spotguard" / "proof.json"
    path.write_text(path.read_text() + " " * 2**20)
    assert judged(STATE) == NEVER
    path.unlink()
    os.mkfifo(path)
    assert judged(STATE) == NEVER


def test_a_proof_of_other_arguments_says_so(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prove(script)
    monkeypatch.setattr(sys, "argv", ["train.py", "--lr", "0.2"])
    assert judged(STATE) == "EXACT over 50 steps, for other arguments"


@pytest.mark.parametrize(
    "text", ['{"format": 2, "proofs": {}}', '{"format": 1, "proofs": [[1, 2]]}', "<<<<<<<"]
)
def test_a_proof_file_of_another_format_stays_as_it_is(script: Path, text: str) -> None:
    prove(script)
    path = script.parent / ".spotguard" / "proof.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"proof.json is not a proof file of format 1"):
        prove(script)
    assert [(each.name, each.read_text()) for each in path.parent.iterdir()] == [("proof.json", text)]


def test_a_second_writer_waits_for_the_first(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The directory is locked before the other proofs are read."""
    seen: list[str] = []
    read = proof_file._read

    def locked(path: Path) -> dict[str, Any]:
        held = os.open(path.parent, os.O_RDONLY)
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            seen.append("locked")
        finally:
            os.close(held)
        return read(path)

    prove(script)
    monkeypatch.setattr(proof_file, "_read", locked)
    prove(script)
    assert seen == ["locked"]


def test_a_module_outside_both_directories_counts(
    script: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind a link, or by `sys.path`. A copy of it under another path, as a mount makes, is the same code."""
    outside = tmp_path_factory.mktemp("outside") / "layers.py"
    outside.write_text("pass\n")
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path / "temporary"))
    monkeypatch.setattr(sys.modules["layers"], "__file__", str(outside))
    prove(script)
    below = os.path.relpath(outside, tmp_path)
    assert judged(STATE) == "EXACT over 50 steps"
    monkeypatch.setattr(sys.modules["layers"], "__file__", str(tmp_path / "lib" / "layers.py"))
    assert judged(STATE) == "EXACT over 50 steps"
    (tmp_path / "lib" / "layers.py").write_text("pass  # new\n")
    assert judged(STATE) == "proven with other code: lib/layers.py is new"
    outside.write_text("pass  # new\n")
    assert judged(STATE) == f"proven with other code: {below} has changed"


def test_a_module_that_a_library_has_generated_does_not_count(
    script: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    prove(script)
    made = tmp_path_factory.mktemp("generated") / "kernel.py"
    made.write_text("")
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(made.parent))
    monkeypatch.setitem(sys.modules, "kernel", ModuleType("kernel"))
    monkeypatch.setattr(sys.modules["kernel"], "__file__", str(made), raising=False)
    script.parent.joinpath("lib", "layers.py").touch()
    assert judged(STATE) == "EXACT over 50 steps"


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("/usr/bin/python3 -u train.py -c small", "python3 -u train.py -c small"),
        ("python -m train -", "python -m train -"),
        ("python -", "COMMAND"),
        ("python -uc pass", "COMMAND"),
        ("python -B -c spawn_main() --multiprocessing-fork", "COMMAND"),
        ("python train.py \x1b[2J", "COMMAND"),
    ],
)
def test_a_command_that_nobody_would_type_is_not_shown(
    words: str, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.setattr(sys, "orig_argv", words.split(" "))
    assert proof_file.command() == f"spotguard prove -- {shown}"


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
    for file in (pytest.__file__, str(Path(sys.executable).with_name("pytest")), "<stdin>", None):
        monkeypatch.setattr(sys.modules["__main__"], "__file__", file)
        assert judged(STATE) == ""
    assert not (script.parent / ".spotguard").exists()
