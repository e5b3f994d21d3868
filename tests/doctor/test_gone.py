"""A file server that is gone: whoever asks for a folder of it waits for ever, and the doctor says so and ends."""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from spotguard.cli import main
from spotguard.cli.commands.trials import doctor
from tests.fakes.patient import A_MOMENT


@pytest.fixture
def gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of which no system call ever comes back, and a doctor who waits for none of them long."""
    folder, over = tmp_path / "mnt", threading.Event()
    folder.mkdir()

    def hanging(call: Callable[..., Any]) -> Callable[..., Any]:
        def asked(path: Any = ".", *more: Any, **named: Any) -> Any:
            if not isinstance(path, int) and os.fsdecode(path).startswith(str(folder)):
                over.wait(60)
                raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), path)
            return call(path, *more, **named)

        return asked

    for name in ("stat", "lstat", "access", "scandir", "statvfs", "open", "mkdir"):
        monkeypatch.setattr(os, name, hanging(getattr(os, name)))
    monkeypatch.setattr(doctor, "LOOK", 0.1)
    for module in ("store", "disk", "stage"):
        monkeypatch.setattr(f"spotguard.doctor.checks.{module}.STEP", 0.1)
    monkeypatch.setattr("spotguard.doctor.cleanup._RETURNING", 0.1)
    monkeypatch.setattr(doctor, "PACE", A_MOMENT)
    monkeypatch.chdir(tmp_path)
    yield folder
    over.set()


@pytest.mark.parametrize("command", [[], ["--", "touch", "started"]])
def test_a_store_and_a_stage_on_it_fail_by_their_lines(
    gone: Path, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Also before the visit: the words that were given are looked at too."""
    words = ["--store", (gone / "store").as_uri(), "--stage", str(gone / "stage")]
    assert main.main(["doctor", "--provider", "none", *words, "--json", *command]) == 1
    said = {each["check"]: each for each in json.loads(capsys.readouterr().out)["checks"]}
    failing = {name for name, each in said.items() if each["state"] == "fails"}
    assert failing == {"store", "disk", "stage", "verdict"}
    for name in ("store", "disk", "stage"):
        assert "no answer in 0.1 s" in said[name]["found"]
    assert not {"put", "rate"} & set(said), "it is asked nothing more"


def test_paths_off_a_hung_disk_are_checked_all_the_same(
    gone: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A stage that is a file, which nobody came to look at beforehand: the store's folder hung."""
    monkeypatch.setattr("spotguard.doctor.checks.stage.STEP", 30)
    file = gone.parent / "file"
    file.touch()
    words = ["--store", (gone / "store").as_uri(), "--stage", str(file)]
    assert main.main(["doctor", "--provider", "none", *words, "--json"]) == 1
    said = {each["check"]: each for each in json.loads(capsys.readouterr().out)["checks"]}
    assert said["stage"]["state"] == "fails"
    assert "something in this path is a file" in said["stage"]["advice"] + said["stage"]["found"]
    assert file.read_bytes() == b""


@pytest.mark.parametrize("words", [["--notice-file", "{}/notice"], ["--", "{}/train"]], ids=" ".join)
def test_other_paths_of_run_on_a_hung_disk_fail_the_start(
    words: list[str], gone: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("spotguard.doctor.checks.start.STEP", 0.1)
    words = [word.format(gone) for word in words]
    assert main.main(["doctor", "--provider", "none", "--json", *words]) == 1
    said = [each for each in json.loads(capsys.readouterr().out)["checks"] if each["check"] == "start"]
    assert [(each["state"], each["program"]) for each in said] == [("fails", None)]
    assert "no answer in 0.1 s" in said[0]["found"]
    assert "df, mount" in said[0]["advice"]
