"""The random number generators that training draws from: python's, numpy's (where it is imported), torch's,
and each accelerator's. Copied at every boundary, put back by `restore`, so that dropout and shuffling go on
with the very next number.
"""

from __future__ import annotations

import random
import sys
from typing import Any

import torch

from ...providers.errors import CheckpointError, StateError
from ..format.leaf import Leaf
from .parts import REFUSALS, said


def capture() -> dict[str, Any]:
    """The states as they are now; nothing is drawn. About 20 µs with python, numpy and torch on a CPU."""
    states: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        states["numpy"] = numpy.random.get_state()
    # A device that was never used has no state worth keeping, and asking would initialize it.
    if torch.cuda.is_initialized():
        states["cuda"] = torch.cuda.get_rng_state_all()
    return states


def restore(states: dict[str, Any]) -> list[str]:
    """Put captured states back; returns the names of those that this process has no generator for."""
    left: list[str] = []
    for name, state in states.items():
        if name == "python":
            random.setstate(state)
        elif name == "torch":
            torch.set_rng_state(state)
        elif name == "numpy" and "numpy" in sys.modules:
            sys.modules["numpy"].random.set_state(state)
        elif name == "cuda" and torch.cuda.is_available() and len(state) == torch.cuda.device_count():
            torch.cuda.set_rng_state_all(state)
        else:
            left.append(name)
    return left


class RngPart:
    """The generators' states as a part of the registered state."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._frozen: dict[str, Any] = {}
        #: Saved states that `put_back` found no generator for.
        self.left_out: list[str] = []

    def at_boundary(self) -> None:
        self._frozen = capture()

    def leaves(self) -> list[Leaf]:
        return []

    def tree(self) -> Any:
        return self._frozen

    def targets(self, tree: Any) -> None:
        """Generators that this process lacks are left out, with a warning, by `put_back`."""
        if not isinstance(tree, dict):
            raise CheckpointError(f"{self.name}: the generators' states are a {type(tree).__name__}")
        try:
            _try_on(tree)
        except REFUSALS as error:
            raise CheckpointError(f"{self.name}: a generator's state is none ({said(error)})") from error

    def put_back(self, tree: Any) -> None:
        try:
            self.left_out = restore(tree)
        except REFUSALS as error:
            raise StateError(
                f"{self.name}: a generator refuses the checkpoint's state ({said(error)}); "
                "restore with the versions of torch and numpy that saved it"
            ) from error


def _try_on(states: dict[str, Any]) -> None:
    """Give the states to generators of nobody's. Tensors have no values yet: only what they are can be seen."""
    if "python" in states:
        random.Random().setstate(states["python"])
    numpy, state = sys.modules.get("numpy"), states.get("numpy", {})
    if not isinstance(state, (tuple, dict)):
        raise TypeError(f"numpy's is a {type(state).__name__}")
    if numpy is not None and isinstance(state, tuple):  # a dict is of another bit generator than the usual
        numpy.random.RandomState().set_state(state)
    cuda = states.get("cuda", [])
    if not isinstance(cuda, (list, tuple)):
        raise TypeError(f"cuda's are a {type(cuda).__name__}")
    for name, state in (
        ("torch", states.get("torch", torch.get_rng_state())),
        *(("cuda", each) for each in cuda),
    ):
        if not isinstance(state, torch.Tensor) or state.dtype is not torch.uint8 or state.dim() != 1:
            raise TypeError(f"{name}'s is no tensor of bytes")
