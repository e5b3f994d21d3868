"""The place where `fully_shard` keeps a module's shards, also during forward and backward.

The module's own tables hold the shards only between steps, and not always then. In forward and backward they hold the
gathered weights. After an evaluation the root module's gathered weights stay there. FSDP2 itself always keeps the
shards, in the same objects, so this module reads those. (FSDP2's public call, `reshard`, frees the gathered weights:
that is right for a restore only.)
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import nn

from ....providers.errors import StateError

#: The attribute of FSDP2's own parameter record.
SHARDED = "sharded_param"


def shards(name: str, module: nn.Module) -> dict[tuple[int, str], dict[str, Any]]:
    """Return the tables that hold the sharded parameters, each parameter under the key `SHARDED`.

    Args:
        name: the module's name, for an error.
        module: a module that may be sharded or contain sharded parts.

    Returns:
        (id of the owning submodule, parameter name) -> its table.

    Raises:
        StateError: FSDP1 wraps the module, or this torch keeps the shards elsewhere.
    """
    tables: dict[tuple[int, str], dict[str, Any]] = {}
    fsdp1 = sys.modules.get("torch.distributed.fsdp.fully_sharded_data_parallel")
    fsdp2 = sys.modules.get("torch.distributed.fsdp")
    for each in module.modules():
        if fsdp1 is not None and isinstance(each, fsdp1.FullyShardedDataParallel):
            raise StateError(
                f"{name} is wrapped by FullyShardedDataParallel, whose state_dict() gathers weights from "
                "all ranks; use fully_shard (FSDP2)"
            )
        if fsdp2 is not None and isinstance(each, fsdp2.FSDPModule):
            for record in _records(name, each):
                info = record._module_info
                table = vars(record)
                for owner, key in (
                    (info.module, info.param_name),
                    *zip(info.shared_modules, info.shared_param_names, strict=True),
                ):
                    tables[id(owner), key] = table
    return tables


def let_go(module: nn.Module) -> None:
    """Make forward gather the weights again: those that an evaluation left behind predate the restore. No message is sent."""
    fsdp2 = sys.modules.get("torch.distributed.fsdp")
    for each in module.modules():
        if fsdp2 is not None and isinstance(each, fsdp2.FSDPModule):
            each.reshard()


def _records(name: str, module: Any) -> list[Any]:
    try:
        state = module._get_fsdp_state()
        groups = vars(state).get("_fsdp_param_groups")
        if groups is None:  # before torch 2.11 there was one group
            groups = [state._fsdp_param_group] if state._fsdp_param_group is not None else []
        records = [record for group in groups for record in group.fsdp_params]
        missing = any(SHARDED not in vars(record) for record in records)
    except AttributeError:
        records, missing = [], True
    if missing:
        raise StateError(
            f"{name}: torch {torch.__version__} keeps the shards of fully_shard where this version of "
            "spotguard does not find them; use another version of one of them"
        )
    return records
