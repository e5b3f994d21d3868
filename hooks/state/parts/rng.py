"""The random number generators that training draws from: python's, numpy's (where it is imported), torch's,
and each accelerator's. Copied at every boundary, put back by `restore`, so that dropout and shuffling go on
with the very next number.
"""

from __future__ import annotations

import random
import sys
from functools import cache
from typing import Any

import torch

from ....providers.errors import CheckpointError, StateError
from ..device import accelerator
from ..tensor_item import StateTensor
from .values import REFUSALS, said

#: The generators of a kind of accelerator: its name, and what knows their states as `torch.cuda` does.
Generators = tuple[str, Any]


@cache
def other_generators() -> Generators | None:
    """Those of the accelerator that this torch was built for, if that is not CUDA."""
    device = accelerator()
    if device is None or device.type == "cuda":
        return None
    module = torch.get_device_module(device)
    known = all(
        hasattr(module, word) for word in ("get_rng_state_all", "set_rng_state_all", "is_initialized")
    )
    return (device.type, module) if known else None


def capture(others: Generators | None = None) -> dict[str, Any]:
    """The states as they are now; nothing is drawn. About 20 µs with python, numpy and torch on a CPU.

    Args:
        others: of an accelerator other than CUDA.
    """
    states: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        states["numpy"] = numpy.random.get_state()
    # A device that was never used has no state worth keeping, and asking would initialize it.
    if torch.cuda.is_initialized():
        states["cuda"] = torch.cuda.get_rng_state_all()
    if others is not None and others[1].is_initialized():
        states[others[0]] = others[1].get_rng_state_all()
    return states


def restore(states: dict[str, Any], others: Generators | None = None) -> list[str]:
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
        elif others is not None and name == others[0] and len(state) == others[1].device_count():
            others[1].set_rng_state_all(state)
        else:
            left.append(name)
    return left


class RngPart:
    """The generators' states as a part of the registered state."""

    def __init__(self, name: str, others: Generators | None = None) -> None:
        self.name = name
        self._others = others
        self._frozen: dict[str, Any] = {}
        #: Saved states that `put_back` found no generator for.
        self.left_out: list[str] = []

    def at_boundary(self) -> None:
        self._frozen = capture(self._others)

    def leaves(self) -> list[StateTensor]:
        return []

    def tree(self) -> Any:
        return self._frozen

    def targets(self, tree: Any) -> None:
        """Generators that this process lacks are left out, with a warning, by `put_back`."""
        if not isinstance(tree, dict):
            raise CheckpointError(f"{self.name}: the generators' states are a {type(tree).__name__}")
        try:
            _try_on(tree, self._others)
        except REFUSALS as error:
            raise CheckpointError(f"{self.name}: a generator's state is none ({said(error)})") from error

    def put_back(self, tree: Any) -> None:
        try:
            self.left_out = restore(tree, self._others)
        except REFUSALS as error:
            raise StateError(
                f"{self.name}: a generator refuses the checkpoint's state ({said(error)}); "
                "restore with the versions of torch and numpy that saved it"
            ) from error


def _try_on(states: dict[str, Any], others: Generators | None) -> None:
    """Give the states to generators of nobody's. Tensors have no values yet: only what they are can be seen."""
    if "python" in states:
        random.Random().setstate(states["python"])
    numpy, state = sys.modules.get("numpy"), states.get("numpy", {})
    if not isinstance(state, (tuple, dict)):
        raise TypeError(f"numpy's is a {type(state).__name__}")
    if numpy is not None and isinstance(state, tuple):  # a dict is of another bit generator than the usual
        numpy.random.RandomState().set_state(state)
    names = ("cuda", *(others or ())[:1])
    devices = {name: states[name] for name in names if name in states}
    for name, held in devices.items():
        if not isinstance(held, (list, tuple)):
            raise TypeError(f"{name}'s are a {type(held).__name__}")
    for name, state in (
        ("torch", states.get("torch", torch.get_rng_state())),
        *((name, each) for name, held in devices.items() for each in held),
    ):
        if not isinstance(state, torch.Tensor) or state.dtype is not torch.uint8 or state.dim() != 1:
            raise TypeError(f"{name}'s is no tensor of bytes")
