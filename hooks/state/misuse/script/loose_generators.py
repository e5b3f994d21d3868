"""Generators of random numbers from which a script draws in each turn, and that no checkpoint has.

Python's, NumPy's and torch's global ones are in each checkpoint, and those of a registered loader with it. Any other one begins anew in a
resumed run. It is named once it has moved from one boundary to the next twice in a row, unless the script seeds it in its loops.
"""

from __future__ import annotations

import ast
import logging
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from types import FunctionType
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ...inventory import objects
from ...inventory.attribute_words import last_name
from ...inventory.call_stack import (
    caller,
    files_beside,
    modules_beside,
    parts_of,
    scopes,
    script_functions,
    source_file,
    statements_at,
    walk,
)
from ...inventory.reachable import MACHINERY, attributes_of, children_of
from ...inventory.walk import ATOMS, reach
from ...parts.attribute_watch import mark_of
from ...parts.loaders.generators import global_generators
from ...parts.loaders.generators import objects as objects_of_loader
from ..forgotten import reached
from .assignments import assigned, last_of, words_in
from .loop_counters import loops_around
from .registered_names import LOOPS, nodes
from .turn_blocks import leaves_out_turns

log = logging.getLogger("spotguard")

#: Limits of the search in the script's variables, the items of a container there, and in what is registered.
_DEPTH, _OBJECTS, _LONG, _REGISTERED = 6, 3_000, 200, 50_000
_CONTAINERS: tuple[Any, ...] = (dict, list, tuple, deque)
_NOT_ENTERED = (*MACHINERY, FunctionType, torch.Tensor, nn.Module, Optimizer)
_SEEDING = frozenset({"seed", "manual_seed"})
_SETTING = frozenset({"set_state", "setstate", "state", "advance", "jumped"})

DRAWS = (
    "%s (%s) draws in each turn and no checkpoint has it, so a resumed run draws its first numbers again; register it in a dict, as in "
    "generators={'%s': %s} [SG425]"
)


class _Variables(dict[str, Any]):
    """Those of one function or module."""


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
        #: By id of a generator: it, its mark, and the looks in a row at which it had moved.
        self._seen: dict[int, tuple[Any, Any, int]] = {}

    @property
    def unsettled(self) -> bool:
        """Whether the next boundary tells whether a generator is worth a warning."""
        return any(row == 1 for _, _, row in self._seen.values())

    def look(self) -> None:
        """Warn about the first of them, once. On the training thread, at a boundary."""
        if self._told:
            return
        try:
            self._look()
        except Exception:
            self._told, self._seen = True, {}
            log.debug("the search for generators that are not registered has ended", exc_info=True)

    def _look(self) -> None:
        before, self._seen, found = self._seen, {}, []
        for word, each in _loose():
            mark = _mark(each)
            _, known, row = before.get(id(each), (each, mark, 0))
            # A seed of torch's that is another one is of this turn.
            row = row + 1 if known != mark and known[0] == mark[0] else 0
            self._seen[id(each)] = each, mark, row
            if row == 2:
                found.append((word, each))
        held = {*map(id, self._held())} if found else set[int]()
        for word, each in found:
            if held.isdisjoint({id(each), id(_bits(each))}) and not _is_drawn_again(word):
                self._told, self._seen = True, {}
                kind = type(each)
                what = f"{kind.__module__.partition('.')[0]}'s {kind.__name__}"
                log.warning(DRAWS, word, what, last_of(word), word)
                return

    def _held(self) -> Iterator[Any]:
        """Yield all that a checkpoint may have: what is registered, and what that holds."""
        for value in self._values.values():
            found = [*reached(value)]
            if len(found) >= _REGISTERED:
                raise ValueError("too much is registered to tell what is not")
            yield from (one for each in found for one in (each, _bits(each)))
            if not issubclass(type(value), _NOT_ENTERED):  # what functions of a dataset use, too
                for _, each in objects_of_loader(value):
                    yield from (each, _bits(each))


def _loose() -> Iterator[tuple[str, Any]]:
    """Yield each generator in the variables of the script with its word. None of the script's code runs."""
    known = {id(each) for each in global_generators()}
    spaces = [variables for _, variables in scopes(sys._getframe(1))]
    beside = map(sys.modules.get, ["__main__", *modules_beside(_main()).values()])
    spaces += [vars(each) for each in beside if each is not None]
    for variables in spaces:
        own = {
            name: each for name, each in variables.items() if name.strip("_") and not name.startswith("__")
        }
        for path, each in reach(_Variables(own), _children, _is_entered, depth=_DEPTH, most=_OBJECTS):
            if not objects.is_generator(each) or not known.isdisjoint({id(each), id(_bits(each))}):
                continue
            known.add(id(each))
            # The first step is a name, as `['rng']`.
            name, _, rest = path.removeprefix("['").partition("']")
            yield name + rest, each


def _children(owner: Any) -> Iterator[tuple[str, Any]]:
    """Yield what an object holds and a script has a word for: items, entries by name, attributes."""
    base = next((each for each in _CONTAINERS if issubclass(type(owner), each)), None)
    if base is not None:
        # The variables of a script may be many, and a longer container in one of them holds data.
        if type(owner) is _Variables or base.__len__(owner) <= _LONG:
            yield from (each for each in children_of(owner) if "…" not in each[0] and " (" not in each[0])
    else:
        held = attributes_of(owner).items()
        yield from ((f".{name}", each) for name, each in held if type(each) not in ATOMS)


def _is_entered(value: object) -> bool:
    """Return whether a generator of the script's may be inside. A guard holds a thousand objects of ours, and none of its."""
    kind = type(value)
    ours = kind.__module__.startswith("spotguard.") and kind.__name__ != "ResumableLoader"
    return not (ours or issubclass(kind, _NOT_ENTERED) or objects.is_generator(value))


def _bits(generator: Any) -> Any:
    """Return what holds the state of NumPy's generators, of which several may draw from one."""
    return getattr(generator, "bit_generator", generator) if objects.is_generator(generator) else generator


def _mark(generator: Any) -> tuple[int, Any]:
    seed = generator.initial_seed() if isinstance(generator, torch.Generator) else 0
    return seed, mark_of(generator)


def _is_drawn_again(word: str) -> bool:
    """Return whether the script seeds a generator of that name in its turns, sets its state, or leaves out turns behind their draws."""
    name, functions = last_of(word), set[str]()
    files = files_beside(_main())
    for frame in script_functions(caller(sys._getframe(1))):
        functions.add(frame.f_code.co_name)
        files.add(frame.f_code.co_filename)
        chain = statements_at(frame)
        loops = [each for each in chain if isinstance(each, LOOPS)]
        if any(leaves_out_turns(loop, loops) for loop in loops):
            return True
        if _is_wound(word, chain, loops_around(frame)[1]):
            return True
    waiting: list[tuple[ast.AST, bool]] = [(source_file(file), False) for file in files]
    while waiting:
        node, again = waiting.pop()
        if isinstance(node, ast.FunctionDef):
            again = node.name not in {"__init__", *functions}
        again |= isinstance(node, LOOPS)
        of_it = isinstance(node, ast.Attribute) and last_name(node.value) in (name, "bit_generator")
        attribute = last_name(node) if of_it else ""
        if attribute in _SETTING or (attribute in _SEEDING and again):
            return True
        waiting += [(each, again) for each in parts_of(node)]
    return False


def _is_wound(word: str, chain: list[ast.AST], statements: list[Any]) -> bool:
    """Return whether a loop before the training's repeats the draws of a generator as often as `guard.restore()` tells."""
    scope = [*nodes(statements)]
    known = {
        name
        for each in scope
        for name, value in assigned(each)
        if any(last_name(getattr(one, "func", None)) == "restore" for one in walk(value))
    }
    return any(
        isinstance(each, ast.For)
        and each not in chain
        and not known.isdisjoint(words_in(each.iter))
        and word.partition(".")[0].partition("[")[0] in {getattr(one, "id", "") for one in walk(each)}
        for each in scope
    )


def _main() -> str:
    return str(getattr(sys.modules.get("__main__"), "__file__", None) or "")
