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

from tests.e2e.cluster import Cluster, Job, Tracking
from tests.e2e.processes import TIMEOUT, eventually

pytest.importorskip("torch")

pytestmark = [pytest.mark.wholepath, pytest.mark.torch]

PROGRAM = Path(__file__).parent / "programs" / "batch.py"
SHARDED = PROGRAM.with_name("sharded.py")
STEPS = 12

#: What a site may have, and what the script has to say otherwise: the first task that ends badly, or at all, ends the others.
HASTY = "KillOnBadExit=1\nWaitTime=1"

Begin = Callable[..., "Training"]


class Training:
    """`programs/batch.py` below the batch script, standing at its fifth step."""

    def __init__(self, cluster: Cluster, *options: str, **env: str) -> None:
        self.cluster = cluster
        self._limit = cluster.folder / "limit"
        self._limit.write_text("5")
        words = (sys.executable, str(PROGRAM), str(STEPS), str(self._limit))
        said = {"SPOTGUARD_EVERY": "off", **env}
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


@pytest.fixture
def spare(tmp_path: Path, require_server: Callable[[str], str]) -> Iterator[Cluster]:
    """Three nodes, for jobs of two. One that is not heard of for 10 s is down, and its job goes to the others."""
    with Cluster(tmp_path, require_server, nodes=3, kill_wait=10, silent=10, more=HASTY) as cluster:
        yield cluster


def on_two(cluster: Cluster, *options: str, steps: int = STEPS, **env: str) -> tuple[Job, Path]:
    """`programs/sharded.py`, a rank on each of two nodes, standing at its fifth step; and the file that says how far it may go."""
    limit = cluster.folder / "limit"
    limit.write_text("5")
    words = ("torchrun", "--nproc-per-node=1", str(SHARDED), str(steps), str(limit))
    job = cluster.train(*words, options=("--nodes=2", *options), **{"SPOTGUARD_EVERY": "off", **env})
    job.until("^step 5 ")
    return job, limit


@pytest.mark.soak
@pytest.mark.parametrize("tracking", ["cgroup", "linuxproc"])
def test_preempted_without_a_grace_it_is_saved_within_killwait_and_slurm_brings_it_back(
    begin: Begin, tracking: Tracking
) -> None:
    """Slurm says SIGTERM twice in a row. Where it tracks processes by their parents, training hears it too, and the script's
    `srun`, which then asks for the step to be killed, and is refused."""
    training = begin(tracking=tracking)
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
    Job(training.cluster, taker).becomes("RUNNING")
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


@pytest.mark.soak
def test_a_job_whose_time_is_nearly_over_is_saved_and_begins_anew(begin: Begin) -> None:
    """The job's own signal, of the words that `sbatch` is given or else of the script. Slurm looks twice a minute."""
    training = begin("--time=2", "--signal=TERM@60")
    training.is_saved()
    training.job.until("goes back into the queue")
    training.comes_back()


def test_a_job_that_leaves_a_node_for_a_failure_does_not_come_back_to_it(
    tmp_path: Path, require_server: Callable[[str], str]
) -> None:
    """Beside those that it excluded before. In its first life the second of its nodes fails, and the first one is well."""
    command = tmp_path / "once.sh"
    fails = (
        '[ "$SLURM_NODEID$SLURM_RESTART_COUNT" != 1 ] || { echo "fails on $SLURMD_NODENAME"; kill -9 $$; }'
    )
    command.write_text(f'{fails}\necho "done on $SLURMD_NODENAME"\n')
    with Cluster(tmp_path, require_server, nodes=4, kill_wait=10) as cluster:
        job = cluster.train(
            "sh",
            str(command),
            options=("--nodes=2", "--exclude=node2"),
            SPOTGUARD_RECOVER="killed=leave",
        )
        job.until("^done on ", 3)
        job.becomes("COMPLETED")
        (left,) = re.findall(r"^fails on (.*)$", job.log, re.MULTILINE)
        shown = cluster.show(job.id)
        assert shown["Restarts"] == "1"
        assert shown["ExcNodeList"] == f"node2,{left}"
        nodes = {node.name for node in cluster.nodes}
        assert {*re.findall("^done on (.*)$", job.log, re.MULTILINE)} == nodes - {"node2", left}
        assert re.search("this machine is named in --exclude-file", job.log)
        assert re.search(f"job {job.id} excludes {left} from now on", job.log)
        assert list(cluster.folder.glob(".spotguard-exclude*")) == []


@pytest.mark.soak
def test_a_task_of_an_array_goes_back_alone(tmp_path: Path, require_server: Callable[[str], str]) -> None:
    """The last task has the number of the whole array. The first one trains on."""
    command, free = tmp_path / "task.sh", tmp_path / "free"
    command.write_text(
        f'if [ "$SLURM_ARRAY_TASK_ID" = 1 ]; then echo begun; while [ ! -e {free} ]; do sleep 0.1; done\n'
        'elif [ -z "$SLURM_RESTART_COUNT" ]; then exit 75; fi\necho "done"\n'
    )
    with Cluster(tmp_path, require_server, nodes=2, kill_wait=10) as cluster:
        array = cluster.train("sh", str(command), options=("--nodes=1", "--exclusive", "--array=1-2"))
        tasks = [Job(cluster, f"{array.id}_{number}") for number in (1, 2)]
        tasks[0].until("^begun$")
        tasks[1].until("^done$")
        free.touch()
        tasks[0].until("^done$")
        tasks[0].becomes("COMPLETED")
        tasks[1].becomes("COMPLETED")
        assert [cluster.show(each.id)["Restarts"] for each in tasks] == ["0", "1"]
        assert len(re.findall("^begun$", tasks[0].log, re.MULTILINE)) == 1


@pytest.mark.soak
def test_a_step_that_signals_its_tasks_moves_the_job(begin: Begin, tmp_path: Path) -> None:
    """Another step of the job, on the same node, sees what is guarded there. Of the session that submitted it, nothing is in use:
    it has ended, and its folder is gone."""
    session = tmp_path / "session"
    session.mkdir(mode=0o700)
    training = begin(env={"XDG_RUNTIME_DIR": str(session)})
    session.rmdir()
    status = training.cluster.srun(f"--jobid={training.job.id}", "--overlap", "spotguard", "status")
    assert re.search(r"training +batch\.py .*step", status), status
    training.cluster.scancel("--signal=TERM", training.job.id)
    training.is_saved()
    training.job.until("goes back into the queue")
    training.comes_back()


@pytest.mark.soak
def test_a_job_of_two_nodes_leaves_both_and_comes_back_to_both(
    tmp_path: Path, require_server: Callable[[str], str]
) -> None:
    """One run on each, which come to one name and one step; the ranks are torchrun's, told by the script where to meet."""
    with Cluster(tmp_path, require_server, nodes=2, grace=120, more=HASTY) as cluster:
        job, limit = on_two(cluster)
        cluster.take_nodes()
        job.until("gate at step 5", 2)
        limit.write_text(str(STEPS))
        job.until("COMMITTED", 2)
        job.until("goes back into the queue")
        cluster.give_nodes()
        job.until(f"^step {STEPS} ")
        job.becomes("COMPLETED")
        said = dict(re.findall(r"^(?:step|restored) (\d+) (?:[\d.]+ )?(\w+)$", job.log, re.MULTILINE))
        assert re.findall(r"^restored (\d+) (\w+)$", job.log, re.MULTILINE)[1] == ("5", said["5"])
        assert {f"rank {rank} of 2 on {node.name}" for rank, node in enumerate(cluster.nodes)} <= {
            *job.log.splitlines()
        }
        (run,) = cluster.store.iterdir()
        assert run.name.startswith(f"sharded-{job.id}-")
    steps = re.findall(r"^step (\d+) ([\d.]+) ", job.log, re.MULTILINE)
    alone = subprocess.run(
        [sys.executable, str(SHARDED), str(STEPS)],
        capture_output=True,
        text=True,
        check=True,
        timeout=TIMEOUT,
    )
    expected = re.findall(r"^step (\d+) ([\d.]+) ", alone.stdout, re.MULTILINE)
    assert [step for step, _ in steps] == [step for step, _ in expected]
    assert [float(loss) for _, loss in steps] == pytest.approx([float(x) for _, x in expected], rel=1e-3)


@pytest.mark.soak
def test_the_first_node_that_ends_leaves_the_others_their_time(
    tmp_path: Path, require_server: Callable[[str], str]
) -> None:
    """It ends with 75, which is a bad exit; the other one has not saved yet. And who cancels the job in the moment in which it is
    requeued has cancelled it, whichever comes first."""
    late = tmp_path / "late.sh"
    late.write_text(
        'echo "node $SLURM_NODEID"; [ $SLURM_NODEID = 1 ] && sleep 6 && echo "saved after all"; exit 75'
    )
    with Cluster(tmp_path, require_server, nodes=2, more=HASTY) as cluster:
        job = cluster.train("sh", str(late), options=("--nodes=2",))
        job.until("^node 0")
        job.until("^saved after all$")
        job.until("goes back into the queue")
        cluster.scancel(job.id)
        job.becomes("CANCELLED")


@pytest.mark.soak
def test_each_task_of_an_array_is_one_run_in_all_its_lives_and_what_it_submits_is_another(
    tmp_path: Path, require_server: Callable[[str], str]
) -> None:
    """A submitted job has the array's variables in its environment, and the run id and the socket of who submitted it."""
    command = tmp_path / "who.sh"
    again = f"INSIDE=yes sbatch -o {tmp_path}/out-%j train.sbatch sh {command}"
    command.write_text(
        'echo "run $SPOTGUARD_RUN_ID of $SLURM_ARRAY_TASK_ID"\n'
        f'[ -n "$INSIDE$SLURM_RESTART_COUNT" ] || {{ {again}; exit 75; }}\n'
    )
    with Cluster(tmp_path, require_server) as cluster:
        array = cluster.train("sh", str(command), options=("--array=1-2", "-o", f"{tmp_path}/out-%j")).id

        def runs() -> dict[str, list[str]]:
            said = {path.name[4:]: path.read_text() for path in tmp_path.glob("out-*")}
            return {job: re.findall("^run (.*)$", log, re.MULTILINE) for job, log in said.items()}

        eventually(lambda: sum(map(len, runs().values())) == 6, "two tasks twice, and one job of each")
        found = runs()
    assert array in found, "a task has the array's own id"
    assert sorted(map(len, found.values())) == [1, 1, 2, 2]
    assert all(len({*names}) == 1 for names in found.values())
    assert all(names[0].startswith(f"who-{job}-") for job, names in found.items())
    assert sorted(names[0][-1] for names in found.values()) == ["1", "1", "2", "2"], "inherited"


@pytest.mark.soak
def test_a_job_that_loses_a_node_goes_on_from_a_background_checkpoint_on_another_one(spare: Cluster) -> None:
    """Taken without a word, wire and all. What it held nobody else has, so nothing is saved at the SIGTERM that follows."""
    job, limit = on_two(spare, "--exclusive", steps=1000, SPOTGUARD_WINDOW="5", SPOTGUARD_EVERY="1")
    for step in range(6, 1000):
        limit.write_text(f"{step}")
        job.until(f"^step {step} ")
        if list(spare.store.glob("sharded-*/checkpoints/*/COMMIT.json")):
            break
    spare.nodes[1].take()
    limit.write_text("1000")
    there = job.until(r"^restored ([1-9]\d*) (\w+)$")
    assert f"\nstep {there[1]} " in job.log[: there.start()]
    assert re.search(rf"^step {there[1]} \S+ {there[2]}$", job.log, re.MULTILINE)
    job.until("^rank . of 2 on node3$")
    assert spare.show(job.id)["Restarts"] == "1"
    spare.scancel(job.id)
    job.becomes("CANCELLED")


@pytest.mark.soak
def test_a_job_of_which_a_cloud_takes_a_node_is_saved_by_all_and_loses_no_step(spare: Cluster) -> None:
    """Slurm knows of no notice: it finds the node gone, and requeues the job to those that it has."""
    job, limit = on_two(spare, "--exclusive")
    spare.nodes[1].preempt(60)
    job.until("gate at step 5", 2)
    limit.write_text(str(STEPS))
    job.until("terminate notice from aws .* COMMITTED .* exit code 75$")
    spare.nodes[1].take()
    job.until(f"^step {STEPS} ")
    job.becomes("COMPLETED")
    assert spare.show(job.id)["Restarts"] == "1"
    assert re.findall(r"^restored (\d+) ", job.log, re.MULTILINE) == ["0", "5"]
    assert "on node3" in job.log
    steps = re.findall(r"^step (\d+) ", job.log, re.MULTILINE)
    assert steps == [str(step) for step in range(1, STEPS + 1)]
