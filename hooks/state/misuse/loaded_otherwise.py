"""The registered objects are asked again behind a restore, and compared with what was read.

An object's own `load_state_dict` may forget a value, round it, or write into another registered object. Training would go on from
another state than the saved one, and nothing would say so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ....providers.errors import StateError
from ...checkpoint.format.coverage import MergedTensor
from ...checkpoint.format.values.sameness import same
from ..inventory.looks import Looks, differing, is_as_read, looks
from ..inventory.walk import place
from ..parts.loaders.part import is_position
from ..parts.rng import RngPart
from ..parts.values import DictPart, Part, StatefulPart
from ..sharding.dtensor import is_dtensor, local
from ..state_tensor import StateTensor

#: A live tensor, its name in the checkpoint, and its address, strides and version once it was restored.
_Held = tuple[torch.Tensor, str, tuple[Any, ...]]


class LoadedOtherwise:
    """The comparison for one restore.

    Args:
        into: the memory that each tensor of the checkpoint was read into.
        entries: the checkpoint's tensors by name.
    """

    def __init__(self, into: Mapping[str, StateTensor], entries: Mapping[str, MergedTensor]) -> None:
        self._names = {id(each.tensor): name for name, each in into.items()}
        self._entries = entries
        self._saved: dict[str, Looks] = {}
        self._held: dict[str, list[_Held]] = {}
        #: One line for each object that says another state than it was given.
        self.said: list[str] = []

    def begin(self, part: Part, tree: Any) -> None:
        """Look at a tree before its object gets it."""
        if not _is_in_place(part) and not (isinstance(part, StatefulPart) and is_position(part.value)):
            self._saved[part.name] = looks(tree, classes=not isinstance(part, StatefulPart))

    def end(self, part: Part, tree: Any) -> None:
        """Note the memory of a restored object's tensors."""
        if _is_in_place(part):
            self._held[part.name] = [
                (live, self._names[id(saved)], _form(live))
                for live, saved in part.restored(tree)
                if id(saved) in self._names
            ]

    def compare(self, parts: Sequence[Part]) -> None:
        """Ask all parts for their state.

        Raises:
            StateError: a module, an optimizer, a tensor, a dict or a generator has another state than was read.
        """
        rng = next(part for part in parts if isinstance(part, RngPart))
        rng.at_boundary()
        generators = rng.tree()
        self._ask(rng)
        for part in parts:
            if isinstance(part, DictPart):
                part.at_boundary()  # together they show which of their values are one object
        for part in parts:
            if part is not rng and part.name in self._saved:
                try:
                    if not isinstance(part, DictPart):
                        part.at_boundary()
                except Exception:  # noqa: BLE001 - any code may run here; the first boundary raises this again, outside the load
                    continue
                rng.at_boundary()
                if moved := [key for key, state in generators.items() if same(state, rng.tree()[key])]:
                    self.said.append(
                        f"{part.name}: its state_dict() draws from the generators ({', '.join(moved)}), and spotguard calls it after "
                        "each step: have it draw from a generator of its own"
                    )
                    rng.put_back(generators)
                self._ask(part)
        for name, held in self._held.items():
            for tensor, saved, form in held:
                entry = self._entries[saved]
                if _form(tensor) == form or is_dtensor(tensor) or tuple(tensor.shape) != entry.shape:
                    continue
                if not is_as_read(entry, tensor):
                    raise StateError(
                        f"{saved} was restored, and is another value now: an object that was restored after {name} has written to it; "
                        f"register that object before {name}, or leave one of them out"
                    )

    def _ask(self, part: Part) -> None:
        if (saved := self._saved.get(part.name)) is None or part.said:
            return
        foreign = isinstance(part, StatefulPart)
        now = looks(part.tree(), classes=not foreign)
        if isinstance(part, RngPart):  # a library that was loaded since has a generator, too
            now = {way: look for way, look in now.items() if way[:1] in saved}
        other = [*differing(saved, now)]
        if other and foreign:
            part.at_boundary()  # what differs from call to call is no state
            volatile = {*differing(now, looks(part.tree(), classes=False))}
            other = [way for way in other if way not in volatile]
        if not other:
            return
        where = place(part.name, other[0])
        if isinstance(part, StatefulPart):
            self.said.append(
                f"{where} is another value after the restore than in the checkpoint: {type(part.value).__name__}.load_state_dict() does "
                "not take back what its state_dict() returns, so the resumed run may be another one"
            )
            return
        raise StateError(
            f"{where} was restored, and is another value now: an object that was restored after it has changed it; leave one of them "
            "out of register"
        )


def _is_in_place(part: Part) -> bool:
    """Return whether a save reads the part's tensors in place. Small ones are compared by value, as all others."""
    return part.by_name or bool(part.in_place())


def _form(tensor: torch.Tensor) -> tuple[Any, ...]:
    version = 0 if tensor.is_inference() else tensor._version
    return local(tensor).data_ptr(), tensor.stride(), version
