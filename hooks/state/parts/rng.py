"""The random number generators that training draws from: python's, numpy's (if imported), torch's, and each accelerator's.

The training thread copies them at every boundary, and `restore` puts them back. So dropout and shuffling continue
with the very next number.
"""

from __future__ import annotations

import random
import sys
from functools import cache
from typing import Any

import torch

from ....providers.errors import CheckpointError, StateError
from ...checkpoint.format.values.state_check import check_generators
from ..device.events import accelerator
from .values import REFUSALS, Part, error_text

#: The generators of a kind of accelerator: its name, and a module with the same state functions as `torch.cuda`.
Generators = tuple[str, Any]


@cache
def other_generators() -> Generators | None:
    """Return the generators of the accelerator that this torch was built for; None if that is CUDA, or if there are none."""
    device = accelerator()
    if device is None or device.type == "cuda":
        return None
    module = torch.get_device_module(device)
    known = all(
        hasattr(module, function) for function in ("get_rng_state_all", "set_rng_state_all", "is_initialized")
    )
    return (device.type, module) if known else None


def capture(others: Generators | None = None) -> dict[str, Any]:
    """Return the generators' states as they are now.

    Nothing is drawn. With python, numpy and torch on a CPU this takes about 20 µs.

    Args:
        others: the generators of an accelerator other than CUDA.
    """
    states: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        states["numpy"] = numpy.random.get_state()
    # The state of an unused device is not worth saving, and asking for it would initialize the device.
    if torch.cuda.is_initialized():
        states["cuda"] = torch.cuda.get_rng_state_all()
    if others is not None and others[1].is_initialized():
        states[others[0]] = others[1].get_rng_state_all()
    return states


def restore(states: dict[str, Any], others: Generators | None = None) -> list[str]:
    """Put captured states back.

    Args:
        states: the result of `capture`.
        others: the generators of an accelerator other than CUDA.

    Returns:
        The names of states that this process has no generator for.
    """
    missing: list[str] = []
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
            missing.append(name)
    return missing


class RngPart(Part):
    """The generators' states as a part of the registered state."""

    def __init__(self, name: str, others: Generators | None = None) -> None:
        super().__init__(name)
        self._others = others

    def at_boundary(self) -> None:
        self._frozen = capture(self._others)

    def targets(self, tree: Any) -> None:
        """Check the form of the states.

        `put_back` leaves out the generators that this process lacks, and the restore warns.
        """
        try:
            check_generators(tree)
        except CheckpointError as error:
            raise CheckpointError(f"{self.name}: {error}") from error
        try:
            _try_on(tree)
        except REFUSALS as error:
            raise CheckpointError(
                f"{self.name}: a generator's state is invalid ({error_text(error)})"
            ) from error

    def put_back(self, tree: Any) -> None:
        try:
            missing = ", ".join(restore(tree, self._others))
        except REFUSALS as error:
            raise StateError(
                f"{self.name}: a generator refuses the checkpoint's state ({error_text(error)}); "
                "restore with the versions of torch and numpy that saved it"
            ) from error
        self.said = [f"this process has no generator for the saved RNG state of {missing}"] if missing else []


def _try_on(states: dict[str, Any]) -> None:
    """Load numpy's state into a temporary generator; `check_generators` knows the others'."""
    numpy, state = sys.modules.get("numpy"), states.get("numpy")
    if numpy is not None and isinstance(
        state, tuple
    ):  # a dict belongs to another bit generator than the default
        numpy.random.RandomState().set_state(state)
