"""Two ranks of Horovod: cut anywhere, each ends as one that never was."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.integrations.frameworks import Training, differences, environment

# Ten lives of two ranks beside other tests take minutes.
pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(900)]

#: Notices on one rank and on the other, in the middle of an epoch and behind its last step (6, 12).
EVENTS = ("step:2", "other:4", "step:6", "other:11", "other:12")


class Ranks(Training):
    """A program that horovodrun starts on several ranks."""

    def __init__(self, case: str, folder: Path, ranks: int = 2) -> None:
        super().__init__("horovod", "hvd.py", case, folder)
        self._bin = environment("horovod").parent
        self.command = [str(self._bin / "horovodrun"), "-np", str(ranks), *self.started]
        self._each = ["", *map(str, range(1, ranks))]

    def run(self, out: str, *more: str) -> subprocess.CompletedProcess[str]:
        """A life. horovodrun ends with 1, whatever its ranks end with, and prints the code of the first one."""
        done = super().run(out, *more)
        if done.returncode == 1 and (first := re.search(r"Exit code: (\d+)", done.stderr)):
            done.returncode = {137: -9}.get(code := int(first[1]), code)
        return done

    def differences(self) -> list[str]:
        results = [(self.result(f"plain{rank}"), self.result(f"cut{rank}")) for rank in self._each]
        return [each for rank, pair in enumerate(results) for each in differences(*pair, f"rank {rank}: ")]

    def began(self) -> list[int]:
        """The steps at which lives began, on rank 0."""
        return [int(step) for step in (self.folder / "cut.began0").read_text().split()]

    def supervised(self) -> None:
        """Put `spotguard run` before horovodrun, with a notice file."""
        store, notice = (self.folder / "store").as_uri(), str(self.folder / "cut.notice")
        options = ["--provider", "none", "--run-id", "horovod", "--store", store, "--notice-file", notice]
        self.command = [str(self._bin / "spotguard"), "run", *options, "--", *self.command]


@pytest.mark.parametrize("case", ["plain", "accumulation"])
def test_ranks_that_are_cut_end_as_ones_that_never_were(case: str, tmp_path: Path) -> None:
    training = Ranks(case, tmp_path)
    training.plain()
    _, lives = training.cut(*EVENTS)
    assert training.differences() == []
    assert lives == len(EVENTS) + 1


@pytest.mark.parametrize("case", ["fp16", "groups", "sum"])
def test_options_of_the_optimizer(case: str, tmp_path: Path) -> None:
    training = Ranks(case, tmp_path)
    training.plain()
    _, lives = training.cut("other:5")
    assert training.differences() == []
    assert lives == 2


def test_three_ranks_without_fusion(tmp_path: Path) -> None:
    """With it, three ranks of Horovod alone end with other bits each time."""
    training = Ranks("plain", tmp_path, ranks=3)
    training.env["HOROVOD_FUSION_THRESHOLD"] = "0"
    training.plain()
    _, lives = training.cut("step:2", "other:4")
    assert training.differences() == []
    assert lives == 3


def test_a_kill_resumes_from_a_background_checkpoint(tmp_path: Path) -> None:
    training = Ranks("plain", tmp_path)
    training.plain()
    training.env["SPOTGUARD_EVERY"] = "0.1"
    _, lives = training.cut("kill:10")
    assert training.differences() == []
    assert lives == 2
    assert training.began()[1] > 0


def test_a_notice_ends_horovodrun_with_75(tmp_path: Path) -> None:
    """horovodrun itself knows no code but 1."""
    training = Ranks("plain", tmp_path)
    training.plain()
    training.supervised()
    first = training.run("cut", str(tmp_path / "store"), "file:4")
    assert first.returncode == 75, first.stderr
    assert ", 2 of 2 ranks, " in first.stderr
    (tmp_path / "cut.notice").unlink()
    assert training.run("cut", str(tmp_path / "store"), "file:4").returncode == 0
    assert training.differences() == []
    assert training.began()[1] >= 4


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("inside", "call it after optimizer.step()"),
        ("inner", "pass what hvd.DistributedOptimizer returned"),
        ("elastic", "start horovodrun with -np alone"),
        ("unalike", "model.0.weight differs between ranks: call hvd.broadcast_parameters"),
    ],
)
def test_settings_that_are_not_exact_are_refused(case: str, message: str, tmp_path: Path) -> None:
    done = Ranks(case, tmp_path).run("out", str(tmp_path / "store"))
    assert done.returncode == 1
    assert message in done.stderr.replace("\n", " ")
    assert not (tmp_path / "out").exists()
