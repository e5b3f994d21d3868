"""A loop of your own with Hugging Face accelerate: `Accelerator.prepare`, `accelerate launch`, gradient accumulation.

accelerate counts micro-batches in the Accelerator and passes in its loaders, and seeds samplers by that count.
`register` takes both along, looks through accelerate's wrappers of optimizer and scheduler, and marks a boundary only where
the gradients were synchronized.
"""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import TYPE_CHECKING, Any

from .binding import GuardedLoop, unwrapped
from .refusals import check_distribution, check_members, refused

if TYPE_CHECKING:
    from accelerate import Accelerator

__all__ = ["AcceleratedGuard", "register"]


def register(
    accelerator: Accelerator,
    model: Any,
    optimizer: Any,
    loader: Any,
    scheduler: Any = None,
    *,
    store: str | PathLike[str] | None = None,
    run_id: str | None = None,
    **more: Any,
) -> AcceleratedGuard:
    """Register what `accelerator.prepare` returned, and restore the newest checkpoint.

    Args:
        accelerator: the Accelerator of this process.
        model: the prepared model.
        optimizer: the prepared optimizer.
        loader: the prepared loader; from now on, train on the batches of `guard.loader`.
        scheduler: the prepared scheduler, if there is one.
        store: place of the checkpoints, as `spotguard.register` takes it.
        run_id: name of the run, as `spotguard.register` takes it.
        **more: other values, as `spotguard.register` takes them.

    Returns:
        A guard whose `step` may be called after every micro-batch.

    Raises:
        UsageError: the loader or the distribution is one with which no resume is exact.

    Example:
        >>> model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
        >>> guard = spotguard.integrations.accelerate.register(accelerator, model, optimizer, loader, scheduler)
        >>> for epoch in range(guard.epoch, 3):
        ...     for batch in guard.loader:
        ...         with accelerator.accumulate(model):
        ...             loss = loss_of(model, batch)
        ...             accelerator.backward(loss)
        ...             optimizer.step()
        ...             scheduler.step()
        ...             optimizer.zero_grad()
        ...         guard.step(loss=loss)
    """
    _check(accelerator)
    values = {"model": model, "optimizer": unwrapped(optimizer), **more}
    if scheduler is not None:
        values["scheduler"] = getattr(scheduler, "scheduler", scheduler)
    if accelerator.scaler is not None:
        values["scaler"] = accelerator.scaler
    return AcceleratedGuard(accelerator, loader, values, store, run_id)


class AcceleratedGuard(GuardedLoop):
    """The guard of a loop that accelerate prepared."""

    def __init__(
        self,
        accelerator: Any,
        loader: Any,
        values: dict[str, Any],
        store: str | PathLike[str] | None,
        run_id: str | None,
    ) -> None:
        self._accelerator, self._values = accelerator, values
        super().__init__(loader, store, run_id)

    def step(self, *, loss: Any = None) -> None:
        """Mark a boundary if the last micro-batch completed a step, or a scaler left the step out.

        Args:
            loss: the loss of the last micro-batch, as `Guard.step` takes it; the step's is their mean.

        Raises:
            Preempted: the machine is going, and the state is committed.
            UsageError: `loss` is not one real number.
        """
        self._loss.add(loss)
        # `sync_gradients` stays true in a script that accumulates by hand, so the optimizer is asked, too.
        if self._accelerator.sync_gradients and (
            self.guard.in_step or self._accelerator.optimizer_step_was_skipped
        ):
            self.guard.step(loss=self._loss.take())

    # --- the protocol `Binding` ---

    def state(self) -> dict[str, Any]:
        return self._values | super().state()

    def position(self) -> dict[str, Any]:
        return {"micro_batches": self._accelerator.step}

    def resume(self, position: Mapping[str, Any]) -> None:
        self._accelerator.step = position["micro_batches"]


def _check(accelerator: Any) -> None:
    """Refuse by name what no resume makes exact.

    Raises:
        UsageError: an argument of the Accelerator, with the way out.
    """
    check_members("accelerate", accelerator, ["accumulate", "backward"])
    config = accelerator.dataloader_config
    if config.use_stateful_dataloader and not config.use_seedable_sampler:
        raise refused(
            "DataLoaderConfiguration(use_stateful_dataloader=True) shuffles in another order after a resume, unless "
            "use_seedable_sampler=True is passed too: pass both, or neither"
        )
    check_distribution("the Accelerator", accelerator, "pass FullyShardedDataParallelPlugin(fsdp_version=2)")
