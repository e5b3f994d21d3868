"""What a script says to `register` and `restore`, and the environment in its place: checked before anything is done."""

from __future__ import annotations

import logging
import operator
import os
import sys
from pathlib import Path
from typing import TypeVar

from ..providers.errors import UsageError
from .checkpoints.retention import Keep
from .checkpoints.worth import EXTRAS_WORTH
from .format.keys import check_run_id
from .naming import default_run_id, default_store

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
