"""One life of the command: started with its plan, watched, preempted or killed where the plan says, and ended with all it has started.

Nothing here compares or judges: whoever wants to try a command under a notice can use it.
"""

from __future__ import annotations

import errno
import os
import resource
import shutil
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from spotguard.hooks.control.sigterm import EX_TEMPFAIL
from spotguard.hooks.recorder import startup
from spotguard.hooks.recorder.plan import VARIABLE, Action, LifePlan
from spotguard.providers.clock import Clock
from spotguard.providers.errors import SpotguardError, UsageError

from .processes import Processes
from .record import OpenedFiles, Record, RecordReader, read_files

#: Seconds between two looks at what a life has written.
_LOOK = 0.05
#: Seconds of warning of a notice through `spotguard run`. It ends the command much earlier, once all is saved.
_WINDOW = 60
#: Frames of a stack that an error shows, the innermost first.
_FRAMES = 4

#: By which trackers and hubs are told to stay offline. `{folder}` is the life's own.
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

#: Executed by each Python of a life before anything else. A `sitecustomize` of the user's own still runs.
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
    """Nothing can be said about the command: it did not run, hung, or was never resumed."""

    exit_code = 4


@dataclass(frozen=True, slots=True)
class Life:
    """What has become of one life."""

    name: str
    records: Sequence[Record]
    returncode: int
    #: Whether it was ended by its action.
    taken: bool
    seconds: float
    files: OpenedFiles
    #: The last line that the script has printed.
    last_words: str
    console: Path
    workdir: Path
    #: For an error: how a person comes to what it has printed.
    output: str = ""

    @property
    def began(self) -> int | None:
        """Completed steps at its start; None: no process has called `restore`."""
        return next((record.began for record in self.records), None)

    @property
    def last(self) -> int:
        """Its last boundary."""
        return max((record.last for record in self.records), default=self.began or 0)

    @property
    def failed(self) -> str:
        """Why, where it came to a bad end by itself."""
        if self.taken or self.returncode == 0:
            return ""
        if self.records and all(record.ended == "steps" for record in self.records):
            return ""  # it was we who ended it: how its threads take that is not the question
        ended = f"exit code {self.returncode}" if self.returncode > 0 else f"signal {-self.returncode}"
        return f"{ended}: {self.last_words or 'it printed nothing'}"


@dataclass(frozen=True, slots=True)
class Ground:
    """What the lives of one series share."""

    #: All that belongs to the series; the others below it.
    folder: Path
    #: The working folder, and the copy of it that they run in.
    original: Path
    workdir: Path
    store: str
    run_id: str
    #: Where `write_startup` has been.
    startup: Path

    def moved(self, word: str) -> str:
        """A word of the command, or an entry of a path, as it is in the copy: what names the working folder names that."""
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
    """Put a `sitecustomize` there that has each Python watched from its first line on."""
    folder.mkdir(mode=0o700)
    text = _SITECUSTOMIZE.format(here=str(folder), name=startup.NAME, path=startup.__file__)
    (folder / "sitecustomize.py").write_text(text)


def environment(env: Mapping[str, str], plan: Path, scratch: Path, ground: Ground) -> dict[str, str]:
    """The user's, with trackers and hubs offline and nothing of another run of spotguard.

    Args:
        scratch: for what the life's tools write beside the working folder, temporary files included.
    """
    kept = {name: value for name, value in env.items() if not name.startswith("SPOTGUARD_")}
    offline = {name: value.format(folder=scratch) for name, value in OFFLINE.items()}
    behind = [ground.moved(path) for path in env.get("PYTHONPATH", "").split(os.pathsep) if path]
    own = {
        "PYTHONPATH": os.pathsep.join([str(ground.startup), *behind]),
        "PWD": str(ground.workdir),
        "TMPDIR": str(scratch),
        VARIABLE: str(plan),
    }
    return {**kept, **offline, **own}


@dataclass(slots=True)
class Runner:
    """Runs lives, from any thread.

    Args:
        command: the user's.
        env: the user's.
        stall: seconds without a completed step after which a life counts as hung.
        sockets: a folder with a short path, for the agents' sockets.
        keeps: whether what lives print is there after the end.
        stop: set: every life ends at once.
    """

    command: Sequence[str]
    env: Mapping[str, str]
    steps: int
    stall: float
    sockets: Path
    clock: Clock
    keeps: bool = False
    stop: threading.Event = field(default_factory=threading.Event)

    def live(self, ground: Ground, name: str, action: Action | None, every: int = 0) -> Life:
        """
        Raises:
            ProveError: it hung.
            UsageError: it cannot be started.
            KeyboardInterrupt: it was stopped.
        """
        number = len(list(ground.folder.glob("life-*")))
        folder = ground.folder / f"life-{number + 1}"
        scratch, path = folder / "tmp", folder / "plan.json"
        scratch.mkdir(parents=True, mode=0o700)
        plan = LifePlan(
            name=name,
            folder=str(folder),
            workdir=str(ground.workdir),
            store=ground.store,
            run_id=ground.run_id,
            steps=self.steps,
            stall=self.stall,
            seed=number,
            every=every,
            action=action,
        )
        plan.write(path)
        processes = Processes((VARIABLE, str(path)), folder / "console.txt", self.clock)
        reading, began = RecordReader(folder), self.clock.monotonic()
        command = self._command(ground, action)
        try:
            processes.start(command, ground.workdir, environment(self.env, path, scratch, ground))
        except OSError as error:
            raise UsageError(
                f"{self.command[0]!r} cannot be started: {error.strerror}; name a program as a shell finds it"
            ) from error
        try:
            self._watch(plan, processes, reading)
        finally:
            processes.end()
        reading.go_on()
        records, code = reading.records, processes.returncode or 0
        words = processes.last_words()
        if not words and shutil.disk_usage(folder).free < resource.getpagesize():
            words = os.strerror(errno.ENOSPC)  # it could not even say so
        return Life(
            name=name,
            records=records,
            returncode=code,
            taken=any(_taken(record, code) for record in records),
            seconds=self.clock.monotonic() - began,
            files=read_files(folder),
            last_words=words,
            console=processes.console,
            workdir=ground.workdir,
            output=self._output(processes.console),
        )

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

    def _watch(self, plan: LifePlan, processes: Processes, reading: RecordReader) -> None:
        """Until the command has ended, or has to."""
        alive, acted = self.clock.monotonic(), False
        while not processes.ended:
            if self.clock.wait(self.stop, _LOOK):
                raise KeyboardInterrupt
            now = self.clock.monotonic()
            if reading.go_on():
                alive = now
            asked = next((record.asked for record in reading.records if record.asked), "")
            if asked == "kill":
                return  # whoever called us ends them all, as a machine that goes away does
            if asked and not acted:
                acted = True
                processes.tell(signal.SIGTERM)
            if now - alive > self.stall:
                raise ProveError(self._hung(plan, reading.records))

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
    """Whether its action has ended it. `spotguard run` says so by its exit code."""
    return record.leaving or record.asked == "kill" or (record.asked == "notice" and code == EX_TEMPFAIL)


def _stack(folder: Path) -> str:
    """The innermost frames of the main thread of the process that has most to show: a launcher has little."""
    texts = [path.read_text(errors="replace") for path in folder.glob("stacks-*.txt")]
    longest = max(texts, key=len, default="")
    _, _, last = longest.rpartition("(most recent call first):")
    lines = [
        line.strip().removeprefix("File ") for line in last.splitlines() if line.strip().startswith("File ")
    ]
    return " < ".join(lines[:_FRAMES])
