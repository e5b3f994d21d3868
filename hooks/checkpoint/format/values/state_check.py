"""Check, without torch, that a restore can read the state of a checkpoint: `restore`, `verify` and `prune` all make it.

Three rules are part of the format, beside the one of `safetensors_header`. Each tree is one that `decoder` reads. The tensors that
a rank lists are exactly those that its trees name. The generators have the form in which a process can take them.

A registered object may still refuse what is its own: no rule knows the kind of object that a tree came from.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from .....providers.errors import CheckpointError
from ..columns import TensorColumns, TensorForms
from ..manifest import RankManifest, own_name
from .decoder import outline
from .foreign_readers import TensorOutline, form_of

#: The registered name of the random number generators; nothing else may have it.
RNG = "rng"
#: The key, beside the generators' names, of what is known of the loop over `guard.steps()`.
LOOP = "loop"


class StateCheck:
    """The check of the states of one checkpoint. What its manifests have in common is looked through once.

    Args:
        manifests: the manifests of all ranks.
    """

    def __init__(self, manifests: Iterable[RankManifest]) -> None:
        self._outlines: dict[str, TensorOutline] = {}
        runs = (run for manifest in manifests for run in TensorColumns.of(manifest.tensors).runs)
        for forms in {id(run.layout.forms): run.layout.forms for run in runs}.values():
            for name, dtype, shape in zip(forms.names, forms.dtypes, forms.shapes, strict=True):
                self._outlines.setdefault(name, TensorOutline(dtype, shape))
        #: By the identity of a tree: the names of its tensors. (The tree is kept, so that no other gets its identity.)
        self._read: dict[int, tuple[Any, set[str]]] = {}
        #: By the identity of columns' forms, and the registered names: the names of each part's tensors.
        self._own: dict[tuple[int, tuple[str, ...]], tuple[TensorForms, dict[str, set[str]]]] = {}

    def check(self, manifest: RankManifest) -> None:
        """Check the state of one manifest.

        Raises:
            CheckpointError: no restore can read it; the message says why.
        """
        named = {part: self._names_in(part, tree) for part, tree in manifest.state.items()}
        if manifest.level == "full":  # the lower levels omit parts of the state
            self._check_names(manifest, named)

    def _names_in(self, part: str, tree: Any) -> set[str]:
        """Return the names of the tensors in an encoded tree, once it is known to be one that can be decoded."""
        known = self._read.get(id(tree))
        if known is None:
            names: set[str] = set()
            try:
                value = outline(tree, lambda name: self._outline(name, names))
                if part == RNG:
                    check_generators(value)
            except CheckpointError as error:
                raise CheckpointError(f"its state of {part!r}: {error}") from error
            known = self._read[id(tree)] = tree, names
        return known[1]

    def _outline(self, name: str, names: set[str]) -> TensorOutline:
        names.add(name)
        if (known := self._outlines.get(name)) is None:
            raise CheckpointError(f"it names tensor {name!r}, but no rank wrote it")
        return known

    def _check_names(self, manifest: RankManifest, named: Mapping[str, set[str]]) -> None:
        """Check that each tensor that the manifest lists is named under its own registered name, and no other.

        An optimizer that was registered twice names its tensors by its first name only, both times.
        """
        parts = tuple(named)
        runs = [self._own_of(run.layout.forms, parts) for run in TensorColumns.of(manifest.tensors).runs]
        for part, strangers in named.items():
            own = set[str]().union(*(run.get(part, ()) for run in runs))
            lost, strange = own - strangers, strangers - own
            if lost and strange and {_after(n, parts) for n in lost} == {_after(n, parts) for n in strange}:
                continue
            if lost:
                raise CheckpointError(
                    f"its state of {part!r} has another value in place of tensor {min(lost)!r}"
                )
            if strange:
                raise CheckpointError(
                    f"its state of {part!r} names tensor {min(strange)!r}, which is not one of its own"
                )

    def _own_of(self, forms: TensorForms, parts: tuple[str, ...]) -> dict[str, set[str]]:
        known = self._own.get((id(forms), parts))
        if known is None:
            own: dict[str, set[str]] = {}
            for name in forms.names:
                if (part := _owner(name, parts)) is None:
                    raise CheckpointError(f"its state has no place for tensor {name!r}")
                own.setdefault(part, set()).add(name)
            known = self._own[id(forms), parts] = forms, own
        return known[1]


def _owner(name: str, parts: Collection[str]) -> str | None:
    """Return the registered name with which a tensor's name begins."""
    name = own_name(name)
    ends = [at for at, letter in enumerate(name) if letter in "/#"]
    return next((name[:end] for end in [len(name), *reversed(ends)] if name[:end] in parts), None)


def _after(name: str, parts: Collection[str]) -> str:
    """Return the rest of a tensor's name after its registered name."""
    return own_name(name).removeprefix(_owner(name, parts) or "")


def check_generators(states: Any) -> None:
    """Check the form of the generators' states, decoded, with tensors or their outlines: a tensor's values may come later.

    Raises:
        CheckpointError: a process could not take one of them.
    """
    if not isinstance(states, dict):
        raise CheckpointError(f"the generators' states are a {type(states).__name__}, not a dict")
    for name, state in states.items():
        if name == "python":
            sound = _is_python_state(state)
        elif name == "numpy":
            sound = _is_numpy_state(state)
        elif name == "torch":
            sound = _is_bytes(state)
        elif name == LOOP:
            sound = _is_loop(state)
        else:
            sound = isinstance(state, (list, tuple)) and all(map(_is_bytes, state))
        if not sound:
            raise CheckpointError(f"the state of {str(name)[:40]}'s generator is not in its form")


def _is_loop(state: Any) -> bool:
    if not isinstance(state, dict) or {*state} != {"goes on", "drawn"} or type(state["goes on"]) is not bool:
        return False
    if (drawn := state["drawn"]) is None:
        return True
    if not isinstance(drawn, dict) or [*map(type, drawn.values())] != [dict, dict]:
        return False
    if {*drawn} != {"global", "registered"} or LOOP in drawn["global"]:
        return False
    check_generators(drawn["global"])
    return True


def _is_python_state(state: Any) -> bool:
    if type(state) is not tuple or [*map(type, state[:2])] != [int, tuple] or {*map(type, state[1])} != {int}:
        return False
    generator = random.Random()
    try:
        generator.setstate(state)
    except (TypeError, ValueError, OverflowError):
        return False
    # It takes those of older versions too, and cuts large numbers. A NaN is equal to no state, and to itself in a tuple.
    now = generator.getstate()
    return now == state and now[2] == state[2]


def _is_numpy_state(state: Any) -> bool:
    if isinstance(state, dict):  # another bit generator than numpy's first one
        return isinstance(state.get("bit_generator"), str) and isinstance(state.get("state"), dict)
    if type(state) is not tuple or [*map(type, state[2:])] != [int, int, float] or state[0] != "MT19937":
        return False
    dtype = getattr(state[1], "dtype", "")
    word, shape = getattr(dtype, "str", dtype), getattr(state[1], "shape", ())
    sound = 0 <= state[2] <= 624 and state[3] in (0, 1) and not math.isnan(state[4])
    return str(word)[1:] == "u4" and shape == (624,) and sound


def _is_bytes(state: Any) -> bool:
    tensor = isinstance(state, TensorOutline) or str(getattr(state, "dtype", "")).startswith("torch.")
    return tensor and form_of(state)[0] == "uint8" and len(form_of(state)[1]) == 1
