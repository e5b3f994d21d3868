"""What DistributedDataParallel declares: which ranks hold the same parameters, and who says what a buffer is.

Its buffers are not split among the ranks as its parameters are: BatchNorm's statistics differ between replicas, and
before each forward all of them take those of the group's first rank. So that rank's are the job's, and it alone writes
them. Where they are not broadcast (`broadcast_buffers=False`, or a name in `_ddp_params_and_buffers_to_ignore`) nobody
declares anything: each rank has its own.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ....providers.errors import StateError
from .dtensor import DeclaredReplicas

#: By the id of a tensor.
Declared = dict[int, DeclaredReplicas]


def declared(module: nn.Module) -> Declared:
    """What the wrappers in and around a module say of its tensors.

    Raises:
        StateError: a wrapper that keeps its shards where nobody can name them.
    """
    found: Declared = {}
    for each in module.modules():
        if isinstance(each, DistributedDataParallel):
            _ask(each, found)
    return found


def _ask(wrapper: DistributedDataParallel, found: Declared) -> None:
    group = torch.distributed.get_process_group_ranks(wrapper.process_group)
    if len(group) == 1:
        return  # alone: it has its own
    ranks, first = tuple(sorted(group)), (group[0],)
    ignored = set(wrapper.parameters_to_ignore)
    for name, parameter in wrapper.module.named_parameters():
        if hasattr(parameter, "_st_info"):
            raise StateError(
                f"{name} is a tensor-parallel shard inside DistributedDataParallel, which hides where it lies; "
                "shard both ways with fully_shard over a mesh of two dimensions"
            )
        if name not in ignored:
            found[id(parameter)] = DeclaredReplicas(ranks, ranks)
    if wrapper.broadcast_buffers:
        for name, buffer in wrapper.module.named_buffers():
            if name not in ignored:
                found[id(buffer)] = DeclaredReplicas(ranks, first)
