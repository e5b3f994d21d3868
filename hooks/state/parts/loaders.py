"""torchdata's `StatefulDataLoader`, asked for its state only while it iterates.

A loader that has not begun would begin when asked. Its workers start, and it draws a seed from torch's generator,
earlier than in a run without spotguard. A loader with a restored position draws that seed when it makes its iterator.
The uninterrupted run drew nothing there. So the restore makes that iterator before it restores the generators.
"""

from __future__ import annotations

from typing import Any

from torch.utils.data import Sampler

from .values import StatefulPart, prove


def is_stateful_loader(value: object) -> bool:
    """Return whether the value is torchdata's loader, or a subclass of it."""
    return hasattr(value, "_iterator") and any(
        cls.__module__.startswith("torchdata.") for cls in type(value).__mro__
    )


def is_position(value: object) -> bool:
    """Return whether the value's state is a position among the samples that one of N ranks reads."""
    return is_stateful_loader(value) or isinstance(value, Sampler)


class LoaderPart(StatefulPart):
    """A stateful loader. Its tree is None until it has begun."""

    def __init__(self, name: str, value: Any) -> None:
        super().__init__(name, value)
        self._proven = False

    def at_boundary(self) -> None:
        if self.value._iterator is None:
            return
        super().at_boundary()
        if not self._proven:
            prove(self.name, self._frozen)  # `register` had no state to prove yet
            self._proven = True

    def put_back(self, tree: Any) -> None:
        self._frozen = tree
        if tree is not None:
            super().put_back(tree)
            self.value.state_dict()
        elif self.value._iterator is not None:
            super().put_back({})  # torchdata's form of "not begun"
