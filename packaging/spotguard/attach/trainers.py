"""The frameworks' Trainers: the adapter of each, attached as its training begins, and the arguments that it must not be given.

Each function takes the Trainer, its method, and the arguments, and returns the arguments to train with.
"""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Callable
from importlib.metadata import version
from typing import Any, Protocol

from ..hooks.arguments.settings import ATTACHED, is_trial, run_name

log = logging.getLogger("spotguard")


class Attached(Protocol):
    """The adapter of one training."""

    def detach(self) -> None:
        """End its guard, and leave its Trainer."""
        ...


#: The trainings of this process, in their order, which is the same in each start: the attached adapter of each.
_TRAININGS: list[Attached] = []

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def attach_transformers(
    trainer: Any, train: Callable[..., Any], given: tuple[Any, ...], named: dict[str, Any]
) -> Arguments:
    """Attach to a Trainer of transformers, unless the script has.

    Raises:
        UsageError: the Trainer has an argument with which no resume is exact.
    """
    from ..integrations.transformers import TrainerBinding, attach

    bound = getattr(trainer._prepare_for_training, "__self__", None)
    if isinstance(bound, TrainerBinding) and bound not in _TRAININGS:
        return given, named
    if trainer.args.resume_from_checkpoint is None:  # the script has looked for one, as the examples do
        given, named = _without(
            "resume_from_checkpoint", lambda value: value not in (None, False), trainer, train, given, named
        )
    run_id = _next_run(trainer, "transformers")
    _TRAININGS.append(attach(trainer, run_id=run_id))
    if trainer.args.save_strategy != "no":
        log.warning(
            "the Trainer's own checkpoints go to %s as without spotguard, and a new machine lacks them: they count for what comes "
            "after training alone",
            trainer.args.output_dir,
        )
    return given, named


def attach_lightning(
    trainer: Any, fit: Callable[..., Any], given: tuple[Any, ...], named: dict[str, Any]
) -> Arguments:
    """Attach to a Trainer of Lightning, unless the script has, or a Tuner tries out a learning rate or a size of batches."""
    from ..integrations.lightning import SpotguardCallback

    if any(
        isinstance(each, SpotguardCallback) or getattr(each, "_early_exit", False)
        for each in trainer.callbacks
    ):
        return given, named
    given, named = _without(
        "ckpt_path", lambda value: value in ("last", "best", "hpc"), trainer, fit, given, named
    )
    run_id = _next_run(trainer, type(trainer).__module__.partition(".")[0])
    _TRAININGS.append(SpotguardCallback(run_id=run_id))
    trainer.callbacks.insert(0, _TRAININGS[-1])
    return given, named


def _without(
    name: str,
    is_wrong: Callable[[Any], bool],
    trainer: Any,
    method: Callable[..., Any],
    given: tuple[Any, ...],
    named: dict[str, Any],
) -> Arguments:
    """Return the arguments without one whose value would load another state than spotguard restores."""
    bound = inspect.signature(method).bind(trainer, *given, **named)
    if is_wrong(value := bound.arguments.get(name)):
        del bound.arguments[name]
        log.warning(
            "%s=%r is left out: spotguard restores its own newest checkpoint of this run", name, value
        )
    return bound.args[1:], bound.kwargs


def _next_run(trainer: Any, package: str) -> str | None:
    """Name the Trainer to the agent, for its log and its status, and return the run of its training; None for that of the command.

    Each further training of a process is a run of its own. A restart goes through all of them in the same order: it restores the
    finished ones at their end.

    Raises:
        UsageError: it is not the first one, in a trial.
    """
    from ..integrations.refusals import refused

    name = f"{type(trainer).__name__} of {package} {version(package)}"
    run_id = None
    if _TRAININGS:
        if is_trial():
            raise refused(
                f"{name} is to train in a process that has trained before, and a trial follows one training: give it fewer steps, or "
                "a command that trains once"
            )
        run_id = f"{run_name(None)}-{len(_TRAININGS) + 1}"
        _TRAININGS[-1].detach()
    os.environ[ATTACHED] = name
    return run_id
