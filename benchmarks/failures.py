"""Failures that are provoked in three scripts: how soon each is named, and as what (a confusion matrix).

`spotguard simulate failure` provokes them, at random steps and in random ranks. The time is from the failure itself to the first
line that names its class; what counts as right is the last one, which `spotguard run` writes when the command has ended. A stall is
named once its limit is over, which is 3 s here. A cut has two machines in namespaces (`tests/e2e/machines.py`). A failure of which
only an alert tells is named by that: by the helper's first line about it.

FAILURES="stopped cut" in the environment names the classes to provoke.
"""

from __future__ import annotations

import io
import os
import random
import re
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path

import pytest

from spotguard.hooks.ipc.failure_classes import CLASSES
from spotguard.hooks.recorder.failure_plan import IN_KERNEL_LOG, KINDS, OF_NVML
from tests.e2e.machines import Rack, address
from tests.e2e.processes import eventually

from .rows import Row, Unable
from .scale import Scale

SCRIPTS = ("plain", "accumulating", "ranks")
LIMIT = 3.0
_SCRIPT = str(Path(__file__).with_name("failing.py"))
_TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
#: What a line of the log says for each class; the first that fits counts.
_SAID = (
    {"is silent": "cut", "is stopped by a signal": "stopped"}
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
)
#: An alert of a simulated failure, which outranks the line of how the command ended.
_ALERT = re.compile(rf"alert ({'|'.join(sorted(OF_NVML | IN_KERNEL_LOG))}): ")
#: Seconds for which each lasts: until two looks at a process, a heartbeat and ten seconds, or one and two samples, are over.
_SECONDS = {"stopped": 22, "cut": 15, "gpu-lost": 12, "gpu-memory-error": 22, "gpu-throttled": 30}
#: Alerts of a GPU that is slow begin after five minutes.
_RULES = '[rule.gpu-throttled]\nfor = "1s"\n'
#: Memory of a cgroup in which two ranks train.
_MEMORY = 900 << 20


def measure(scale: Scale) -> Iterator[Row]:
    each, rng = scale.of(7, 1), random.Random(7)
    chosen = os.environ.get("FAILURES", "").split() or list(KINDS)
    kinds = scale.of(tuple(chosen), ("program",))
    matrix: dict[str, Counter[str]] = {}
    for kind in kinds:
        took: list[float] = []
        named = matrix[kind] = Counter()
        for script in scale.of(SCRIPTS, SCRIPTS[:1]):
            for number in range(each):
                folder = scale.folder / f"{kind}-{script}-{number}"
                found, seconds = (_cut if kind == "cut" else _provoke)(kind, script, rng, folder)
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


def _words(kind: str, script: str, rng: random.Random) -> list[str]:
    """Return the words of `spotguard` that let one failure happen at some step."""
    # The agents of two machines have to know each other first.
    step = rng.randint(30, 50) if kind == "cut" else rng.randint(3, 25)
    words = ["simulate", "failure", kind, "--at-step", str(step)]
    if kind in _SECONDS:
        words += ["--for", str(_SECONDS[kind])]
    if script == "ranks" or kind == "cut":
        words += ["--rank", str(rng.randint(0, 1))]
    if kind in ("stall", "program"):
        # An error in the loader is one of the data, whatever raised it.
        places = ("data", "forward", "backward", "optimizer")
        words += ["--in", rng.choice(places if kind == "stall" else places[1:])]
    return words


def _provoke(kind: str, script: str, rng: random.Random, folder: Path) -> tuple[str, float]:
    """Return as what one failure is named, and after how many seconds; "nothing" if it is not."""
    folder.mkdir()
    words = _words(kind, script, rng)
    launcher = _TORCHRUN if script == "ranks" else ()
    command = [sys.executable, *launcher, _SCRIPT, script]
    run = f"run --provider none --run-id job --store {folder / 'store'} --every off"
    if kind in IN_KERNEL_LOG | OF_NVML:  # other ranks wait for as long as its driver does not answer
        (folder / "rules.toml").write_text(_RULES)
        run += f" --rules {folder / 'rules.toml'}"
    else:
        run += f" --stall-first {LIMIT} --recover stall=stop"
    whole = [
        sys.executable,
        "-m",
        "spotguard",
        *words,
        "--",
        sys.executable,
        "-m",
        "spotguard",
        *run.split(),
        "--",
        *command,
    ]
    with limited_memory(_MEMORY if kind == "host-memory" else None) as inside:
        process = subprocess.Popen(
            [*inside, *whole],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "TMPDIR": str(folder), "XDG_RUNTIME_DIR": str(folder)},
        )
        begun = _Begun(folder)
        try:
            return _named(process, begun)
        finally:
            process.kill()
            process.wait()


def _named(process: subprocess.Popen[str], begun: _Begun) -> tuple[str, float]:
    """Return the name in the last line that gives one, and how soon the first line gave the same."""
    assert process.stderr is not None
    found, alert, at = "nothing", "", dict[str, float]()
    for line in process.stderr:
        if told := _ALERT.search(line):
            alert = told[1]
            at.setdefault(alert, time.monotonic())
        elif said := _NAMED.search(line):
            found = next((kind for words, kind in _SAID.items() if words in said[0]), "nothing")
            at.setdefault(found, time.monotonic())
    begun.end()
    found = alert or found
    return found, at.get(found, float("nan")) - begun.at


def _cut(kind: str, script: str, rng: random.Random, folder: Path) -> tuple[str, float]:
    """Return as what the other one of two machines names the cut of a network, and after how many seconds."""
    folder.mkdir()
    os.environ.setdefault("XDG_RUNTIME_DIR", str(folder))  # sockets of the machines lie in it
    words = _words(kind, script, rng)
    try:
        with (
            redirect_stdout(io.StringIO()),
            Rack(folder) as rack,
        ):  # it prints all that its machines have printed
            nodes = [rack.add(), rack.add()]
            launcher = (
                "-m",
                "torch.distributed.run",
                "--nnodes=2",
                "--nproc-per-node=1",
                "--rdzv-backend=c10d",
            )
            meeting = (f"--rdzv-endpoint={address(1)}:29400", "--rdzv-id=job")
            run = ("run", "--provider", "none", "--run-id", "job", "--store", nodes[0].url, "--every", "off")
            command = [sys.executable, "-m", "spotguard", *run, "--", sys.executable, *launcher, *meeting]
            runs = [node.spotguard(*words, "--", *command, _SCRIPT, script, "0.1") for node in nodes]
            eventually(lambda: any("cut begins" in each.err.text for each in runs), "nothing was cut")
            began = time.monotonic()
            cut = next(number for number, each in enumerate(runs) if "cut begins" in each.err.text)
            named = runs[1 - cut].err.until(_NAMED.pattern)
            seconds = time.monotonic() - began
            runs[1 - cut].err.until(f"training stands still: machine {nodes[cut].name} is silent")
            whole = all(each.ended() == 0 for each in runs)
            found = next((name for words, name in _SAID.items() if words in named[0]), "nothing")
            return (found if whole and nodes[cut].name in named[0] else "nothing"), seconds
    except pytest.skip.Exception as why:
        raise Unable(str(why)) from None
    except AssertionError as why:
        print(f"  cut in {script}: {str(why)[-2000:]}", flush=True)
        return "nothing", float("nan")


class _Begun(threading.Thread):
    """The moment at which the failure begins: its process leaves a mark."""

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True)
        self.at = float("nan")
        self._folder, self._over = folder, threading.Event()
        self.start()

    def run(self) -> None:
        while not self._over.wait(0.005):
            if next(self._folder.glob("spotguard-simulated-*/time-0"), None):
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
