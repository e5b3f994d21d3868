"""The Trainer of Hugging Face transformers, and what subclasses it, such as TRL's SFTTrainer and DPOTrainer.

A TrainerCallback alone cannot resume in the middle of an epoch: the Trainer computes the epoch and the batch at which
it begins before it calls any callback. So `attach` replaces seven methods of one Trainer object:

- `_prepare_for_training` made the model, the optimizer and the scheduler: register them, and restore.
- `_run_epoch` trains one epoch: leave out the finished ones, and begin the resumed one at its batch.
- `_load_rng_state` is called once the skipped batches are behind: put the generators back.
- `training_step` trains one micro-batch: note its loss. Later the Trainer replaces one that is not finite.
- `_maybe_log_save_evaluate` comes right after each step's callbacks: the boundary. It may also find that training ends.
- `callback_handler.on_epoch_begin` is called for each epoch: leave out the finished ones.
- `callback_handler.on_train_end` is called behind the last one, before the script's callbacks, which may upload.

The boundary comes before log, evaluation and save. A notice during an evaluation can save at once, and a resumed run
repeats them, from the same weights and generators.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Mapping
from os import PathLike
from typing import TYPE_CHECKING, Any

import torch

from spotguard.hooks.state.parts.loaders import ResumableLoader

from .binding import (
    Bound,
    StepLoss,
    captured,
    put_back,
    unwrapped,
    watch_validation_loss,
)
from .marks.loggers import follow_loggers
from .refusals import check_best_model, check_members, check_trainer, refused

if TYPE_CHECKING:
    from transformers import Trainer

    from spotguard.hooks.guard import Guard

__all__ = ["TrainerBinding", "attach"]

_REPLACED = (
    "_prepare_for_training",
    "_run_epoch",
    "_load_rng_state",
    "training_step",
    "_maybe_log_save_evaluate",
)
#: Fields of TrainerState that this start computes from its arguments, and two that the position holds in another form.
_LEFT_OUT = {
    "max_steps", "num_train_epochs", "logging_steps", "eval_steps", "save_steps", "train_batch_size",
    "is_local_process_zero", "is_world_process_zero", "is_hyper_param_search", "trial_name", "trial_params",
    "log_history", "stateful_callbacks",
}  # fmt: skip
#: Any text but None: the Trainer then asks for the generators where it has skipped the batches.
_RESUMED = "spotguard"


def attach(
    trainer: Trainer, store: str | PathLike[str] | None = None, *, run_id: str | None = None, **more: Any
) -> TrainerBinding:
    """Guard the one `trainer.train()` that follows: it resumes bit for bit, log included.

    Args:
        trainer: a Trainer that has not trained yet.
        store: place of the checkpoints, as `spotguard.register` takes it.
        run_id: name of the run, as `spotguard.register` takes it.
        **more: other values, as `spotguard.register` takes them.

    Returns:
        The binding; its `guard` is there once training begins.

    Raises:
        UsageError: the Trainer has an argument with which no resume is exact, or this version lacks a method.

    Example:
        >>> trainer = Trainer(model=model, args=arguments, train_dataset=dataset)
        >>> spotguard.integrations.transformers.attach(trainer)
        >>> trainer.train()
    """
    return TrainerBinding(trainer, more, store, run_id)


class TrainerBinding:
    """The training of one Trainer object.

    Attributes:
        trainer: the Trainer.
        guard: the guard, from the beginning of training on.
    """

    guard: Guard

    def __init__(
        self, trainer: Trainer, more: dict[str, Any], store: str | PathLike[str] | None, run_id: str | None
    ) -> None:
        check_members("transformers", trainer, _REPLACED)
        check_trainer(trainer)
        self._more = more
        self.trainer: Any = trainer
        self._store, self._run_id = store, run_id
        self._bound: Bound | None = None
        #: The restored position, until training goes on from it.
        self._restored: Mapping[str, Any] | None = None
        #: The epoch in which training begins, and the batches of it that were trained.
        self._first, self._batches = 0, 0
        #: The epochs of the samplers in it.
        self._samplers: list[int | None] = []
        #: The batches of a whole epoch.
        self._whole = 0
        self._epoch = -1
        #: Whether the arguments ask for an evaluation before the first step, which a resumed training does not repeat.
        self._eval_on_start = trainer.args.eval_on_start
        #: The loader, as what knows its samplers.
        self._loader: ResumableLoader | None = None
        #: The running epoch, the steps that were completed when it began, and the generators, from which an order of samples
        #: may be drawn: the global ones and the samplers'.
        self._running: dict[str, Any] = {"epoch": 0, "steps": 0, "generators": {}, "own": {}}
        self._marked = 0
        self._loss = StepLoss(mean=False)  # the Trainer has divided each micro-batch's
        self._last: dict[str, Any] = {"grad_norm": None, "learning_rate": None}
        self._log, self._logged = "", 0
        self._original = {name: getattr(trainer, name) for name in _REPLACED}
        for name in ("on_epoch_begin", "on_train_end"):
            self._original[name] = getattr(self.trainer.callback_handler, name)
        for name in _REPLACED:
            setattr(trainer, name, getattr(self, name))
        self.trainer.callback_handler.on_epoch_begin = self._on_epoch_begin
        self.trainer.callback_handler.on_train_end = self._on_train_end
        self._callback = _begin_callback(self)
        trainer.add_callback(self._callback)

    def detach(self) -> None:
        """Leave the Trainer, after its training: its next one is another run's."""
        for name in _REPLACED:
            setattr(self.trainer, name, self._original[name])
        for name in ("on_epoch_begin", "on_train_end"):
            setattr(self.trainer.callback_handler, name, self._original[name])
        self.trainer.remove_callback(self._callback)
        if self._bound is not None:
            self.guard.close()

    # --- the protocol `Binding` ---

    def state(self) -> dict[str, Any]:
        trainer = self.trainer
        values = {"model": trainer.model_wrapped, "optimizer": unwrapped(trainer.optimizer), **self._more}
        if trainer.lr_scheduler is not None:
            values["scheduler"] = trainer.lr_scheduler
        if trainer.accelerator.scaler is not None:
            values["scaler"] = trainer.accelerator.scaler
        if getattr(trainer.args, "sync_ref_model", False):  # TRL's reference model follows the trained one
            values["ref_model"] = trainer.ref_model
        return values

    def position(self) -> dict[str, Any]:
        if self._restored is not None:
            return dict(self._restored)
        trainer, state = self.trainer, self.trainer.state
        history = state.log_history
        # As text, because a copy of all entries at each boundary would cost more and more.
        if len(history) != self._logged:
            self._log += "".join(json.dumps(each) + "\n" for each in history[self._logged :])
            self._logged = len(history)
        return {
            "state": {
                field.name: getattr(state, field.name)
                for field in dataclasses.fields(state)
                if field.name not in _LEFT_OUT
            },
            "log": self._log,
            "callbacks": [each.state()["attributes"] for each in self._with_state()],
            "flags": dataclasses.asdict(trainer.control),
            "loss": getattr(trainer, "_tr_loss", torch.zeros(())),
            "counts": {name: getattr(trainer, name) for name in _COUNTS if hasattr(trainer, name)},
            "last": self._last,
            "running": self._running,
            "samplers": [] if self._loader is None else self._loader.epochs.of_samplers(),
        }

    def resume(self, position: Mapping[str, Any]) -> None:
        state = self.trainer.state
        if not position["state"]["global_step"]:
            return  # nothing was trained: begin as a first start does
        self._restored = position
        for name, value in position["state"].items():
            setattr(state, name, value)
        state.log_history = [json.loads(line) for line in position["log"].splitlines()]
        self._log, self._logged = position["log"], len(state.log_history)
        for each, attributes in zip(self._with_state(), position["callbacks"], strict=True):
            for name, value in attributes.items():
                setattr(each, name, value)
        self._last, self._running = position["last"], position["running"]
        self._samplers = position["samplers"]
        self._marked = state.global_step

    def _with_state(self) -> list[Any]:
        """The callbacks that have a state of their own."""
        from transformers.trainer_callback import ExportableState

        return [each for each in self.trainer.callback_handler.callbacks if isinstance(each, ExportableState)]

    # --- the methods of the Trainer that this object replaces ---

    def _prepare_for_training(self, max_steps: int, train_dataloader: Any, resume: Any) -> Any:
        if resume is not None:
            raise refused(
                "train(resume_from_checkpoint=…) would load another state than spotguard restores: leave it out"
            )
        if self._bound is not None:
            raise refused(
                "trainer.train() was called twice, and a restart does not know which one to resume: make a Trainer and a "
                "process for each, with a run id of its own"
            )
        if self.trainer.state.is_hyper_param_search:
            raise refused(
                "hyperparameter_search() trains several models, and spotguard resumes one: call train()"
            )
        prepared = self._original["_prepare_for_training"](max_steps, train_dataloader, None)
        self._loader = ResumableLoader(prepared[1])
        self._bound = bound = Bound(self, self._store, self._run_id)
        self.guard = bound.guard
        if bound.done:
            args = self.trainer.args
            check_best_model(self.trainer)
            args.eval_on_start = False  # the first start has done it
            accumulated = args.gradient_accumulation_steps
            self._whole = self.trainer.set_initial_training_values(args, train_dataloader)[1] * accumulated
            self._first = self._running["epoch"]
            self._batches = (bound.done - self._running["steps"]) * accumulated
        return prepared

    def _run_epoch(self, **given: Any) -> None:
        if given["epoch"] < self._first or self.trainer.control.should_training_stop:
            return
        if given["epoch"] == self._first and self._batches:
            given["epochs_trained"], given["steps_trained_in_current_epoch"] = self._first, self._batches
            given["resume_from_checkpoint"] = _RESUMED
        self._original["_run_epoch"](**given)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        if checkpoint == _RESUMED and self._bound is not None:
            self._bound.put_generators_back()

    def training_step(self, *given: Any, **more: Any) -> Any:
        loss = self._original["training_step"](*given, **more)
        self._loss.add_of_framework(loss)
        return loss

    def _maybe_log_save_evaluate(
        self,
        tr_loss: Any,
        grad_norm: Any,
        model: Any,
        trial: Any,
        epoch: Any,
        ignored: Any,
        start: Any,
        **more: Any,
    ) -> None:
        bound = self._bound
        if bound is not None and self.trainer.state.global_step > self._marked:
            self._marked = self.trainer.state.global_step
            self._last = {"grad_norm": self._norm(grad_norm), "learning_rate": more.get("learning_rate")}
            bound.step(self._loss.take(), last=self.trainer.control.should_training_stop)
        self._original["_maybe_log_save_evaluate"](
            tr_loss, grad_norm, model, trial, epoch, ignored, start, **more
        )
        if bound is not None and self.trainer.control.should_training_stop:
            bound.end_training()  # before the Trainer loads its best model over the weights

    def _norm(self, norm: Any) -> Any:
        """Return the norm as the log shows it. FSDP2's is spread over the ranks, and is gathered for a log only."""
        if not hasattr(norm, "full_tensor"):
            return norm
        return norm.full_tensor() if self.trainer.control.should_log else None

    def _on_epoch_begin(self, args: Any, state: Any, control: Any) -> Any:
        self._epoch += 1
        if self._epoch < self._first or control.should_training_stop:
            return control
        control = self._original["on_epoch_begin"](args, state, control)
        if self._epoch == self._first and self._batches:
            # The order of this epoch's samples may come from the generators as they were when it began.
            self._begin_again()
        else:
            self._running = {
                "epoch": self._epoch,
                "steps": state.global_step,
                "generators": captured(),
                "own": {} if self._loader is None else self._loader.own_generators(),
            }
        return control

    def _on_train_end(self, args: Any, state: Any, control: Any) -> Any:
        if self._bound is not None:
            self._bound.end_training()
        args.eval_on_start = self._eval_on_start
        return self._original["on_train_end"](args, state, control)

    def _begin_again(self) -> None:
        """Set the generators and the samplers as they were when the resumed epoch began."""
        put_back(self._running["generators"])
        if self._loader is not None:
            self._loader.set_own_generators(self._running["own"])
            self._loader.epochs.set_samplers(self._samplers)

    # --- the repetition of what comes between the boundary and the next step ---

    def begin(self) -> None:
        """Put the values back that the Trainer sets at the beginning of training, and repeat what came after the boundary."""
        trainer, bound, restored = self.trainer, self._bound, self._restored
        if bound is not None:
            follow_loggers(bound.guard, trainer)  # the callbacks of report_to are set up by now
        if bound is None or restored is None:
            return
        self._restored = None
        # The event of training's beginning cleared some of the flags.
        for name, value in restored["flags"].items():
            setattr(trainer.control, name, value)
        trainer._tr_loss = restored["loss"].to(trainer._tr_loss.device)
        for name, value in restored["counts"].items():
            setattr(trainer, name, value)
        bound.put_generators_back()
        trainer.model_wrapped.train()  # as after a step: TRL's trainers choose by it what they log
        self._finish_step()
        control = trainer.control
        if self._batches >= self._whole or control.should_epoch_stop or control.should_training_stop:
            trainer.control = trainer.callback_handler.on_epoch_end(trainer.args, trainer.state, control)
            self._finish_step()
            self._first, self._batches = self._first + 1, 0
        bound.keep_generators()

    def evaluated(self, metrics: Mapping[str, Any]) -> None:
        """Pass the loss of an evaluation on. One before training has no guard."""
        if self._bound is not None and "eval_loss" in metrics:
            watch_validation_loss(self.guard, metrics["eval_loss"])

    def _finish_step(self) -> None:
        trainer, last = self.trainer, self._last
        self._original["_maybe_log_save_evaluate"](
            trainer._tr_loss, last["grad_norm"], trainer.model_wrapped, None, trainer.state.epoch, None, time.time(),
            learning_rate=last["learning_rate"],
        )  # fmt: skip


#: Counters and sums for the log that the Trainer, or a subclass of TRL, keeps in attributes of its own.
_COUNTS = (
    "_total_loss_scalar",
    "_globalstep_last_logged",
    "_initial_global_step",
    "_initial_num_input_tokens_seen",
    "current_flos",
    "_metrics",
    "_total_train_tokens",
)


def _begin_callback(binding: TrainerBinding) -> Any:
    """Return a callback that is told of training's beginning, after the script's callbacks, and of evaluations."""
    from transformers import TrainerCallback

    class SpotguardCallback(TrainerCallback):
        def on_train_begin(self, *given: Any, **more: Any) -> None:
            binding.begin()

        def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **more: Any) -> None:
            binding.evaluated(metrics or {})

    return SpotguardCallback()
