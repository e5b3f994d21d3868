"""The state as one save writes it: tensors where they lie, and everything else as JSON that names them."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..checkpoint.format.manifest import private_name
from ..checkpoint.format.values.encoder import encode
from .parts.optimizer import OptimizerPart
from .parts.values import Part, check_savable
from .sharding.dtensor import RankOf, local
from .tensor_item import StateTensor


@dataclass(frozen=True, slots=True)
class CollectedState:
    """The state of one completed step, still lying where training has it."""

    leaves: tuple[StateTensor, ...]
    #: Encoded trees by registered name, for the manifest.
    trees: Mapping[str, Any]
    #: The same for the lower level: optimizers with their numbers and without their moments.
    light_trees: Mapping[str, Any]
    #: Why the moments of an optimizer are not in it, so that it is of the lower level; "" where they are.
    lacks: str = ""

    @property
    def nbytes(self) -> int:
        return sum(leaf.tensor.nbytes for leaf in self.leaves)


def collect(parts: Sequence[Part], ranks: RankOf, dead: Mapping[str, str] = {}) -> CollectedState:
    """The state as it stands, nothing copied. With the gate shut.

    Args:
        dead: optimizers whose moments are not those of the training any more, and why: they are left out.

    Raises:
        StateError: a tensor has no bytes of its own.
    """
    leaves: dict[str, StateTensor] = {}
    for part in parts:
        for leaf in () if part.name in dead else part.leaves():
            check_savable(leaf.name, leaf.tensor)  # whoever reads it takes its address on trust
            leaves.setdefault(leaf.name, leaf)
    names = {id(leaf.tensor): leaf.name for leaf in reversed(leaves.values())}
    trees: dict[str, Any] = {}
    light: dict[str, Any] = {}
    for part in parts:

        def take(tensor: torch.Tensor, part: Part = part) -> str:
            tensor = local(tensor)
            name = names.get(id(tensor))
            if name is None:
                name = private_name(ranks.rank, f"{part.name}#{len(leaves)}")
                leaves[name] = StateTensor(name, tensor, still=True)
                names[id(tensor)] = name
            return name

        tree = part.tree()
        if isinstance(part, OptimizerPart) and part.name in dead:
            tree = part.without_state(tree)
        trees[part.name] = encode(tree, take, part.name)
        if isinstance(part, OptimizerPart):
            light[part.name] = encode(part.without_state(tree), take, part.name)
    return CollectedState(tuple(leaves.values()), trees, {**trees, **light}, "; ".join(dead.values()))


# What decides whether training continues bit for bit: recorded in the manifest, compared at restore.

#: A difference in one of these may change low bits of the very next step.
_DECISIVE = {"torch": "torch", "threads": "CPU threads", "machine": "machine type", "device": "device"}


def describe() -> dict[str, Any]:
    """This process's environment as plain JSON."""
    device = torch.cuda.get_device_name() if torch.cuda.is_initialized() else "cpu"
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "machine": platform.machine(),
        "device": device,
    }


def differences(saved: Mapping[str, Any]) -> list[str]:
    """One line for each thing that differs here from where the checkpoint was made, and may change low bits."""
    here = describe()
    return [
        f"saved with {words} {saved[key]}, restored with {here[key]}: training may differ in the last bits"
        for key, words in _DECISIVE.items()
        if key in saved and saved[key] != here[key]
    ]
