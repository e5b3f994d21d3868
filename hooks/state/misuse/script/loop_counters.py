"""Numbers that a script counts in its loop, that training depends on, and that no checkpoint has.

A resumed run counts from the first value again: of the updates of an average, of the steps of a schedule by hand, of turns without
gain. The source of the functions around `guard.step()` tells what is counted, and what follows from it. In doubt nothing is named.
A count that is only shown is no state, and neither is one that each turn begins anew, or that the script sets by what was restored.
"""

from __future__ import annotations

import ast
import logging
import os
from collections import deque
from collections.abc import Iterator, Mapping
from types import FrameType, FunctionType
from typing import Any

from torch import nn
from torch.optim import Optimizer

from ...inventory.attribute_words import SHOWING, last_name, source_of
from ...inventory.call_stack import (
    caller,
    caller_by_hand,
    counts_from_0,
    files_beside,
    script_functions,
    statements_at,
)
from .assignments import (
    base_of,
    changed_by_itself,
    expression,
    followed,
    last_of,
    word_of,
    words_in,
)
from .beginnings import Beginnings
from .called_bodies import called_bodies, word_called
from .registered_names import LOOPS, SCOPES, RegisteredNames, nodes
from .turn_blocks import TurnBlocks

log = logging.getLogger("spotguard")

#: The most statements and expressions of a loop that is read: 0.1 s.
_MOST = 5_000
_CONTAINERS = (list, deque, set)
#: The most names of one message.
_FEW = 3

COUNTED = "%s (%s) begins anew in a resumed run, and training depends on it; %s [SG425]"
_NUMBER = ", or compute it from the step's number"
_KEEP = "keep it in a registered dict, as in progress = {'%s': 0}" + _NUMBER
_REGISTER = "add %s to spotguard.register(…)" + _NUMBER
_HOLD = "register a dict that holds it, as in progress={'%s': %s}"

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
    code = frame.f_code
    begun = Beginnings(nodes(scope), code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])
    for loop in loops:
        if any(isinstance(each, (ast.Break, ast.Return)) for each in nodes([loop])):
            return False
        values = getattr(loop, "iter", None)
        if isinstance(values, ast.Call) and last_name(values.func) == "tqdm":
            values = values.args[0]
        for end in getattr(values, "args", ()):
            word = word_of(end)
            if not isinstance(end, (ast.Constant, ast.Attribute)) and not (word and begun.are_fresh(word)):
                return False
    return True


def loop_counters(frame: FrameType | None, values: Mapping[str, Any]) -> tuple[str, str, str] | None:
    """Return the counts of the loops around a boundary that a resumed run begins anew. It raises nothing: the script is any code.

    Args:
        frame: a frame of `guard.step()`.
        values: the registered values, by name.

    Returns:
        The values of `COUNTED`: the names, the place of the first count, and a remedy. None if nothing is found.
    """
    try:
        found = [each for function in script_functions(caller(frame)) for each in _counted(function, values)]
    except Exception:
        log.debug("the loop around guard.step() cannot be read", exc_info=True)
        return None
    if not found:
        return None
    words = [*dict.fromkeys(word for word, _, _ in found)]
    more = f" and {len(words) - _FEW} more" if len(words) > _FEW else ""
    return ", ".join(words[:_FEW]) + more, *found[0][1:]


def _loops(frame: FrameType) -> tuple[list[ast.AST], list[Any]]:
    """Return the loops around the statement that a function executes, from the inside out, and all of the function's statements."""
    loops: list[ast.AST] = []
    for each in statements_at(frame):
        if isinstance(each, LOOPS):
            loops.append(each)
        elif isinstance(each, (*SCOPES, ast.Module)):
            return loops, getattr(each, "body", [])
    return loops, []


def _counted(frame: FrameType, values: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield the word and the place of each such count in a function, and a remedy."""
    loops, scope = _loops(frame)
    inside = [*nodes(loops[-1:])]
    if not 0 < len(inside) <= _MOST:
        return
    names = RegisteredNames(frame, values)
    code = frame.f_code
    bodies = called_bodies(inside, names, code.co_filename)
    files = {id(node): body.file for body in bodies for node in nodes(body.statements)}
    inside += [each for body in bodies for each in nodes(body.statements)]
    counts: dict[str, list[Any]] = {}
    for node in inside:
        for word in changed_by_itself(node):
            counts.setdefault(word, []).append(node)
    if not counts or len(inside) > _MOST:
        return
    for node in inside:
        names.bind(node)
    turn = TurnBlocks(statements_at(frame), loops[-1], bodies)
    parameters = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    begun = Beginnings(nodes(scope), parameters, files_beside(code.co_filename) | {*files.values()}, names)
    looped = {*map(id, inside)}
    outside = {word_called(each) for each in nodes(scope) if id(each) not in looped}
    replayed = _replayed(loops)
    for word, changes in sorted(counts.items(), key=lambda found: found[1][0].lineno):
        known = expression(word)
        value = names.value(known)
        if type(value) not in (int, float) and not (type(value) in _CONTAINERS and value):
            continue
        if names.owner(known):
            continue
        if not begun.are_fresh(word) or begun.grows(word) > len(changes) or turn.begins_anew(word, changes):
            continue
        if word in replayed or any(
            (called := turn.caller_of(each)) and called in outside for each in changes
        ):
            continue  # the script counts again what is done
        if _matters(inside, word, names, values, turn):
            place = files.get(id(changes[0]), code.co_filename)
            remedy = _HOLD % (last_of(word), word) if type(value) in _CONTAINERS else _KEEP % last_of(word)
            remedy = _REGISTER % base_of(word) if isinstance(known, ast.Subscript) else remedy
            yield word, f"{os.path.basename(place)}:{changes[0].lineno}", remedy


def _replayed(loops: list[ast.AST]) -> set[str]:
    """Return the words that loops change before they leave out a turn by its number."""
    numbers = {word for each in loops for word in words_in(getattr(each, "target", ast.Constant(0)))}
    changed = set[str]()
    for loop in loops:
        passed = set[str]()
        for each in getattr(loop, "body", ()):
            passed |= {word for node in nodes([each]) for word in changed_by_itself(node)}
            leaves = isinstance(each, ast.If) and any(isinstance(one, ast.Continue) for one in each.body)
            if leaves and numbers & words_in(each.test):
                changed |= passed
    return changed


def _matters(
    inside: list[Any], count: str, names: RegisteredNames, values: Mapping[str, Any], turn: TurnBlocks
) -> bool:
    """Return whether training surely depends on a count."""
    follows = followed(inside, count, lambda word: names.owner(expression(word)))
    return any(_depends(node, follows, names, values, turn) for node in inside)


def _depends(
    node: Any, follows: set[str], names: RegisteredNames, values: Mapping[str, Any], turn: TurnBlocks
) -> bool:
    """Return whether a statement or an expression of training depends on what follows from a count."""
    if isinstance(node, ast.While):
        return bool(follows & words_in(node.test))
    if isinstance(node, ast.If):
        if not follows & words_in(node.test):
            return False
        parts = [*nodes([*node.body, *node.orelse])]
        # A count of micro-batches is 0 again at the boundary that it decides; one beside it decides what is trained next.
        trains = not turn.is_around_boundary(node) and any(
            last_name(getattr(each, "func", None)) == "backward" for each in parts
        )
        return any(_acts(each, names, values, trains=trains) for each in parts)
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


def _acts(node: Any, names: RegisteredNames, values: Mapping[str, Any], *, trains: bool) -> bool:
    """Return whether a statement that a count decides changes training: it ends the loop, or changes a registered value.

    Args:
        trains: whether a step there is one of what the count decides, and not of what was gathered until then.
    """
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
        return (
            trains
            if function.attr == "step"
            else function.attr != "zero_grad" and not isinstance(function.value, ast.Name)
        )
    if isinstance(value, nn.Module):
        return function.attr == "load_state_dict" or function.attr.endswith("_")
    return function.attr.endswith("_")
