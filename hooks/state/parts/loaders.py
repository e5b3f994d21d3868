"""torchdata's `StatefulDataLoader`: asked for its state only while it is under way.

Asking one that has not begun makes it begin: its workers start, and a seed is drawn from torch's generator,
earlier than in a run without us. And one that was told where to go on draws that seed when it makes its iterator,
where the uninterrupted run drew nothing: so that is done here, before the generators are put back.
"""

from __future__ import annotations

from typing import Any

from torch.utils.data import Sampler

from .values import StatefulPart, prove


def is_stateful_loader(value: object) -> bool:
    """Whether it is torchdata's loader, or a kind of it."""
    return hasattr(value, "_iterator") and any(
        cls.__module__.startswith("torchdata.") for cls in type(value).__mro__
    )


def is_position(value: object) -> bool:
    """Whether its state is a place among the samples that one rank of so many reads."""
    return is_stateful_loader(value) or isinstance(value, Sampler)


class LoaderPart(StatefulPart):
    """A loader; its tree is None while it has not begun."""

    def __init__(self, name: str, value: Any) -> None:
        super().__init__(name, value)
        self._proven = False

    def at_boundary(self) -> None:
        if self.value._iterator is None:
            return
        super().at_boundary()
        if not self._proven:
            prove(self.name, self._frozen)  # `register` had nothing to prove yet
            self._proven = True

    def put_back(self, tree: Any) -> None:
        self._frozen = tree
        if tree is not None:
            super().put_back(tree)
            self.value.state_dict()
        elif self.value._iterator is not None:
            super().put_back({})  # torchdata's word for "not begun"
