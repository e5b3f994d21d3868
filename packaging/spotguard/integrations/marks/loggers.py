"""Marks wherever a framework's trainer logs already: the adapters call `follow_loggers`."""

from __future__ import annotations

import logging
from typing import Any

from . import mlflow, tensorboard, wandb

log = logging.getLogger("spotguard")


def follow_loggers(guard: Any, trainer: Any) -> None:
    """Mark wherever a Trainer of transformers (`report_to`) or of Lightning (`loggers`) logs already.

    The Trainer's loggers must be set up: call it when training begins. An error is logged, and training goes on.

    Args:
        guard: the guard.
        trainer: the Trainer.
    """
    if guard.view.rank:
        return
    handler = getattr(trainer, "callback_handler", None)
    found = getattr(trainer, "loggers", []) if handler is None else handler.callbacks
    for each in found:
        for kind in type(each).__mro__:
            if kind.__name__ in _LOGGERS:
                try:
                    _LOGGERS[kind.__name__](guard, each)
                except Exception as error:  # noqa: BLE001 - a tracker's: training must not end for it
                    log.warning("%s: spotguard cannot write its marks: %r", kind.__name__, error)
                break


def _tensorboard(guard: Any, writer: Any) -> None:
    if writer is not None:
        tensorboard.mark(guard, writer)


def _wandb(guard: Any, run: Any) -> None:
    if run is not None:
        wandb.mark(guard, run)


def _mlflow(guard: Any, run_id: str | None, client: Any = None) -> None:
    if run_id is not None:
        mlflow.mark(guard, run_id, client)


def _active_mlflow_run(callback: Any) -> str | None:
    run = callback._ml_flow.active_run()
    return None if run is None else str(run.info.run_id)


#: By the name of the class: neither framework is imported for this.
_LOGGERS: dict[str, Any] = {
    # transformers
    "TensorBoardCallback": lambda guard, each: _tensorboard(guard, each.tb_writer),
    "WandbCallback": lambda guard, each: _wandb(guard, each._wandb.run),
    "MLflowCallback": lambda guard, each: _mlflow(guard, _active_mlflow_run(each)),
    # Lightning
    "TensorBoardLogger": lambda guard, each: _tensorboard(guard, each.experiment),
    "WandbLogger": lambda guard, each: _wandb(guard, each.experiment),
    "MLFlowLogger": lambda guard, each: _mlflow(guard, each.run_id, each.experiment),
}
