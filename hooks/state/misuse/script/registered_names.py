"""Expressions of a script, and which registered value each of them is in."""

from __future__ import annotations

import ast
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from types import CodeType, FrameType, FunctionType, MethodType
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ...inventory.attribute_words import last_name
from ...inventory.call_stack import parts_of, variables_of, walk
from ...inventory.objects import outer_variables
from ...inventory.reachable import MACHINERY, attributes_of, children_of, dict_of
from ...inventory.walk import reach

#: Statements with statements that they only define.
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
LOOPS = (ast.For, ast.AsyncFor, ast.While)
#: What is registered as a whole, and limits of the search in all else.
_WHOLE = (nn.Module, Optimizer, torch.Tensor)
_DEPTH, _OBJECTS = 4, 2_000
#: Dicts that execute no code of a script when they are asked for a key.
DICTS = (dict, defaultdict, Counter, OrderedDict)
#: Functions whose result goes over what they are given, item by item.
_OVER = frozenset({"zip", "enumerate", "reversed", "list", "tuple", "tqdm"})


class RegisteredNames:
    """The names of one function, as they stand for registered values.

    Args:
        frame: the function's frame.
        values: the registered values, by name.
    """

    def __init__(self, frame: FrameType, values: Mapping[str, Any]) -> None:
        self._variables, self._code = variables_of(frame), frame.f_code
        self._registered = {id(each): name for name, each in values.items()}
        for name, value in values.items():  # and what they hold, but nothing of what has a name of its own
            if not isinstance(value, _WHOLE):
                for _, each in reach(
                    value, children_of, _may_hold, depth=_DEPTH, most=_OBJECTS, known=[*self._registered]
                ):
                    self._registered.setdefault(id(each), name)
        #: What the names of loops over parts of registered values stand for.
        self._bound: dict[str, str] = {}

    def owner(self, node: ast.AST) -> str:
        """Return the registered name of the value that an expression is in; "" if there is none."""
        while isinstance(node, (ast.Attribute, ast.Subscript, ast.Name)):
            if isinstance(node, ast.Name) and node.id in self._bound:
                return self._bound[node.id]
            value = self.value(node)
            attributes = dict_of(value) if value is not None else None
            for each in (value, attributes):
                if each is not None and id(each) in self._registered:
                    return self._registered[id(each)]
            if isinstance(node, ast.Name):
                return ""
            node = node.value
        return ""

    def owner_of(self, value: object) -> str:
        """Return the registered name of an object that is in a registered value; "" if there is none."""
        return self._registered.get(id(value), "")

    def bind(self, node: ast.AST) -> None:
        """Note what the names of a loop stand for."""
        if isinstance(node, (ast.For, ast.AsyncFor)) and (found := self._owner_of_items(node.iter)):
            self._bound |= {each.id: found for each in walk(node.target) if isinstance(each, ast.Name)}

    def bind_name(self, name: str, value: ast.expr) -> None:
        """Note what a parameter stands for, if that is in a registered value."""
        if found := self.owner(value):
            self._bound[name] = found

    def guard_calls(self, statement: ast.stmt, method: str) -> bool:
        """Return whether a statement calls a method of a guard, as in `guard.save()`."""
        calls = (each.func for each in walk(statement) if isinstance(each, ast.Call))
        return any(getattr(each, "attr", "") == method and self.is_guards(each) for each in calls)

    def is_guards(self, function: ast.expr) -> bool:
        """Return whether an expression is a method of a guard, or of another object of ours."""
        held = self.value(function.value) if isinstance(function, ast.Attribute) else None
        return type(held).__module__.startswith("spotguard.")

    def has_variable_of(self, code: CodeType, name: str) -> bool:
        """Return whether an outer variable of another function is this one's: then this one, or one in it, defines that."""
        if name not in (*self._code.co_cellvars, *self._code.co_freevars):
            return False
        waiting = [self._code]
        while waiting:
            inner = [each for each in waiting.pop().co_consts if isinstance(each, CodeType)]
            if any(each is code for each in inner):
                return True
            waiting += inner
        return False

    def _owner_of_items(self, values: ast.expr) -> str:
        """Return the registered name of the value that a loop goes over; of several the first."""
        if isinstance(values, ast.Call):
            given: Iterable[ast.expr] = values.args if last_name(values.func) in _OVER else []
            if isinstance(values.func, ast.Attribute):  # as in `ema.items()`
                given = [*given, values.func.value]
            return next(filter(None, map(self._owner_of_items, given)), "")
        return self.owner(values)

    def value(self, node: ast.AST) -> Any:
        """Return what an expression stands for, without executing any code of the script; None if that is not known."""
        if isinstance(node, ast.Name):
            return None if node.id in self._bound else self._variables.get(node.id)
        if isinstance(node, ast.Attribute):
            held = self.value(node.value)
            if type(held) is MethodType and node.attr == "__self__":
                return held.__self__
            if isinstance(held, type):
                return next((vars(each)[node.attr] for each in held.__mro__ if node.attr in vars(each)), None)
            outer = outer_variables(held) if type(held) is FunctionType else {}
            return (outer | attributes_of(held)).get(node.attr)
        if isinstance(node, ast.Subscript) and isinstance(node.slice, (ast.Constant, ast.Name)):
            key: Any = node.slice.value if isinstance(node.slice, ast.Constant) else self.value(node.slice)
            held = self.value(node.value)
            if type(held) in DICTS and type(key) in (str, int):
                return held.get(key)
            if type(held) in (list, tuple) and type(key) is int and 0 <= key < len(held):
                return held[key]
        return None


def _may_hold(value: object) -> bool:
    return not isinstance(value, (*_WHOLE, *MACHINERY))


def nodes(statements: Iterable[ast.AST]) -> Iterator[ast.stmt | ast.expr]:
    """Yield what statements execute, in the order of the source, without what they only define."""
    waiting = [*statements][::-1]
    while waiting:
        node = waiting.pop()
        if not isinstance(node, SCOPES):
            if isinstance(node, (ast.stmt, ast.expr)):
                yield node
            waiting += parts_of(node)[::-1]
