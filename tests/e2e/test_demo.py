"""`spotguard demo` as a newcomer types it, only shorter: the exit code is the verdict.

A training of few steps, which machine 1 takes slowly. The demo's own script at its own pace is the page's, in `tests/docs`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import spotguard.demo
from spotguard.demo.clouds import CLOUDS
from spotguard.providers.stores.factory import open_store
from tests.e2e.processes import TIMEOUT

pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.wholepath]

SCRIPT = Path(spotguard.demo.__file__).with_name("train.py")
STEPS = 24
#: Seconds that machine 1 waits after a step: half of them must take longer than the agent's second between two looks.
SLOWLY = 0.15
#: Mbit/s: a save takes a tenth of a second.
FAST = "400"


@pytest.fixture
def scratch() -> Iterator[Path]:
    """Where the demo makes its workspace. Short, because sockets lie in it: sun_path holds 107 bytes."""
    folder = Path(tempfile.mkdtemp(prefix="sg-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder)


def demo(folder: Path, scratch: Path, script: Path, *more: str) -> subprocess.CompletedProcess[str]:
    words = ["demo", "--folder", str(folder), "--steps", str(STEPS), "--link", FAST, *more]
    return subprocess.run(
        [sys.executable, "-m", "spotguard", *words, "--script", str(script)],
        env={**os.environ, "TMPDIR": str(scratch)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )


#: Less to read.
CHEAP = """
import threading
data.MODULES = data.MODULES[:5]


"""


def plant(folder: Path, line: str = "", instead: str = "", slowly: str = str(SLOWLY)) -> Path:
    """The demo's script, where machine 1 takes so long for a step, and with one more line changed."""
    source, main, step = SCRIPT.read_text(), "def main() -> None:\n", "guard.step()\n"
    assert all(source.count(each) == 1 for each in (main, step, *[line] * bool(line)))
    source = source.replace(line, instead) if line else source
    slow = f"{step}                threading.Event().wait(0 if done else {slowly})\n"
    planted = folder / "train.py"
    planted.write_text(source.replace(main, CHEAP + main).replace(step, slow))
    return planted


@pytest.mark.slow
def test_a_demo_that_fails_leaves_nothing_in_a_store_of_yours(tmp_path: Path, scratch: Path) -> None:
    """Machine 1 dies after it has begun to save there: told in one line, and what lay there before stays."""
    mine = tmp_path / "store" / "mine"
    mine.mkdir(parents=True)
    (mine / "notes").touch()
    line = "            if guard:\n"
    planted = plant(
        tmp_path, line, "            if guard and step > 5:\n                raise SystemExit(3)\n" + line
    )
    done = demo(tmp_path / "report", scratch, planted, "--store", (tmp_path / "store").as_uri())
    assert done.returncode == 1, done.stdout + done.stderr
    assert "machine 1 ended before its notice" in done.stderr
    assert [path for path in (tmp_path / "store").rglob("*") if path.is_file()] == [mine / "notes"]


# 15 s of processor time each: `test_run_in_clouds` takes all three clouds and their stores all the way, and the page of the
# demo runs it whole, both in the slow tier.
@pytest.mark.soak
@pytest.mark.parametrize(
    ("cloud", "server"),
    [
        ("gcp", "gcs"),
        ("aws", "moto"),
        ("azure", "azurite"),
    ],
)
def test_the_resumed_run_is_the_uninterrupted_one(
    cloud: str, server: str, tmp_path: Path, scratch: Path, request: pytest.FixtureRequest
) -> None:
    """On each cloud, through the cloud's own SDK into a real server: it saves inside the window, ends equal to the last bit,
    says so last, and leaves its report and nothing else, nor in the store. (Into a folder: the README's, in `tests/docs`.)"""
    url = f"{request.getfixturevalue(server).fresh()}/some/prefix"
    done = demo(tmp_path / "report", scratch, plant(tmp_path), "--cloud", cloud, "--store", url)

    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    kept, last = done.stdout.splitlines()[-2:]
    assert kept.startswith("KEPT: everything. ")
    assert last.startswith("EQUAL: ")
    facts = json.loads((tmp_path / "report" / "demo.json").read_text())
    assert STEPS // 2 <= facts["resumed_at"] < STEPS
    assert (facts["cloud"], facts["steps"], facts["window"]) == (cloud, STEPS, CLOUDS[cloud].window)
    marks = [mark["what"] for mark in facts["timeline"]]
    assert marks[-2] == "committed"
    assert any(mark.startswith("ACPI") for mark in marks) == (cloud == "gcp")
    assert "<svg" in (tmp_path / "report" / "report.html").read_text()
    assert list(scratch.glob("spotguard-demo-*")) == []
    assert list(open_store(url).list("")) == []


@pytest.mark.soak  # 15 s of processor time; in the fast tier `test_kills` ends saves in their middle
def test_a_save_that_does_not_fit_is_reported_and_the_background_checkpoint_remains(
    tmp_path: Path, scratch: Path
) -> None:
    """A save of 1.5 s, and a machine that is switched off 0.3 s after its notice, in the middle of it: nothing partial
    is picked up, nothing is called saved, and the result is equal all the same."""
    # Until there is one, a step takes its time: on a fast machine training would be over before.
    whole = "list(Path(os.environ['SPOTGUARD_STORE'].removeprefix('file://')).glob('demo/checkpoints/*/COMMIT.json'))"
    planted = plant(tmp_path, slowly=f"{SLOWLY} if {whole} else 0.6")
    short = ["--cloud", "gcp", "--window", "0.3", "--link", "30"]
    done = demo(tmp_path / "report", scratch, planted, *short)

    assert done.returncode == 0, done.stdout + done.stderr
    kept, last = done.stdout.splitlines()[-2:]
    assert kept.startswith(
        "DID NOT FIT: machine 1 had 0.3 s after its notice, and committed nothing in them: "
    )
    assert "KEPT" not in done.stdout
    assert last.startswith("EQUAL: ")
    facts = json.loads((tmp_path / "report" / "demo.json").read_text())
    assert 0 < facts["resumed_at"] < facts["noticed_at"]
    assert facts["lost"] > 0
    assert facts["saved"] is False
    assert f"background checkpoint of step {facts['resumed_at']}, " in kept
    assert [mark["what"] for mark in facts["timeline"]][-1] == "switched off by the cloud"


@pytest.mark.slow
def test_a_resume_that_is_not_exact_is_found_out(tmp_path: Path, scratch: Path) -> None:
    """One weight that is not what it was after `restore`, and the demo ends with 1 and names what differs."""
    line = "    done = guard.restore() if guard else 0\n"
    planted = plant(tmp_path, line, line + "    if done:\n        model.norm.weight.data[0] += 0.001\n")

    done = demo(tmp_path / "report", scratch, planted)

    assert done.returncode == 1, done.stdout + done.stderr
    last = done.stdout.splitlines()[-1]
    assert last.startswith("DIFFERENT from the uninterrupted run: loss of step ")
    assert json.loads((tmp_path / "report" / "demo.json").read_text())["equal"] is False
    assert "EQUAL" not in done.stdout
    assert list(scratch.glob("spotguard-demo-*")) == []
