"""The entries of a module's state dict, and the module inside wrappers that only rename them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ....providers.errors import StateError
from ..inventory.inner_tensors import inner
from .values import check_restorable, check_savable

#: The key of `get_extra_state` in `nn.Module.state_dict`.
EXTRA_STATE = "_extra_state"


def entries_of(name: str, module: nn.Module) -> dict[str, Any] | None:
    """Return the entries of a module's state dict: its own tensors, and extra states.

    None if a hook computes another value: then only the module's own `state_dict` can produce it.
    """
    entries = module.state_dict(keep_vars=True)
    own = {id(t) for t in module.parameters()} | {id(t) for t in module.buffers()}
    for key, value in entries.items():
        if nn.parameter.is_lazy(value):
            raise StateError(
                f"{name}.{key} is not initialized yet; run one forward pass (or give its sizes) before register"
            )
        for path, tensor in plain_tensors(key, value):
            check_savable(f"{name}.{path}", tensor, _instead(value))
        extra = not isinstance(value, torch.Tensor) and key.rpartition(".")[2] == EXTRA_STATE
        if not extra and id(value) not in own:
            return None
        for path, tensor in plain_tensors(key, value):
            check_restorable(f"{name}.{path}", tensor)
    return entries


def plain_tensors(key: str, value: Any) -> list[tuple[str, torch.Tensor]]:
    """Return the tensor under this key, or the inner tensors of a parameter whose bytes are in these."""
    if not isinstance(value, torch.Tensor):
        return []
    inside = inner(value) if isinstance(value, nn.Parameter) else []
    return [(f"{key}.{each.path}", each.tensor) for each in inside] or [(key, value)]


def _instead(value: Any) -> str:
    """Return what to do instead of saving a parameter whose bytes cannot be read."""
    if not isinstance(value, nn.Parameter) or value.requires_grad:
        return "use a plain tensor, or leave it out"
    return (
        "as it is frozen, register the trained parameters instead of the model, as in "
        "trained=nn.ParameterDict({key.replace('.', '/'): p for key, p in model.named_parameters() if p.requires_grad})"
    )


def unwrap(module: nn.Module) -> nn.Module:
    """Return the module inside `torch.compile`, DistributedDataParallel, and wrappers that only show its state dict."""
    while True:
        if isinstance(module, nn.parallel.DistributedDataParallel):
            module = module.module
        elif isinstance(getattr(module, "_orig_mod", None), nn.Module):  # torch.compile's wrapper
            module = module._orig_mod  # type: ignore[assignment]
        elif (inside := _shown(module)) is not None:
            module = inside
        else:
            return module


def _shown(module: nn.Module) -> nn.Module | None:
    """Return the inner module if a wrapper's own `state_dict` has the same tensors under the same names (Fabric's)."""
    inside = getattr(module, "module", None)
    if type(module).state_dict is nn.Module.state_dict or not isinstance(inside, nn.Module):
        return None
    try:
        ours, theirs = (dict(each.state_dict(keep_vars=True)) for each in (module, inside))
    except TypeError:  # the wrapper's own method takes other arguments: it defines its own state
        return None
    alike = all(ours[key] is theirs[key] or key.endswith(EXTRA_STATE) for key in ours.keys() & theirs.keys())
    return inside if alike and ours.keys() == theirs.keys() else None
