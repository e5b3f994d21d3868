"""The state as one save writes it: tensors in place, and everything else as JSON that refers to the tensors by name."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..checkpoint.format.manifest import bounded, private_name
from ..checkpoint.format.values.encoder import encode
from .inventory.inner_tensors import has_outline
from .parts.optimizers.optimizer import OptimizerPart
from .parts.values import Part, check_savable
from .sharding.dtensor import RankOf, local
from .state_tensor import StateTensor


@dataclass(frozen=True, slots=True)
class CollectedState:
    """The state of one completed step. Its tensors are still the memory that training uses."""

    state_tensors: tuple[StateTensor, ...]
    #: Encoded trees by registered name, for the manifest.
    trees: Mapping[str, Any]
    #: The trees of a weights-only checkpoint: optimizers keep their groups' numbers and lose their moments.
    light_trees: Mapping[str, Any]
    #: Why this state lacks the moments of an optimizer, which makes the checkpoint weights-only; "" if no moments are
    #: missing.
    lacks: str = ""
    #: The path and the type of each value that no save can hold, and that the trees lack.
    left_out: tuple[str, ...] = ()

    @property
    def nbytes(self) -> int:
        return sum(state_tensor.tensor.nbytes for state_tensor in self.state_tensors)


def collect(parts: Sequence[Part], ranks: RankOf, dead: Mapping[str, str] = {}) -> CollectedState:
    """Return the state as it is now, without copying a tensor. Call it with the gate shut.

    Args:
        parts: the parts of the registered values.
        ranks: this process's rank, and the number of ranks.
        dead: the reason by name for each optimizer whose moments training no longer uses. Such moments are left out.

    Raises:
        StateError: the bytes of a tensor are not in its own memory, or an optimizer has a tensor whose description cannot be saved.
    """
    state_tensors: dict[str, StateTensor] = {}
    for part in parts:
        for state_tensor in () if part.name in dead else part.state_tensors():
            check_savable(state_tensor.name, state_tensor.tensor)  # every reader trusts the address
            state_tensors.setdefault(state_tensor.name, state_tensor)
    names = {id(state_tensor.tensor): state_tensor.name for state_tensor in reversed(state_tensors.values())}
    trees: dict[str, Any] = {}
    light: dict[str, Any] = {}
    left_out: list[str] = []
    for part in parts:

        def take(tensor: torch.Tensor, part: Part = part) -> str:
            tensor = local(tensor)
            name = names.get(id(tensor))
            if name is None:
                name = private_name(ranks.rank, f"{part.name}#{len(state_tensors)}")
                state_tensors[name] = StateTensor(name, tensor, still=True)
                names[id(tensor)] = name
            return name

        tree = part.tree()
        if isinstance(part, OptimizerPart) and part.name in dead:
            tree = part.without_state(tree)
        # An outline is a tensor, which is saved whole.
        is_whole = isinstance(part, OptimizerPart) and has_outline(tree)
        trees[part.name] = encode(tree, take, part.name, None if is_whole else left_out)
        if isinstance(part, OptimizerPart):
            light[part.name] = encode(part.without_state(tree), take, part.name, [])
    return CollectedState(
        tuple(state_tensors.values()),
        trees,
        {**trees, **light},
        "; ".join(dead.values()),
        bounded(left_out),
    )


# The environment that decides whether training continues bit for bit. The manifest records it, and a restore compares it.

#: A difference in one of these may change the low bits of the very next step.
_DECISIVE = {"torch": "torch", "threads": "CPU threads", "machine": "machine type", "device": "device"}


def describe() -> dict[str, Any]:
    """Return this process's environment as plain JSON."""
    device = torch.cuda.get_device_name() if torch.cuda.is_initialized() else "cpu"
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "machine": platform.machine(),
        "device": device,
    }


def differences(saved: Mapping[str, Any]) -> list[str]:
    """Return one line for each difference between this environment and the saved one that may change low bits.

    Args:
        saved: the environment that the manifest records.
    """
    here = describe()
    return [
        f"saved with {words} {saved[key]}, restored with {here[key]}: training may differ in the last bits [SG606]"
        for key, words in _DECISIVE.items()
        if key in saved and saved[key] != here[key]
    ]
