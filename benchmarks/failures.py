"""Failures that are provoked in three scripts: how soon each is named, and as what (a confusion matrix).

`spotguard simulate failure` provokes them, at random steps and in random ranks. The time is from the failure itself to the first
line that names its class; what counts as right is the last one, which `spotguard run` writes when the command has ended. A stall is
named once its limit is over, which is 3 s here. A failure that is an incident alone is named by that: by the helper's first line
about it. A cut network, and what ends another machine, have two machines in namespaces (`tests/e2e/machines.py`).

No simulation provokes the classes of `OTHERS`. What has to follow each of them counts too: the exit code, the number of starts, and
the commit. A clock is set by a library in front of libc (`tests/e2e/wall_clock.py`).

FAILURES="stopped cut" in the environment names the classes to provoke. The matrix is kept in `results/failures.json`.
"""

from __future__ import annotations

import io
import json
import math
import os
import random
import re
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path

import pytest

from spotguard.hooks.ipc.failure_classes import CLASSES
from spotguard.hooks.recorder.failure_plan import IN_KERNEL_LOG, KINDS
from tests.e2e.machines import Node, Rack, address
from tests.e2e.processes import Running
from tests.e2e.wall_clock import WallClock

from .rows import Row, Unable
from .scale import Scale

SCRIPTS = ("plain", "accumulating", "ranks")
#: Losses that rise, one error at the same step in two starts, a limit of time, a wall clock that is set, and another machine whose
#: wire is cut for a while, whose processes are killed, or which is gone at once with its wire.
OTHERS = ("spike", "repeated", "deadline", "clock-jump", "cut", "peer-lost", "machine-lost")
LIMIT = 3.0
_SCRIPT = str(Path(__file__).with_name("failing.py"))
_SPOTGUARD = (sys.executable, "-m", "spotguard")
_TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
#: What a line of the log says for each class; the first that fits counts.
_SAID = (
    {
        "is silent": "cut",
        "is stopped by a signal": "stopped",
        "the start before failed with the same error": "repeated",
        "far above the usual losses": "spike",
        "deadline notice": "deadline",
    }
    | {each.says: each.name for each in CLASSES.values()}
    | {
        "SIGKILL, and not by spotguard": "killed",
        "died without a word": "killed",
        "training stands still": "stall",
    }
)
_NAMED = re.compile(
    r"training (?:failed|stands still)(?:: (?:rank|machine|the command)| at step \d).*"
    r"|machine \S+ of run \S+ is silent|rank \d+ \(pid \d+\) is stopped by a signal"
    r"|the start before failed with the same error|: far above the usual losses|deadline notice from --deadline"
)
#: What the line of an incident says for each; it outranks the line of how the command ended.
_INCIDENTS = {
    "incident memory-kill: ": "memory-kill",
    "reports Xid 79 ": "gpu-lost",
    "reports Xid 94 ": "gpu-memory-error",
    "incident clock-jump: ": "clock-jump",
}
#: Seconds for which each lasts: until two looks at a process, or a heartbeat and ten seconds, are over.
_SECONDS = {"stopped": 22, "gpu-lost": 12, "gpu-memory-error": 22}
#: Memory of a cgroup in which two ranks train.
_MEMORY = 900 << 20
#: Seconds by which a clock is set, in either direction, at least and at most.
_SET = (10, 86400)
#: Seconds of warning before a limit of time.
_WINDOW = 15.0
_RESULTS = Path(__file__).parent / "results" / "failures.json"

#: The lines of a log, with the time at which each came.
Log = list[tuple[float, str]]


def measure(scale: Scale) -> Iterator[Row]:
    each, rng = scale.of(7, 1), random.Random(7)
    chosen = os.environ.get("FAILURES", "").split() or [*KINDS, *OTHERS]
    kinds = scale.of(tuple(chosen), ("program",))
    matrix: dict[str, Counter[str]] = {}
    for kind in kinds:
        took: list[float] = []
        named = matrix[kind] = Counter()
        for script in scale.of(SCRIPTS, SCRIPTS[:1]):
            for number in range(each):
                folder = scale.folder / f"{kind}-{script}-{number}"
                provoke = _PROVOKERS.get(kind, _provoke)
                found, seconds = provoke(kind, script, rng, folder)
                named[found] += 1
                if found == kind:
                    took.append(seconds)
        print(f"  {kind}: {dict(named)}", flush=True)
        yield Row(
            f"{kind}: from the failure to its name, {len(took)} of {named.total()} right",
            "s",
            tuple(took or [0.0]),
        )
    print("\n".join(_table(matrix)), flush=True)
    if not scale.tiny:
        known = json.loads(_RESULTS.read_text()) if _RESULTS.exists() else {}
        _RESULTS.parent.mkdir(exist_ok=True)
        _RESULTS.write_text(json.dumps(known | matrix, indent=1) + "\n")


def _words(kind: str, script: str, rng: random.Random) -> list[str]:
    """Return the words of `spotguard` that let one failure happen at some step."""
    simulated = rng.choice(("program", "data")) if kind == "repeated" else kind
    words = ["simulate", "failure", simulated, "--at-step", str(rng.randint(3, 25))]
    if kind == "repeated":
        words += ["--times", "9"]
    if kind in _SECONDS:
        words += ["--for", str(_SECONDS[kind])]
    if script == "ranks":
        words += ["--rank", str(rng.randint(0, 1))]
    if simulated in ("stall", "program"):
        # An error in the loader is one of the data, whatever raised it.
        places = ("data", "forward", "backward", "optimizer")
        words += ["--in", rng.choice(places if kind == "stall" else places[1:])]
    return words


def _provoke(kind: str, script: str, rng: random.Random, folder: Path) -> tuple[str, float]:
    """Return as what one failure is named, and after how many seconds; "nothing" if it is not."""
    folder.mkdir()
    launcher = _TORCHRUN if script == "ranks" else ()
    env = {**os.environ, "TMPDIR": str(folder), "XDG_RUNTIME_DIR": str(folder)}
    command = [sys.executable, *launcher, _SCRIPT, script]
    run = f"run --provider none --run-id job --store {folder / 'store'} --every off"
    words = [] if kind in ("spike", "deadline") else [*_words(kind, script, rng), "--", *_SPOTGUARD]
    begun = _Begun(folder, 1 if kind == "repeated" else 0)
    if kind == "spike":
        env["SPIKE"] = f"{rng.randint(0, 1) if script == 'ranks' else 0} {rng.randint(55, 75)}"
    elif kind == "repeated":
        run += " --max-restarts 5"
    elif kind == "deadline":
        due = rng.uniform(25.0, 40.0)
        begun.at = time.monotonic() + due
        run += f" --deadline {time.time() + due + _WINDOW} --window {_WINDOW}"
        command.append("0.5")  # seconds a step
    elif kind in IN_KERNEL_LOG:  # other ranks wait for as long as its driver does not answer
        run += " --on-failure true"
    else:
        run += f" --stall-first {LIMIT} --recover stall=stop"
    with (
        limited_memory(_MEMORY if kind == "host-memory" else None) as inside,
        subprocess.Popen(
            [*inside, *_SPOTGUARD, *words, *run.split(), "--", *command],
            stderr=subprocess.PIPE,
            text=True,
            env=env,
        ) as process,
    ):
        try:
            log = _log(process)
        finally:
            process.kill()
    begun.end()
    found, seconds = named_in(log, begun.at)
    if not followed(kind, process.returncode, log, begun.at):
        print(
            f"  {kind} in {script}, {process.returncode}: {''.join(line for _, line in log)[-2000:]}",
            flush=True,
        )
        found = "nothing"
    return found, seconds


def _set_clock(kind: str, script: str, rng: random.Random, folder: Path) -> tuple[str, float]:
    """Return as what a wall clock is named that is set in the middle of training, and after how many seconds."""
    folder.mkdir()
    clock = WallClock(folder)
    env = {**os.environ, **clock.env, "TMPDIR": str(folder), "XDG_RUNTIME_DIR": str(folder)}
    launcher = _TORCHRUN if script == "ranks" else ()
    run = f"run --provider none --run-id job --store {folder / 'store'} --every 2 --on-failure true"
    words = [*_SPOTGUARD, *run.split(), "--", sys.executable, *launcher, _SCRIPT, script, "0.3"]
    log, began = Log(), float("nan")
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=env) as process:
        assert process.stderr is not None
        try:
            for line in process.stderr:
                log.append((time.monotonic(), line))
                if math.isnan(began) and "training begins" in line:
                    time.sleep(rng.uniform(12.0, 20.0))  # the helper has to have read the clock
                    clock.set(rng.choice((-1, 1)) * rng.randint(*_SET))
                    began = time.monotonic()
        finally:
            process.kill()
    found, seconds = named_in(log, began)
    return (found if process.returncode == 0 else "nothing"), seconds


def _log(process: subprocess.Popen[str]) -> Log:
    """Return the log of a process, once it has ended."""
    assert process.stderr is not None
    return [(time.monotonic(), line) for line in process.stderr]


def named_in(log: Log, begun: float) -> tuple[str, float]:
    """Return the name in the last line that gives one, and how soon the first line gave the same."""
    found, incident, first = "nothing", "", dict[str, float]()
    for at, line in log:
        if told := next((kind for words, kind in _INCIDENTS.items() if words in line), ""):
            incident = told
            first.setdefault(incident, at)
        elif said := _NAMED.search(line):
            found = next((kind for words, kind in _SAID.items() if words in said[0]), "nothing")
            first.setdefault(found, at)
    found = incident or found
    return found, first.get(found, float("nan")) - begun


def followed(kind: str, code: int, log: Log, begun: float) -> bool:
    """Return whether what has to follow a failure of this class has followed: the exit code, the starts, the commit in time."""
    if kind == "repeated":
        starts = sum("starting the command again" in line for _, line in log)
        return code not in (0, 75) and starts == 1
    if kind == "deadline":
        return code == 75 and any("COMMITTED" in line and begun < at < begun + _WINDOW for at, line in log)
    return kind != "spike" or code == 0


def _cut(kind: str, script: str, rng: random.Random, folder: Path) -> tuple[str, float]:
    """Return as what the other one of two machines names the cut of a network, and after how many seconds."""
    cut = rng.randint(0, 1)
    with _two_machines(folder, script, "0.1") as (nodes, runs):
        _until_known(runs, rng)
        began = time.monotonic()
        nodes[cut].cut()
        named = runs[1 - cut].err.until(_NAMED.pattern)
        seconds = time.monotonic() - began
        runs[1 - cut].err.until(f"training stands still: machine {nodes[cut].name} is silent")
        nodes[cut].plug()
        whole = all(each.ended() == 0 for each in runs)
        found = next((name for words, name in _SAID.items() if words in named[0]), "nothing")
        return (found if whole and nodes[cut].name in named[0] else "nothing"), seconds
    return "nothing", float("nan")


@contextmanager
def _two_machines(folder: Path, script: str, pause: str) -> Iterator[tuple[list[Node], list[Running]]]:
    """Yield two machines, and the run of a job on each.

    Raises:
        Unable: no machines can be made here.
    """
    folder.mkdir()
    os.environ.setdefault("XDG_RUNTIME_DIR", str(folder))  # sockets of the machines lie in it
    launcher = ("-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d")
    meeting = (f"--rdzv-endpoint={address(1)}:29400", "--rdzv-id=job")
    job = (sys.executable, *launcher, *meeting, _SCRIPT, script, pause)
    run = ("run", "--provider", "none", "--run-id", "job", "--every", "off")
    try:
        # It prints all that its machines have printed.
        with redirect_stdout(io.StringIO()), Rack(folder) as rack:
            nodes = [rack.add(), rack.add()]
            words = (*run, "--store", nodes[0].url, "--", *job)
            yield nodes, [node.spotguard(*words) for node in nodes]
    except pytest.skip.Exception as why:
        raise Unable(str(why)) from None
    except AssertionError as why:
        print(f"  {script}: {str(why)[-2000:]}", flush=True)


def _until_known(runs: Sequence[Running], rng: random.Random) -> None:
    """Wait until the agents of both machines know each other."""
    for each in runs:
        each.err.until(r"rank \d \(pid \d+\): training begins")
    time.sleep(rng.uniform(4.0, 8.0))


def _lost(kind: str, script: str, rng: random.Random, folder: Path) -> tuple[str, float]:
    """Return as what a machine names the loss of the other one, and after how many seconds.

    All processes of the lost one are killed. Where the machine is lost, too, its wire is dead before, so nothing tells their end.
    """
    lost = rng.randint(0, 1)
    with _two_machines(folder, script, "0.3") as (nodes, runs):
        here, log = runs[1 - lost], Log()
        _until_known(runs, rng)
        began = time.monotonic()
        (nodes[lost].take if kind == "machine-lost" else nodes[lost].stop)()
        # The last of these lines is the agent's, which has named the class before.
        end = f"training stands still: machine {nodes[lost].name}|ERROR: training failed"
        while not log or not re.search(end, log[-1][1]):
            line = here.err.until(_NAMED.pattern).string
            log.append((time.monotonic(), line))
        found, seconds = named_in(log, began)
        if "COMMITTED" not in here.err.text:
            here.err.until("COMMITTED")
        # What it says of a machine that is silent for good is what it says of a cut.
        gone = kind == "machine-lost" and found == "cut" and nodes[lost].name in log[-1][1]
        return kind if gone else found, seconds
    return "nothing", float("nan")


_PROVOKERS = {"cut": _cut, "clock-jump": _set_clock, "peer-lost": _lost, "machine-lost": _lost}


class _Begun(threading.Thread):
    """The moment at which the failure begins: its process leaves a mark.

    Args:
        number: of the time that counts.
    """

    def __init__(self, folder: Path, number: int) -> None:
        super().__init__(daemon=True)
        self.at = float("nan")
        self._folder, self._number, self._over = folder, number, threading.Event()
        self.start()

    def run(self) -> None:
        while not self._over.wait(0.005):
            if next(self._folder.glob(f"spotguard-simulated-*/time-{self._number}"), None):
                self.at = time.monotonic()
                return

    def end(self) -> None:
        self._over.set()
        self.join()


@contextmanager
def limited_memory(limit: int | None) -> Iterator[list[str]]:
    """Yield the words that put a command into a cgroup with this limit (v1, as root)."""
    if limit is None:
        yield []
        return
    path = next(
        line.split(":", 2)[2]
        for line in Path("/proc/self/cgroup").read_text().splitlines()
        if ":memory:" in line
    )
    group = Path("/sys/fs/cgroup/memory", path.lstrip("/"), f"spotguard-{uuid.uuid4().hex[:8]}")
    group.mkdir()
    (group / "memory.limit_in_bytes").write_text(str(limit))
    try:
        yield ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh"]
    finally:
        _emptied(group)
        group.rmdir()


def _emptied(group: Path) -> None:
    """Wait for the loaders' workers of a process that was killed: they look for their parent every few seconds."""
    end = time.monotonic() + 30.0
    while (group / "cgroup.procs").read_text().strip() and time.monotonic() < end:
        time.sleep(0.1)


def _table(matrix: dict[str, Counter[str]]) -> Iterator[str]:
    """The matrix in Markdown: a row for each provoked class, and a column for each name that was given."""
    columns = [*matrix, *sorted({name for row in matrix.values() for name in row} - matrix.keys())]
    yield "| provoked | " + " | ".join(columns) + " |"
    yield "|---" * (len(columns) + 1) + "|"
    for kind, row in matrix.items():
        yield f"| {kind} | " + " | ".join(str(row[name] or "") for name in columns) + " |"
