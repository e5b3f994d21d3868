"""Lightning's Trainer: `Trainer(callbacks=[SpotguardCallback()])`.

Lightning restores in two ways, and neither is exact: its checkpoints have no generators, and after an epoch's last batch its loops
skip what follows. So this adapter loads no loop by Lightning's own restart. It lets the interrupted epoch begin as any epoch does,
from the generators of its beginning, takes the batches that were trained without training on them, and goes on behind them.

It replaces five methods of one Trainer's loops:

- `fit_loop._load_combined_loader_states` and `epoch_loop.on_run_start` come right before the iterator of the first epoch and of
  each later one is made: note the generators.
- `epoch_loop.run` runs one epoch: of the interrupted one, the rest.
- `epoch_loop.on_advance_end` follows each batch, before validation: the boundary, where an optimizer has stepped and none gathers.
- `fit_loop.on_run_end` follows the last epoch, before the callbacks of training's end, which may upload or replace weights.
"""

from __future__ import annotations

import importlib
import logging
import operator
import re
import sys
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

from spotguard.hooks.state.parts.loaders import ResumableLoader
from spotguard.hooks.state.parts.loaders.drivers import keeps_workers

from . import lightning_results
from .binding import Bound, StepLoss, captured, put_back, watch_validation_loss
from .lightning_gradients import GatheredGradients
from .marks.loggers import follow_loggers
from .refusals import check_lightning, check_lightning_strategy, check_members, of_lightning, refused

if TYPE_CHECKING:
    from lightning.pytorch.callbacks import Callback

    from spotguard.hooks.guard import Guard

#: The package of the script's Trainer: the newer name, or the older one, which has classes of its own.
_PACKAGE = "pytorch_lightning" if "pytorch_lightning" in sys.modules else "lightning.pytorch"
call = importlib.import_module(f"{_PACKAGE}.trainer.call")
if not TYPE_CHECKING:
    Callback = importlib.import_module(f"{_PACKAGE}.callbacks").Callback

log = logging.getLogger("spotguard")

#: Names under which scripts log their validation loss.
_VALIDATION_LOSS = re.compile(r"val(id(ation)?)?[_/]loss")

__all__ = ["LightningBinding", "SpotguardCallback"]


class SpotguardCallback(Callback):
    """The callback that guards `trainer.fit`.

    Args:
        store: place of the checkpoints, as `spotguard.register` takes it.
        run_id: name of the run, as `spotguard.register` takes it.
        **more: other values, as `spotguard.register` takes them.

    Attributes:
        binding: the binding, from the beginning of `fit` on; its `guard` is the guard.

    Example:
        >>> trainer = Trainer(max_epochs=3, callbacks=[SpotguardCallback()])
        >>> trainer.fit(model, loader)
    """

    binding: LightningBinding | None = None
    _unnamed: Sequence[Any] = ()

    def __init__(
        self, store: str | PathLike[str] | None = None, *, run_id: str | None = None, **more: Any
    ) -> None:
        self._store = store
        self._run_id, self._more = run_id, more

    def detach(self) -> None:
        """End the guard, after its training: the next Trainer's is another run's."""
        if self.binding is not None:
            self.binding.guard.close()

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        # Lightning calls this before the `setup` of each ModelCheckpoint, which names its directory.
        self._unnamed = [
            each for each in trainer.checkpoint_callbacks if getattr(each, "dirpath", "") is None
        ]

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        if self.binding is not None:
            raise refused(
                "fit() was called twice on one Trainer, whose loops keep what the first one counted: make a Trainer for each, with a "
                "SpotguardCallback and a run id of its own"
            )
        if trainer._checkpoint_connector._loaded_checkpoint:
            raise refused(
                "Lightning has loaded a checkpoint of its own (ckpt_path, or one that it found by itself), and would mix it with "
                "what spotguard restores: leave ckpt_path out; load pretrained weights into the module before fit()"
            )
        check_lightning_strategy(trainer.strategy)
        check_lightning(trainer, pl_module, Callback)
        self.binding = LightningBinding(trainer, self._more, self._store, self._run_id, self._unnamed)
        follow_loggers(self.binding.guard, trainer)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        # With manual optimization, the module returns what it likes.
        if self.binding is not None and isinstance(outputs, Mapping):
            self.binding.loss.add_of_framework(outputs.get("loss"))

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        if self.binding is not None and not trainer.sanity_checking:
            logged = trainer.callback_metrics
            if name := next(filter(_VALIDATION_LOSS.fullmatch, logged), None):
                watch_validation_loss(self.binding.guard, logged[name])

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        # Lightning tears the strategy down before the error goes on, which moves the module to the CPU.
        if self.binding is not None and isinstance(exception, Exception):
            self.binding.guard.fail(exception)
        if self.binding is not None:
            self.binding.files.leave()


class LightningBinding:
    """The training of one `trainer.fit`.

    Attributes:
        trainer: the Trainer.
        guard: the guard.
        loss: the loss of the step that is under way.
        files: the files of `ModelCheckpoint`.
    """

    def __init__(
        self,
        trainer: Any,
        more: dict[str, Any],
        store: str | PathLike[str] | None,
        run_id: str | None,
        unnamed: Sequence[Any],
    ) -> None:
        self.trainer, self._more = trainer, more
        # Automatic optimization has divided each micro-batch's.
        self.loss = StepLoss(mean=not trainer.lightning_module.automatic_optimization)
        self._fit, self._epoch_loop = trainer.fit_loop, trainer.fit_loop.epoch_loop
        check_members("lightning", self._fit, ["_load_combined_loader_states", "on_run_end"])
        check_members(
            "lightning",
            self._epoch_loop,
            [
                "run",
                "on_run_start",
                "on_advance_end",
                "advance",
                "on_iteration_done",
                "_num_ready_batches_reached",
            ],
        )
        check_members("lightning", self._epoch_loop.val_loop, ["setup_data"])
        #: The generators when the running epoch made its iterator: the global ones, and those of the loaders.
        self._epoch_began: dict[str, Any] = {}
        #: The restored position, until training goes on from it.
        self._restored: Mapping[str, Any] | None = None
        #: By loader of the validation, whether the saved run kept its workers; empty once they are as they were.
        self._kept: list[bool] = []
        self._marked = 0
        self._gathered = GatheredGradients(trainer)
        self.files = lightning_results.CheckpointFiles(trainer, unnamed)
        self._bound = Bound(self, store, run_id, lightning_results.metrics(trainer.lightning_module).values())
        self.guard: Guard = self._bound.guard
        self.files.check_best(self.guard.view.run_id)
        self.files.follow(self.guard.view.run_id)
        self._load_states = self._fit._load_combined_loader_states
        self._fit._load_combined_loader_states = self.load_combined_loader_states
        self._on_run_end = self._fit.on_run_end
        self._fit.on_run_end = self.on_run_end
        self._setup_validation = self._epoch_loop.val_loop.setup_data
        self._epoch_loop.val_loop.setup_data = self.setup_validation
        for name in ("run", "on_run_start", "on_advance_end"):
            setattr(self, f"_{name}", getattr(self._epoch_loop, name))
            setattr(self._epoch_loop, name, getattr(self, name))

    _run: Any
    _on_run_start: Any
    _on_advance_end: Any

    # --- the protocol `Binding` ---

    def state(self) -> dict[str, Any]:
        trainer = self.trainer
        optimizers = {f"optimizer{at}": each for at, each in enumerate(trainer.optimizers)}
        schedulers = {
            f"scheduler{at}": each.scheduler for at, each in enumerate(trainer.lr_scheduler_configs)
        }
        values = {"model": trainer.strategy.model, **optimizers, **schedulers, **self._more}
        data = trainer.datamodule
        if data is not None and not of_lightning(type(data).state_dict):
            values["datamodule"] = data  # it has a state of its own
        return values

    def position(self) -> dict[str, Any]:
        if self._restored is not None:
            return dict(self._restored)
        trainer = self.trainer
        return {
            "epoch": self._fit.epoch_progress.current.processed,
            "loop": self._epoch_loop.state_dict(),
            "callbacks": call._call_callbacks_state_dict(trainer),
            "precision": trainer.precision_plugin.state_dict(),
            "results": lightning_results.collected(trainer),
            "gathered": self._gathered.state(),
            "files": self.files.state(),
            "epoch_began": self._epoch_began,
            "should_stop": trainer.should_stop,
            "validation": [keeps_workers(each) for each in _flattened(self._epoch_loop.val_loop)],
        }

    def resume(self, position: Mapping[str, Any]) -> None:
        self._restored = position
        self.files.resume(position["files"])  # before the callbacks, which compare the directories
        progress = self._fit.epoch_progress
        for each in (progress.total, progress.current):
            each.ready = each.started = each.processed = each.completed = position["epoch"]
        trainer = self.trainer
        call._call_callbacks_load_state_dict(trainer, {"callbacks": position["callbacks"]})
        trainer.precision_plugin.load_state_dict(position["precision"])
        self._kept = position["validation"]

    # --- the methods of the loops that this object replaces ---

    def load_combined_loader_states(self) -> None:
        self._load_states()
        combined = self._fit._combined_loader
        if (
            combined is not None
            and combined._mode == "max_size_cycle"
            and len({operator.length_hint(each) for each in combined.flattened}) > 1
        ):
            raise refused(
                "several loaders of unequal length: Lightning begins the shorter one anew in mid-epoch, from generators that no "
                'resume finds again; pass CombinedLoader(loaders, "min_size"), or loaders of equal length'
            )
        self._note_generators()

    def on_run_start(self, fetcher: Any) -> None:
        if self.trainer.current_epoch > 0:
            self._note_generators()
        self._on_run_start(fetcher)

    def on_advance_end(self, fetcher: Any) -> None:
        counting, last = self._gathered.count_here(), self._is_last()
        # SWA's pass for the statistics of batch norm counts a step, and trains nothing. A resume behind it would not find them.
        trains = not self._fit._skip_backward
        if trains and self.trainer.global_step != self._marked and (last or not counting):
            self._marked = self.trainer.global_step
            self._bound.step(self.loss.take(), last=last)
        self._on_advance_end(fetcher)
        self._gathered.look()

    def _is_last(self) -> bool:
        """Whether training ends behind this batch, as far as its arguments tell."""
        trainer = self.trainer
        # SWA may add a pass without steps, which begins with other weights.
        ends = {self._fit.max_epochs, *(getattr(each, "_max_epochs", -1) for each in trainer.callbacks)}
        return 0 <= trainer.max_steps <= trainer.global_step or (
            self._epoch_loop._num_ready_batches_reached()
            and self._fit.epoch_progress.current.processed + 1 in ends
        )

    def on_run_end(self) -> None:
        self._bound.end_training()
        self._on_run_end()
        self.files.leave()

    def setup_validation(self) -> None:
        self._setup_validation()
        for loader, kept in zip(_loaders(self._epoch_loop.val_loop), self._kept, strict=False):
            loader.align_workers(kept)
        self._kept = []

    def run(self, fetcher: Any) -> None:
        if self._restored is None:
            self._run(fetcher)
            return
        loop, restored = self._epoch_loop, self._restored
        self._on_run_start(fetcher)
        self._skip_trained_batches(fetcher, restored)
        loop.load_state_dict(restored["loop"])
        for each in (loop, loop.val_loop, loop.automatic_optimization, loop.manual_optimization):
            each.on_iteration_done()  # this is no restart by Lightning's own rules
        lightning_results.put_back(self.trainer, restored["results"])
        self._marked = self.trainer.global_step
        self.trainer.should_stop = restored["should_stop"]
        self._epoch_began = restored["epoch_began"]
        self._gathered.resume(restored["gathered"])
        self._restored = None
        try:
            self._on_advance_end(fetcher)  # what came after the boundary: validation, plateau schedulers
            while not loop.done:
                loop.advance(fetcher)
                self.on_advance_end(fetcher)
        except StopIteration:
            pass
        finally:
            loop.on_iteration_done()

    def _skip_trained_batches(self, fetcher: Any, restored: Mapping[str, Any]) -> None:
        began = restored["epoch_began"]
        loaders = _loaders(self._fit)
        for loader, kept in zip(loaders, began["kept"], strict=True):
            loader.align_workers(kept)
        put_back(began["global"])
        for loader, own in zip(loaders, began["loaders"], strict=True):
            loader.set_own_generators(own)
        iter(fetcher)
        for _ in range(restored["loop"]["batch_progress"]["current"]["ready"]):
            next(fetcher)
        self._bound.put_generators_back()

    def _note_generators(self) -> None:
        loaders = _loaders(self._fit)
        self._epoch_began = {
            "global": captured(),
            "loaders": [each.own_generators() for each in loaders],
            "kept": [keeps_workers(each) for each in _flattened(self._fit)],
        }


def _loaders(loop: Any) -> list[ResumableLoader]:
    """The loaders of a loop, as what knows their generators and workers."""
    return [ResumableLoader(each) for each in _flattened(loop)]


def _flattened(loop: Any) -> list[Any]:
    combined = loop._combined_loader
    return [] if combined is None else combined.flattened
