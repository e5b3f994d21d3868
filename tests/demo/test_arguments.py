"""Wrong use of the demo is one line, and nothing is started."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest

from spotguard.cli import main
from spotguard.demo import data
from spotguard.demo.screen import open_screen
from tests.fakes.clock import ManualClock


def test_without_torch_it_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line with the command that installs it, exit code 2, and no folder made."""
    monkeypatch.setitem(sys.modules, "torch", None)  # as import machinery has it: there is no such module
    assert main.main(["demo", "--folder", str(tmp_path / "report")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "pip install 'torch>=2.6' 'numpy>=1.26' (spotguard's extra torch)" in line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.torch
@pytest.mark.parametrize(
    "words",
    [
        ["--steps", "3"],
        ["--window", "0"],
        ["--window", "nan"],
        ["--window", "inf"],
        ["--link", "-1"],
        ["--link", "inf"],
        ["--folder", "{file}/x"],
        ["--store", "file://{file}/x"],
        ["--store", "az://My_Container?account=acme"],
    ],
)
def test_a_value_that_cannot_be_used_is_refused(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line that names the flag, exit code 2."""
    pytest.importorskip("torch")
    (tmp_path / "file").touch()
    words = [word.format(file=tmp_path / "file") for word in words]
    assert main.main(["demo", "--folder", str(tmp_path / "report"), *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith((f"spotguard: error: {words[0]} ", f"spotguard: error: {words[0]}: "))


def test_the_face_of_the_demo_is_light() -> None:
    """`spotguard demo --help` loads neither torch nor rich nor the simulator."""
    heavy = "{'torch', 'rich', 'requests', 'spotguard.providers.simulator'}"
    code = f"import sys, spotguard.demo; sys.exit(bool({heavy} & set(sys.modules)))"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_the_text_is_long_and_always_the_same() -> None:
    """A mebibyte of this Python's sources, in an alphabet that is the same everywhere."""
    text = data.text()
    assert len(text) > 2**20
    assert text == data.text()
    numbers = data.encode(text)
    assert 0 <= min(numbers) <= max(numbers) < len(data.ALPHABET) == 97
    assert data.encode("\n ~é\t") == [0, 1, 95, 96, 96]


def test_plain_lines_where_nobody_looks() -> None:
    """Into a file goes one line for each thing that happened, and now and then one for each machine."""
    out = io.StringIO()
    with open_screen(10, ManualClock(), plain=False, out=out) as screen:
        screen.say("it begins")
        for step in range(11):
            screen.lane("machine 1", step, 2.5 if step else None, "trains")
    assert out.getvalue().splitlines() == [
        "   0.0 s  it begins",
        *(f"   0.0 s  machine 1: step {step} of 10, loss 2.500" for step in (1, 2, 4, 6, 8, 10)),
    ]
    assert "\x1b" not in out.getvalue()
