"""The frameworks' Trainers: the adapter of each, attached as its training begins, and the arguments that it must not be given.

Each function takes the Trainer, its method, and the arguments, and returns the arguments to train with.
"""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from ..hooks.arguments.settings import ATTACHED

log = logging.getLogger("spotguard")

#: The Trainer that was attached to in this process. A restart can resume one.
_ATTACHED: list[str] = []

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def attach_transformers(
    trainer: Any, train: Callable[..., Any], given: tuple[Any, ...], named: dict[str, Any]
) -> Arguments:
    """Attach to a Trainer of transformers, unless the script has.

    Raises:
        UsageError: the Trainer has an argument with which no resume is exact.
    """
    from ..integrations.transformers import TrainerBinding, attach

    if isinstance(getattr(trainer._prepare_for_training, "__self__", None), TrainerBinding):
        return given, named
    if trainer.args.resume_from_checkpoint is None:  # the script has looked for one, as the examples do
        given, named = _without("resume_from_checkpoint", trainer, train, given, named)
    _note(trainer, "transformers")
    attach(trainer)
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
    if _argument("ckpt_path", trainer, fit, given, named) in ("last", "best", "hpc"):
        given, named = _without("ckpt_path", trainer, fit, given, named)
    _note(trainer, type(trainer).__module__.partition(".")[0])
    trainer.callbacks.insert(0, SpotguardCallback())
    return given, named


def _argument(
    name: str, trainer: Any, method: Callable[..., Any], given: tuple[Any, ...], named: dict[str, Any]
) -> Any:
    return inspect.signature(method).bind(trainer, *given, **named).arguments.get(name)


def _without(
    name: str, trainer: Any, method: Callable[..., Any], given: tuple[Any, ...], named: dict[str, Any]
) -> Arguments:
    """Return the arguments without one that would load another state than spotguard restores."""
    bound = inspect.signature(method).bind(trainer, *given, **named)
    if (value := bound.arguments.pop(name, None)) not in (None, False):
        log.warning(
            "%s=%r is left out: spotguard restores its own newest checkpoint of this run", name, value
        )
    return bound.args[1:], bound.kwargs


def _note(trainer: Any, package: str) -> None:
    """Keep what was attached, for the agent: it says it in its log and its status.

    Raises:
        UsageError: another Trainer was attached to in this process.
    """
    from ..integrations.binding import refused

    name = f"{type(trainer).__name__} of {package} {version(package)}"
    if _ATTACHED:
        raise refused(
            f"{_ATTACHED[0]} has trained in this process, and now {name} is to: a restart does not know which one to resume. Start "
            "each training by a command of its own, with a run id of its own"
        )
    _ATTACHED.append(name)
    os.environ[ATTACHED] = name
