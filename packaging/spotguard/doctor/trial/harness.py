"""The run of a trial, in the harness of `spotguard prove`: a copy of the directory, a store of its own, and an end with all processes."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from spotguard.prove import copies
from spotguard.prove.runner import Ground, Life, Runner, wait, write_startup
from spotguard.providers.clock import Clock
from spotguard.providers.errors import SpotguardError, UsageError

from .measured import MeasuredRecord
from .memory import MemoryMeter, MemoryPeak

#: Steps and seconds of a trial.
STEPS, LIMIT = 20, 600.0


@dataclass(frozen=True, slots=True)
class TrialRequest:
    """A request for a trial; its values are checked already."""

    #: The working directory.
    original: copies.Original
    steps: int = STEPS
    #: Seconds after which training ends at its next boundary. A command without a boundary by then is ended.
    limit: float = LIMIT
    #: The limit in bytes for the copy of the working directory.
    most: int = 10 * 2**30
    #: The directory for all files, which stay; None: a temporary directory, which is removed.
    folder: Path | None = None


@dataclass(frozen=True, slots=True)
class MeasuredTrial:
    """A trial that has ended, with nothing left of it."""

    request: TrialRequest
    command: Sequence[str]
    #: Whether background checkpoints went to a stage first.
    staged: bool = False
    #: None if the command was not started; `error` has the reason.
    life: Life | None = None
    error: SpotguardError | None = None
    memory: MemoryPeak = field(default_factory=MemoryPeak)

    @property
    def ranks(self) -> list[MeasuredRecord]:
        return (
            []
            if self.life is None
            else [each for each in self.life.records if isinstance(each, MeasuredRecord)]
        )

    @property
    def steps(self) -> int:
        """The steps that every rank has completed."""
        return min((len(rank.steps) for rank in self.ranks), default=0)


def run(
    request: TrialRequest,
    command: Sequence[str],
    env: Mapping[str, str],
    clock: Clock,
    *,
    staged: bool = False,
) -> MeasuredTrial:
    """Run a trial, and remove everything that it made.

    All of it runs on another thread: an interrupt of this one (Ctrl-C) ends it in order, at any point.

    Args:
        request: the trial.
        command: the user's command.
        env: the user's environment.
        clock: the clock.
        staged: background checkpoints go to a stage first, as they would in the user's own run.

    Raises:
        KeyboardInterrupt: as it came, once nothing of the trial is left.
    """
    memory, stop = MemoryMeter(clock), threading.Event()
    trial = MeasuredTrial(request, command, staged)

    def live() -> Life:
        with ExitStack() as stack:
            sockets = _made(stack, prefix="sg-", folder="/tmp")
            runner = Runner(
                command,
                env,
                request.steps,
                request.limit,
                sockets,
                clock,
                keeps=request.folder is not None,
                stop=stop,
                record=MeasuredRecord,
                beside=memory.look,
            )
            return _live(request, runner, request.folder or _made(stack), staged)

    with ThreadPoolExecutor(1, thread_name_prefix="spotguard-trial") as pool:
        try:
            life = pool.submit(live)
            wait([life], clock)
            return replace(trial, life=life.result(), memory=memory.peak)
        except SpotguardError as error:
            return replace(trial, error=error)
        except BaseException:
            stop.set()  # the pool's end waits until everything is removed
            raise


def _made(stack: ExitStack, prefix: str = "spotguard-trial-", folder: str | None = None) -> Path:
    """Make a directory that the end of the stack removes."""
    made = Path(os.path.realpath(tempfile.mkdtemp(prefix=prefix, dir=folder)))
    stack.callback(shutil.rmtree, made, ignore_errors=True)
    return made


def _live(request: TrialRequest, runner: Runner, base: Path, staged: bool) -> Life:
    original, folder = request.original.outside_of(base), base / "trial"
    try:
        copies.check_size(original, base, request.most, 1)
        write_startup(base / "startup")
        folder.mkdir(mode=0o700)
        ground = Ground(
            folder=folder,
            original=original.folder,
            workdir=copies.beside(original.folder, folder / "copy"),
            store=(folder / "store").as_uri(),
            run_id=f"trial-{os.getpid()}",
            startup=base / "startup",
        )
        copies.copy(original, ground.workdir)
        stage = str(folder / "stage") if staged else ""
        return runner.follow(ground, replace(runner.plan(ground, "trial"), measures=True, stage=stage))
    except OSError as error:
        raise UsageError(
            f"the trial's copy and records cannot be written to {base}: {error.strerror}; make room there, or name "
            "another directory with --folder"
        ) from error
