"""A registered `nn.Module`.

A save reads its parameters in place; the training thread copies its small buffers at each boundary.

`register` lists names and identities on the main thread. A boundary lists them again if the module's tables have
changed. In between, the part follows the storage that they refer to. `state_dict()` is never called within a step.
Off the main thread it sees a model in the middle of its forward; under FSDP2 it crashes there, or returns unsharded
tensors.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any, Self

import torch
from torch import nn

from ....providers.errors import CheckpointError, StateError
from ...checkpoint.tier import Tier
from ..changes.change_detector import ModuleTables
from ..inventory.frozen import freeze_of
from ..inventory.inner_tensors import description, inner
from ..inventory.looks import unlike_layout
from ..inventory.ties import memory_of
from ..memory_access import copy_into, unreadable
from ..sharding.ddp import declared
from ..sharding.dtensor import KnownTensor, RankOf, TargetMemory, group, local, state_tensor
from ..sharding.fsdp import SHARDED, let_go, shards
from ..sharding.saved_trees import SavedTrees
from ..state_tensor import StateTensor
from .boundary_copies import BoundaryCopies
from .late_state import AT_REGISTER, LateState
from .module_entries import (
    EXTRA_STATE,
    check_names,
    check_rows,
    entries_of,
    named_modules,
    plain_tensors,
    some,
    unwrap,
    warn_of_copies,
)
from .values import (
    COPY_AT_BOUNDARY,
    REFUSALS,
    Part,
    StatefulPart,
    check_fits,
    error_text,
)

log = logging.getLogger("spotguard")

#: (a table, the key in it, the name in the checkpoint).
Place = tuple[dict[str, Any], str, str]


def module_part(name: str, module: nn.Module, ranks: RankOf) -> Part:
    """Return the part for a module: in place if its state dict is its own tensors, by `state_dict` otherwise.

    Wrappers are unwrapped, so that a checkpoint of a compiled model restores into a plain one.
    """
    registered, module = module, unwrap(module)
    cls = type(module)
    if (
        cls.state_dict is not nn.Module.state_dict or cls.load_state_dict is not nn.Module.load_state_dict
    ) and not isinstance(module, torch.jit.ScriptModule):
        return StatefulPart(name, module)  # it defines its own state
    shards(name, module)  # refuse unsupported modules before asking for their state
    entries = entries_of(name, module)
    if entries is None:
        return StatefulPart(name, module)
    return ModulePart(name, module, entries, registered, ranks)


class ModulePart(Part):
    """Parameters and persistent buffers by name; extra state (`get_extra_state`) as plain values."""

    by_name = True

    def __init__(
        self, name: str, module: nn.Module, entries: dict[str, Any], registered: nn.Module, ranks: RankOf
    ) -> None:
        super().__init__(name)
        self._module = module
        #: The module with its wrappers, which declare the ranks that share its tensors.
        self._registered = registered
        self._ranks = ranks
        self._frozen_extra: dict[str, Any] = {}
        #: The ids of parameters that only a hooked optimizer changes. The registry sets them.
        self.stepped: frozenset[int] = frozenset()
        #: Keys of the buffers that the restore under way makes anew.
        self._to_make: set[str] = set()
        #: Whether the module may have changed since the last look at what is new.
        self._refreshed = True
        self._list(entries)
        self.refresh()
        buffers = {key: self._live[key] for _, own, key in self._places if own != SHARDED}
        self._late = LateState(name, module, buffers)
        if ranks.world > 1:
            warn_of_copies(name, self._live, self._declared, ranks.world)

    @property
    def training(self) -> bool:
        """Whether the module is in training mode."""
        return self._module.training

    def _list(self, entries: dict[str, Any]) -> None:
        self._tables = ModuleTables(self._module)
        #: key -> the live tensor; a tied weight appears under each of its keys.
        self._live = {path: each for k, v in entries.items() for path, each in plain_tensors(k, v)}
        #: key -> the parameter around an inner tensor.
        self._around = {path: v for k, v in entries.items() for path, _ in plain_tensors(k, v) if path != k}
        #: key -> a parameter with inner tensors, and its text.
        self._outer = {
            k: v for k, v in entries.items() if isinstance(v, torch.Tensor) and k not in self._live
        }
        self._descriptions = {k: description(f"{self.name}.{k}", v) for k, v in self._outer.items()}
        self._extra_keys = [k for k, v in entries.items() if not isinstance(v, torch.Tensor)]
        shared = declared(self._registered) if self._ranks.world > 1 else {}
        #: key -> the ranks that have the tensor too, if a wrapper declares them.
        self._outer_declared = {key: shared.get(id(entry)) for key, entry in self._outer.items()}
        self._declared = {
            key: shared.get(id(self._around.get(key, tensor))) for key, tensor in self._live.items()
        }
        self._shards = shards(self.name, self._module)
        #: The place of each buffer and parameter: a module may put another tensor there at any time.
        self._places = self._hung(operator.attrgetter("_buffers"))
        self._weights = self._hung(operator.attrgetter("_parameters"))
        self._weights += [
            (each.table, each.key, f"{key}.{each.path}")
            for key, p in self._outer.items()
            for each in inner(p)
        ]
        self._outer_places = [
            (module._parameters, key, outer, vars(outer))
            for prefix, module in named_modules(self._module)
            for key in module._parameters
            if (outer := self._outer.get(f"{prefix}.{key}".lstrip("."))) is not None
        ]

    def begin(self) -> None:
        """Note that training begins. What changes in the module from here on, the script must change before its next restore."""
        self._late.begin(self._leaf, self._live)

    def say_what_is_new(self) -> None:
        """Log what has changed in the module since training began, or since the last look."""
        if self._refreshed:
            self._refreshed = False
            self._late.say(self._leaf, self._live)

    def _list_anew(self) -> None:
        """List the module again: from here on a save has the layers and tensors added since `register`, and lacks
        those removed.
        """
        entries = entries_of(self.name, self._module)
        if entries is None:
            raise StateError(
                f"{self.name} got a part after register whose state_dict does not hold its own tensors; "
                "register the module when it is complete"
            )
        self._list(entries)
        self._frozen_extra = self._extra_state()

    def _hung(self, table: Callable[[nn.Module], dict[str, Any]]) -> list[Place]:
        # A module in two places appears twice here, so that each of its keys is followed.
        return [
            (shard, SHARDED, name)
            if (shard := self._shards.get((id(module), key))) is not None
            else (table(module), key, name)
            for prefix, module in named_modules(self._module)
            for key in table(module)
            if (name := f"{prefix}.{key}".lstrip(".")) in self._live
        ]

    def refresh(self) -> None:
        """Follow every change of the module: a layer added or removed, a buffer assigned anew, a parameter's storage
        moved (`.to()`, `.data = …`).

        On the training thread, or with it parked.
        """
        if not self._tables.same() or self._outer_moved():
            self._list_anew()
        for table, key, name in (*self._places, *self._weights):
            if table[key] is None:
                raise StateError(
                    f"{self.name}.{name} was a tensor at register and is None now; assign a tensor "
                    "without elements instead"
                )
            self._live[name] = table[key]
        #: Buffers, which forward changes (BatchNorm's statistics), and their copies. A buffer whose bytes are missing
        #: is not read: each save refuses it by name.
        self._buffers = [self._live[name] for _, _, name in self._places]
        small = sum(local(t).nbytes for t in self._buffers) <= COPY_AT_BOUNDARY
        self._gone = {id(t) for t in self._buffers if unreadable(local(t))}
        copied = [t for t in self._buffers if small and id(t) not in self._gone]
        self._copies = BoundaryCopies([local(t) for t in copied])
        read = dict(zip(map(id, copied), self._copies.live, strict=True))
        copies = dict(zip(map(id, copied), self._copies.tensors(), strict=True))
        span = self._span()
        #: key -> its state tensor, shared by tied keys: those of one tensor, or of one memory.
        self._leaf: dict[str, StateTensor] = {}
        named: dict[Hashable, StateTensor] = {}
        known: dict[int, KnownTensor] = {}
        places = {key: memory_of(tensor) for key, tensor in self._live.items()}
        entries = {key: self._around.get(key, tensor) for key, tensor in self._live.items()}
        stepped = {places[key] for key, entry in entries.items() if id(entry) in self.stepped}
        trained = {places[key] for key, entry in entries.items() if entry.requires_grad}
        for key, tensor in self._live.items():
            if (at := places[key]) not in named:
                if (copied_to := copies.get(id(tensor))) is not None:
                    read_from = copied_to.view(tensor.dtype)
                else:
                    read_from = local(tensor) if id(tensor) in self._gone else local(tensor).detach()
                still = copied_to is not None or at in stepped
                frozen = not still and isinstance(entries[key], torch.nn.Parameter) and at not in trained
                tier = Tier.FROZEN if frozen else Tier.WEIGHTS
                named[at] = state_tensor(
                    f"{self.name}/{key}",
                    tensor,
                    self._ranks,
                    self._declared[key],
                    span=span,
                    read_from=read_from,
                    still=still,
                    tier=tier,
                )
            known.setdefault(id(tensor), KnownTensor(f"{self.name}/{key}", tensor, self._declared[key], span))
            self._leaf[key] = named[at]
        for key, entry in self._outer.items():
            known.setdefault(
                id(entry), KnownTensor(f"{self.name}/{key}", entry, self._outer_declared[key], span)
            )
        self._refreshed = True
        self._known = known
        self._sources = [(t, read.get(id(t), self._leaf[k].tensor)) for k, t in self._live.items()]
        self._in_place = [t for t in self._live.values() if id(t) not in copies]

    def _span(self) -> frozenset[int]:
        """Return the ranks that hold a part of the module."""
        try:
            return frozenset(
                rank for key, tensor in self._live.items() for rank in group(tensor, self._declared[key])
            )
        except ValueError:
            return frozenset()  # `state_tensor` refuses this tensor, by name

    def moved(self) -> bool:
        """Return whether a tensor read in place is another object than at the last `refresh`, or a table has changed.

        (A buffer that is copied at boundaries may be replaced at any time.)
        """
        places = self._weights if self._copies.live else (*self._places, *self._weights)
        return (
            not self._tables.same()
            or self._outer_moved()
            or any(table.get(key) is not self._live[name] for table, key, name in places)
        )

    def _outer_moved(self) -> bool:
        # `torch.utils.swap_tensors` leaves the parameter in its place, and gives it other attributes.
        return any(
            table.get(key) is not outer or vars(outer) is not attributes
            for table, key, outer, attributes in self._outer_places
        )

    def named(self) -> dict[int, KnownTensor]:
        return self._known

    def in_place(self) -> list[torch.Tensor]:
        return self._in_place

    def sources(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return self._sources

    def restored(self, tree: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return [(tensor, tree[key]) for key, tensor in self._held_by(tree)]

    def outdated(self) -> bool:
        """Return whether only `refresh` can see a change: an entry added or removed, or memory lost.

        This is too slow for each step.
        """
        return bool(self._gone) or not self._tables.same()

    def at_boundary(self) -> None:
        if self._places:
            try:
                now = [place[key] for place, key, _ in self._places]
            except KeyError:  # a buffer was removed
                now = []
            if len(now) != len(self._buffers) or not all(map(operator.is_, self._buffers, now)):
                self.refresh()
            if not self._copies.stand():
                self.refresh()
            self._copies.take()
        if self._extra_keys:
            self._frozen_extra = self._extra_state()

    @property
    def trained(self) -> bool:
        """Whether a registered optimizer steps a parameter of the module."""
        return not self.stepped.isdisjoint(map(id, (*self._live.values(), *self._around.values())))

    def moved_buffers(self) -> list[str]:
        """Return the names of the copied buffers that are not those of the last boundary."""
        if not (self._copies.live and self._copies.stand()):
            return []
        places = [
            (place, t)
            for place, t in zip(self._places, self._buffers, strict=True)
            if id(t) not in self._gone
        ]
        return [
            f"{self.name}.{name}"
            for ((table, key, name), t), moved in zip(places, self._copies.moved(), strict=True)
            if moved or table.get(key) is not t
        ]

    def copied(self) -> Mapping[str, Any] | None:
        if self._copies.overwrites or len(self._copies.live) < len(self._buffers):
            return None  # buffers that are read in place change in forward
        known = {"_frozen_extra": self._frozen_extra, "_leaf": self._leaf, "_copies": self._copies}
        return {**known, "_taken": self._copies.taken}

    def as_of(self, copied: Mapping[str, Any]) -> Self:
        earlier = super().as_of(copied)
        by_address = earlier._copies.as_of(copied["_taken"])
        earlier._leaf = {key: each.read_from(by_address) for key, each in earlier._leaf.items()}
        earlier._copies = BoundaryCopies([])
        return earlier

    def _extra_state(self) -> dict[str, Any]:
        states: dict[str, Any] = {}
        for prefix, module in named_modules(self._module):
            if _has_extra_state(module):
                key = f"{prefix}.{EXTRA_STATE}".lstrip(".")
                states[key] = freeze_of(f"{self.name}.{key}", module.get_extra_state(), self.forms)
        return states

    def state_tensors(self) -> list[StateTensor]:
        self._copies.tensors()
        return list({state_tensor.name: state_tensor for state_tensor in self._leaf.values()}.values())

    def tree(self) -> Any:
        self._copies.tensors()
        tensors = {k: state_tensor.tensor for k, state_tensor in self._leaf.items()}
        late = self._late.record((key, tensors[key]) for _, _, key in self._places)
        return tensors | self._descriptions | self._frozen_extra | late

    def merge(self, trees: SavedTrees) -> Any:
        """Return each key from the first rank that has it.

        If this process is the only rank, also keep keys that it does not know.
        """
        if trees.alone:
            return trees.own
        wanted = self._keys | self._late.unmade().keys()
        merged: dict[str, Any] = {}
        for _, tree in trees.each():
            if not isinstance(tree, dict):
                return tree
            merged |= {
                k: v
                for k, v in tree.items()
                if k not in merged and (k in wanted or k == AT_REGISTER or self._ranks.world == 1)
            }
            if wanted <= merged.keys() and self._ranks.world > 1:
                break
        return merged

    @property
    def _keys(self) -> set[str]:
        return {*self._live, *self._outer, *self._extra_keys}

    def _held_by(self, tree: Any) -> list[tuple[str, torch.Tensor]]:
        return [(key, t) for key, t in self._live.items() if key in tree and key not in self._to_make]

    def below(self, path: str) -> set[str]:
        """Return the names of the entries at or below the path of a layer, such as `model.head`."""
        return {f"{self.name}/{key}" for key in self._keys if f"{self.name}.{key}.".startswith(f"{path}.")}

    def memory(self, tree: Any, name_of: Callable[[torch.Tensor], str]) -> Iterator[TargetMemory]:
        """Yield the memory that a save would read: live weights, and the copies of small buffers."""
        for key, tensor in self._held_by(tree):
            yield TargetMemory.of(tree[key], tensor, self._leaf[key].tensor, f"{self.name}.{key}")

    def targets(self, tree: Any) -> None:
        if not isinstance(tree, dict):
            raise StateError(f"{self.name} is a module here and a {type(tree).__name__} in the checkpoint")
        unmade = self._late.unmade().keys() - self._keys
        late = {AT_REGISTER} | {key for key in unmade if isinstance(tree.get(key), torch.Tensor)}
        check_names(self.name, self._keys, set(tree) - late, self.may_lack)
        self._to_make = self._late.to_make(tree, self._live)
        for key, text in self._descriptions.items():
            if tree.get(key, text) != text:
                raise StateError(
                    f"{self.name}.{key} is a {text} here and a {tree[key]} in the checkpoint; quantize the model as "
                    "the run did that saved it, or choose another run id [SG602]"
                )
        lacks = self._keys - set(tree)
        self.said = (
            [f"{self.name}: {some('missing in the checkpoint', lacks)}they keep their values"]
            if lacks
            else []
        )
        for key, tensor in self._held_by(tree):
            if not isinstance(tree[key], torch.Tensor):
                raise CheckpointError(
                    f"{self.name}.{key}: the checkpoint has a {type(tree[key]).__name__}, not a tensor"
                )
            # At `register` the tree's tensor is the state tensor itself. For a DTensor that is the shard, and it fits.
            if tree[key] is not self._leaf[key].tensor:
                check_rows(f"{self.name}.{key}", self._module, tensor, tree[key])
                check_fits(f"{self.name}.{key}", tensor, tree[key])
                self.said += unlike_layout(f"{self.name}.{key}", tensor, tree[key])

    def put_back(self, tree: Any) -> None:
        let_go(self._module)
        beside = next(iter(self._live.values()), None)
        unmade = self._late.unmade()
        made = {key: (table, own) for table, own, key in self._places if key in self._to_make}
        for key, (table, own) in (unmade | made).items():
            if key in tree:  # a forward made it, and comes too late for a restore
                table[own] = tree[key] if beside is None else tree[key].to(local(beside).device)
        for key, tensor in self._held_by(tree):
            copy_into(local(tensor), local(tree[key]))
        for prefix, module in named_modules(self._module):
            key = f"{prefix}.{EXTRA_STATE}".lstrip(".")
            if key in tree and _has_extra_state(module):
                try:
                    module.set_extra_state(tree[key])
                except REFUSALS as error:
                    raise StateError(
                        f"{self.name}: {type(module).__name__}.set_extra_state refuses the checkpoint's state "
                        f"({error_text(error)}); register the same kind of module that was saved"
                    ) from error


def _has_extra_state(module: nn.Module) -> bool:
    return type(module).get_extra_state is not nn.Module.get_extra_state
