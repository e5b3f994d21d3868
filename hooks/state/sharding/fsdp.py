"""Where `fully_shard` keeps the shards of a module while it computes.

In the module's own tables lie the shards only between steps, and not always then: in forward and backward the gathered
weights lie there, and after an evaluation the root's stay. The shards are held by FSDP2 itself, by the same objects all
along, and there they are asked for. (Its public word for it, `reshard`, takes the
gathered ones away: right for a restore, and for nothing else.)
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import nn

from ....providers.errors import StateError

#: The attribute of FSDP2's own record of a parameter.
SHARDED = "sharded_param"


def shards(name: str, module: nn.Module) -> dict[tuple[int, str], dict[str, Any]]:
    """(id of a module inside, parameter's name) -> the table that holds its shard, under `SHARDED`.

    Args:
        name: the module's, for an error.
        module: perhaps sharded, or with parts that are.

    Raises:
        StateError: it is wrapped by FSDP1, or this torch keeps them elsewhere.
    """
    found: dict[tuple[int, str], dict[str, Any]] = {}
    one = sys.modules.get("torch.distributed.fsdp.fully_sharded_data_parallel")
    two = sys.modules.get("torch.distributed.fsdp")
    for each in module.modules():
        if one is not None and isinstance(each, one.FullyShardedDataParallel):
            raise StateError(
                f"{name} is wrapped by FullyShardedDataParallel, which gathers weights from all ranks to say what they "
                "are; use fully_shard (FSDP2)"
            )
        if two is not None and isinstance(each, two.FSDPModule):
            for record in _records(name, each):
                info = record._module_info
                table = vars(record)
                for owner, key in (
                    (info.module, info.param_name),
                    *zip(info.shared_modules, info.shared_param_names, strict=True),
                ):
                    found[id(owner), key] = table
    return found


def let_go(module: nn.Module) -> None:
    """Have forward gather the weights anew: those that an evaluation left behind are of before a restore. Nothing is sent."""
    two = sys.modules.get("torch.distributed.fsdp")
    for each in module.modules():
        if two is not None and isinstance(each, two.FSDPModule):
            each.reshard()


def _records(name: str, module: Any) -> list[Any]:
    try:
        state = module._get_fsdp_state()
        groups = vars(state).get("_fsdp_param_groups")
        if groups is None:  # before 2.11 there was one
            groups = [state._fsdp_param_group] if state._fsdp_param_group is not None else []
        records = [record for group in groups for record in group.fsdp_params]
        missing = any(SHARDED not in vars(record) for record in records)
    except AttributeError:
        records, missing = [], True
    if missing:
        raise StateError(
            f"{name}: torch {torch.__version__} keeps the shards of fully_shard where spotguard does not look; use "
            "another version of one of them"
        )
    return records
