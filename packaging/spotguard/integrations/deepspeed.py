"""A loop around DeepSpeed's engine: ZeRO stages 0 to 3, mixed precision, accumulation, clipping, the `deepspeed` launcher.

The engine keeps what it trains apart from the module: masters in float32, moments of flat partitions, and at stage 3 the weights
too. `register` hands all of it to spotguard, counts the engine's steps, and marks a boundary where the engine has stepped. It calls
no collective of DeepSpeed, so a rank can save while another one is lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import TYPE_CHECKING, Any

import torch

from spotguard.hooks.state.sharding.ddp import declare_replicas
from spotguard.providers.errors import UsageError

from .binding import GuardedLoop
from .refusals import check_members, refused

if TYPE_CHECKING:
    from deepspeed import DeepSpeedEngine

__all__ = ["EngineGuard", "register"]

#: Counters of the engine. The first three are in DeepSpeed's own checkpoints too; `micro_steps` tells where an accumulation ends.
_COUNTERS = ("global_steps", "global_samples", "skipped_steps", "micro_steps")
#: What `set_train_batch_size` and `set_train_micro_batch_size` change in the engine's configuration.
_SIZES = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
#: The wrappers of optimizers whose state is known, by the names of their classes.
_WRAPPERS = (
    "BF16_Optimizer",
    "DeepSpeedZeroOptimizer",
    "DeepSpeedZeroOptimizer_Stage3",
    "FP16_Optimizer",
    "FP16_UnfusedOptimizer",
)


def register(
    engine: DeepSpeedEngine,
    loader: Any = None,
    *,
    store: str | PathLike[str] | None = None,
    run_id: str | None = None,
    **more: Any,
) -> EngineGuard:
    """Register a DeepSpeed engine, and restore the newest checkpoint. Every rank calls it.

    Args:
        engine: what `deepspeed.initialize` returned first.
        loader: the loader of the training data; from now on, train on the batches of `guard.loader`. Default: the engine's
            `training_dataloader`, if `initialize` made one.
        store: place of the checkpoints, as `spotguard.register` takes it.
        run_id: name of the run, as `spotguard.register` takes it.
        **more: other values, as `spotguard.register` takes them.

    Returns:
        A guard whose `step` may be called after every micro-batch.

    Raises:
        UsageError: the engine trains in a way that is not known to resume exactly; the message names it.
        StateError: the checkpoint is of another number of ranks.

    Example:
        >>> engine, _, loader, _ = deepspeed.initialize(model=model, training_data=dataset, config="ds.json")
        >>> guard = spotguard.integrations.deepspeed.register(engine, loader)
        >>> for epoch in range(guard.epoch, 3):
        ...     for batch in guard.loader:
        ...         loss = loss_of(engine, batch)
        ...         engine.backward(loss)
        ...         engine.step()
        ...         guard.step(loss=loss)
    """
    _check(engine)
    if loader is None:
        loader = engine.training_dataloader
    return EngineGuard(engine, loader, more, store, run_id)


class EngineGuard(GuardedLoop):
    """The guard of a loop around a DeepSpeed engine."""

    def __init__(
        self,
        engine: Any,
        loader: Any,
        more: dict[str, Any],
        store: str | PathLike[str] | None,
        run_id: str | None,
    ) -> None:
        self._engine, self._more = engine, more
        self._sharded = engine.zero_optimization_stage() == 3
        super().__init__(loader, store, run_id)
        self._marked = engine.global_steps
        if self.done and self._sharded:
            self._gather_anew()

    def step(self, *, loss: Any = None) -> None:
        """Mark a boundary if the engine has stepped since the last one.

        Args:
            loss: the loss of the last micro-batch, as `Guard.step` takes it; the step's is their mean.

        Raises:
            Preempted: the machine is going, and the state is committed.
            UsageError: `loss` is not one real number.
        """
        self._loss.add(loss)
        if self._engine.global_steps != self._marked:
            self._marked = self._engine.global_steps
            self.guard.step(loss=self._loss.take())

    # --- the protocol `Binding` ---

    def state(self) -> dict[str, Any]:
        engine = self._engine
        values = self._more | super().state()
        if self._sharded:
            values |= _shards(engine)
        else:
            declare_replicas(engine.module, range(engine.world_size))
            values["model"] = engine.module
            values |= _masters(engine)
        values["optimizer"] = engine.basic_optimizer
        if engine.lr_scheduler is not None:
            values["scheduler"] = engine.lr_scheduler
        # torch's autocast in float16: the engine has the scaler at stage 0, and ZeRO's optimizer at the others. Older
        # versions have no such autocast.
        scalers = (
            getattr(engine, "torch_autocast_z0_gradscaler", None),
            getattr(engine.optimizer, "torch_autocast_gradscaler", None),
        )
        if scaler := next(filter(None, scalers), None):
            values["scaler"] = scaler
        return values

    def position(self) -> dict[str, Any]:
        return {
            "counters": {name: getattr(self._engine, name) for name in _COUNTERS},
            "sizes": {name: getattr(self._engine._config, name) for name in _SIZES},
            "loss_scale": _plain(_loss_scaler(self._engine)),
        }

    def resume(self, position: Mapping[str, Any]) -> None:
        for name, value in position["counters"].items():
            setattr(self._engine, name, value)
        for name, value in position["sizes"].items():
            setattr(self._engine._config, name, value)
        for name, value in position["loss_scale"].items():
            setattr(_loss_scaler(self._engine), name, value)

    def _gather_anew(self) -> None:
        """Drop the gathered copies of small weights, which predate the restore: the next forward gathers them."""
        kept = [p for p in self._engine.optimizer.persistent_parameters if p.data.numel()]
        if kept:
            kept[0].partition(kept)


def _shards(engine: Any) -> dict[str, Any]:
    """The tensors of stage 3: this rank's parts of the weights and masters, the weights that are not trained, the buffers."""
    zero = engine.optimizer
    values: dict[str, Any] = {"buffers": _Buffers(engine.module)}
    for at, (weights, masters) in enumerate(
        zip(zero.fp16_partitioned_groups_flat, zero.fp32_partitioned_groups_flat, strict=True)
    ):
        values[f"weights{at}"], values[f"masters{at}"] = weights, masters
    frozen = (p.ds_tensor for p in engine.module.parameters() if not p.requires_grad)
    values |= {f"frozen{at}": tensor for at, tensor in enumerate(frozen)}
    return values


def _masters(engine: Any) -> dict[str, torch.Tensor]:
    """The tensors that the optimizer steps instead of the module's parameters."""
    own = {id(p) for p in engine.module.parameters()}
    stepped = (p for group in engine.basic_optimizer.param_groups for p in group["params"])
    return {f"masters{at}": p for at, p in enumerate(p for p in stepped if id(p) not in own)}


class _Buffers:
    """The persistent buffers of a module whose parameters are sharded. A module may put a new tensor in a buffer's place."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {
            f"{prefix}.{name}": buffer
            for prefix, each in self._module.named_modules()
            for name, buffer in each.named_buffers(recurse=False)
            if name not in each._non_persistent_buffers_set
        }

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        here = self.state_dict()
        for name, buffer in state.items():
            here[name].copy_(buffer)


def _loss_scaler(engine: Any) -> Any:
    """The object that holds the loss scale in float16. Without ZeRO, another attribute has it."""
    optimizer = engine.optimizer
    return getattr(optimizer, "loss_scaler", None) or getattr(optimizer, "loss_scale_config", None)


def _plain(scaler: Any) -> dict[str, Any]:
    """The plain values of a loss scaler."""
    values = {} if scaler is None else vars(scaler)
    return {name: value for name, value in values.items() if isinstance(value, (bool, int, float))}


def _check(engine: Any) -> None:
    """Refuse by name what is not known to resume exactly.

    Raises:
        UsageError: with the way out.
    """
    kind = type(engine).__name__
    if kind != "DeepSpeedEngine":
        raise UsageError(
            f"expected the DeepSpeedEngine that deepspeed.initialize() returns first, got {kind}: pipeline and hybrid engines "
            "keep their own checkpoints; save them from spotguard.on_notice"
        )
    check_members("deepspeed", engine, ["zero_optimization_stage", "module_state_dict"])
    wrapper = type(engine.optimizer).__name__
    if engine.basic_optimizer is None or not (
        wrapper in _WRAPPERS or isinstance(engine.optimizer, torch.optim.Optimizer)
    ):
        raise refused(
            f"the engine's optimizer is {wrapper}, and it is not known what that keeps: use torch's or DeepSpeed's Adam with ZeRO "
            "stage 0 to 3, or save DeepSpeed's own checkpoints from spotguard.on_notice"
        )
    of_data = torch.distributed.get_process_group_ranks(engine.seq_data_parallel_group)
    extra = any(
        type(each).get_extra_state is not torch.nn.Module.get_extra_state for each in engine.module.modules()
    )
    zero = engine._config.zero_config
    unread = {
        "model parallelism": len(of_data) < engine.world_size,
        "stage 3 with a module's get_extra_state()": extra and engine.zero_optimization_stage() == 3,
        "offload_optimizer": zero.offload_optimizer is not None,
        "offload_param": zero.offload_param is not None,
        "zero_hpz_partition_size": zero.zero_hpz_partition_size > 1,
        "zero_quantized_weights": zero.zero_quantized_weights,
        "moe": engine.has_moe_layers,
        "curriculum_learning": engine.curriculum_learning_enabled(),
        "random_ltd": engine.random_ltd_enabled(),
        "deepcompile": getattr(engine, "is_deepcompile_enabled", bool)(),
    }
    for name, is_on in unread.items():
        if is_on:
            raise refused(
                f"DeepSpeed's {name} keeps state that spotguard does not read: leave it out, or save DeepSpeed's own "
                "checkpoints from spotguard.on_notice"
            )
