"""A Slurm cluster: the real munged, slurmctld and slurmd, on the nodes of a rack. The first one is the controller's too.

Each node has a name, a network and processes of its own, so Slurm is configured as for machines of that name; and nothing of it
outlives the rack. Two partitions have the same nodes: what is submitted to `high` takes them from a job in `spot`.
"""

from __future__ import annotations

import os
import re
import secrets
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

import pytest

from spotguard.agent.ipc.paths import runtime_folder
from spotguard.deploy.slurm import batch_script
from tests.caller import servers_required
from tests.e2e.machines import Node, Rack
from tests.e2e.processes import Running, eventually, removed

RequireServer = Callable[[str], str]
#: By which Slurm finds a job's processes: Slurm's default, or the parents of each.
Tracking = Literal["cgroup", "linuxproc"]

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch")
_FREEZER = Path("/sys/fs/cgroup/freezer")
#: Seconds between two questions to Slurm, each of which is a process.
_PAUSE = 0.2

#: Slurm waits `cred_expire` before it starts a requeued job, by default two minutes, and looks for time limits each 30 s.
_CONFIGURATION = """
ClusterName=rack
SlurmctldHost=node1
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={runtime}/munge,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={runtime}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
MpiDefault=none
SwitchType=switch/none
ProctrackType=proctrack/{tracking}
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/builtin
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
KillWait={kill_wait}
OverTimeLimit=0
InactiveLimit=0
SlurmdTimeout={silent}
ReturnToService=2
RebootProgram=/bin/false
NodeName=node[1-{nodes}] CPUs=2 State=UNKNOWN
PartitionName=spot Nodes=ALL Default=YES PriorityTier=1 GraceTime={grace} DefaultTime=10 OverSubscribe=NO
PartitionName=high Nodes=ALL PriorityTier=10 PreemptMode=OFF OverSubscribe=NO
{more}
"""


class Cluster:
    """A context manager: its nodes, daemons and jobs are gone at the end."""

    def __init__(
        self,
        folder: Path,
        require_server: RequireServer,
        *,
        nodes: int = 1,
        tracking: Tracking = "cgroup",
        kill_wait: int = 30,
        grace: int = 0,
        silent: int = 300,
        more: str = "",
    ) -> None:
        """
        Args:
            kill_wait: seconds from SIGTERM to SIGKILL.
            grace: seconds that a job in `spot` is left when it is preempted, before that.
            silent: a node that is not heard of for so long is down.
            more: lines of slurm.conf.
        """
        for program in PROGRAMS:
            require_server(program)
        if tracking == "cgroup" and not os.access(_FREEZER, os.W_OK):
            problem = f"{_FREEZER} is not there, or not ours: Slurm of Debian 12 tracks jobs by it"
            (pytest.fail if servers_required() else pytest.skip)(problem)
        self.folder, self._rack, self._tracking = folder, Rack(folder), tracking
        self._size = nodes
        self._words = {
            "folder": folder,
            "tracking": tracking,
            "nodes": nodes,
            "kill_wait": kill_wait,
            "grace": grace,
            "silent": silent,
            "more": more,
        }
        self._cgroups: list[Path] = []
        self.store = self._rack.store
        self.env: dict[str, str] = {}

    def __enter__(self) -> Self:
        self._rack.__enter__()
        try:
            self._configure()
            self._start()
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._rack.__exit__(kind, error, trace)
        for top in self._cgroups:  # they would outlive whoever made them
            eventually(lambda top=top: removed(top), f"somebody is left in {top}")  # type: ignore[misc]

    @property
    def nodes(self) -> list[Node]:
        return self._rack.nodes

    @property
    def head(self) -> Node:
        return self.nodes[0]

    @property
    def _sockets(self) -> Path:
        """A short path: a socket's holds 107 bytes, and Slurm has long names for those of its steps."""
        return self.head.runtime

    # --- what a person types, on the first node ---

    def sbatch(self, *words: str, **env: str) -> str:
        """Submit; the job's id."""
        return self._say("sbatch", "--parsable", f"--chdir={self.folder}", *words, **env).strip()

    def train(self, *words: str, options: tuple[str, ...] = (), **env: str) -> Job:
        """The batch script as it is shipped, with this command."""
        env = {"SPOTGUARD_LOG_LEVEL": "debug", **env}  # tests wait for the stages of a save
        return Job(self, self.sbatch(*options, "train.sbatch", *words, **env))

    def take_nodes(self) -> str:
        """A job that takes all nodes from those in `spot`, and gives them back when a file `free` is there."""
        waiting = f"while [ ! -e {self.folder}/free ]; do sleep 0.1; done"
        return self.sbatch(
            "-p", "high", f"-N{len(self.nodes)}", "--exclusive", "-o", "/dev/null", "--wrap", waiting
        )

    def give_nodes(self) -> None:
        (self.folder / "free").touch()

    def srun(self, *words: str) -> str:
        """A step of a job that runs; what it says. The session in which it is typed has a folder of its own."""
        return self._say("env", "-u", "XDG_RUNTIME_DIR", "srun", "--nodes=1", "--ntasks=1", *words)

    def scancel(self, *words: str) -> None:
        self._say("scancel", *words)

    def show(self, job: str) -> dict[str, str]:
        """`scontrol show job`, of one job. {}: there is none."""
        said = self._say("scontrol", "--oneliner", "show", "job", job)
        return dict(re.findall(r"(\S+?)=(\S*)", said))

    def of_jobs(self) -> list[int]:
        """The processes that belong to jobs, on whichever node: nobody else has such an environment."""
        found = []
        for node in self.nodes:
            for pid in node.everybody():
                try:
                    if b"SLURM_JOB_ID=" in Path(f"/proc/{pid}/environ").read_bytes():
                        found.append(pid)
                except OSError:
                    continue  # it has ended
        return found

    def _say(self, *words: str, **env: str) -> str:
        running = self.head.start(*words, **self.env, **env)
        code = running.ended()
        assert code == 0, running.account()
        return running.out.to_the_end()

    # --- its making ---

    def _configure(self) -> None:
        for _ in range(self._size):
            self._rack.add()
        for name in ("state", "cgroup"):
            (self.folder / name).mkdir()
        self.folder.chmod(0o755)
        words = {**self._words, "runtime": self._sockets}
        self._write("slurm.conf", _CONFIGURATION.format(**words), 0o644)
        self._write("cgroup.conf", f"CgroupPlugin=cgroup/v1\nCgroupMountpoint={self.folder}/cgroup\n", 0o644)
        for node in self.nodes:
            self._give_sockets(node)
        self._write("train.sbatch", batch_script(), 0o644)
        self._write("munge.key", secrets.token_hex(64), 0o400)
        self.env = {
            "SLURM_CONF": f"{self.folder}/slurm.conf",
            "PATH": f"{Path(sys.executable).parent}:{self.head.env['PATH']}",
            "SPOTGUARD_STORE": self.store.as_uri(),
        }

    def _give_sockets(self, node: Node) -> None:
        """The folder of a job's sockets is a node's own, as `/tmp` is on a machine: something else lies at its place there.

        That place stays behind, empty. It is of whoever runs these tests, as on any machine where spotguard has run.
        """
        place, own = runtime_folder({}, os.geteuid()), node.runtime / "sockets"
        place.mkdir(mode=0o700, exist_ok=True)
        own.mkdir(mode=0o700)
        running = node.start("mount", "--bind", str(own), str(place))
        assert running.ended() == 0, running.account()

    def _write(self, name: str, text: str, mode: int) -> None:
        path = self.folder / name
        path.write_text(text)
        path.chmod(mode)

    def _start(self) -> None:
        places = [f"--{what}-file={self.folder}/munge.{what}" for what in ("key", "pid", "log", "seed")]
        # One for all: its socket is a file, and files are shared.
        self._run(self.head, "munged", "--foreground", "--force", f"--socket={self._sockets}/munge", *places)
        eventually((self._sockets / "munge").is_socket, "munged does not listen")
        self._run(self.head, "slurmctld", "-D", "-i")
        for node in self.nodes:
            daemon = ("slurmd", "-D", "-N", node.name)
            self._run(node, *(self._contained(node, *daemon) if self._tracking == "cgroup" else daemon))
        eventually(self._all_idle, "the nodes are not there", pause=_PAUSE)

    def _contained(self, node: Node, *words: str) -> tuple[str, ...]:
        """These words in a hierarchy of control groups that is the node's own, as it is on a machine."""
        top = _FREEZER / f"spotguard-{secrets.token_hex(4)}-{node.name}"
        top.mkdir()
        self._cgroups.append(top)
        mount = f"{self.folder}/cgroup/freezer"
        inside = f'mkdir -p {mount} && mount -t cgroup -o freezer freezer {mount} && exec "$@"'
        enter = f"echo 0 >{top}/cgroup.procs && exec unshare --cgroup --mount sh -c '{inside}' sh \"$@\""
        return ("sh", "-c", enter, "sh", *words)

    def _run(self, node: Node, *words: str) -> Running:
        return node.start(*words, **self.env)

    def _all_idle(self) -> bool:
        running = self.head.start("sinfo", "--noheader", "--Node", "--partition=spot", "-o", "%T", **self.env)
        return running.ended() == 0 and running.out.to_the_end().split() == ["idle"] * len(self.nodes)


class Job:
    """A job of the batch script, seen from outside."""

    def __init__(self, cluster: Cluster, id: str) -> None:
        self._cluster = cluster
        self.id = id

    @property
    def log(self) -> str:
        """All its lives: the script has them in one file."""
        path = self._cluster.folder / f"slurm-{self.id}.out"
        return path.read_text(errors="replace") if path.exists() else ""

    @property
    def state(self) -> str:
        return self._cluster.show(self.id).get("JobState", "")

    def until(self, pattern: str, count: int = 1) -> re.Match[str]:
        """Wait for the `count`-th such line in its log."""
        found: list[re.Match[str]] = []

        def seen() -> bool:
            found[:] = re.finditer(pattern, self.log, re.MULTILINE)
            return len(found) >= count

        try:
            eventually(seen, f"no {pattern!r} ({count})")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self._cluster.show(self.id)}\n{self.log}") from None
        return found[count - 1]

    def becomes(self, state: str) -> None:
        try:
            eventually(lambda: self.state == state, f"job {self.id} is not {state}", pause=_PAUSE)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self._cluster.show(self.id)}\n{self.log}") from None
