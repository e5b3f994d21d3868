"""The settings of a training process: what the script passes, else what the environment has, else the default.

`Settings.of` reads and checks all of them at once, before ranks meet: a rank whose settings are wrong tells the others.
"""

from __future__ import annotations

import logging
import operator
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ...providers.errors import UsageError
from ...providers.text import NO, YES, store_url, value_in
from ..checkpoint.format.keys import check_run_id
from ..ipc.failure_classes import LAUNCH, RECOVERED, SKIP_STEPS, rules_of_text
from .names import default_run_id, default_store, launchers

if TYPE_CHECKING:
    from ..checkpoint.retention import Keep

log = logging.getLogger("spotguard")

#: What `spotguard run --attach` has attached in this process, in words.
ATTACHED = "SPOTGUARD_ATTACHED"
#: Checkpoints that stay by default.
_KEEP = 3
#: Behind the name of a run in which `spotguard simulate failure` lets a failure happen.
SIMULATED = "-simulated"


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of one run in this process, each of a value that can be used."""

    #: URL of the store.
    store: str
    run_id: str
    #: Seconds between background checkpoints, "auto" or "off".
    every: str
    keep: Keep
    #: The directory of staged checkpoints.
    stage: Path | None
    lossy: bool
    begin_anew: bool
    extras_worth: int
    #: The first step behind the data that is to be skipped; 0 for none.
    skip_until: int
    #: What `--recover` does for each class of failure, and how often it has, as this machine's agent told. Another run of the same
    #: command has its own failures.
    rules: Mapping[str, tuple[str, int]]
    #: The launchers around this process, for the attempt's record.
    launchers: Sequence[Mapping[str, Any]]
    #: The plan of `spotguard simulate failure`; "" for none.
    simulated: str

    @classmethod
    def of(cls, store: str | os.PathLike[str] | None = None, run_id: str | None = None) -> Settings:
        """Return the settings of this process.

        Args:
            store: as `register` takes it.
            run_id: likewise.

        Raises:
            UsageError: one of them cannot be used.
        """
        from ..save.schedule import (
            CheckpointSchedule,
        )

        run = run_name(run_id)
        if simulated := os.environ.get("SPOTGUARD_SIMULATED_FAILURE", ""):
            run = f"{run}{SIMULATED}"  # what a failure leaves, wrong weights included, is not to be resumed from
        every = value_in(os.environ, "SPOTGUARD_EVERY").lower() or "auto"
        CheckpointSchedule(every, 0.0)
        own = value_in(os.environ, "SPOTGUARD_RUN_ID") == run
        return cls(
            store=given_store(store),
            run_id=run,
            every=every,
            keep=_kept("SPOTGUARD_KEEP"),
            stage=_stage_folder(),
            lossy=_yes("SPOTGUARD_LOSSY_MOMENTS"),
            begin_anew=_yes("SPOTGUARD_BEGIN_ANEW"),
            extras_worth=extras_worth(),
            skip_until=skipped_until(run),
            rules=rules_of_text(os.environ.get(RECOVERED, "")) if own else {},
            launchers=launchers(os.environ),
            simulated=simulated,
        )


# What no value can be wrong of.


def agent_socket() -> str:
    """Return the socket of the agent; "" without one."""
    return os.environ.get("SPOTGUARD_SOCKET", "")


def is_under_run() -> bool:
    """Return whether `spotguard run` started this process, at this terminal."""
    return bool(os.environ.get("SPOTGUARD_PARENT"))


def attached_to() -> str:
    """Return what `spotguard run --attach` has attached in this process, in words; "" for nothing."""
    return os.environ.get(ATTACHED, "")


def launch() -> str:
    """Return the text of the start of the command that this process belongs to; "" without `spotguard run`."""
    return os.environ.get(LAUNCH, "")


def plan_path() -> str:
    """Return the path of the plan that `spotguard prove` or `spotguard doctor --trial` has for this process; "" for none."""
    return os.environ.get("SPOTGUARD_PROVE", "")


def is_trial() -> bool:
    """Return whether `spotguard prove`, `doctor --trial` or `simulate failure` started this process."""
    return bool(plan_path() or os.environ.get("SPOTGUARD_SIMULATED_FAILURE"))


def debugging() -> bool:
    """Return whether tracebacks are shown whole."""
    return os.environ.get("SPOTGUARD_DEBUG") == "1"


def launched_world() -> str:
    """Return the number of processes as their launcher has set it; "1" if it has not."""
    return os.environ.get("WORLD_SIZE") or "1"


def launched_rank() -> int | None:
    """Return the rank that a launcher has set for one of several processes; None if there is none."""
    rank = os.environ.get("RANK", "")
    return int(rank) if launched_world() != "1" and rank.isascii() and rank.isdigit() else None


def ranks_here() -> int:
    """Return the number of processes on this machine as their launcher has set it."""
    return int(os.environ.get("LOCAL_WORLD_SIZE") or 1)


def launcher_serves_store() -> bool:
    """Return whether the launcher serves the job's store (`torch.distributed.rendezvous._torchelastic_use_agent_store`)."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == str(True)


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
    return store_url(given or value_in(os.environ, "SPOTGUARD_STORE") or default_store(os.getcwd()))


def run_name(given: str | None) -> str:
    """Return the run's name, which is the same at every restart.

    Raises:
        UsageError: the name cannot be a directory's name.
    """
    configured = given or value_in(os.environ, "SPOTGUARD_RUN_ID")
    return check_run_id(configured or default_run_id(sys.orig_argv, os.getcwd(), os.environ))


def _stage_folder() -> Path | None:
    """Return the directory that background checkpoints go to first, or None if the environment sets none.

    Raises:
        UsageError: the path is not absolute, so it would depend on the working directory.
    """
    text = value_in(os.environ, "SPOTGUARD_STAGE")
    if text and not os.path.isabs(text):
        raise UsageError(
            f"SPOTGUARD_STAGE={text!r} is not an absolute path; set it as in /mnt/nvme/spotguard"
        )
    return Path(text) if text else None


def _kept(variable: str) -> Keep:
    """Return how many checkpoints stay, from the environment.

    Raises:
        UsageError: the variable holds neither one number nor two.
    """
    from ..checkpoint.retention import Keep

    text = value_in(os.environ, variable)
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
    text = value_in(os.environ, "SPOTGUARD_EXTRAS_WORTH")
    if not text:
        from ..checkpoint.ranking import EXTRAS_WORTH

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
    text = value_in(os.environ, SKIP_STEPS)
    run, _, step = text.rpartition(":")
    if text and not (run and step.isascii() and step.isdigit() and len(step) < 16):
        raise UsageError(
            f"{SKIP_STEPS}={text!r} is not a run and a step: unset it, or set it as in {run_id}:812"
        )
    return int(step) if run == run_id else 0


def _yes(variable: str) -> bool:
    """Return whether the variable is set to yes; unset means no.

    Raises:
        UsageError: the variable holds neither yes nor no.
    """
    text = value_in(os.environ, variable)
    if text and text.lower() not in YES + NO:
        raise UsageError(f"{variable}={text!r} is neither yes nor no; correct it, or unset it")
    return text.lower() in YES


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
