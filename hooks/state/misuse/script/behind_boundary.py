"""Changes of registered numbers behind `guard.step()`, in the same round of the loop, as the script's source tells.

A notice in the next turn saves the boundary's copies, and the resumed run begins with the next round: it never executes what came
behind the boundary. Tensors that change there are seen in memory, and the save waits for the next boundary (SG408). Numbers in dicts,
options of optimizers and schedulers change without a trace, so the statements between `guard.step()` and the end of the loop's body are read.
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
from torch.nn.modules.dropout import _DropoutNd
from torch.optim import Optimizer
from torch.utils.data import DataLoader
from torch.utils.data.sampler import RandomSampler

from ...inventory.attribute_words import last_name
from ...inventory.call_stack import caller_by_hand, script_functions, statements_at
from ..loop_order import CallSite
from .registered_names import LOOPS, SCOPES, RegisteredNames, nodes

log = logging.getLogger("spotguard")

#: Methods that change a container.
_CHANGING = frozenset(
    {
        *("add", "append", "appendleft", "clear", "discard", "extend", "extendleft", "insert", "pop"),
        *("popitem", "popleft", "remove", "reverse", "rotate", "setdefault", "sort", "update"),
    }
)
_CONTAINERS = (dict, list, deque, set)
#: Calls that begin no pass over what they are given.
_NO_PASS = frozenset({"len", "print", "isinstance", "type", "id", "repr", "str"})
#: Methods of schedulers, and of gradient scalers, that move them.
_MOVING = frozenset({"step", "update"})


CHANGES = (
    "%s changes behind guard.step() in the same round of the loop (%s, behind %s), and a resumed run leaves that change out; call "
    "guard.step() at the end of the loop's body, or loop over guard.steps(total) [SG426]"
)
DRAWS = (
    "%s draws from torch's generator behind guard.step() in the same round of the loop (%s, behind %s), and a resumed run leaves that draw out; "
    "give that DataLoader a generator of its own, as in generator=torch.Generator() [SG426]"
)


def changed_behind(frame: FrameType | None, values: Mapping[str, Any]) -> tuple[str, str, str, str] | None:
    """Return what a round of the loop changes behind the boundary that it has marked. It raises nothing: the script is any code.

    Args:
        frame: a frame of `guard.step()`.
        values: the registered values, by name.

    Returns:
        The message and its values: the name, the place of the change, and that of the call. None if nothing is found.
    """
    try:
        return _found(frame, values)
    except Exception:
        log.debug("the code behind guard.step() cannot be read", exc_info=True)
        return None


def _found(frame: FrameType | None, values: Mapping[str, Any]) -> tuple[str, str, str, str] | None:
    boundary = ""
    for each in script_functions(caller_by_hand(frame)):
        boundary = boundary or CallSite(each.f_code, each.f_lasti, each.f_lineno or 0).place
        behind, looped = _behind(each)
        names = RegisteredNames(each, values)
        if any(names.guard_calls(each, "save") for each in behind):
            return None  # a save by hand takes what is there then
        file = os.path.basename(each.f_code.co_filename)
        for name, line in _changes(behind, names, values):
            return CHANGES, name, f"{file}:{line}", boundary
        if any(map(trains_by_chance, values.values())):
            for name, line in _draws(behind, names):
                return DRAWS, name, f"{file}:{line}", boundary
        if looped:
            return None
    return None


def _behind(frame: FrameType) -> tuple[list[ast.stmt], bool]:
    """Return the statements behind the one that a frame executes, to the end of its loop's body, and whether there is a loop."""
    behind: list[ast.stmt] = []
    chain = statements_at(frame)
    for outer, inner in zip(chain[1:], chain, strict=False):
        if isinstance(outer, SCOPES):
            break
        for block in ("body", "orelse", "finalbody"):
            statements = getattr(outer, block, None)
            if isinstance(statements, list) and inner in statements:
                behind += statements[statements.index(inner) + 1 :]
                if isinstance(outer, LOOPS) and block == "body":
                    return behind, True
    return behind, False


def _changes(
    statements: list[ast.stmt], names: RegisteredNames, values: Mapping[str, Any]
) -> Iterator[tuple[str, int]]:
    """Yield the registered name and the line of each change of a registered value."""
    for node in nodes(statements):
        names.bind(node)
        targets: list[ast.expr] = []
        if isinstance(node, (ast.Assign, ast.Delete)):
            targets = node.targets
        elif isinstance(node, (ast.AugAssign, ast.AnnAssign)):
            targets = [node.target]
        for target in targets:
            name = names.owner(target.value) if isinstance(target, (ast.Subscript, ast.Attribute)) else ""
            if name and not isinstance(values[name], nn.Module):
                yield name, node.lineno
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            name = names.owner(node.func.value)
            if name and _moves(node.func.attr, values[name]):
                yield name, node.lineno


def trains_by_chance(value: Any) -> bool:
    """Return whether training with a registered value surely draws from torch's generator."""
    if isinstance(value, nn.Module):
        return any(isinstance(each, _DropoutNd) and each.p > 0 for each in value.modules())
    sampler = getattr(value, "sampler", None) if hasattr(value, "position") else None
    return isinstance(sampler, RandomSampler) and sampler.generator is None


def _draws(statements: list[ast.stmt], names: RegisteredNames) -> Iterator[tuple[str, int]]:
    """Yield the name and the line of each pass over a DataLoader that draws its seed from torch's generator."""
    for node in nodes(statements):
        asked: list[ast.expr] = [each.iter for each in getattr(node, "generators", ())]
        if isinstance(node, (ast.For, ast.AsyncFor)):
            asked = [node.iter]
        elif isinstance(node, ast.Call) and last_name(node.func) not in _NO_PASS:
            asked = [*node.args, *(each.value for each in node.keywords)]
            function = names.value(node.func)
            if isinstance(function, FunctionType):  # what it names itself
                held = [(name, function.__globals__.get(name)) for name in function.__code__.co_names]
                yield from ((name, node.lineno) for name, each in held if _seeds_by_chance(each))
        for each in asked:
            if _seeds_by_chance(names.value(each)):
                yield last_name(each), node.lineno


def _seeds_by_chance(value: Any) -> bool:
    return isinstance(value, DataLoader) and value.generator is None


def _moves(method: str, value: Any) -> bool:
    """Return whether a method changes numbers of a registered value."""
    if isinstance(value, (nn.Module, Optimizer)):
        return False
    if isinstance(value, _CONTAINERS):
        return method in _CHANGING
    return method in _MOVING and hasattr(value, "load_state_dict")
