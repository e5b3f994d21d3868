"""Horovod: `hvd.DistributedOptimizer`, `horovodrun`.

Horovod averages gradients as DistributedDataParallel does, so spotguard guards its ranks as it guards DDP's: every rank
registers, any rank's notice saves all of them, and each rank restores what it had. Two things are missing for that, and
`register` adds them:

- The store through which ranks agree. A torch process group provides it; Horovod has none. `register` makes one, and
  destroys it when the ranks have met: libraries that find a process group reduce over it (torchmetrics, SyncBatchNorm).
- The declaration that all ranks hold the same parameters, so that a checkpoint has them once. Horovod does not broadcast
  buffers: each rank has its own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from typing import TYPE_CHECKING, Any

import horovod.torch as hvd
import torch
from torch import distributed

from spotguard.hooks.consensus.topology import this_machine
from spotguard.hooks.register import register as register_state
from spotguard.hooks.state.sharding.ddp import declare_replicas
from spotguard.providers.errors import UsageError

from .refusals import check_members, refused

if TYPE_CHECKING:
    from spotguard.hooks.guard import Guard
    from spotguard.hooks.save.request import SavedCheckpoint

__all__ = ["HorovodGuard", "register"]


def register(
    model: torch.nn.Module,
    optimizer: Any,
    scheduler: Any = None,
    *,
    store: str | PathLike[str] | None = None,
    run_id: str | None = None,
    **more: Any,
) -> HorovodGuard:
    """Register this rank's training, and restore the newest checkpoint.

    Call it on all ranks, after `hvd.init()` and after Horovod's own broadcasts of parameters and optimizer state.

    Args:
        model: the model, whose parameters are alike on all ranks.
        optimizer: the optimizer that `hvd.DistributedOptimizer` returned.
        scheduler: the scheduler, if there is one.
        store: place of the checkpoints, as `spotguard.register` takes it.
        run_id: name of the run, as `spotguard.register` takes it.
        **more: other values, as `spotguard.register` takes them, such as `loader=spotguard.ResumableLoader(loader)`.

    Returns:
        A guard whose `step` follows `optimizer.step()`.

    Raises:
        UsageError: Horovod is used in a way with which no resume is exact; the message has the way out.

    Example:
        >>> optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
        >>> hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        >>> guard = spotguard.integrations.horovod.register(model, optimizer)
        >>> for step in range(guard.done, total):
        ...     optimizer.zero_grad()
        ...     loss_of(model, batch(step)).backward()
        ...     optimizer.step()
        ...     guard.step()
    """
    _check(optimizer)
    _check_replicas(model)
    declare_replicas(model, range(hvd.size()))
    values = {"model": model, "optimizer": optimizer, **more}
    if scheduler is not None:
        values["scheduler"] = scheduler
    with _process_group():
        guard = register_state(store, run_id=run_id, **values)
        return HorovodGuard(guard, optimizer)


class HorovodGuard:
    """The guard of one of Horovod's ranks.

    Attributes:
        guard: the guard beneath, for everything else.
        done: the optimizer steps that were completed before this start.
    """

    def __init__(self, guard: Guard, optimizer: Any) -> None:
        self.guard = guard
        self._optimizer = optimizer
        self.done = guard.restore()

    def step(self, *, loss: Any = None) -> None:
        """Mark a boundary. Call it on all ranks, after `optimizer.step()`.

        Args:
            loss: the loss of this step, as `Guard.step` takes it.

        Raises:
            Preempted: the machine is going, and the state is committed.
            UsageError: gradients wait for `optimizer.step()`. No checkpoint has them. Or `loss` is not one real number.
        """
        if self._optimizer._handles:
            raise UsageError(
                "guard.step() was called between loss.backward() and optimizer.step(), where gradients wait that no checkpoint "
                f"has (backward_passes_per_step is {self._optimizer.backward_passes_per_step}): call it after optimizer.step()"
            )
        self.guard.step(loss=loss)

    def save(self) -> SavedCheckpoint:
        """Save now, as `Guard.save` does. Call it on all ranks."""
        return self.guard.save()


@contextmanager
def _process_group() -> Iterator[None]:
    """Give Horovod's ranks a torch process group for as long as the block, unless the script has made one.

    Raises:
        UsageError: the script's process group has other ranks.
    """
    if hvd.size() == 1:
        yield
        return
    if distributed.is_initialized():
        theirs = (distributed.get_rank(), distributed.get_world_size())
        if theirs != (hvd.rank(), hvd.size()):
            raise UsageError(
                f"this process is rank {hvd.rank()} of {hvd.size()} in Horovod and rank {theirs[0]} of {theirs[1]} in "
                "torch.distributed: make the process group with rank=hvd.rank() and world_size=hvd.size(), or none"
            )
        yield
        return
    if iface := os.environ.get("HOROVOD_GLOO_IFACE"):  # horovodrun found it to be one that all machines reach
        os.environ.setdefault("GLOO_SOCKET_IFNAME", iface)
    distributed.init_process_group("gloo", store=_store(), rank=hvd.rank(), world_size=hvd.size())
    try:
        yield
    finally:
        distributed.destroy_process_group()


def _store() -> Any:
    """Return this rank's connection to a store that rank 0's process serves. The guard keeps it."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    one_machine = hvd.local_size() == hvd.size()
    place, served = None, None
    if hvd.rank() == 0:
        address = "127.0.0.1" if one_machine else this_machine("").address
        served = TCPStore(address, 0, hvd.size(), is_master=True, wait_for_workers=False)
        place = (address, served.port)
    # By its own name: Horovod otherwise takes the type's, which differs between the ranks, and then waits without end.
    address, port = hvd.broadcast_object(place, root_rank=0, name="spotguard.store")
    return served or TCPStore(address, port, hvd.size(), wait_for_workers=False)


def _check(optimizer: Any) -> None:
    """Refuse by name what no resume makes exact.

    Raises:
        UsageError: a use of Horovod, with the way out.
    """
    if not hvd.is_initialized():
        raise UsageError("register() was called before hvd.init(): call hvd.init() first, on all ranks")
    if os.environ.get("HOROVOD_ELASTIC") == "1":
        raise refused(
            "elastic Horovod changes the number of ranks inside a process, which spotguard cannot follow: start horovodrun "
            "with -np alone, without --min-np and --host-discovery-script; spotguard run restarts it after a preemption"
        )
    if not hasattr(optimizer, "backward_passes_per_step"):
        raise refused(
            f"optimizer is a plain {type(optimizer).__name__}: pass what hvd.DistributedOptimizer returned, because that one "
            "has the moments"
        )
    if hasattr(optimizer, "_starting_models"):
        raise refused(
            "optimizer was made with op=hvd.Adasum, which steps during the backward pass: pass op=hvd.Average or op=hvd.Sum"
        )
    check_members("horovod", optimizer, ["synchronize", "_make_hook"])
    if optimizer.process_set.process_set_id != 0:
        raise refused(
            "optimizer was made with a process_set, so not all ranks hold the same parameters: leave process_set out, or "
            "use spotguard.on_notice to learn of the notice"
        )


def _check_replicas(model: torch.nn.Module) -> None:
    """Refuse a model whose parameters differ between ranks: a checkpoint has those of one rank.

    Raises:
        UsageError: a parameter differs.
    """
    names, parameters = zip(*model.named_parameters(), strict=True)
    sums = [p.detach().reshape(-1).view(torch.uint8).sum(dtype=torch.int64) for p in parameters]
    of_ranks = hvd.allgather(torch.stack(sums).cpu()[None], name="spotguard.replicas")
    differ = (of_ranks != of_ranks[0]).any(dim=0).nonzero()
    if len(differ):
        raise UsageError(
            f"model.{names[differ[0].item()]} differs between ranks: call hvd.broadcast_parameters(model.state_dict(), "
            "root_rank=0) before register()"
        )
