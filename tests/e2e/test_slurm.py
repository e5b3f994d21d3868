"""The batch script as it is shipped, on a real Slurm: what is committed, who comes back, and that nobody else does."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.e2e.cluster import Cluster, Job
from tests.e2e.processes import TIMEOUT, eventually

pytestmark = [pytest.mark.wholepath, pytest.mark.torch, pytest.mark.timeout(400)]

PROGRAM = Path(__file__).parent / "programs" / "batch.py"
STEPS = 12

Begin = Callable[..., "Training"]


class Training:
    """`programs/batch.py` below the batch script, standing at its fifth step."""

    def __init__(self, cluster: Cluster, *options: str, **env: str) -> None:
        self.cluster = cluster
        self._limit = cluster.folder / "limit"
        self._limit.write_text("5")
        words = (sys.executable, str(PROGRAM), str(STEPS), str(self._limit))
        said = {"SPOTGUARD_WINDOW": "8", "SPOTGUARD_EVERY": "off", "PYTHONUNBUFFERED": "1", **env}
        self.job: Job = cluster.train(*words, options=options, **said)
        self.job.until("^step 5 ")

    def is_saved(self) -> None:
        """It was told, saves the step that it stands at, and goes on to the gate."""
        self.job.until("gate at step 5")
        self._limit.write_text(str(STEPS))
        self.job.until("COMMITTED")

    def comes_back(self) -> None:
        """In its second life it goes on from there to the end, and is none the wiser for it."""
        self.job.until("^restored 5$")
        self.job.until("^done$")
        self.job.becomes("COMPLETED")
        assert self.cluster.show(self.job.id)["Restarts"] == "1"
        steps = re.findall(r"^step (\d+) (\S+)$", self.job.log, re.MULTILINE)
        assert steps == self._undisturbed(), "each step once, with every bit of its loss"
        (run,) = self.cluster.store.iterdir()
        assert run.name.startswith(f"batch-{self.job.id}-")
        records = [json.loads(path.read_text()) for path in sorted(run.glob("attempts/*.json"))]
        lives = [record["attempt"]["info"]["launchers"][0] for record in records]
        assert [(life["job"], life["restarts"]) for life in lives] == [(self.job.id, 0), (self.job.id, 1)]

    def _undisturbed(self) -> list[tuple[str, str]]:
        """The same script without Slurm and without an agent, into a store of its own."""
        done = subprocess.run(
            [sys.executable, str(PROGRAM), str(STEPS), str(self._limit)],
            env=self.cluster.head.env | {"SPOTGUARD_STORE": (self.cluster.folder / "plain").as_uri()},
            capture_output=True,
            text=True,
            check=True,
            timeout=TIMEOUT,
        )
        return re.findall(r"^step (\d+) (\S+)$", done.stdout, re.MULTILINE)

    def committed(self) -> list[str]:
        return sorted(path.parent.name for path in self.cluster.store.glob("*/checkpoints/*/COMMIT.json"))


@pytest.fixture
def begin(tmp_path: Path, require_server: Callable[[str], str]) -> Iterator[Begin]:
    """`begin(grace=10)`: a cluster that is so, and a job that trains on it; the words are options of `sbatch`."""
    with ExitStack() as held:

        def made(*options: str, env: dict[str, str] | None = None, **cluster: object) -> Training:
            started = held.enter_context(Cluster(tmp_path, require_server, **cluster))  # type: ignore[arg-type]
            return Training(started, *options, **(env or {}))

        yield made


@pytest.mark.soak
def test_preempted_without_a_grace_it_is_saved_within_killwait_and_slurm_brings_it_back(begin: Begin) -> None:
    training = begin()
    training.cluster.take_nodes()
    training.is_saved()
    training.cluster.give_nodes()
    training.comes_back()
    assert "goes back into the queue" not in training.job.log, "that was Slurm's to do"


@pytest.mark.soak
def test_preempted_with_a_grace_it_leaves_as_soon_as_it_is_saved(begin: Begin) -> None:
    """The batch script hears nothing meanwhile, and has the job requeued itself."""
    training = begin(grace=120)
    taker = training.cluster.take_nodes()
    training.is_saved()
    training.job.until("goes back into the queue")
    eventually(lambda: training.cluster.show(taker)["JobState"] == "RUNNING", "its nodes are not given up")
    training.cluster.give_nodes()
    training.comes_back()


def test_a_job_that_is_cancelled_is_saved_and_stays_cancelled(begin: Begin) -> None:
    """Exit code 75 or not. Nothing of it runs any more, and what it saved is there."""
    training = begin()
    training.cluster.scancel(training.job.id)
    training.is_saved()
    training.job.becomes("CANCELLED")
    eventually(lambda: not training.cluster.of_jobs(), "nothing of the job is left")
    shown = training.cluster.show(training.job.id)
    assert (shown["JobState"], shown["Restarts"]) == ("CANCELLED", "0")
    assert "goes back into the queue" not in training.job.log
    assert [name[:9] for name in training.committed()] == ["000000005"]
