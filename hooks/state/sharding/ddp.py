"""The replicas that DistributedDataParallel declares: which ranks hold the same parameters, and whose buffers are the job's.

DDP does not treat its buffers as it treats its parameters. BatchNorm's statistics differ between replicas, and before
each forward all replicas take those of the group's first rank. So that rank's buffers are the job's, and it alone
writes them. If DDP does not broadcast a buffer (`broadcast_buffers=False`, or a name in
`_ddp_params_and_buffers_to_ignore`), nothing is declared for it: each rank has its own.

An adapter declares for a framework that reduces gradients without DDP.
"""

from __future__ import annotations

from collections.abc import Iterable
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ....providers.errors import StateError
from .dtensor import DeclaredReplicas

#: Declarations by the id of a tensor.
Declared = dict[int, DeclaredReplicas]

#: The states of torch's communication hooks that change from step to step, by class.
_CHANGING = ("PowerSGDState", "PostLocalSGDState")

_by_adapters: WeakKeyDictionary[nn.Module, tuple[int, ...]] = WeakKeyDictionary()


def declare_replicas(module: nn.Module, ranks: Iterable[int]) -> None:
    """Declare that these ranks hold equal parameters of a module, as if DDP wrapped it. Each rank's buffers are its own."""
    _by_adapters[module] = tuple(sorted(ranks))


def declared(module: nn.Module) -> Declared:
    """Return what the wrappers in and around a module declare of its tensors.

    Raises:
        StateError: a wrapper hides where its shards are in the global tensor.
    """
    declarations: Declared = {}
    for each in module.modules():
        if isinstance(each, DistributedDataParallel):
            _ask(each, declarations)
        elif len(ranks := _by_adapters.get(each, ())) > 1:
            declarations |= {id(p): DeclaredReplicas(ranks, ranks) for p in each.parameters()}
    return declarations


def _ask(wrapper: DistributedDataParallel, declarations: Declared) -> None:
    group = torch.distributed.get_process_group_ranks(wrapper.process_group)
    if len(group) == 1:
        return  # a group of one rank shares nothing
    for _, state in wrapper._comm_hooks:
        if any(base.__name__ in _CHANGING for base in type(state).__mro__):
            raise StateError(
                f"DistributedDataParallel has a communication hook whose state ({type(state).__name__}) no checkpoint has; use one "
                "without a state, as in fp16_compress_hook"
            )
    ranks, first = tuple(sorted(group)), (group[0],)
    ignored = set(wrapper.parameters_to_ignore)
    for name, parameter in wrapper.module.named_parameters():
        if hasattr(parameter, "_st_info"):
            raise StateError(
                f"{name} is a tensor-parallel shard inside DistributedDataParallel, which hides its place "
                "in the tensor; shard both ways with fully_shard over a mesh of two dimensions"
            )
        if name not in ignored:
            declarations[id(parameter)] = DeclaredReplicas(ranks, ranks)
    if wrapper.broadcast_buffers:
        for name, buffer in wrapper.module.named_buffers():
            if name not in ignored:
                declarations[id(buffer)] = DeclaredReplicas(ranks, first)
