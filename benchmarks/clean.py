"""Trainings in which nothing fails: alarms by rule, really recorded, and replayed for a hundred hours.

Twelve trainings (`ordinary.py`) run beside each other below `spotguard run` with its defaults and a receiver of incidents. Now and then
one of them is suspended, with its agent or without, and sometimes other processes load the cores. The agent's status is recorded once a
second. The thresholds are the agent's own, and the seeds were used for nothing else.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from random import Random
from typing import Any

from spotguard.agent.core.state import Policy
from spotguard.agent.ipc import control
from spotguard.agent.process import proctree
from spotguard.alerts.incidents import KINDS
from spotguard.hooks.ipc.failures import phase_times
from tests.fakes.webhook import webhook

from .rows import Row
from .scale import Scale
from .stall_replay import SEED, records_in, replayed

#: The kinds of `ordinary.py`, each a job.
JOBS = ("plain", "plain", "scored", "ranks", "transformers", "lightning") * 2
MINUTES = 58.0
#: The first job's seed; tests use others.
HELD_OUT = 20261219
#: What a log has for each rule that logs.
RULES = {
    "stall": "training stands still",
    "loss not finite": "[SG421]",
    "loss high": "[SG423]",
    "memory about to end": "memory from spotguard",
    "failure": "training failed",
}
#: Seconds from one suspension of a job to the next, on average, and its least and most seconds. The same of loaded cores.
SUSPENDED, LOADED = (600.0, 20.0, 90.0), (480.0, 60.0, 180.0)
#: Share of the suspensions that stop the agent too, as that of a virtual machine does.
WHOLE = 0.3
#: Seconds that a training may take beyond its time: an evaluation, a save, and the start on loaded cores.
LATE = 600.0
_ROOT = Path(__file__).parent.parent
_SCRIPT = Path(__file__).with_name("ordinary.py")
_TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
#: Incidents of the kernel's log.
_OF_KERNEL = frozenset({"gpu-error", "hardware-error", "memory-kill"})
_WARNING = re.compile(r"spotguard \S+ (?:WARNING|ERROR): |\[SG\d+\]")


def measure(scale: Scale) -> Iterator[Row]:
    seconds, hours = scale.of(MINUTES * 60.0, 8.0), scale.of(100.0, 0.5)
    results = scale.folder / "records"
    if not scale.tiny:
        results = Path(__file__).parent / "results" / time.strftime("clean-%Y-%m-%d-%H%M")
    results.mkdir(parents=True)
    print(
        f"  thresholds: {phase_times.LEAST:.0f} s ({phase_times.LEAST_PROCESS:.0f} s for a program), or {phase_times.TIMES:.0f} × the longest of {phase_times.ENOUGH} or more; before that "
        f"{Policy().stall_first} s; records in {results}",
        flush=True,
    )
    with webhook() as receiver, ExitStack() as stack:
        jobs: list[_Job] = []
        for number, kind in enumerate(scale.of(JOBS, JOBS[:1])):
            if (python := _python(kind)) is None:
                print(
                    f"  {kind} is left out: `scripts/framework-env {kind}` makes its environment", flush=True
                )
                continue
            job = _Job(f"{kind}-{number}", scale, seconds, number + scale.of(HELD_OUT, 0), results)
            job.begin(python, receiver.url)
            stack.callback(job.end)
            jobs.append(job)
        _load(jobs, Random(scale.of(HELD_OUT, 0)), results, scale)
        for job in jobs:
            job.join()
        fired = _fired(receiver.got)
    (results / "incidents.json").write_text(json.dumps(receiver.got, indent=1))
    counts = {job.name: job.alarms() | fired.get(job.name, Counter()) for job in jobs}
    print("\n".join(_table(counts)), flush=True)
    for job in jobs:
        job.tell()
    recorded = sum(job.seconds for job in jobs) / 3600.0
    yield Row(f"recorded, {len(jobs)} trainings, suspensions in", "h", (recorded,))
    for name in RULES:
        yield Row(f"  alarms: {name}", "", (float(sum(count[name] for count in counts.values())),))
    # The kernel's log is the machine's: other work here may have failed.
    for what, those in (
        ("of the training and its agent", KINDS.keys() - _OF_KERNEL),
        ("of the machine's kernel log", _OF_KERNEL),
    ):
        count = sum(each[f"incident {name}"] for each in fired.values() for name in those)
        yield Row(f"  incidents of {len(those)} kinds {what}", "", (float(count),))
    yield from replayed(records_in(results), hours, SEED)


def _python(kind: str) -> str | None:
    """Return the Python of the environment that a kind needs; None if it was not made."""
    if kind not in ("transformers", "lightning"):
        return sys.executable
    python = _ROOT / f".venv-{kind}" / "bin" / "python"
    return str(python) if python.exists() else None


class _Job(threading.Thread):
    """One guarded training, and the thread that records it and suspends it now and then."""

    def __init__(self, name: str, scale: Scale, seconds: float, seed: int, results: Path) -> None:
        super().__init__(name=name, daemon=True)
        self._folder = scale.folder / name
        self._folder.mkdir(mode=0o700)
        self._asked_for, self._seed = seconds, seed
        self._suspended = scale.of(SUSPENDED, (4.0, 1.0, 2.0))
        self._dice = Random(f"{seed} suspensions")
        self._log, self._record = results / f"{name}.log", results / f"{name}.jsonl"
        self._socket = self._folder / "agent.sock"
        #: The pid of the command, once the agent has started it.
        self._command = 0
        #: The seconds from the first position to the last.
        self.seconds = 0.0

    def begin(self, python: str, url: str) -> None:
        kind = self.name.partition("-")[0]
        script = [str(_SCRIPT), kind, str(self._asked_for), str(self._seed), str(self._folder)]
        options = ["--provider", "none", "--run-id", self.name, "--store", str(self._folder / "store")]
        options += ["--socket", str(self._socket), "--webhook", f"json:{url}"]
        command = [python, *(_TORCHRUN if kind == "ranks" else ()), *script]
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SPOTGUARD_")}
        variables = {
            "PYTHONPATH": os.pathsep.join([str(_ROOT / "packaging"), str(_ROOT)]),
            "OMP_NUM_THREADS": "1",
            "HOME": str(self._folder),
            "XDG_RUNTIME_DIR": str(self._folder),
            "TMPDIR": str(self._folder),
        }
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "spotguard", "run", *options, "--", *command],
                cwd=self._folder,
                env=kept | variables,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                process_group=0,
            )
        self.start()

    def run(self) -> None:
        began, seen = time.monotonic(), list[float]()
        next_at = began + self._apart()
        with self._record.open("w") as record:
            while self._process.poll() is None:
                now = time.monotonic()
                if now > began + self._asked_for + LATE:
                    record.write(json.dumps({"at": now, "event": "killed: it did not end"}) + "\n")
                    self._kill()
                    break
                if ranks := self._positions():
                    seen.append(now)
                    record.write(json.dumps({"at": round(time.monotonic(), 2), "ranks": ranks}) + "\n")
                if self._command and seen and now >= next_at:
                    self._suspend(record)
                    next_at = time.monotonic() + self._apart()
                time.sleep(1.0)
        self.seconds = seen[-1] - seen[0] if seen else 0.0

    def _apart(self) -> float:
        return self._dice.expovariate(1.0 / self._suspended[0])

    def _positions(self) -> list[dict[str, Any]]:
        try:
            status = control.status(self._socket)
        except control.AgentError:  # it is not there yet, or not any more, or has no time
            return []
        self._command = status["command"]["pid"] if status["command"] else 0
        names = ("rank", "world", "step", "phase", "still", "where", "loss")
        return [{name: each[name] for name in names} for each in status["sessions"]]

    def _suspend(self, record: Any) -> None:
        """Suspend the training, or all of it with its agent."""
        whole, seconds = self._dice.random() < WHOLE, self._dice.uniform(*self._suspended[1:])
        top = self._process.pid if whole else self._command
        processes = {top, *proctree.below(top)}
        event = {"at": time.monotonic(), "event": "suspended", "whole": whole, "seconds": seconds}
        record.write(json.dumps(event) + "\n")
        try:
            _signal(processes, signal.SIGSTOP)
            time.sleep(seconds)
        finally:
            _signal(processes, signal.SIGCONT)

    def _kill(self) -> None:
        if self._process.poll() is None:
            left = proctree.below(self._process.pid)
            self._process.kill()
            proctree.kill(left)

    def end(self) -> None:
        """End the training if it still runs."""
        self._kill()
        self._process.wait()
        self.join()

    def lines(self) -> list[str]:
        return self._log.read_text(errors="replace").splitlines()

    def alarms(self) -> Counter[str]:
        """The number of alarms in the log, by rule."""
        return Counter(rule for line in self.lines() for rule, words in RULES.items() if words in line)

    def tell(self) -> None:
        """Print how it ended, and each warning."""
        print(f"  {self.name}: {self.seconds / 3600:.2f} h, exit code {self._process.returncode}", flush=True)
        for line in self.lines():
            if _WARNING.search(line):
                print(f"    {line}", flush=True)


def _signal(processes: set[int], signum: int) -> None:
    for pid in processes:
        with suppress(ProcessLookupError):
            os.kill(pid, signum)


def _load(jobs: Sequence[_Job], dice: Random, results: Path, scale: Scale) -> None:
    """Load all cores now and then, while the jobs run."""
    apart, least, most = scale.of(LOADED, (3.0, 1.0, 2.0))
    with (results / "load.txt").open("w") as told:
        while True:
            until = time.monotonic() + dice.expovariate(1.0 / apart)
            while (now := time.monotonic()) < until:
                if not any(job.is_alive() for job in jobs):
                    return
                time.sleep(min(1.0, until - now))
            seconds = dice.uniform(least, most)
            told.write(f"{time.monotonic():.1f} loaded for {seconds:.0f} s\n")
            words = [sys.executable, "-S", "-c", "while True: pass"]
            burning = [subprocess.Popen(words) for _ in range(os.cpu_count() or 1)]
            try:
                time.sleep(seconds)
            finally:
                for process in burning:
                    process.kill()
                    process.wait()


def _fired(bodies: Sequence[Any]) -> dict[str, Counter[str]]:
    """Return how often each kind of incident was posted, by run."""
    incidents = {
        (body["run_id"], each["incident"], each["startsAt"], json.dumps(each["labels"], sort_keys=True))
        for body in bodies
        for each in body["incidents"]
    }
    fired: dict[str, Counter[str]] = {}
    for run_id, name, *_ in incidents:
        fired.setdefault(run_id, Counter())[f"incident {name}"] += 1
    return fired


def _table(counts: dict[str, Counter[str]]) -> Iterator[str]:
    """Yield the alarms in Markdown: a row for each rule, and a column for each training."""
    yield "| alarms | " + " | ".join(counts) + " |"
    yield "|---" * (len(counts) + 1) + "|"
    for rule in (*RULES, *(f"incident {name}" for name in KINDS)):
        yield f"| {rule} | " + " | ".join(str(count[rule]) for count in counts.values()) + " |"
