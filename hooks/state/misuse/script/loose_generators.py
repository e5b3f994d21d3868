"""Generators of random numbers from which a script draws in each turn, and that no checkpoint has.

Python's, NumPy's and torch's global ones are in each checkpoint, and those of a registered loader with it. Any other one begins anew in a
resumed run. It is named once it has moved from one boundary to the next twice in a row, unless the script seeds it in its loops.
"""

from __future__ import annotations

import ast
import logging
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ...inventory import objects
from ...inventory.attribute_words import last_name
from ...inventory.call_stack import scopes, source_file
from ...inventory.reachable import MACHINERY, children_of
from ...inventory.walk import reach
from ...parts.attribute_watch import mark_of
from ...parts.loaders.generators import global_generators
from ...parts.loaders.generators import objects as objects_of_loader
from ..forgotten import reached
from .assignments import last_of
from .registered_names import LOOPS

log = logging.getLogger("spotguard")

#: Looks at boundaries, of a run and behind each restore, at which a generator may be named.
_LOOKS = 3
#: Limits of the search in the script's variables, and in what is registered.
_DEPTH, _OBJECTS, _REGISTERED = 3, 3_000, 50_000
_NOT_ENTERED = (*MACHINERY, torch.Tensor, nn.Module, Optimizer)
_SEEDING, _SETTING = frozenset({"seed", "manual_seed"}), frozenset({"set_state", "setstate", "state"})

DRAWS = (
    "%s (%s) draws in each turn and no checkpoint has it, so a resumed run draws its first numbers again; register it in a dict, as in "
    "generators={'%s': %s} [SG425]"
)


class LooseGenerators:
    """The generators in the variables of the script.

    Args:
        values: the registered values, by name.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values, self._told = values, False
        self.begin()

    def begin(self) -> None:
        """Begin anew: a restore has changed the values."""
        self._looks = 0
        #: By id of a generator: its mark, and the looks in a row at which it had moved.
        self._seen: dict[int, tuple[Any, int]] = {}

    @property
    def unsettled(self) -> bool:
        """Whether the next boundary tells whether a generator is worth a warning."""
        return any(row for _, row in self._seen.values())

    def look(self) -> None:
        """Warn about the first of them, once. On the training thread, at a boundary."""
        if self._told or self._looks == _LOOKS:
            self._seen = {}
            return
        self._looks += 1
        try:
            self._look()
        except Exception:
            self._told, self._seen = True, {}
            log.debug("the search for generators that are not registered has ended", exc_info=True)

    def _look(self) -> None:
        before, self._seen, found = self._seen, {}, []
        for word, each in _loose():
            mark = _mark(each)
            known, row = before.get(id(each), (mark, 0))
            # A seed of torch's that is another one is of this turn.
            row = row + 1 if known != mark and known[0] == mark[0] else 0
            self._seen[id(each)] = mark, row
            if row == 2:
                found.append((word, each))
        held = {*map(id, self._held())} if found else set[int]()
        for word, each in found:
            if held.isdisjoint({id(each), id(_bits(each))}) and not _is_seeded(word):
                self._told, name = True, last_of(word)
                kind = type(each)
                log.warning(DRAWS, word, f"{kind.__module__.partition('.')[0]}'s {kind.__name__}", name, word)
                return

    def _held(self) -> Iterator[Any]:
        """Yield all that a checkpoint may have: what is registered, and what that holds."""
        for value in self._values.values():
            found = [*reached(value)]
            if len(found) >= _REGISTERED:
                raise ValueError("too much is registered to tell what is not")
            yield from (one for each in found for one in (each, _bits(each)))
            if not isinstance(value, _NOT_ENTERED):  # what functions of a dataset use, too
                for _, each in objects_of_loader(value):
                    yield from (each, _bits(each))


def _loose() -> Iterator[tuple[str, Any]]:
    """Yield each generator in the variables of the script with its word. None of the script's code runs."""
    known = {id(each) for each in global_generators()}
    for _, variables in scopes(sys._getframe(1)):
        own = {
            name: each for name, each in variables.items() if name.strip("_") and not name.startswith("__")
        }
        for path, each in reach(own, children_of, _is_entered, depth=_DEPTH, most=_OBJECTS):
            # The first step is a name, as `['rng']`.
            name, _, rest = path.removeprefix("['").partition("']")
            if (
                objects.is_generator(each)
                and known.isdisjoint({id(each), id(_bits(each))})
                and "…" not in rest
            ):
                known.add(id(each))
                yield name + rest, each


def _is_entered(value: object) -> bool:
    return not isinstance(value, _NOT_ENTERED) and not objects.is_generator(value)


def _bits(generator: Any) -> Any:
    """Return what holds the state of NumPy's generators, of which several may draw from one."""
    return getattr(generator, "bit_generator", generator) if objects.is_generator(generator) else generator


def _mark(generator: Any) -> tuple[int, Any]:
    seed = generator.initial_seed() if isinstance(generator, torch.Generator) else 0
    return seed, mark_of(generator)


def _is_seeded(word: str) -> bool:
    """Return whether the script's files seed a generator of that name in a loop, or set its state."""
    name = last_of(word)
    for file in {code.co_filename for code, _ in scopes(sys._getframe(1)) if code is not None} | _main():
        tree = source_file(file)
        looped = {id(node) for each in ast.walk(tree) if isinstance(each, LOOPS) for node in ast.walk(each)}
        for node in ast.walk(tree):
            of_it = isinstance(node, ast.Attribute) and last_name(node.value) in (name, "bit_generator")
            attribute = last_name(node) if of_it else ""
            if attribute in _SETTING or (attribute in _SEEDING and id(node) in looped):
                return True
    return False


def _main() -> set[str]:
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    return {file} if isinstance(file, str) else set()
