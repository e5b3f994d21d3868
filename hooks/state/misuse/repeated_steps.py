"""Loops that begin again at their first number in a resumed run, and so train steps that are done once more.

That is sure where their ends follow from nothing that a restore brings back, and nothing else ends them.
"""

from __future__ import annotations

import ast
import inspect
import logging
from collections.abc import Mapping
from types import FrameType, FunctionType
from typing import Any

import torch

from ..inventory import objects
from ..inventory.attribute_words import last_name, shows
from ..inventory.call_stack import (
    caller_by_hand,
    counts_anew,
    gone_through,
    parameters_of,
    range_of,
    script_functions,
    source_file,
    statements_at,
    walk,
)
from .script.assignments import base_of, expression, last_of, word_of, words_in
from .script.beginnings import Beginnings
from .script.loop_counters import loops_around
from .script.registered_names import RegisteredNames, nodes

log = logging.getLogger("spotguard")

#: What ends a loop, and the errors behind which a script that catches them goes on as it would without.
_ENDING = (ast.Break, ast.Return, ast.Raise)
_OUTER = frozenset({"", "KeyboardInterrupt", "SystemExit", "Exception", "BaseException", "Preempted"})
#: Calls that ask whether values are finite.
_FINITE = frozenset({"isfinite", "isnan", "isinf"})
#: Calls whose number follows from what they are given.
_COUNTING = frozenset({"len", "int", "min", "max", "round", "ceil", "floor", "size", "numel", "range"})

AGAIN = (
    "the loop at %s begins at its first number again although training was resumed, so this run trains more steps than an uninterrupted "
    "one; %s"
)
_FROM_THE_STEP = "write `for step in range(guard.restore(), total)`, or loop over guard.steps(total)"
_FROM_THE_STEPS = "begin it, and the loop in it, at what follows from the step that guard.restore() returns"


def begins_again(frame: FrameType | None, values: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return the warning about the loop around the first boundary of a resumed run, if that surely begins at its first number.

    It raises nothing: the script is any code.

    Args:
        frame: a frame of `guard.step()`.
        values: the registered values, by name.

    Returns:
        A message and its values, or nothing.
    """
    try:
        inner = caller_by_hand(frame)
        functions = [*script_functions(inner)]
        names = [RegisteredNames(each, values) for each in functions]
        ignores = _ignores_the_step(functions, names)

        def leaves_out(frame: FrameType, loop: ast.AST) -> bool:
            return ignores and frame in functions and _goes_over_data(loop, names[functions.index(frame)])

        place = counts_anew(inner, inside=True, leaves_out=leaves_out)
        fixed = (_Ends(*each, ignores).are_fixed for each in zip(functions, names, strict=False))
        if not (place and all(fixed)):
            return []
        is_nested = sum(len(loops_around(each)[0]) for each in functions) > 1
        return [(AGAIN, place, _FROM_THE_STEPS if is_nested else _FROM_THE_STEP)]
    except Exception:
        log.debug("the loop around guard.step() cannot be read", exc_info=True)
        return []


def _goes_over_data(loop: Any, names: RegisteredNames) -> bool:
    """Return whether a loop goes over a list, a tensor or an array of the script's own, and so from its first item on."""
    held = gone_through(getattr(loop, "iter", None))
    if held is None or names.owner(held):
        return False
    value = names.value(held)
    return type(value) in (list, tuple, torch.Tensor) or objects.is_array(value)


def _ignores_the_step(functions: list[FrameType], names: list[RegisteredNames]) -> bool:
    """Return whether the functions restore, and none of them uses the step that `guard.restore()` returns but to show it."""
    ignored = list[bool]()
    for frame, known in zip(functions, names, strict=False):
        inside = [*nodes(loops_around(frame)[1])]
        calls = {
            id(each)
            for each in inside
            if isinstance(each, ast.Call) and last_name(each.func) == "restore" and known.is_guards(each.func)
        }
        statements = [each for each in inside if id(getattr(each, "value", None)) in calls]
        file = source_file(frame.f_code.co_filename)
        ignored += [isinstance(each, ast.Expr) or _is_only_shown(each, file) for each in statements]
        ignored += [False] * (len(calls) - len(statements))
    return bool(ignored) and all(ignored)


def _is_only_shown(statement: Any, file: ast.AST) -> bool:
    """Return whether a script does no more than to show what a statement sets."""
    targets = getattr(statement, "targets", [None])
    shown = {id(inner) for each in walk(file) if shows(each) for inner in walk(each)}
    return isinstance(targets[0], ast.Name) and not any(
        isinstance(each, ast.Name)
        and each.id == targets[0].id
        and isinstance(each.ctx, ast.Load)
        and id(each) not in shown
        for each in walk(file)
    )


class _Ends:
    """The ends of the loops of a function.

    Args:
        frame: the function's frame.
        names: the names of registered values in it.
        ignores: whether nothing follows from the step that `guard.restore()` returns.
    """

    def __init__(self, frame: FrameType, names: RegisteredNames, ignores: bool) -> None:
        self._frame, self._names, self._ignores = frame, names, ignores
        self._loops, scope = loops_around(frame)
        self._parameters = parameters_of(frame.f_code)
        self._begun = Beginnings(nodes(scope), self._parameters, [frame.f_code.co_filename], names)

    @property
    def are_fixed(self) -> bool:
        """Whether the loops end at a number that surely no restore decides, and nowhere else in a run that trains to its end."""
        for loop in self._loops:
            inside = [*nodes([loop])]
            conditions = (
                each for each in inside if isinstance(each, ast.If) and self._decides_no_end(each.test)
            )
            left_out = {id(each) for condition in conditions for each in condition.body}
            if any(isinstance(each, _ENDING) and id(each) not in left_out for each in inside):
                return False
            counted = range_of(getattr(loop, "iter", None))
            if counted is not None and not all(map(self._is_fixed, counted.args)):
                return False
        handlers = [each for tried in statements_at(self._frame) for each in getattr(tried, "handlers", ())]
        return all(last_name(each.type) in _OUTER for each in handlers)

    def _decides_no_end(self, test: ast.expr) -> bool:
        """Return whether a condition is an option of the run, or asks for no more than whether a value is finite."""
        parts = [*walk(test)]
        calls = [last_name(each.func) for each in parts if isinstance(each, ast.Call)]
        if not _FINITE.isdisjoint(calls) and not any(isinstance(each, ast.BoolOp) for each in parts):
            return True
        return (
            bool(word := word_of(test)) and len(self._begun.values(word)) < 2 and self._begun.is_fresh(test)
        )

    def _is_fixed(self, end: ast.expr) -> bool:
        if self._may_be_restored(end):
            return False
        if self._ignores or isinstance(end, (ast.Constant, ast.Attribute)):
            return True
        if isinstance(end, ast.BinOp):
            return self._is_fixed(end.left) and self._is_fixed(end.right)
        return bool(word := word_of(end)) and self._begun.are_fresh(word)

    def _may_be_restored(self, value: ast.expr, depth: int = 3) -> bool:
        if any(self._asks(each) for each in walk(value) if isinstance(each, ast.Call)):
            return True
        for word in words_in(value):
            if (
                self._names.owner(expression(word))
                or self._begun.changes_itself(word)
                or self._is_a_property(word)
            ):
                return True
            if depth and any(self._may_be_restored(each, depth - 1) for each in self._begun.values(word)):
                return True
        return False

    def _asks(self, call: ast.Call) -> bool:
        """Return whether a call may give what was restored."""
        name, ignores = last_name(call.func), self._ignores
        if name in _COUNTING:  # what a caller gives may be what is left
            return (
                name == "len" and not ignores and any(word_of(each) in self._parameters for each in call.args)
            )
        function = self._names.value(call.func)
        if not ignores or (function is None and isinstance(call.func, ast.Attribute)):
            held = self._names.value(call.func.value) if isinstance(call.func, ast.Attribute) else None
            return not ignores or type(held).__module__ == self._frame.f_globals.get("__name__")
        code = function.__code__ if isinstance(function, FunctionType) else None
        used = (*code.co_names, *code.co_freevars) if code is not None else ()
        return any(self._names.owner(expression(each)) for each in used)

    def _is_a_property(self, word: str) -> bool:
        held = self._names.value(expression(base_of(word))) if base_of(word) else None
        return isinstance(inspect.getattr_static(type(held), last_of(word), None), property)
