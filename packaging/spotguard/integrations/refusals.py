"""Settings of frameworks with which no resume is exact: each is refused by name before training, with the way out."""

from __future__ import annotations

import importlib.metadata
import inspect
import logging
from collections.abc import Iterable
from glob import glob
from os.path import dirname, isdir, join
from typing import Any

from spotguard.providers.errors import UsageError

log = logging.getLogger("spotguard")


def refused(why: str) -> UsageError:
    """Return the error for a setting of a framework with which no resume is exact; `why` ends with the way out."""
    return UsageError(f"{why} (with it, no resume is exact) [SG428]")


def check_members(package: str, owner: object, names: Iterable[str]) -> None:
    """Refuse a version of a framework that lacks a private member which the adapter uses.

    Raises:
        UsageError: a member is missing; the message has its name and the framework's version.
    """
    for name in names:
        if not callable(getattr(owner, name, None)):
            version = importlib.metadata.version(package)
            kind = type(owner).__name__
            raise UsageError(
                f"{package} {version}: {kind} has no method {name}(), which spotguard's adapter needs: use a version that "
                f"docs/how-to/frameworks/{package}.md lists as tested [SG418]"
            )


def check_distribution(who: str, accelerator: Any, fsdp2: str) -> None:
    """Refuse what an Accelerator distributes in a way that spotguard cannot save.

    Args:
        who: the owner of the Accelerator, for the message.
        accelerator: the Accelerator.
        fsdp2: what to do to get FSDP2.

    Raises:
        UsageError: DeepSpeed or FSDP1.
    """
    if getattr(accelerator.distributed_type, "value", accelerator.distributed_type) == "DEEPSPEED":
        raise refused(
            f"{who} uses DeepSpeed, whose engine keeps the state: write the loop with spotguard.integrations.deepspeed, or save "
            "DeepSpeed's own checkpoints from spotguard.on_notice"
        )
    plugin = getattr(accelerator.state, "fsdp_plugin", None)
    if plugin is not None and getattr(plugin, "fsdp_version", 1) == 1:
        raise refused(f"{who} uses FSDP1, which spotguard cannot save: {fsdp2}")


# --- transformers ---


def check_trainer(trainer: Any) -> None:
    """Refuse by name what no resume of transformers' Trainer makes exact.

    Raises:
        UsageError: an argument of the Trainer, with the way out.
    """
    args = trainer.args
    if args.auto_find_batch_size:
        raise refused(
            "auto_find_batch_size=True begins again with another batch size after an error, and a resumed run would not: find "
            "the size once, and pass it as per_device_train_batch_size"
        )
    if args.ignore_data_skip:
        raise refused("ignore_data_skip=True trains on batches again after a resume: leave it out")
    if args.dataloader_persistent_workers:
        raise refused(
            "dataloader_persistent_workers=True: the resumed epoch has workers of its own, so the one after it would draw another "
            "order: leave it out"
        )
    if hasattr(trainer, "_buffered_inputs"):
        raise refused(
            f"{type(trainer).__name__} trains on answers that it has generated and keeps in memory, and no checkpoint has them: "
            "save its own checkpoints from spotguard.on_notice"
        )
    for each in trainer.callback_handler.callbacks:
        if type(each).__name__ == "BEMACallback":
            raise refused("BEMACallback keeps weights of its own that no checkpoint has: leave it out")
    check_distribution("the Trainer", trainer.accelerator, "set fsdp_config={'fsdp_version': 2}")
    if args.max_steps <= 0 and not hasattr(trainer.train_dataset, "__len__"):
        raise refused(
            "train_dataset has no length, so no batch can be found again: pass a dataset with __len__"
        )


def check_best_model(trainer: Any) -> None:
    """Refuse to resume where the Trainer would miss its best weights at its end, and keep the last ones without a word.

    Raises:
        UsageError: the directory with the best weights is not here.
    """
    best = trainer.state.best_model_checkpoint
    if not (trainer.args.load_best_model_at_end and best and trainer.is_world_process_zero()) or isdir(best):
        return
    # A life that was killed may have put a better one into its place, which this one makes again.
    if not any(isdir(each) for each in glob(join(dirname(best), "checkpoint-*"))):
        raise refused(
            f"load_best_model_at_end is to load {best}, which is not on this machine: bring it back, or begin another run with an "
            "output_dir that outlives the machine"
        )


# --- Lightning ---


def check_lightning_strategy(strategy: Any) -> None:
    """Refuse by name what spotguard cannot save.

    Raises:
        UsageError: a strategy, with the way out.
    """
    kind = type(strategy).__name__
    if kind == "FSDPStrategy":
        raise refused(
            "FSDPStrategy is FSDP1, which spotguard cannot save: pass strategy=ModelParallelStrategy("
            "data_parallel_size=<ranks>, tensor_parallel_size=1), and call fully_shard in the module's configure_model()"
        )
    if getattr(strategy, "_model_averaging_period", None) is not None:
        raise refused(
            "DDPStrategy(model_averaging_period=…) lets the ranks' weights differ, and spotguard saves one of them: leave it out"
        )
    if kind == "DeepSpeedStrategy":
        raise refused(
            "DeepSpeedStrategy keeps masters and moments in DeepSpeed's engine: save its own checkpoints from spotguard.on_notice, "
            "or write the loop yourself with spotguard.integrations.deepspeed"
        )


def of_lightning(method: Any) -> bool:
    """Whether a method is the one of Lightning's base class."""
    return str(method.__module__).startswith(("lightning.", "pytorch_lightning."))


#: Callbacks with which no resume is exact, and why.
_CALLBACKS = {
    "OnExceptionCheckpoint": (
        "writes a checkpoint when a preemption ends training, and Lightning would load it over what spotguard restores: leave "
        "it out"
    ),
    "LearningRateFinder": (
        "trains within fit(), and a resumed epoch does not find the batches that follow: leave it out, and call Tuner's lr_find() "
        "before fit()"
    ),
    "BatchSizeFinder": (
        "trains within fit(), and a resumed run would begin with another size: leave it out, find the size once, and pass it"
    ),
    "BaseFinetuning": (
        "adds parameter groups while it trains, and a restarted Trainer has none of them when spotguard restores: leave it out, "
        "or save Lightning's own checkpoints from spotguard.on_notice"
    ),
}


def check_lightning(trainer: Any, module: Any, base: Any) -> None:
    """Refuse by name what a resumed run of Lightning's Trainer would not find again.

    Args:
        base: Lightning's `Callback`, of the package that the script imports.

    Raises:
        UsageError: a callback or the module, with the way out.
    """
    if trainer.reload_dataloaders_every_n_epochs:
        raise refused(
            "reload_dataloaders_every_n_epochs counts from the epoch of the restart, so a resumed run makes its loaders at other "
            "epochs: leave it out, and let the dataset follow the epoch"
        )
    for each in trainer.callbacks:
        kind = type(each)
        if name := next((each.__name__ for each in kind.__mro__ if each.__name__ in _CALLBACKS), ""):
            raise refused(f"{kind.__name__} {_CALLBACKS[name]}")
        if kind.on_save_checkpoint is not base.on_save_checkpoint:
            raise refused(
                f"{kind.__name__} keeps its state in Lightning's own checkpoints (on_save_checkpoint), and spotguard asks for "
                "state_dict() alone: leave the callback out, or give it state_dict() and load_state_dict()"
            )
    if not of_lightning(type(module).on_save_checkpoint):
        log.warning(
            "%s.on_save_checkpoint is not called by spotguard: pass what it saves to SpotguardCallback, as in "
            "SpotguardCallback(answers=answers)",
            type(module).__name__,
        )
    if "dataloader_iter" in inspect.signature(module.training_step).parameters:
        raise refused(
            "training_step(dataloader_iter) takes the batches itself, so a resumed run cannot drop the trained ones: take "
            "training_step(batch, batch_idx)"
        )
