"""Where `fully_shard` keeps the shards of a module while it computes.

In the module's own tables lie the shards only between steps, and not always then: in forward and backward the gathered
weights lie there, and after an evaluation the root's stay. The shards are held by FSDP2 itself, by the same objects all
along, and there they are asked for. (Its public word for it, `reshard`, would take the gathered ones away.)
"""

from __future__ import annotations

import sys
from typing import Any

from torch import nn

from ...providers.errors import StateError

#: The attribute of FSDP2's own record of a parameter.
SHARDED = "sharded_param"


def shards(module: nn.Module) -> dict[tuple[int, str], dict[str, Any]]:
    """(id of a module inside, parameter's name) -> the table that holds its shard, under `SHARDED`.

    Raises:
        StateError: it is wrapped by FSDP1, or this torch keeps them elsewhere.
    """
    found: dict[tuple[int, str], dict[str, Any]] = {}
    one = sys.modules.get("torch.distributed.fsdp.fully_sharded_data_parallel")
    two = sys.modules.get("torch.distributed.fsdp")
    for each in module.modules():
        if one is not None and isinstance(each, one.FullyShardedDataParallel):
            raise StateError(
                "FullyShardedDataParallel gathers its weights to say what they are, which no emergency has time "
                "for; use fully_shard (FSDP2)"
            )
        if two is not None and isinstance(each, two.FSDPModule):
            for record in _records(each):
                info = record._module_info
                table = vars(record)
                for owner, name in (
                    (info.module, info.param_name),
                    *zip(info.shared_modules, info.shared_param_names, strict=True),
                ):
                    found[id(owner), name] = table
    return found


def _records(module: Any) -> list[Any]:
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
            "this version of torch keeps fully_shard's shards where spotguard does not know them; "
            "use a version that spotguard's documentation names"
        )
    return records
