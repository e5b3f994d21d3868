"""The entries of a module's state dict, and their names: those that the module would have without wrappers.

`torch.compile`, DistributedDataParallel, DataParallel, AveragedModel and activation checkpointing keep a module in an attribute
of their own. A checkpoint has no such attribute in its names, wherever it is in a path. So a script may wrap a model, or a part
of it, in one life and not in the next.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Set
from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from ....providers.errors import StateError
from ..inventory.inner_tensors import inner
from ..inventory.ties import typed
from ..sharding.dtensor import DeclaredReplicas, is_dtensor
from .values import check_restorable, check_savable

log = logging.getLogger("spotguard")

#: The key of `get_extra_state` in `nn.Module.state_dict`.
EXTRA_STATE = "_extra_state"


def entries_of(name: str, module: nn.Module) -> dict[str, Any] | None:
    """Return the entries of a module's state dict by name: its own tensors, and extra states.

    None if a hook computes another value: then only the module's own `state_dict` can produce it.
    """
    entries = {name_of(module, key): value for key, value in module.state_dict(keep_vars=True).items()}
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


def warn_of_copies(
    name: str, live: Mapping[str, torch.Tensor], declared: Mapping[str, DeclaredReplicas | None], world: int
) -> None:
    """Warn of parameters that each of several ranks saves, because nothing declares that the ranks share them."""
    alone = [
        key
        for key, tensor in live.items()
        if isinstance(tensor, nn.Parameter) and not is_dtensor(tensor) and declared[key] is None
    ]
    if alone:
        log.warning(
            "%s.%s and %d more parameters are neither DTensors nor in a DistributedDataParallel "
            "module: each of %d ranks saves its own copy; if they are replicas, register the "
            "DistributedDataParallel module",
            name,
            alone[0],
            len(alone) - 1,
            world,
        )


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


def named_modules(module: nn.Module, path: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Yield each module under each of its paths. A wrapper has the path of the module inside."""
    yield path, module
    inside = _inside(module)
    for key, child in module._modules.items():
        if child is not None:
            yield from named_modules(child, path if child is inside else f"{path}.{key}".lstrip("."))


def name_of(module: nn.Module, key: str) -> str:
    """Return the name of an entry of a module's state dict.

    Args:
        module: the module whose state dict has the entry.
        key: the entry's key there. The hooks of some wrappers have removed the wrapper's attribute from it.
    """
    at: nn.Module | None = module
    kept = []
    for word in key.split("."):
        while at is not None and word not in at._modules and (inside := _inside(at)) is not None:
            at = inside
        child = None if at is None else at._modules.get(word)
        if at is None or child is None or child is not _inside(at):
            kept.append(word)
        at = child
    return ".".join(kept)


def unwrap(module: nn.Module) -> nn.Module:
    """Return the module inside wrappers that have no tensors of their own."""
    while True:
        inside = None if module._parameters or module._buffers else _inside(module)
        if inside is None and (inside := _shown(module)) is None:
            return module
        module = inside


#: The attributes of wrappers whose class depends on the version of torch: those of `torch.compile` and `checkpoint_wrapper`.
_ATTRIBUTES = ("_orig_mod", "_checkpoint_wrapped_module")


def _inside(module: nn.Module) -> nn.Module | None:
    """Return the module that a wrapper keeps in an attribute of its own; None for any other module."""
    if isinstance(module, (nn.parallel.DistributedDataParallel, nn.DataParallel, AveragedModel)):
        inside = module._modules["module"]
    else:
        inside = next((module._modules[key] for key in _ATTRIBUTES if key in module._modules), None)
    # An average of an average has two counts, which need two names.
    return None if inside is None or module._buffers.keys() & inside._buffers.keys() else inside


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


# --- the entries of a checkpoint against those of a module ---


def check_names(name: str, here: Set[str], saved: Set[str], may_lack: Set[str]) -> None:
    """Raise `StateError` unless a checkpoint has the entries of a module, but for those that it may lack.

    Args:
        name: the module's registered name.
        here: the names of the module's entries.
        saved: those of the checkpoint's.
        may_lack: full names, as in `model/head.weight`.
    """
    lacks, unknown = here - saved, saved - here
    if not unknown and {f"{name}/{key}" for key in lacks} <= may_lack:
        return
    layer = f"{name}.{min(lacks).rpartition('.')[0]}".rstrip(".") if lacks else ""
    new = f", or, if the layer is new, call guard.restore(missing=({layer!r},))" if lacks else ""
    raise StateError(
        f"{name} does not fit the checkpoint: {some('missing there', lacks)}{some('unknown here', unknown)}restore into the model "
        f"it was saved from, choose another run id{new} [SG602]"
    )


def check_rows(path: str, module: nn.Module, here: torch.Tensor, saved: torch.Tensor) -> None:
    """Raise `StateError` for an embedding that has other rows than the checkpoint's: a tokenizer has got more words."""
    if here.shape[:1] == saved.shape[:1] or here.shape[1:] != saved.shape[1:] or here.dtype != saved.dtype:
        return
    kinds = (nn.Embedding, nn.EmbeddingBag)
    if any(each._parameters["weight"] is here for each in module.modules() if isinstance(each, kinds)):
        rows, layer = saved.shape[0], typed(path.rpartition(".")[0])
        raise StateError(
            f"{path} is an embedding of {here.shape[0]} rows here and of {rows} in the checkpoint, so it was resized in between; "
            f"give it {rows} rows before the optimizer is made, as in {layer} = torch.nn.Embedding({rows}, {saved.shape[1]}), and "
            "resize it only behind guard.restore() [SG602]"
        )


def some(what: str, keys: Set[str]) -> str:
    """Return the first of these names after a word for them; "" if there are none."""
    if not keys:
        return ""
    shown = ", ".join(sorted(keys)[:3]) + (f" and {len(keys) - 3} more" if len(keys) > 3 else "")
    return f"{what}: {shown}; "
