"""`spotguard run --attach`: scripts without a word of spotguard, ended at any step, end as if they never had been."""

from __future__ import annotations

import json
import random
import re
import shutil
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
#: Trainings with dropout, with an accumulation that does not divide an epoch, and with evaluations and files between its steps: the
#: environment, the program, the case and the steps.
CHAINS = [
    ("transformers", "unchanged_sft.py", "sft", 27),
    ("lightning", "unchanged_lightning.py", "transformer", 36),
    ("transformers", "unchanged_trainer.py", "finds", 36),
]
#: By seed: the first ones are cut by each signal, the others by a drawn chain. One is slow; the rest is for nights, as other tests of
#: the slow tier cut trainings of the two frameworks too.
SEEDS, SLOW_SEED, BOTH = 50, 2, (signal.SIGTERM, signal.SIGKILL)
#: Steps at its end in which no chain cuts a training: it may be over before the signal comes.
LAST_STEPS = 6
#: Files of an output folder with paths and times, which differ.
NOT_COMPARED = ("training_args.bin", "README.md")


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

    def __init__(
        self, machine: Machine, framework: str, case: str = "plain", ranks: int = 1, program: str = ""
    ) -> None:
        usual, self.steps = PROGRAM[framework]
        program = program or usual
        #: The last step of the last life.
        self.last = 0
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
        self.last = int([self.last, *re.findall("^step ([0-9]+)$", running.out.text, re.MULTILINE)][-1])
        return running.err.text

    def refused(self) -> str:
        """One life that is refused; what it printed."""
        words = (str(self._machine.folder / "cut"), self._case)
        running = self._machine.run("--attach", *self._command, *words)
        assert running.ended() == 1
        return running.err.text

    def cut(self) -> Any:
        return self._result("cut")

    def files(self, name: str) -> dict[str, Any]:
        """The content of the training's output folder, by file."""
        top = self._machine.folder / f"{name}-files"
        found = (each for each in top.rglob("*") if each.is_file() and not each.name.startswith("."))
        return {
            str(each.relative_to(top)): content(each, str(top))
            for each in found
            if each.name not in NOT_COMPARED
        }

    def _result(self, name: str) -> Any:
        return torch.load(self._machine.folder / name, weights_only=False)


def content(path: Path, top: str) -> Any:
    """What a file holds, without the times and the folder's own path in it."""
    if path.suffix in (".pt", ".pth", ".ckpt"):
        return without_path(torch.load(path, weights_only=False), top)
    if path.name == "trainer_state.json":
        state = json.loads(path.read_text())
        times = ("runtime", "per_second", "total_flos")
        log = [{k: v for k, v in each.items() if not k.endswith(times)} for each in state["log_history"]]
        return {"log": log, "step": state["global_step"], "epoch": state["epoch"]}
    return path.read_bytes()


def without_path(value: Any, top: str) -> Any:
    """The value with each path below the folder as one in it."""
    if isinstance(value, dict):
        return {without_path(key, top): without_path(each, top) for key, each in value.items()}
    return value.replace(top, "") if isinstance(value, str) else value


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=[pytest.mark.soak] * (seed != SLOW_SEED)) for seed in range(SEEDS)]
)
def test_a_chain_of_cuts_ends_with_the_files_of_an_undisturbed_training(seed: int, machine: Machine) -> None:
    framework, program, case, steps = CHAINS[seed % len(CHAINS)]
    training = Unchanged(machine, framework, case, program=program)
    plain = training.plain()
    rng, said = random.Random(seed), ""
    signals = list(BOTH)
    if seed >= len(CHAINS):
        signals = [rng.choice(BOTH) for _ in range(rng.randint(2, 5))]
    for signum in signals:
        if training.last < steps - LAST_STEPS:
            said = training.life(rng.randint(training.last + 1, steps - LAST_STEPS), signum)
    assert f"of {framework}" in said
    assert "attached to" in said
    said = training.life(None)
    if case == "finds":  # as the examples of transformers do, in their output folder
        assert "is left out: spotguard restores its own newest checkpoint of this run" in said
        assert said.count("a new machine lacks them") == 1
    assert differences(plain, training.cut()) == []
    assert differences(training.files("plain"), training.files("cut")) == []


@pytest.mark.parametrize(
    ("case", "cuts"), [("plain", [5]), pytest.param("twice", [5, 25], marks=pytest.mark.soak)]
)
def test_two_ranks_of_an_unchanged_script_end_as_if_never_cut(
    case: str, cuts: list[int], machine: Machine
) -> None:
    training = Unchanged(machine, "transformers", case, ranks=2)
    plain = training.plain()
    for step in cuts:
        training.life(step)
    training.life(None)
    assert differences(plain, training.cut()) == []


def test_a_tuner_in_front_of_the_training_is_not_guarded(machine: Machine) -> None:
    """It trains by the same Trainer, and puts the weights back."""
    training = Unchanged(machine, "lightning", "tuned")
    plain = training.plain()
    said = training.life(None)
    assert said.count("attached to Trainer of lightning") == 1
    assert differences(plain, training.cut()) == []


def test_lightning_s_best_checkpoint_is_found_where_lightning_put_it_or_refused(machine: Machine) -> None:
    """Its logger names another directory at each start, and a callback in another one forgets its best score."""
    training = Unchanged(machine, "lightning", "best")
    plain = training.plain()
    training.life(15)
    files, gone = machine.folder / "cut-files", machine.folder / "gone"
    files.rename(gone)
    assert "has its best weights in" in training.refused()
    shutil.rmtree(files)
    gone.rename(files)
    training.life(30)
    training.life(None)
    assert differences(plain, training.cut()) == []


@pytest.mark.soak
def test_prove_proves_an_unchanged_script(machine: Machine) -> None:
    program = [str(environment("transformers")), str(PROGRAMS / "unchanged_trainer.py"), "out", "plain"]
    proved = machine.spotguard("prove", "--attach", "--steps", "8", "--tries", "1", "--", *program)
    assert proved.ended() == 0, proved.out.text + proved.err.text
    assert "EXACT" in proved.out.text


@pytest.mark.parametrize(
    ("framework", "case"),
    [
        pytest.param("transformers", "twice", marks=pytest.mark.soak),
        ("transformers", "again"),
        pytest.param("lightning", "twice", marks=pytest.mark.soak),
    ],
)
def test_two_trainings_of_one_process_end_as_if_never_cut(
    framework: str, case: str, machine: Machine
) -> None:
    """A restart restores the finished first one at its end, in no step, and resumes the second."""
    training = Unchanged(machine, framework, case)
    plain = training.plain()
    for step, signum in ((43, signal.SIGTERM), (57, signal.SIGKILL)):
        said = training.life(step, signum)
    assert f"continues at step {training.steps} of run job in" in said
    assert "of run job-2 in" in said
    training.life(None)
    assert differences(plain, training.cut()) == []


@pytest.mark.parametrize(
    ("second", "code", "words"),
    [
        ("other", 1, "another process of the same command is to train it now"),
        pytest.param("out", 0, "continues at step 36", marks=pytest.mark.soak),
    ],
)
def test_another_training_of_one_command_is_refused_and_a_repeated_one_goes_on(
    second: str, code: int, words: str, machine: Machine
) -> None:
    """As a loop over learning rates, and one that repeats what has failed."""
    python = f"{environment('transformers')} {PROGRAMS / 'unchanged_trainer.py'}"
    command = " && ".join(f"{python} {machine.folder / name} plain" for name in ("out", second))
    running = machine.run("--attach --every off", "sh", "-c", command)
    assert running.ended() == code, running.err.text
    assert words in running.err.text
    assert (machine.folder / second).exists() is (code == 0)


@pytest.mark.parametrize(
    "launcher",
    ["accelerate launch --num_processes 1 --cpu", pytest.param("sh -c", marks=pytest.mark.soak)],
)
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
