"""`spotguard run --attach`: scripts without a word of spotguard, ended at any step, end as if they never had been."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from tests.e2e.harness import Machine
from tests.integrations.frameworks import PROGRAMS, differences, environment

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(900)]

#: By framework: its program, and the steps of a whole run.
PROGRAM = {
    "transformers": ("unchanged_trainer.py", 36),
    "lightning": ("unchanged_lightning.py", 36),
}


#: Runs a script in a Python that has no spotguard.
HIDES = """
import runpy, sys
class Hides:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "spotguard":
            raise ModuleNotFoundError(name, name="spotguard")
sys.meta_path.insert(0, Hides())
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path)
    yield made
    made.close()


class Unchanged:
    """The training of a script that knows nothing of spotguard."""

    def __init__(self, machine: Machine, framework: str, case: str = "plain", ranks: int = 1) -> None:
        program, self.steps = PROGRAM[framework]
        self._machine, self._case = machine, case
        self._command = [str(environment(framework)), str(PROGRAMS / program)]
        if ranks > 1:
            launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
            self._command[1:1] = launcher
            self.steps = self.steps // ranks

    def plain(self) -> Any:
        done = self._machine.start(*self._command, str(self._machine.folder / "plain"), self._case)
        assert done.ended() == 0, done.err.text
        return self._result("plain")

    def life(self, step: int | None, signum: int = signal.SIGTERM) -> str:
        """One life of the guarded training, ended at this step; what it printed."""
        options = "--attach --every 0.2"
        running = self._machine.run(options, *self._command, str(self._machine.folder / "cut"), self._case)
        if step is None:
            assert running.ended() == 0, running.err.text
        else:
            running.out.until(f"^step {step}$")
            if signum == signal.SIGTERM:
                running.send(signum)
            else:
                for each in self._machine.status()["sessions"]:
                    self._machine.kill(each["pid"])
            assert running.ended() != 0
        return running.err.text

    def cut(self) -> Any:
        return self._result("cut")

    def _result(self, name: str) -> Any:
        return torch.load(self._machine.folder / name, weights_only=False)


@pytest.mark.parametrize("framework", PROGRAM)
def test_an_unchanged_script_that_is_cut_ends_as_one_that_never_was(framework: str, machine: Machine) -> None:
    training = Unchanged(machine, framework)
    plain = training.plain()
    rng, step = random.Random(framework), 0
    for signum in (signal.SIGTERM, signal.SIGKILL, signal.SIGTERM):
        step += rng.randint(2, 9)
        said = training.life(step, signum)
    assert f"of {framework}" in said
    assert "attached to" in said
    training.life(None)
    assert differences(plain, training.cut()) == []


def test_two_ranks_of_an_unchanged_script_end_as_if_never_cut(machine: Machine) -> None:
    training = Unchanged(machine, "transformers", ranks=2)
    plain = training.plain()
    training.life(5)
    training.life(None)
    assert differences(plain, training.cut()) == []


def test_a_checkpoint_that_the_script_finds_by_itself_is_not_loaded(machine: Machine) -> None:
    """The examples of transformers look for one in their output folder at each start."""
    training = Unchanged(machine, "transformers", "finds")
    plain = training.plain()
    training.life(12)
    said = training.life(None)
    assert "is left out: spotguard restores its own newest checkpoint of this run" in said
    assert differences(plain, training.cut()) == []
    assert said.count("a new machine lacks them") == 1


def test_a_tuner_in_front_of_the_training_is_not_guarded(machine: Machine) -> None:
    """It trains by the same Trainer, and puts the weights back."""
    training = Unchanged(machine, "lightning", "tuned")
    plain = training.plain()
    said = training.life(None)
    assert said.count("attached to Trainer of lightning") == 1
    assert differences(plain, training.cut()) == []


def test_prove_proves_an_unchanged_script(machine: Machine) -> None:
    program = [str(environment("transformers")), str(PROGRAMS / "unchanged_trainer.py"), "out", "plain"]
    proved = machine.spotguard("prove", "--attach", "--steps", "8", "--tries", "1", "--", *program)
    assert proved.ended() == 0, proved.out.text + proved.err.text
    assert "EXACT" in proved.out.text


def test_a_second_training_in_one_process_is_refused_by_name(machine: Machine) -> None:
    program = [str(environment("transformers")), str(PROGRAMS / "unchanged_trainer.py")]
    running = machine.run("--attach --every off", *program, str(machine.folder / "out"), "twice")
    assert running.ended() == 1
    assert "has trained in this process, and now OwnTrainer of transformers" in running.err.text
    assert [step for _, step, _ in machine.committed()] == [36], "the first one is whole"


@pytest.mark.parametrize("launcher", ["accelerate launch --num_processes 1 --cpu", "sh -c"])
def test_a_launcher_in_front_of_the_script_attaches_nothing_itself(launcher: str, machine: Machine) -> None:
    python = environment("transformers")
    words = [str(python), str(PROGRAMS / "unchanged_trainer.py"), str(machine.folder / "out"), "plain"]
    first, *more = launcher.split()
    if first == "sh":
        words = [" ".join(["python -c pass;", *words])]
    else:
        first, words = str(python.with_name(first)), words[1:]
    running = machine.run("--attach", first, *more, *words)
    assert running.ended() == 0, running.err.text
    assert running.err.text.count("attached to OwnTrainer of transformers") == 1
    assert "nothing was attached" not in running.err.text


def test_a_python_with_a_framework_and_without_spotguard_is_refused_as_training_begins(
    machine: Machine, tmp_path: Path
) -> None:
    python = environment("transformers")
    out = str(tmp_path / "out")
    words = [str(PROGRAMS / "unchanged_trainer.py"), out, "plain"]
    running = machine.run("--attach", str(python), "-c", HIDES, *words)
    assert running.ended() == 2
    assert f"{python} has transformers and no spotguard: install it there" in running.err.text
    assert not Path(out).exists()
    assert machine.committed() == []
