"""A module's entries against those at `register`: a buffer that got its shape later is made by a restore; what else has changed is said.

A restore fills the module that the script makes. So the script must make a layer, a shape or a tie again before `guard.restore()`, and
only the run that makes one later can say so. A buffer is another matter: the forward that gives it its tensor or its shape (as
quantization's observers and queues do) comes too late for a restore, and the module does not depend on which tensor it has.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from ...checkpoint.format.dtypes import dtype_name
from ..inventory.ties import typed
from ..state_tensor import StateTensor
from .module_entries import named_modules

log = logging.getLogger("spotguard")

#: The key of a tree that has the forms at `register` of the buffers that had another form when they were saved.
AT_REGISTER = "_at_register"


class EntryForm(NamedTuple):
    """The form of an entry, and the key of the first entry that is the same tensor."""

    form: tuple[str, ...]
    tied: str


def form(tensor: torch.Tensor) -> tuple[str, ...]:
    """Return a tensor's dtype and shape as a checkpoint keeps them."""
    return dtype_name(tensor.dtype), *map(str, tensor.shape)


class LateState:
    """The entries of one module.

    Args:
        name: the module's registered name.
        module: the module without its wrappers.
        buffers: its tensors at `register` that a restore may put another tensor in the place of, by key.
    """

    def __init__(self, name: str, module: nn.Module, buffers: Mapping[str, torch.Tensor]) -> None:
        self._name, self._module = name, module
        self._at_register = {key: form(tensor) for key, tensor in buffers.items()}
        #: The entries as of the last look; None before training begins. And the buffers that were None when it began.
        self._begun: dict[str, EntryForm] | None = None
        self._unmade: set[str] = set()

    # --- a restore ---

    def unmade(self) -> dict[str, tuple[dict[str, Any], str]]:
        """Return the places of the persistent buffers that are None now: key -> (the table, its key there)."""
        return {
            f"{prefix}.{key}".lstrip("."): (module._buffers, key)
            for prefix, module in named_modules(self._module)
            for key, buffer in module._buffers.items()
            if buffer is None and key not in module._non_persistent_buffers_set
        }

    def record(self, buffers: Iterable[tuple[str, torch.Tensor]]) -> dict[str, Any]:
        """Return what a tree keeps of the buffers that have another form than at `register`."""
        other = {
            key: self._at_register[key]
            for key, tensor in buffers
            if key in self._at_register and form(tensor) != self._at_register[key]
        }
        return {AT_REGISTER: other} if other else {}

    def to_make(self, tree: Mapping[str, Any], live: Mapping[str, torch.Tensor]) -> set[str]:
        """Return the buffers that had the same form at `register` in both lives, and another one in the checkpoint."""
        recorded = tree.get(AT_REGISTER)
        return {
            key
            for key, saved in (recorded.items() if isinstance(recorded, dict) else ())
            if key in live
            and saved == self._at_register.get(key)
            and isinstance(tree.get(key), torch.Tensor)
            and form(tree[key]) != form(live[key])
        }

    # --- training ---

    def begin(self, leaves: Mapping[str, StateTensor], live: Mapping[str, torch.Tensor]) -> None:
        """Note that training begins."""
        self._begun, self._unmade = _entries(leaves, live), {*self.unmade()}

    def say(self, leaves: Mapping[str, StateTensor], live: Mapping[str, torch.Tensor]) -> None:
        """Log what the script must do before its next restore, for each change of the entries since the last look."""
        if self._begun is None:
            return
        before, self._begun = self._begun, _entries(leaves, live)
        if new := [key for key in live if key not in before and key not in self._unmade]:
            log.warning(
                "%s.%s%s came into the module after guard.restore(), and a restore finds it only in a module that has it: put it there "
                "before guard.restore(), as by one forward pass before register [SG602]",
                self._name,
                new[0],
                _and_more(new),
            )
        if changes := [*self._changes(before, self._begun)]:
            log.warning(
                "%s%s since this step, and a restore fills the module that the script makes: do the same before guard.restore() [SG602]",
                changes[0],
                _and_more(changes),
            )

    def _changes(self, before: Mapping[str, EntryForm], now: Mapping[str, EntryForm]) -> Iterator[str]:
        for key, was in before.items():
            if key in self._unmade:  # a restore makes it, whatever becomes of it
                continue
            if (entry := now.get(key)) is None:
                yield f"{self._path(key)} is in the module no more"
            elif entry.form != was.form and key not in self._at_register:
                yield f"{self._path(key)} is {_shown(entry.form)}, not {_shown(was.form)},"
            elif was.tied != key == entry.tied:
                yield f"{self._path(key)} is no longer one tensor with {self._path(was.tied)}"
            elif was.tied == key != entry.tied:
                yield f"{self._path(key)} is one tensor with {self._path(entry.tied)}"

    def _path(self, key: str) -> str:
        return typed(f"{self._name}.{key}")


def _entries(leaves: Mapping[str, StateTensor], live: Mapping[str, torch.Tensor]) -> dict[str, EntryForm]:
    first: dict[int, str] = {}
    return {
        key: EntryForm(form(tensor), first.setdefault(id(leaves[key]), key)) for key, tensor in live.items()
    }


def _shown(entry: tuple[str, ...]) -> str:
    return f"{entry[0]} of shape ({', '.join(entry[1:])})"


def _and_more(found: Collection[str]) -> str:
    return f" and {len(found) - 1} more" if len(found) > 1 else ""
