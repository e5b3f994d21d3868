"""Numbers that a script counts in its loop, that training depends on, and that no checkpoint has.

A resumed run counts from the first value again: of the updates of an average, of the steps of a schedule by hand, of turns without
gain. The source of the functions around `guard.step()` tells what is counted, and what follows from it. In doubt nothing is named.
A count that is only shown is no state, and neither is one that each turn begins anew, or that the script sets by what was restored.
"""

from __future__ import annotations

import ast
import logging
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from types import FrameType, FunctionType
from typing import Any

from torch import nn
from torch.optim import Optimizer

from ...inventory.attribute_words import SHOWING, last_name, source_of
from ...inventory.call_stack import (
    caller,
    caller_by_hand,
    counts_from_0,
    file_of,
    script_functions,
    statements_at,
)
from .assignments import (
    assigned,
    changed_by_itself,
    expression,
    followed,
    key_of,
    last_of,
    set_anew,
    word_of,
    words_in,
)
from .registered_names import LOOPS, SCOPES, RegisteredNames, nodes

log = logging.getLogger("spotguard")

#: The most statements and expressions of a loop that is read: 0.1 s.
_MOST = 5_000
#: The most names of one message.
_FEW = 3
#: Calls that ask a clock: what follows from one is a limit of this process.
_CLOCKS = frozenset({"time", "perf_counter", "monotonic", "process_time"})
#: Calls by which a script sets attributes that its source does not name.
_SETTING = frozenset({"setattr", "update", "__setattr__"})
#: Methods of optimizers that a count of micro-batches decides, which is 0 again at each boundary.
_GATHERING = frozenset({"step", "zero_grad"})

COUNTED = (
    "%s (%s) begins anew in a resumed run, and training depends on it; keep it in a registered dict, as in progress = {'%s': 0}, or "
    "compute it from the step's number [SG425]"
)

AGAIN = (
    "the loop at %s counts from 0 again although training was resumed, so this run trains more steps than an uninterrupted one; write "
    "`for step in range(guard.restore(), total)`, or loop over guard.steps(total)"
)


def begins_again(frame: FrameType | None) -> str:
    """Return the place of the loop around the first boundary of a resumed run, if that counts from 0; "" if not. It raises nothing."""
    try:
        inner = caller_by_hand(frame)
        place = counts_from_0(inner, inside=True)
        return place if place and all(map(_has_a_fixed_end, script_functions(inner))) else ""
    except Exception:
        log.debug("the loop around guard.step() cannot be read", exc_info=True)
        return ""


def _has_a_fixed_end(frame: FrameType) -> bool:
    """Return whether the loops of a function end at a number that surely no restore decides, and nowhere else."""
    loops, scope = _loops(frame)
    for loop in loops:
        if any(isinstance(each, (ast.Break, ast.Return)) for each in nodes([loop])):
            return False
        values = getattr(loop, "iter", None)
        if isinstance(values, ast.Call) and last_name(values.func) == "tqdm":
            values = values.args[0]
        for end in getattr(values, "args", ()):
            sets = [value for node in nodes(scope) for word, value in assigned(node) if word == word_of(end)]
            fixed = isinstance(end, (ast.Constant, ast.Attribute)) or (sets and all(map(_is_number, sets)))
            if not fixed:
                return False
    return True


def loop_counters(frame: FrameType | None, values: Mapping[str, Any]) -> tuple[str, str, str] | None:
    """Return the counts of the loops around a boundary that a resumed run begins anew. It raises nothing: the script is any code.

    Args:
        frame: a frame of `guard.step()`.
        values: the registered values, by name.

    Returns:
        The values of `COUNTED`: the names, the place of the first count, and its name. None if nothing is found.
    """
    try:
        found = {
            word: place for each in script_functions(caller(frame)) for word, place in _counted(each, values)
        }
    except Exception:
        log.debug("the loop around guard.step() cannot be read", exc_info=True)
        return None
    if not found:
        return None
    more = f" and {len(found) - _FEW} more" if len(found) > _FEW else ""
    first = next(iter(found))
    return ", ".join([*found][:_FEW]) + more, found[first], last_of(first)


def _loops(frame: FrameType) -> tuple[list[ast.AST], list[Any]]:
    """Return the loops around the statement that a function executes, from the inside out, and all of the function's statements."""
    loops: list[ast.AST] = []
    for each in statements_at(frame):
        if isinstance(each, LOOPS):
            loops.append(each)
        elif isinstance(each, (*SCOPES, ast.Module)):
            return loops, getattr(each, "body", [])
    return loops, []


def _counted(frame: FrameType, values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the word and the place of each such count in a function."""
    loops, scope = _loops(frame)
    inside = [*nodes(loops[-1:])]
    if not 0 < len(inside) <= _MOST:
        return
    names = RegisteredNames(frame, values)
    bodies = [*_bodies_of_methods(inside, names, frame.f_code.co_filename)]
    inside += [each for body in bodies for each in nodes(body)]
    counts: dict[str, list[Any]] = {}
    for node in inside:
        for word in changed_by_itself(node):
            counts.setdefault(word, []).append(node)
    if not counts or len(inside) > _MOST:
        return
    for node in inside:
        names.bind(node)
    turn = _TurnBlocks(statements_at(frame), [loops[-1], *(ast.Module(body, []) for body in bodies)])
    begun, whole = _begun(nodes(scope)), _begun(ast.walk(file_of(frame)))
    for word, changes in sorted(counts.items(), key=lambda found: found[1][0].lineno):
        known = expression(word)
        if type(names.value(known)) not in (int, float) or names.owner(known):
            continue
        # An attribute may be set in any object's name: its class may do it.
        sets = (whole if "." in word else begun).sets.get(key_of(word))
        doubts = whole.doubts if "." in word else begun.doubts
        if (
            not sets
            or not all(map(_is_number, sets))
            or word in doubts | whole.shared
            or ("." in word and "" in doubts)
        ):
            continue
        if begun.grown[word] > len(changes) or turn.begins_anew(word, changes):
            continue
        if _matters(inside, word, names, values):
            yield word, f"{os.path.basename(frame.f_code.co_filename)}:{changes[0].lineno}"


def _bodies_of_methods(inside: Iterable[Any], names: RegisteredNames, file: str) -> Iterator[list[ast.stmt]]:
    """Yield the statements of each method that a loop calls of an object that is not registered, as if they stood in the loop."""
    seen = set[str]()
    for node in inside:
        function = getattr(node, "func", None)
        base = word_of(function.value) if isinstance(function, ast.Attribute) else ""
        if not base or f"{base}.{last_name(function)}" in seen or names.owner(expression(base)):
            continue
        seen.add(f"{base}.{last_name(function)}")
        kinds = type(names.value(expression(base))).__mro__
        method = next(
            (vars(each)[last_name(function)] for each in kinds if last_name(function) in vars(each)), None
        )
        if type(method) is not FunctionType or method.__code__.co_filename != file:
            continue
        me, statements = source_of(method)
        for each in (each for statement in statements for each in ast.walk(statement)):
            if isinstance(each, ast.stmt):
                each.lineno += method.__code__.co_firstlineno - 1
            elif isinstance(each, ast.Name) and each.id == me:
                each.id = base  # `word_of` reads it like a name with attributes
        yield statements


class _Begun:
    """The values that statements give to names and attributes."""

    def __init__(self) -> None:
        #: By `key_of` the values that a name, or an attribute of any object, is set to; without what changes itself.
        self.sets: dict[str, list[ast.expr]] = {}
        #: How often a word is changed by what it was.
        self.grown: Counter[str] = Counter()
        #: Names that several functions set.
        self.shared = set[str]()
        #: Words with a value that is not known; "" for any attribute.
        self.doubts = set[str]()


def _begun(statements: Iterable[Any]) -> _Begun:
    found = _Begun()
    for node in statements:
        found.grown.update(changed_by_itself(node))
        for word, value in set_anew(node):
            found.sets.setdefault(key_of(word), []).append(value)
        if isinstance(node, ast.ClassDef):  # as a dataclass has them
            for word, value in (each for statement in node.body for each in assigned(statement)):
                found.sets.setdefault(f".{word}", []).append(value)
        elif isinstance(node, (ast.For, ast.NamedExpr)):
            found.doubts |= words_in(node.target)
        elif isinstance(node, (ast.Global, ast.Nonlocal)):
            found.shared |= {*node.names}
        elif isinstance(node, ast.Call) and last_name(node.func) in _SETTING and not _is_of_a_dict(node):
            found.doubts.add("")
        elif isinstance(node, ast.If) and any(isinstance(each, ast.Continue) for each in node.body):
            found.doubts |= words_in(node.test)  # the script leaves out what is done
        elif isinstance(node, ast.AugAssign) and any(
            last_name(each.func) in _CLOCKS for each in ast.walk(node.value) if isinstance(each, ast.Call)
        ):
            found.doubts.add(word_of(node.target))
    return found


def _is_of_a_dict(call: ast.Call) -> bool:
    """Return whether a call of `update` may change no attribute, as far as the source tells."""
    function = call.func
    return (
        isinstance(function, ast.Attribute)
        and last_name(function.value) != "__dict__"
        and last_name(getattr(function.value, "func", None)) != "vars"
    )


class _TurnBlocks:
    """The loop around a boundary.

    Args:
        chain: the statement that marks the boundary, and all that it is in.
        parts: the outermost loop, and the bodies of methods that it calls.
    """

    def __init__(self, chain: list[ast.AST], parts: list[ast.AST]) -> None:
        self._chain = {*map(id, chain)}
        #: By the id of a statement: what it is in, and the statements beside it.
        self._blocks: dict[int, tuple[ast.AST, list[Any]]] = {}
        for each in (each for part in parts for each in ast.walk(part)):
            for block in (getattr(each, name, None) for name in ("body", "orelse", "finalbody")):
                if isinstance(block, list):
                    self._blocks |= {id(statement): (each, block) for statement in block}
        self._boundary = next((each for each in chain if id(each) in self._blocks), None)

    def begins_anew(self, word: str, changes: list[Any]) -> bool:
        """Return whether each turn begins a count anew: before it changes it, as a sum over a validation, or before the boundary."""
        if all(self._is_begun(each, word, boundary=False) for each in changes):
            return True
        return self._boundary is not None and self._is_begun(self._boundary, word, boundary=True)

    def _is_begun(self, statement: Any, word: str, *, boundary: bool) -> bool:
        """Return whether a statement before this one, in a block around it, sets the count, with no boundary between the two."""
        while id(statement) in self._blocks:
            outer, block = self._blocks[id(statement)]
            here = block.index(statement)
            marked = next((at for at, each in enumerate(block) if id(each) in self._chain), None)
            for at, each in enumerate(block[:here]):
                between = not boundary and marked is not None and at < marked <= here
                if not between and any(known == word for known, _ in set_anew(each)):
                    return True
            if boundary and isinstance(outer, LOOPS):
                return False  # only a part of the turns would have set it
            statement = outer
        return False


def _is_number(value: ast.expr) -> bool:
    """Return whether an expression is a number that no restore decides: `0`, `-1.0`, `float("inf")`, `math.inf`."""
    if isinstance(value, ast.UnaryOp):
        return _is_number(value.operand)
    if isinstance(value, ast.Call):
        return last_name(value.func) == "float" and all(map(_is_number, value.args))
    return isinstance(value, ast.Constant) or last_name(value) in ("inf", "nan")


def _matters(inside: list[Any], count: str, names: RegisteredNames, values: Mapping[str, Any]) -> bool:
    """Return whether training surely depends on a count."""
    follows = followed(inside, count, lambda word: names.owner(expression(word)))
    return any(_depends(node, follows, names, values) for node in inside)


def _depends(node: Any, follows: set[str], names: RegisteredNames, values: Mapping[str, Any]) -> bool:
    """Return whether a statement or an expression of training depends on what follows from a count."""
    if isinstance(node, ast.While):
        return bool(follows & words_in(node.test))
    if isinstance(node, ast.If):
        asks = bool(follows & words_in(node.test))
        return asks and any(_acts(each, names, values) for each in nodes([*node.body, *node.orelse]))
    if isinstance(node, (ast.Assign, ast.AugAssign)) and _changes(node, names):
        return bool(follows & words_in(node.value))
    if not isinstance(node, ast.Call) or last_name(node.func) in SHOWING:
        return False
    if isinstance(node.func, ast.Attribute) and node.func.attr == "backward":
        return bool(follows & words_in(node.func.value))
    given = [*node.args, *(each.value for each in node.keywords)]
    counted = [at for at, each in enumerate(given) if follows & words_in(each)]
    if not counted:
        return False
    if names.owner(node.func):  # a registered object is called, or a method of it, or one of what it holds
        return True
    function = names.value(node.func)
    return (
        type(function) is FunctionType
        and any(map(names.owner, given))
        and any(_sets_by(function, at) for at in counted if at < len(node.args))
    )


def _sets_by(function: FunctionType, at: int) -> bool:
    """Return whether a function changes something in place by what follows from one of its parameters."""
    _, statements = source_of(function)
    inside = [*nodes(statements)] if at < function.__code__.co_argcount else []
    follows = followed(inside, function.__code__.co_varnames[at], lambda word: False)
    for node in inside:
        if isinstance(node, (ast.Assign, ast.AugAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(
                isinstance(each, (ast.Subscript, ast.Attribute)) for each in targets
            ) and follows & words_in(node.value):
                return True
        elif (
            isinstance(node, ast.Call)
            and last_name(node.func).endswith("_")
            and isinstance(node.func, ast.Attribute)
        ) and any(follows & words_in(each) for each in (*node.args, *(each.value for each in node.keywords))):
            return True
    return False


def _changes(node: Any, names: RegisteredNames) -> bool:
    """Return whether a statement sets a part of a registered value."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return any(
        isinstance(each, (ast.Subscript, ast.Attribute)) and names.owner(each.value) for each in targets
    )


def _acts(node: Any, names: RegisteredNames, values: Mapping[str, Any]) -> bool:
    """Return whether a statement that a count decides changes training: it ends the loop, or changes a registered value."""
    if isinstance(node, (ast.Break, ast.Return)):
        return True
    if isinstance(node, (ast.Assign, ast.AugAssign)):
        return _changes(node, names)
    function = getattr(node, "func", None)
    owner = names.owner(function.value) if isinstance(function, ast.Attribute) else ""
    if not owner or not isinstance(function, ast.Attribute):
        return False
    value = values[owner]
    if isinstance(value, Optimizer):
        return function.attr not in _GATHERING and not isinstance(function.value, ast.Name)
    if isinstance(value, nn.Module):
        return function.attr == "load_state_dict" or function.attr.endswith("_")
    return function.attr.endswith("_")
