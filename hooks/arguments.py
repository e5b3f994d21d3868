"""The checked arguments of `register` and `restore`, or the environment variables that replace them.

Every value is checked before anything else is done.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import logging
import operator
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from ..providers.errors import SpotguardError, StateError, UsageError
from ..providers.text import store_url
from .checkpoint.format.keys import check_run_id
from .ipc.failure_classes import SKIP_STEPS

if TYPE_CHECKING:
    from .checkpoint.retention import Keep

log = logging.getLogger("spotguard")

#: Checkpoints that stay by default.
_KEEP = 3

_YES, _NO = ("1", "yes", "true"), ("", "0", "no", "false")


def given_store(given: str | os.PathLike[str] | None) -> str:
    """Return the URL of the directory for checkpoints: as given, else from the environment, else the default directory.

    Raises:
        UsageError: the value is neither a text nor a path, such as a part of the state without its name.
    """
    if given is not None and not isinstance(given, (str, os.PathLike)):
        raise UsageError(
            f"the store is given as a {type(given).__name__}, and not as a URL or a path: write it as in "
            "'s3://bucket/prefix', and give each value a name, as in model=model"
        )
    given = given if given is None else os.fspath(given)
    return store_url(given or os.environ.get("SPOTGUARD_STORE") or default_store(os.getcwd()))


def run_name(given: str | None) -> str:
    """Return the run's name, which is the same at every restart.

    Raises:
        UsageError: the name cannot be a directory's name.
    """
    default = os.environ.get("SPOTGUARD_RUN_ID") or default_run_id(sys.orig_argv, os.getcwd(), os.environ)
    return check_run_id(given or default)


def stage_folder() -> Path | None:
    """Return the directory that background checkpoints go to first, or None if the environment sets none.

    Raises:
        UsageError: the path is not absolute, so it would depend on the working directory.
    """
    text = os.environ.get("SPOTGUARD_STAGE", "")
    if text and not os.path.isabs(text):
        raise UsageError(
            f"SPOTGUARD_STAGE={text!r} is not an absolute path; set it as in /mnt/nvme/spotguard"
        )
    return Path(text) if text else None


def kept(variable: str) -> Keep:
    """Return how many checkpoints stay, from the environment.

    Raises:
        UsageError: the variable holds neither one number nor two.
    """
    from .checkpoint.retention import Keep  # not above: `spotguard run` asks this module for names alone

    text = os.environ.get(variable, "")
    try:
        return Keep.of(text) if text else Keep(_KEEP)
    except ValueError:
        raise UsageError(
            f"{variable}={text!r} is neither a number of 1 or more nor two numbers as in 3+1000; correct "
            "it, or unset it"
        ) from None


def extras_worth() -> int:
    """Return how many steps the extras of dead ranks are worth at a restore, from the environment.

    Raises:
        UsageError: the variable holds no number of steps.
    """
    text = os.environ.get("SPOTGUARD_EXTRAS_WORTH", "")
    if not text:
        from .checkpoint.ranking import EXTRAS_WORTH

        return EXTRAS_WORTH
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise UsageError(
            f"SPOTGUARD_EXTRAS_WORTH={text!r} is not a number of steps from 0 to 999999999; correct it, or unset it"
        )
    return int(text)


def skipped_until(run_id: str) -> int:
    """Return the first step of a run behind the data that is to be skipped, from the environment; 0 for none.

    Raises:
        UsageError: the variable holds no run and step.
    """
    text = os.environ.get(SKIP_STEPS, "")
    run, _, step = text.rpartition(":")
    if text and not (run and step.isascii() and step.isdigit() and len(step) < 16):
        raise UsageError(
            f"{SKIP_STEPS}={text!r} is not a run and a step: unset it, or set it as in {run_id}:812"
        )
    return int(step) if run == run_id else 0


def yes(variable: str) -> bool:
    """Return whether the variable is set to yes; unset means no.

    Raises:
        UsageError: the variable holds neither yes nor no.
    """
    text = os.environ.get(variable, "")
    if text.lower() not in _YES + _NO:
        raise UsageError(f"{variable}={text!r} is neither yes nor no; correct it, or unset it")
    return text.lower() in _YES


def completed_steps(given: int) -> int:
    """Return the step of a checkpoint as an int.

    Raises:
        UsageError: no checkpoint can have this step.
    """
    try:
        step = -1 if isinstance(given, bool) else operator.index(given)
    except TypeError:
        step = -1
    if step < 0:
        raise UsageError(
            f"step={given!r} is not a number of completed steps; pass an integer of 0 or more, as in "
            "step=1200"
        )
    return step


_Said = TypeVar("_Said")


def for_one_process(variable: str, configured: _Said, alone: bool) -> _Said | None:
    """Return a setting that only a job of one process can use, or None in any other job, with a warning if it is set."""
    if configured and not alone:
        log.warning("%s is set, but only a job of one process can use it: this job ignores it", variable)
    return configured if alone else None


# The launchers that started this attempt, and how often: in the launchers' own words, for the attempt's record.
#
# It explains later why a run has many attempts. No decision depends on it.


def launchers(env: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the launchers around this process, outermost first, as plain JSON: `name`, `job`, and its `restarts` so far."""
    around: list[dict[str, Any]] = []
    if job := slurm_job(env):
        # Slurm sets SLURM_RESTART_COUNT only at the first requeue (sbatch(1)). Until then a job that a requeued job submitted
        # inherits that job's count.
        around.append({"name": "slurm", "job": job, "restarts": _count(env.get("SLURM_RESTART_COUNT", "0"))})
        if nodes := env.get("SLURM_JOB_NODELIST"):
            around[0]["nodes"] = nodes
        if (since := env.get("SLURM_JOB_START_TIME", "")).isdigit():
            around[0]["since"] = int(since)
    if "TORCHELASTIC_RESTART_COUNT" in env:
        restarts = _count(env["TORCHELASTIC_RESTART_COUNT"])
        around.append({"name": "torchrun", "job": env.get("TORCHELASTIC_RUN_ID", ""), "restarts": restarts})
    return around


def in_words(info: Mapping[str, Any]) -> str:
    """Return the launchers of an attempt's record in words for a person, or "" if the record names none."""
    recorded = info.get("launchers")
    each = [one for one in recorded if isinstance(one, dict)] if isinstance(recorded, list) else []
    return ", ".join(f"{one.get('name')} {one.get('job')}, restart {one.get('restarts')}" for one in each)


def _count(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


# The default names that `spotguard run` and a bare `register` choose: the same names for the same job.

#: The directory for checkpoints, in the working directory, if no store is given.
STORE_FOLDER = "spotguard-checkpoints"

#: Most characters of a run id (`providers.run_id`).
_LONGEST = 64

#: Options by which a launcher (torchrun, DeepSpeed, accelerate) learns about machines. Their values differ between the nodes of
#: one job, and change when the job is requeued to other nodes.
_OF_MACHINES = frozenset(
    {
        *("--rdzv-endpoint", "--master-addr", "--master-port", "--node-rank", "--local-addr"),
        *("--nnodes", "--nproc-per-node", "--main-process-ip", "--main-process-port"),
        *("--machine-rank", "--num-machines", "--num-processes"),
    }
)


def default_run_id(command: Sequence[str], folder: str, env: Mapping[str, str]) -> str:
    """Return the script's name and a hash of command and directory: stable across restarts, different for other arguments.

    In a Slurm job the job id stands between the two. It is the same on all nodes of the job and at each requeue. Another
    job is another run.

    Args:
        command: the command as the kernel got it (`sys.orig_argv`): ["python", "train.py", "--lr", "0.1"].
        folder: the working directory.
        env: the environment, in which a scheduler sets the job's id.
    """
    words = [word for word in command[1:] if not word.startswith("-")]
    # A launcher's options may take values (`torchrun --nproc-per-node 2 train.py`), so the suffix tells the script apart.
    plain = words[0] if words else (command[0] if command else "run")
    script = next((word for word in words if word.endswith(".py")), plain)
    stem = re.sub(r"[^A-Za-z0-9_]+", "-", Path(script).stem).strip("-")[:40] or "run"
    # The interpreter's path differs between machines and virtual environments; the job is the same.
    hashed = [os.path.basename(command[0]), *command[1:]] if command else []
    job = slurm_job(env)
    if job:
        hashed = [*_without_machines(hashed)]
    digest = hashlib.sha256("\0".join([folder, *hashed]).encode(errors="surrogateescape")).hexdigest()
    tail = f"-{job}-{digest[:8]}" if job else f"-{digest[:8]}"
    return stem[: _LONGEST - len(tail)] + tail


def slurm_job(env: Mapping[str, str]) -> str:
    """Return the Slurm job's own id, or "" outside Slurm.

    It is the same on all nodes and at each requeue, and differs between the tasks of an array. No other variable is read:
    Slurm sets those for arrays and for jobs of several parts only, and `sbatch` passes them on to any job that such a job
    submits. The tasks of all parts have the first part's id anyway.
    """
    job = env.get("SLURM_JOB_ID", "")
    return job if re.fullmatch(r"[0-9]{1,10}", job) else ""


def _without_machines(words: Sequence[str]) -> Iterator[str]:
    skip = False
    for word in words:
        name, equals, _ = word.partition("=")
        if skip:
            skip = False
        elif name.replace("_", "-") in _OF_MACHINES:
            skip = not equals
        else:
            yield word


def default_store(folder: str) -> str:
    return f"{Path(folder, STORE_FOLDER).as_uri()}"


# Short tracebacks for spotguard's errors in a training script: the script's own line and the message, without spotguard's frames.
#
# The message says what was wrong and what to do. Some 50 lines stood between it and the script's line, spotguard's and an
# SDK's, twice over. Readers do not find the message in them, least of all in the output of 8 ranks at once. So a public method
# raises its errors without the frames below it, as JAX and Keras do. The exception stays the same object. An exception that the
# script was handling, as in `finally: guard.save()`, is still shown. SPOTGUARD_DEBUG=1 shows everything, as it does at the
# command line.

_P = ParamSpec("_P")
_R = TypeVar("_R")


def without_our_frames(method: Callable[_P, _R]) -> Callable[_P, _R]:
    """Wrap a public method so that spotguard's own errors show no frames of spotguard.

    Every other exception keeps its traceback: it is a bug, and the traceback is all there is to find it.
    """

    @functools.wraps(method)
    def called(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return method(*args, **kwargs)
        except SpotguardError as error:
            if os.environ.get("SPOTGUARD_DEBUG") == "1" or _is_of_their_code(error):
                raise
            ours = error
        # Raised outside the `except`: the exception in flight here is the script's own, and becomes the context of this one.
        try:
            ours.__cause__ = None
            ours.__suppress_context__ = sys.exception() is None
            raise ours.with_traceback(None)
        finally:
            del ours  # breaks the reference cycle between the exception and its frame

    return called


def _is_of_their_code(error: SpotguardError) -> bool:
    """Return whether a registered object's own code refused its state: the traceback of its cause then shows the line to fix."""
    return isinstance(error, StateError) and error.__cause__ is not None


# The lines on stderr of a training process whose script has set up no logging.
#
# Python then shows a warning as its bare message (`logging.lastResort`), and no reader knows which library wrote it. A handler
# on the logger `spotguard` names the speaker: `spotguard: `, or `spotguard[rank 3]: ` in a job of several ranks. If the script
# has a handler on that logger or above it (even one that does nothing), that handler alone decides.


class _SpeakerHandler(logging.Handler):
    """The handler that shows a record as `logging.lastResort` would, with the speaker's name."""

    def __init__(self) -> None:
        super().__init__()
        #: This process's rank in a job of several ranks; None in a job of one, or while the rank is not known.
        self.rank: int | None = None

    def emit(self, record: logging.LogRecord) -> None:
        last = logging.lastResort
        if last is None or record.levelno < last.level or is_set_up(record.name):
            return
        try:
            named = copy.copy(record)
            speaker = "spotguard" if self.rank is None else f"spotguard[rank {self.rank}]"
            named.msg, named.args = f"{speaker}: {record.getMessage()}", ()
        except Exception:  # noqa: BLE001 - arguments that do not fit the message
            self.handleError(record)
            return
        last.handle(named)


_handler = _SpeakerHandler()


def name_the_speaker(rank: int | None = None) -> None:
    """Have each warning and error on stderr begin with its speaker from now on. A second call only sets the rank.

    Args:
        rank: this process's rank in a job of several ranks; None: take it from the launcher's variables.
    """
    _handler.rank = _launched_rank() if rank is None else rank
    log.addHandler(_handler)


def is_set_up(name: str = "spotguard") -> bool:
    """Return whether the script has set up logging for this logger: a handler on it or above it would get a record."""
    logger: logging.Logger | None = logging.getLogger(name)
    while logger is not None:
        if any(handler is not _handler for handler in logger.handlers):
            return True
        logger = logger.parent if logger.propagate else None
    return False


def _launched_rank() -> int | None:
    """Return the rank that a launcher has set for one of several processes; None if there is none."""
    world, rank = os.environ.get("WORLD_SIZE", ""), os.environ.get("RANK", "")
    return int(rank) if world not in ("", "1") and rank.isascii() and rank.isdigit() else None
