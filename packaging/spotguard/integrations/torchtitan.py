"""torchtitan's Trainer: `--override.imports spotguard.integrations.torchtitan.guarded`, or `attach(trainer)`.

torchtitan calls `checkpointer.load` before its loop, and `checkpointer.save` after each step, whether or not its own checkpoints
are enabled. So these two methods of one checkpoint manager are all that this adapter replaces:

- `load`: register everything and restore. Only if there is no checkpoint of spotguard, load what torchtitan would load.
- `save`: the boundary. torchtitan's own checkpoint and the validation follow it, and a resumed run repeats them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from os import PathLike
from typing import TYPE_CHECKING, Any

from torchtitan.components.checkpointer import BaseCheckpointManager
from torchtitan.config import derive, override

from spotguard.hooks.state.parts.loaders import ResumableLoader

from .binding import Bound
from .refusals import check_members, refused

if TYPE_CHECKING:
    from torchtitan.trainer import Trainer

    from spotguard.hooks.guard import Guard

__all__ = ["TitanBinding", "attach", "guarded"]


def attach(
    trainer: Trainer, store: str | PathLike[str] | None = None, *, run_id: str | None = None
) -> TitanBinding:
    """Guard the one `trainer.train()` that follows: it resumes bit for bit.

    Args:
        trainer: a Trainer that has not trained yet.
        store: place of the checkpoints, as `spotguard.register` takes it.
        run_id: name of the run, as `spotguard.register` takes it.

    Returns:
        The binding; its `guard` is there once training begins.

    Raises:
        UsageError: this version of torchtitan lacks a method.

    Example:
        >>> trainer = ConfigManager().parse_args().build()
        >>> spotguard.integrations.torchtitan.attach(trainer)
        >>> trainer.train()
    """
    return TitanBinding(trainer, trainer.checkpointer, store, run_id)


@override(target=BaseCheckpointManager.Config, description="spotguard")  # type: ignore[untyped-decorator]
def guarded(config: Any, store: str | None = None, run_id: str | None = None) -> Any:
    """Return the config of a checkpoint manager that is guarded once it is built.

    torchtitan calls it for `--override.imports`, with the arguments that stand there as JSON.
    """
    kind = type(config)

    class GuardedConfig(kind):  # type: ignore[misc, valid-type] # the class of whichever manager the user chose
        __slots__ = ()

        def build(self, **given: Any) -> Any:
            manager = kind.build(self, **given)
            TitanBinding(given["states"]["train_state"], manager, store, run_id)
            return manager

    return derive(config, GuardedConfig)


class TitanBinding:
    """The training of one Trainer.

    Attributes:
        trainer: the Trainer.
        guard: the guard, from the beginning of training on.
    """

    guard: Guard

    def __init__(
        self, trainer: Any, manager: Any, store: str | PathLike[str] | None, run_id: str | None
    ) -> None:
        check_members("torchtitan", manager, ["load", "save"])
        check_members("torchtitan", trainer, ["state_dict", "load_state_dict"])
        self.trainer, self._store, self._run_id = trainer, store, run_id
        self._bound: Bound | None = None
        self._load, self._save = manager.load, manager.save
        manager.load, manager.save = self.load, self.save
        trainer.spotguard = self  # `guarded` returns to torchtitan, and a script finds the guard here
        # Without own checkpoints no worker of the loader tells its position, and a resume would load all batches again.
        if not getattr(trainer.dataloader, "snapshot_every_n_steps", 1):
            trainer.dataloader.snapshot_every_n_steps = 1
        trainer.dataloader = ResumableLoader(trainer.dataloader)  # training begins its iterator after `load`

    # --- the protocol `Binding` ---

    def state(self) -> dict[str, Any]:
        trainer = self.trainer
        parts = trainer.model_parts
        names = ["model"] if len(parts) == 1 else [f"model{at}" for at in range(len(parts))]
        return {
            **dict(zip(names, parts, strict=True)),
            "optimizer": trainer.optimizers,
            "schedulers": trainer.lr_schedulers,
            "loader": trainer.dataloader,
        }

    def position(self) -> dict[str, Any]:
        return dict(self.trainer.state_dict())

    def resume(self, position: Mapping[str, Any]) -> None:
        self.trainer.load_state_dict(dict(position))

    # --- the methods of the checkpoint manager that this object replaces ---

    def load(self, step: int = -1) -> bool:
        if self._bound is not None:
            raise refused(
                "trainer.train() was called twice, and a restart does not know which one to resume: make a Trainer and a "
                "process for each, with a run id of its own"
            )
        with _own_tensors(self.trainer.model_parts):
            self._bound = bound = Bound(self, self._store, self._run_id)
        self.guard = bound.guard
        if not bound.done:
            loaded = bool(self._load(step))
            if loaded:
                self.guard.restore()  # what was loaded is the state of the first boundary
            return loaded
        self._finish_step()
        return True

    def save(self, curr_step: int, last_step: bool = False) -> bool:
        if self._bound is not None:
            self._bound.step(None, last=last_step)
        return bool(self._save(curr_step, last_step=last_step))

    def _finish_step(self) -> None:
        """Repeat what came after the restored boundary: torchtitan's own checkpoint, and the validation."""
        trainer = self.trainer
        config, step = trainer.config, trainer.step
        self._save(step, last_step=step == config.training.steps)
        if config.validator.enable and trainer.validator.should_validate(step):
            trainer.validator.validate(trainer.model_parts, step)


@contextmanager
def _own_tensors(parts: list[Any]) -> Iterator[None]:
    """Let `state_dict` of the model return the module's own tensors, which a save reads in place.

    torchtitan's fused layers (`wqkv`) have hooks that compute other tensors, gathered from all ranks, for its own checkpoints.
    Hooks of torch only rename.
    """
    tables = [module._state_dict_hooks for part in parts for module in part.modules()]
    kept = [dict(table) for table in tables]
    for table in tables:
        for key, hook in [*table.items()]:
            if not getattr(hook, "__module__", "").startswith("torch."):
                del table[key]
    try:
        yield
    finally:
        for table, hooks in zip(tables, kept, strict=True):
            table.clear()
            table.update(hooks)
