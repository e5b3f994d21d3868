"""What a script says to `register` and `restore`, and the environment in its place: checked before anything is done."""

from __future__ import annotations

import functools
import hashlib
import logging
import operator
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from ..providers.errors import SpotguardError, StateError, UsageError
from .checkpoint.format.keys import check_run_id
from .checkpoint.ranking import EXTRAS_WORTH
from .checkpoint.retention import Keep

log = logging.getLogger("spotguard")

#: Checkpoints that stay, unless somebody says otherwise.
_KEEP = Keep(3)

_YES, _NO = ("1", "yes", "true"), ("", "0", "no", "false")


def store_url(said: str | None) -> str:
    """Where checkpoints go.

    Raises:
        UsageError: something else than an URL was given: a path, or the first value without its name.
    """
    if said is not None and not isinstance(said, str):
        raise UsageError(
            f"the store is given as a {type(said).__name__}, not as an URL: write it as 'file:///mnt/checkpoints', and "
            "give each value a name, as in model=model"
        )
    return said or os.environ.get("SPOTGUARD_STORE") or default_store(os.getcwd())


def run_name(said: str | None) -> str:
    """The run's name, the same at every restart.

    Raises:
        UsageError: it cannot be a folder's.
    """
    default = os.environ.get("SPOTGUARD_RUN_ID") or default_run_id(sys.orig_argv, os.getcwd(), os.environ)
    return check_run_id(said or default)


def stage_folder() -> Path | None:
    """Where background checkpoints go first, if anywhere.

    Raises:
        UsageError: it is not absolute: another working folder would make it another one.
    """
    text = os.environ.get("SPOTGUARD_STAGE", "")
    if text and not os.path.isabs(text):
        raise UsageError(f"SPOTGUARD_STAGE={text!r} is not absolute; write it as in /mnt/nvme/spotguard")
    return Path(text) if text else None


def kept(variable: str) -> Keep:
    """How many checkpoints stay, from the environment.

    Raises:
        UsageError: it says neither a number nor two.
    """
    text = os.environ.get(variable, "")
    try:
        return Keep.of(text) if text else _KEEP
    except ValueError:
        raise UsageError(
            f"{variable}={text!r} is not a number of 1 or more, or two as in 3+1000; correct it, or unset it"
        ) from None


def extras_worth() -> int:
    """Steps that the extras of dead ranks are worth at a restore, from the environment.

    Raises:
        UsageError: it says no number.
    """
    text = os.environ.get("SPOTGUARD_EXTRAS_WORTH", "")
    if not text:
        return EXTRAS_WORTH
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise UsageError(
            f"SPOTGUARD_EXTRAS_WORTH={text!r} is not a number of steps from 0 to 999999999; correct it, or unset it"
        )
    return int(text)


def yes(variable: str) -> bool:
    """Whether the environment says yes; unset is no.

    Raises:
        UsageError: it says something else.
    """
    text = os.environ.get(variable, "")
    if text.lower() not in _YES + _NO:
        raise UsageError(f"{variable}={text!r} is neither yes nor no; correct it, or unset it")
    return text.lower() in _YES


def completed_steps(said: int) -> int:
    """The step of a checkpoint.

    Raises:
        UsageError: no checkpoint can have it.
    """
    try:
        found = -1 if isinstance(said, bool) else operator.index(said)
    except TypeError:
        found = -1
    if found < 0:
        raise UsageError(f"step={said!r} is no number of completed steps; use a whole one, as in step=1200")
    return found


_Said = TypeVar("_Said")


def for_one_process(variable: str, said: _Said, alone: bool) -> _Said | None:
    """What is for jobs of one process, where this is one. Who has said it in another hears that it is not used."""
    if said and not alone:
        log.warning("%s is set, and is for jobs of one process: in this one it is not used", variable)
    return said if alone else None


# Who has started this start of the job, and how often by now: in the launchers' own words, for the attempt's record.
#
# For people who ask later why there are so many attempts. Nothing is decided by it.


def launchers(env: Mapping[str, str]) -> list[dict[str, Any]]:
    """The launchers around this process, outermost first, as plain JSON: `name`, `job`, and `restarts` of it so far."""
    found: list[dict[str, Any]] = []
    if job := slurm_job(env):
        # Not set before the first requeue (sbatch(1)); until then, one that a requeued job has submitted says that one's.
        found.append({"name": "slurm", "job": job, "restarts": _count(env.get("SLURM_RESTART_COUNT", "0"))})
        if nodes := env.get("SLURM_JOB_NODELIST"):
            found[0]["nodes"] = nodes
    if "TORCHELASTIC_RESTART_COUNT" in env:
        restarts = _count(env["TORCHELASTIC_RESTART_COUNT"])
        found.append({"name": "torchrun", "job": env.get("TORCHELASTIC_RUN_ID", ""), "restarts": restarts})
    return found


def in_words(info: Mapping[str, Any]) -> str:
    """What a record says of its launchers, for a person; "" where it says nothing."""
    said = info.get("launchers")
    each = [one for one in said if isinstance(one, dict)] if isinstance(said, list) else []
    return ", ".join(f"{one.get('name')} {one.get('job')}, restart {one.get('restarts')}" for one in each)


def _count(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


# The names that `spotguard run` and a bare `register` choose by themselves, the same ones for the same job.

#: The folder, in the working folder, where checkpoints go unless a store is given.
STORE_FOLDER = "spotguard-checkpoints"

#: A run id holds so many characters (`providers.run_id`).
_LONGEST = 64

#: What a launcher is told of machines (torchrun, DeepSpeed, accelerate): other words on each node of one job, and other ones
#: when the job has been requeued to other nodes.
_OF_MACHINES = frozenset(
    {
        *("--rdzv-endpoint", "--master-addr", "--master-port", "--node-rank", "--local-addr"),
        *("--nnodes", "--nproc-per-node", "--main-process-ip", "--main-process-port"),
        *("--machine-rank", "--num-machines", "--num-processes"),
    }
)


def default_run_id(command: Sequence[str], folder: str, env: Mapping[str, str]) -> str:
    """The script's name and a hash of command and folder: stable across restarts, different for other arguments.

    In a Slurm job its id stands between them: the same on all its nodes and at each requeue, and another job is another run.

    Args:
        command: as the kernel got it (`sys.orig_argv`): ["python", "train.py", "--lr", "0.1"].
        env: where a scheduler says whose job this is.
    """
    words = [word for word in command[1:] if not word.startswith("-")]
    # A launcher's options have values of their own (`torchrun --nproc-per-node 2 train.py`): a script has its suffix.
    plain = words[0] if words else (command[0] if command else "run")
    script = next((word for word in words if word.endswith(".py")), plain)
    stem = re.sub(r"[^A-Za-z0-9_]+", "-", Path(script).stem).strip("-")[:40] or "run"
    # The interpreter's path differs between machines and virtual environments; the job is the same.
    said = [os.path.basename(command[0]), *command[1:]] if command else []
    job = slurm_job(env)
    if job:
        said = [*_without_machines(said)]
    digest = hashlib.sha256("\0".join([folder, *said]).encode(errors="surrogateescape")).hexdigest()
    tail = f"-{job}-{digest[:8]}" if job else f"-{digest[:8]}"
    return stem[: _LONGEST - len(tail)] + tail


def slurm_job(env: Mapping[str, str]) -> str:
    """The job's own id, the same on all nodes and at each requeue, and another for each task of an array. "": none.

    Nothing else that stands there is asked: what Slurm says of an array, or of a job of several parts, it says to these alone,
    and `sbatch` hands it on to whatever jobs they submit. The tasks of all parts have the first one's id as it is.
    """
    said = env.get("SLURM_JOB_ID", "")
    return said if re.fullmatch(r"[0-9]{1,10}", said) else ""


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


# An error of ours, as a training script shows it: the script's own line and the message, and not the way through us.
#
# The message says what was wrong and what to do. Between it and the script's line stood some 50 lines, ours and an SDK's, twice
# over: nobody finds the message in them, least of all in what 8 ranks say at once. So a method that a script calls hands its errors on
# without the frames below it, as JAX and Keras do. It is the same exception. What the script was handling when it called, as in
# `finally: guard.save()`, is shown as ever; SPOTGUARD_DEBUG=1 shows everything, as it does at the command line.

_P = ParamSpec("_P")
_R = TypeVar("_R")


def without_our_frames(method: Callable[_P, _R]) -> Callable[_P, _R]:
    """For what a training script calls. What is no error of ours is left alone: it is a bug, and its way is all there is."""

    @functools.wraps(method)
    def called(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return method(*args, **kwargs)
        except SpotguardError as error:
            if os.environ.get("SPOTGUARD_DEBUG") == "1" or _is_of_their_code(error):
                raise
            ours = error
        # Not within the `except`: what is in flight now is the script's own, and becomes the context of this.
        try:
            ours.__cause__ = None
            ours.__suppress_context__ = sys.exception() is None
            raise ours.with_traceback(None)
        finally:
            del ours  # no circle of an exception and the frame that holds it

    return called


def _is_of_their_code(error: SpotguardError) -> bool:
    """An object's own code refused its state: the line to mend is in the frames of what that raised."""
    return isinstance(error, StateError) and error.__cause__ is not None
