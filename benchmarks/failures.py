"""Failures that are provoked in three scripts: how soon each is named, and as what (a confusion matrix).

`spotguard simulate failure` provokes them, at random steps and in random ranks. The time is from the failure itself to the first
line that names its class; what counts as right is the last one, which `spotguard run` writes when the command has ended. A stall is
named once its limit is over, which is 3 s here.
"""

from __future__ import annotations

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
from contextlib import contextmanager
from pathlib import Path

from spotguard.hooks.ipc.failure_classes import CLASSES
from spotguard.hooks.recorder.failure_plan import KINDS

from .rows import Row
from .scale import Scale

SCRIPTS = ("plain", "accumulating", "ranks")
LIMIT = 3.0
_SCRIPT = str(Path(__file__).with_name("failing.py"))
_TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
#: What a line of the log says for each class.
_SAID = {each.says: each.name for each in CLASSES.values()} | {
    "SIGKILL, and not by spotguard": "killed",
    "died without a word": "killed",
    "training stands still": "stall",
}
_NAMED = re.compile(r"training (?:failed|stands still)(?:: (?:rank|the command)| at step \d).*")
#: Memory of a cgroup in which two ranks train.
_MEMORY = 900 << 20


def measure(scale: Scale) -> Iterator[Row]:
    each, rng = scale.of(7, 1), random.Random(7)
    kinds = scale.of(tuple(KINDS), ("program",))
    matrix: dict[str, Counter[str]] = {}
    for kind in kinds:
        took: list[float] = []
        named = matrix[kind] = Counter()
        for script in scale.of(SCRIPTS, SCRIPTS[:1]):
            for number in range(each):
                folder = scale.folder / f"{kind}-{script}-{number}"
                found, seconds = _provoke(kind, script, rng, folder)
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


def _provoke(kind: str, script: str, rng: random.Random, folder: Path) -> tuple[str, float]:
    """Return as what one failure is named, and after how many seconds; "nothing" if it is not."""
    folder.mkdir()
    words = ["simulate", "failure", kind, "--at-step", str(rng.randint(3, 25))]
    command = [sys.executable, _SCRIPT, script]
    if script == "ranks":
        words += ["--rank", str(rng.randint(0, 1))]
        command = [sys.executable, *_TORCHRUN, _SCRIPT, script]
    if kind in ("stall", "program"):
        # An error in the loader is one of the data, whatever raised it.
        places = ("data", "forward", "backward", "optimizer")
        words += ["--in", rng.choice(places if kind == "stall" else places[1:])]
    run = f"run --provider none --run-id job --store {folder / 'store'} --every off --stall-first {LIMIT} --recover stall=stop"
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
    found, at = "nothing", dict[str, float]()
    for line in process.stderr:
        if said := _NAMED.search(line):
            found = next((kind for words, kind in _SAID.items() if words in said[0]), "nothing")
            at.setdefault(found, time.monotonic())
    begun.end()
    return found, at.get(found, float("nan")) - begun.at


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
