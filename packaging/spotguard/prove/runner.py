"""One life of the command: start it with its plan, watch it, preempt or kill it as planned, and end it with all its processes.

Nothing here compares or judges, so other code may use this module to run a command under a notice.
"""

from __future__ import annotations

import errno
import os
import resource
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from spotguard.hooks.control.ending.sigterm import EX_TEMPFAIL
from spotguard.hooks.recorder import startup
from spotguard.hooks.recorder.plan import VARIABLE, Action, LifePlan
from spotguard.providers.clock import Clock
from spotguard.providers.errors import SpotguardError, UsageError

from .processes import Processes
from .record import OpenedFiles, Record, RecordReader, read_files

#: Seconds between two reads of a life's records.
_LOOK = 0.05
#: Seconds of warning of a notice through `spotguard run`, which ends the command much earlier, once the save is committed.
_WINDOW = 60
#: The longest path of a directory for temporary files. multiprocessing adds 32 bytes for a socket (`pymp-…/listener-…`), whose
#: path may have 107 (unix(7)); Python's debug tools and launchers add more.
_SCRATCH = 64
#: The number of stack frames that an error shows, the innermost first.
_FRAMES = 4

#: Environment variables that keep trackers and hubs offline. `{folder}` is the life's own directory.
OFFLINE = {
    "WANDB_MODE": "offline",
    "WANDB_DIR": "{folder}",
    "MLFLOW_TRACKING_URI": "file:{folder}/mlruns",
    "COMET_START_ONLINE": "0",
    "COMET_OFFLINE_DIRECTORY": "{folder}/comet",
    "NEPTUNE_MODE": "offline",
    "CLEARML_OFFLINE_MODE": "1",
    "SWANLAB_MODE": "offline",
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
}

#: The `sitecustomize` that each Python of a life runs before anything else. The user's own `sitecustomize` still runs.
_SITECUSTOMIZE = """\
import importlib.util, sys
here = {here!r}
sys.path[:] = [path for path in sys.path if path != here]
try:
    spec = importlib.util.spec_from_file_location({name!r}, {path!r})
    module = importlib.util.module_from_spec(spec)
    sys.modules[{name!r}] = module
    spec.loader.exec_module(module)
    module.early = module.begin() is not None
except Exception:
    sys.modules.pop({name!r}, None)
ours = sys.modules.pop("sitecustomize", None)
try:
    import sitecustomize
except ImportError:
    sys.modules["sitecustomize"] = ours
"""


class ProveError(SpotguardError):
    """No verdict about the command is possible: it did not run, hung, or was never resumed."""

    exit_code = 4


@dataclass(frozen=True, slots=True)
class Life:
    """The result of one life."""

    name: str
    records: Sequence[Record]
    returncode: int
    #: Whether its planned action ended the life.
    taken: bool
    seconds: float
    files: OpenedFiles
    #: The last exception, else the last line, that the script printed.
    last_words: str
    console: Path
    workdir: Path
    #: For errors: where the user finds the command's output.
    output: str = ""
    #: Why the life was ended as hung; "" if it was not.
    hung: str = ""

    @property
    def began(self) -> int | None:
        """Completed steps at the start; None if no process called `restore`."""
        return next((record.began for record in self.records), None)

    @property
    def last(self) -> int:
        """The step of the last boundary."""
        return max((record.last for record in self.records), default=self.began or 0)

    @property
    def failed(self) -> str:
        """Why the life failed by itself; "" if it did not."""
        if self.taken or self.returncode == 0 or self.hung:
            return ""
        if self.records and all(record.ended == "steps" for record in self.records):
            return ""  # spotguard ended it after its steps: how its threads take that does not matter
        ended = f"exit code {self.returncode}" if self.returncode > 0 else f"signal {-self.returncode}"
        return f"{ended}: {self.last_words or 'it printed nothing'}"


@dataclass(frozen=True, slots=True)
class Ground:
    """The directories, store and run id that the lives of one series share."""

    #: The series' own directory; the copy and the store lie below it.
    folder: Path
    #: The user's working directory.
    original: Path
    #: The copy of the working directory that the lives run in.
    workdir: Path
    store: str
    run_id: str
    #: The directory with the `sitecustomize` that `write_startup` wrote.
    startup: Path

    def moved(self, word: str) -> str:
        """Return a command word, or an entry of a search path, with the working directory replaced by its copy."""
        head, equals, tail = word.rpartition("=") if word.startswith("-") else ("", "", word)
        here = f"{self.original}{os.sep}"
        if tail == str(self.original):
            return f"{head}{equals}{self.workdir}"
        return (
            f"{head}{equals}{self.workdir}{os.sep}{tail.removeprefix(here)}"
            if tail.startswith(here)
            else word
        )


def write_startup(folder: Path) -> None:
    """Write a `sitecustomize` to `folder` that watches each Python from its first line on."""
    folder.mkdir(mode=0o700)
    text = _SITECUSTOMIZE.format(here=str(folder), name=startup.NAME, path=startup.__file__)
    (folder / "sitecustomize.py").write_text(text)


def environment(env: Mapping[str, str], plan: Path, scratch: Path, ground: Ground) -> dict[str, str]:
    """Return the user's environment with trackers and hubs offline, and without other SPOTGUARD_ variables than that of `--attach`.

    Args:
        scratch: a directory for files that the life's tools write outside the working directory, temporary files included.
    """
    kept = {k: v for k, v in env.items() if not k.startswith("SPOTGUARD_") or k == "SPOTGUARD_ATTACH"}
    offline = {name: value.format(folder=scratch) for name, value in OFFLINE.items()}
    behind = [ground.moved(path) for path in env.get("PYTHONPATH", "").split(os.pathsep) if path]
    own = {
        "PYTHONPATH": os.pathsep.join([str(ground.startup), *behind]),
        "PWD": str(ground.workdir),
        "TMPDIR": str(scratch),
        VARIABLE: str(plan),
    }
    return {**kept, **offline, **own}


def wait(futures: Sequence[Future[Any]], clock: Clock) -> None:
    """Wait on the main thread until one of the futures has raised, or all have ended.

    A signal that comes right before the main thread blocks has its handler called when that wakes, so it wakes often. It takes no
    lock that a life needs: an exception out of a handler may leave it taken.
    """
    ended, never = list[Future[Any]](), threading.Event()
    for each in futures:
        each.add_done_callback(ended.append)
    while len(ended) < len(futures) and not any(each.exception() for each in [*ended]):
        clock.wait(never, _LOOK)


@dataclass(slots=True)
class Runner:
    """Runs lives, from any thread.

    Args:
        command: the user's command.
        env: the user's environment.
        steps: steps that each life trains.
        stall: seconds without a completed step after which a life counts as hung.
        sockets: a directory with a short path, for sockets.
        keeps: whether the lives' output is kept after the end.
        stop: an event that ends every life at once.
        record: makes the record of a rank.
        beside: called again and again with the processes of a life.
    """

    command: Sequence[str]
    env: Mapping[str, str]
    steps: int
    stall: float
    sockets: Path
    clock: Clock
    keeps: bool = False
    stop: threading.Event = field(default_factory=threading.Event)
    record: Callable[[], Record] = Record
    beside: Callable[[Processes], None] | None = None

    def live(self, ground: Ground, name: str, action: Action | None, every: int = 0) -> Life:
        """Run one life to its end.

        Args:
            ground: the directories, store and run id of the life's series.
            name: the life's name on the page and in errors.
            action: the notice, preemption or kill that ends the life; None to train to the end.
            every: steps between two background checkpoints; 0 for none.

        Raises:
            ProveError: the life hung.
            UsageError: the command cannot be started.
            KeyboardInterrupt: `stop` was set.
        """
        number = len(list(ground.folder.glob("life-*")))
        plan = self.plan(ground, name, number)
        life = self.follow(ground, replace(plan, seed=number, every=every, action=action))
        if life.hung:
            raise ProveError(life.hung)
        return life

    def plan(self, ground: Ground, name: str, number: int = 0) -> LifePlan:
        """Return the plan of a life that trains to the end, and make its directory."""
        folder = ground.folder / f"life-{number + 1}"
        (folder / "tmp").mkdir(parents=True, mode=0o700)
        return LifePlan(
            name=name,
            folder=str(folder),
            workdir=str(ground.workdir),
            store=ground.store,
            run_id=ground.run_id,
            steps=self.steps,
            stall=self.stall,
        )

    def follow(self, ground: Ground, plan: LifePlan) -> Life:
        """Run the life of a plan to its end. A life that hangs is ended, and `Life.hung` has the reason.

        Raises:
            UsageError: the command cannot be started.
            KeyboardInterrupt: `stop` was set.
        """
        folder = Path(plan.folder)
        path = folder / "plan.json"
        plan.write(path)
        processes = Processes((VARIABLE, str(path)), folder / "console.txt", self.clock)
        reading, began = RecordReader(folder, self.record), self.clock.monotonic()
        scratch = self._short(folder / "tmp", f"{ground.run_id}-{folder.name}")
        command, env = self._command(ground, plan.action), environment(self.env, path, scratch, ground)
        try:
            processes.start(command, ground.workdir, env)
        except OSError as error:
            raise UsageError(
                f"{self.command[0]!r} cannot be started: {error.strerror}; name a program as a shell finds it"
            ) from error
        try:
            hung = self._watch(plan, processes, reading)
        finally:
            processes.end()
        reading.go_on()
        records, code = reading.records, processes.returncode or 0
        words = processes.last_words()
        if not words and shutil.disk_usage(folder).free < resource.getpagesize():
            words = os.strerror(errno.ENOSPC)  # the disk was too full for the command to print an error
        return Life(
            name=plan.name,
            records=records,
            returncode=code,
            taken=any(_taken(record, code) for record in records),
            seconds=self.clock.monotonic() - began,
            files=read_files(folder),
            last_words=words,
            console=processes.console,
            workdir=ground.workdir,
            output=self._output(processes.console),
            hung=hung,
        )

    def _short(self, scratch: Path, name: str) -> Path:
        """Return a path of the directory for temporary files that is short enough for a Unix socket in it.

        A loader's worker passes tensors through such a socket. With a longer path each batch is lost, and the loader hangs.
        """
        if len(os.fsencode(scratch)) <= _SCRATCH:
            return scratch
        link = self.sockets / name
        link.symlink_to(scratch, target_is_directory=True)
        return link

    def _output(self, console: Path) -> str:
        return f"its output is in {console}" if self.keeps else "--folder DIR keeps its output"

    def _command(self, ground: Ground, action: Action | None) -> list[str]:
        command = [*map(ground.moved, self.command)]
        if action is None or action.kind != "notice":
            return command
        return [
            *(sys.executable, "-m", "spotguard", "run", "--provider", "none", "--every", "off"),
            *("--store", ground.store, "--run-id", ground.run_id, "--window", str(_WINDOW)),
            *("--socket", str(self.sockets / f"{ground.run_id}.sock"), "--", *command),
        ]

    def _watch(self, plan: LifePlan, processes: Processes, reading: RecordReader) -> str:
        """Wait until the command has ended or must be killed, and send the SIGTERM of a planned notice.

        Returns:
            Why the command hangs; "" if it does not.
        """
        alive, acted = self.clock.monotonic(), False
        while not processes.ended:
            if self.clock.wait(self.stop, _LOOK):
                raise KeyboardInterrupt
            if self.beside is not None:
                self.beside(processes)
            now = self.clock.monotonic()
            if reading.go_on():
                alive = now
            asked = next((record.asked for record in reading.records if record.asked), "")
            if asked == "kill":
                return ""  # the caller kills all processes, as a machine that disappears does
            if asked and not acted:
                acted = True
                processes.tell(signal.SIGTERM)
            if now - alive > self.stall:
                return self._hung(plan, reading.records)
        return ""

    def _hung(self, plan: LifePlan, records: Sequence[Record]) -> str:
        step = max((record.last for record in records), default=0)
        where = f"after step {step}" if records else "before it called spotguard.register"
        stack = _stack(Path(plan.folder))
        return (
            f"run {plan.name!r} did not complete a step for {self.stall:g} s, {where}"
            f"{f': it stands in {stack}' if stack else ''}; give it longer with --timeout "
            f"({self._output(Path(plan.folder, 'console.txt'))})"
        )


def _taken(record: Record, code: int) -> bool:
    """Report whether its action ended the rank. For a notice, the exit code of `spotguard run` shows it."""
    return record.leaving or record.asked == "kill" or (record.asked == "notice" and code == EX_TEMPFAIL)


def _stack(folder: Path) -> str:
    """Return the innermost frames of the main thread, from the process with the longest dump: a launcher's is short."""
    texts = [path.read_text(errors="replace") for path in folder.glob("stacks-*.txt")]
    longest = max(texts, key=len, default="")
    _, _, last = longest.rpartition("(most recent call first):")
    lines = [
        line.strip().removeprefix("File ") for line in last.splitlines() if line.strip().startswith("File ")
    ]
    return " < ".join(lines[:_FRAMES])
