"""What a loop's calls execute: the methods of a script's own objects, read as if their statements stood in the loop."""

from __future__ import annotations

import ast
import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from types import FunctionType
from typing import Any, NamedTuple

from ...inventory.attribute_words import source_of
from ...inventory.call_stack import is_library
from .assignments import expression, word_of
from .registered_names import RegisteredNames, nodes

#: The most bodies that are read for one loop.
_MOST = 100


class CalledBody(NamedTuple):
    """The statements of a method or a function, with the words of the loop that calls it.

    Attributes:
        word: what the loop calls, or asks as a property, as in `meter.add`.
        file: the file of the statements.
        statements: they, each of which stands in no other body.
    """

    word: str
    file: str
    statements: list[ast.stmt]


def called_bodies(inside: Iterable[Any], names: RegisteredNames, file: str) -> list[CalledBody]:
    """Return each method that a loop calls, or asks as a property, of an object that is not registered; also what that calls.

    Functions are among them that set a global name. What is not the script's own, or in a folder beside it, is left out.
    """
    seen, found = set[Any](), list[CalledBody]()
    waiting = deque(inside)
    while waiting and len(found) < _MOST:
        for base, name in _asked(waiting.popleft()):
            # An object of several words is read with the first: others of one that has itself would have no end.
            key = (id(names.value(expression(base))) if base else 0, name)
            if key in seen:
                continue
            seen.add(key)
            function = _function(base, name, names)
            if function is None or not _is_of_the_script(function.__code__.co_filename, file):
                continue
            try:
                body = _read(function, base, name)
            except RecursionError:  # a sum of a thousand terms
                continue
            if base or any(isinstance(each, ast.Global) for each in body.statements):
                found.append(body)
                waiting += nodes(body.statements)
    return found


def word_called(node: Any) -> str:
    """Return the word of `CalledBody` for an expression that executes it; "" for any other expression."""
    return (
        word_of(node.func)
        if isinstance(node, ast.Call)
        else word_of(node)
        if isinstance(node, ast.Attribute)
        else ""
    )


def _asked(node: Any) -> Iterator[tuple[str, str]]:
    """Yield the object, and the method or property, that an expression may execute; without an object for a function."""
    if isinstance(node, ast.Attribute) and (base := word_of(node.value)):
        yield base, node.attr
    elif isinstance(node, ast.Call) and (word := word_of(node.func)):
        yield word, "__call__"
        if isinstance(node.func, ast.Name):
            yield "", word


def _function(base: str, name: str, names: RegisteredNames) -> FunctionType | None:
    found: Any = names.value(expression(name)) if not base else None
    if base and not names.owner(expression(base)):
        kinds = type(names.value(expression(base))).__mro__
        found = next((vars(each)[name] for each in kinds if name in vars(each)), None)
        found = found.fget if type(found) is property else found
    return found if type(found) is FunctionType else None


def _is_of_the_script(file: str, script: str) -> bool:
    beside = os.path.dirname(os.path.abspath(script)) + os.sep
    return file == script or (os.path.abspath(file).startswith(beside) and not is_library(file))


def _read(function: FunctionType, base: str, name: str) -> CalledBody:
    """Return a function's statements with the loop's words."""
    me, statements = source_of(function)
    word = base if name == "__call__" else f"{base}.{name}" if base else name
    reading = _Reading(function, {me: base} if base else {}, word)
    return CalledBody(word, function.__code__.co_filename, [reading.visit(each) for each in statements])


class _Reading(ast.NodeTransformer):
    """Gives a function's object the loop's name, what it returns to a word, and its own variables names that are no others'.

    Args:
        function: the function.
        words: the words of its parameters.
        returned: the word of what it returns.
    """

    def __init__(self, function: FunctionType, words: Mapping[str, str], returned: str) -> None:
        code = function.__code__
        own = {*code.co_varnames, *code.co_cellvars}
        self._words = {name: f"_{code.co_name}_{name}" for name in own} | {**words}
        self._returned, self._first = returned, code.co_firstlineno

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, (ast.stmt, ast.expr)):
            node.lineno += self._first - 1
        return super().visit(node)

    def visit_Name(self, node: ast.Name) -> ast.expr:
        word = self._words.get(node.id)
        return ast.copy_location(expression(word), node) if word else node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.stmt:
        return node  # what it returns is not returned here

    def visit_Return(self, node: ast.Return) -> ast.stmt:
        self.generic_visit(node)
        made: ast.stmt = ast.Assign([expression(self._returned)], node.value or ast.Constant(None))
        return ast.copy_location(made, node)
