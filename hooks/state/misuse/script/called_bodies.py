"""The functions and methods of the script's own that a loop calls, read as if their statements stood in the loop."""

from __future__ import annotations

import ast
import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from types import FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

from ...inventory.attribute_words import last_name, source_of
from ...inventory.call_stack import is_library, walk
from .assignments import expression, new_expression, object_of, word_at, word_of
from .registered_names import DICTS, RegisteredNames, nodes

#: The most bodies that are read for one loop.
_MOST = 100
#: The most values that a function returns together, if its source does not tell how many.
_TOGETHER = 4
#: The most items of a list, a tuple or a dict, each of which has methods that a loop over them calls.
_ITEMS = 16
#: What a function cannot change in place.
_WITHOUT_PARTS = (int, float, str, bytes, FunctionType, MethodType, ModuleType)
#: Stands between a method that is called by `super()` and the class that calls it.
_BEHIND = "__behind_"


class CalledBody(NamedTuple):
    """The statements of a function or a method, with the words of the loop that calls it.

    Attributes:
        word: what the loop calls, or asks as a property, as in `meter.add`.
        file: the file of the statements.
        statements: they, each of which stands in no other body. The first ones give the parameters their values.
    """

    word: str
    file: str
    statements: list[ast.stmt]


def called_bodies(inside: Iterable[Any], names: RegisteredNames, file: str) -> list[CalledBody]:
    """Return what a loop calls, or asks as a property, and what that calls.

    Left out are methods of registered objects, and what is not the script's own or in a folder beside it. `names` learns which
    parameters stand for registered values.
    """
    seen, found = dict[Any, CalledBody | None](), list[CalledBody]()
    waiting = deque(inside)
    #: By the name of a loop over objects: the words of these.
    items: dict[str, list[str]] = {}
    while waiting and len(found) < _MOST:
        node = waiting.popleft()
        for target, values in gone_over(node):
            items.setdefault(target, []).extend(_items(values, names))
        for base, name, word in _asked(node, items, names):
            function = _function(base, name, names)
            if function is None or not _is_of_the_script(function.__code__.co_filename, file):
                continue
            given = [*_given(function, node, bool(base))]
            objects = {each: value for each, value in given if _has_parts(names.value(value))}
            # An object of several words is read with the first: others of one that has itself would have no end.
            held = [names.value(each) for each in (*([expression(base)] if base else ()), *objects.values())]
            key = (function, *objects, *map(id, held))
            if key in seen and seen[key] is None:
                continue
            links = []
            for parameter, value in given:
                parameter = _word(function, parameter)
                names.bind_name(parameter, value)
                link = ast.copy_location(ast.Assign([new_expression(parameter)], value), value)
                vars(link)["call"] = node  # for `TurnBlocks`: it stands where the call does
                links.append(link)
            if (known := seen.get(key)) is not None:
                known.statements[:0] = links
                continue
            words = {each: object_of(value) for each, value in objects.items()}
            try:
                body = seen[key] = _read(
                    function, base, word, links, words | _outer(function, base, name, names)
                )
            except RecursionError:  # a sum of a thousand terms
                seen[key] = None
                continue
            found.append(body)
            waiting += nodes(body.statements)
    return found


def word_called(node: Any) -> str:
    """Return the word of `CalledBody` for an expression that executes it; "" for any other expression."""
    if isinstance(node, ast.Call):
        return word_of(node.func)
    return word_of(node) if isinstance(node, ast.Attribute) else ""


def gone_over(node: Any) -> Iterator[tuple[str, ast.expr]]:
    """Yield the name that a loop, or a comprehension, gives each item of a value, and the value."""
    loops = [node] if isinstance(node, (ast.For, ast.AsyncFor)) else getattr(node, "generators", [])
    for each in loops:
        targets, given = [each.target], [each.iter]
        if isinstance(each.iter, ast.Call):  # as in `zip(meters, values)` and `callbacks.items()`
            called = each.iter.func
            given = [called.value] if isinstance(called, ast.Attribute) else each.iter.args
            if isinstance(each.target, ast.Tuple):
                targets = each.target.elts
                targets = targets[-1:] if last_name(called) in ("enumerate", "items") else targets
        for target, values in zip(targets, given, strict=False):
            if isinstance(target, ast.Name) and object_of(values):
                yield target.id, values


def _asked(
    node: Any, items: Mapping[str, list[str]], names: RegisteredNames
) -> Iterator[tuple[str, str, str]]:
    """Yield the object, and the method or property, that an expression may execute, and its `word_called`.

    A function has no object. The name of a loop over objects stands for each of them.
    """
    word = word_called(node)
    if not word:
        return
    called = node.func if isinstance(node, ast.Call) else node
    if isinstance(called, ast.Attribute):
        base = object_of(called.value)
        held = called.value
        if isinstance(held, ast.Subscript) and isinstance(held.slice, ast.Name):
            objects = _items(held.value, names)
        else:
            objects = items.get(base, [])
        for each in objects or [base]:
            yield each, called.attr, word
    if isinstance(node, ast.Call):
        for each in items.get(word) or [word]:
            if type(method := names.value(expression(each))) is MethodType:
                yield f"{each}.__self__", method.__name__, word
            elif isinstance(called, ast.Name) or type(method) is FunctionType:
                yield "", each, word
            yield each, "__call__", word


def _items(values: ast.expr, names: RegisteredNames) -> list[str]:
    """Return the words of the items of a value; of an item that a name tells, as in `handlers[event]`, those of each."""
    if isinstance(values, ast.Subscript) and isinstance(values.slice, ast.Name):
        return [each for word in _items(values.value, names) for each in _items(expression(word), names)]
    held, word = names.value(values), object_of(values)
    if type(held) not in (*DICTS, list, tuple) or len(held) > _ITEMS:
        return []
    keys: Iterable[Any] = held if type(held) in DICTS else range(len(held))
    return [f"{word}[{key!r}]" for key in keys if type(key) in (int, str)]


def _function(base: str, name: str, names: RegisteredNames) -> FunctionType | None:
    found = names.value(expression(name)) if not base else None
    if base and not names.owner(expression(base)):
        held = names.value(expression(base))
        kinds = [*(held if isinstance(held, type) else type(held)).__mro__]
        name, _, behind = name.partition(_BEHIND)
        classes = [each.__name__ for each in kinds]
        kinds = kinds[classes.index(behind) + 1 :] if behind in classes else kinds
        found = next((vars(each)[name] for each in kinds if name in vars(each)), None)
        found = found.fget if type(found) is property else found
        if isinstance(held, type):  # of a class its class methods are known
            found = found.__func__ if type(found) is classmethod else None
    for _ in range(_MOST):
        if type(found) is not FunctionType or "__wrapped__" not in found.__dict__:
            break
        found = found.__dict__["__wrapped__"]  # behind a decorator such as `torch.no_grad()`
    return found if type(found) is FunctionType else None


def _is_of_the_script(file: str, script: str) -> bool:
    beside = os.path.dirname(os.path.abspath(script)) + os.sep
    return file == script or (os.path.abspath(file).startswith(beside) and not is_library(file))


def _given(function: FunctionType, call: Any, bound: bool) -> Iterator[tuple[str, ast.expr]]:
    """Yield each parameter that a call gives a value, and the value."""
    code = function.__code__
    positional = [each for each in getattr(call, "args", ()) if not isinstance(each, ast.Starred)]
    yield from (pair for pair in zip(code.co_varnames[bound : code.co_argcount], positional, strict=False))
    for each in getattr(call, "keywords", ()):
        if each.arg in code.co_varnames:
            yield each.arg, each.value


def _has_parts(value: Any) -> bool:
    """Return whether a function that is given a value may change it in place, and a caller's word for it tells so."""
    return value is not None and not isinstance(value, _WITHOUT_PARTS)


def _outer(function: FunctionType, base: str, name: str, names: RegisteredNames) -> dict[str, str]:
    """Return the words of the outer variables of a function that another call has made, as `tick.count` for `count` of `tick`."""
    known, code = not base and names.value(expression(name)) is function, function.__code__
    outer = (each for each in code.co_freevars if not names.has_variable_of(code, each))
    return {each: f"{name}.{each}" if known else _word(function, each) for each in outer}


def _word(function: FunctionType, name: str) -> str:
    """Return a word for a function's own variable that is no other's."""
    return f"_{function.__code__.co_name}_{name}".replace("<", "").replace(">", "")


def _read(
    function: FunctionType, base: str, word: str, links: Iterable[ast.stmt], words: Mapping[str, str]
) -> CalledBody:
    """Return a function's statements with the loop's words, also for what it is given and does not set to another value."""
    me, statements = source_of(function)
    inside = (each for statement in statements for each in walk(statement) if isinstance(each, ast.Name))
    rebound = {each.id for each in inside if not isinstance(each.ctx, ast.Load)}
    own = {*function.__code__.co_varnames} & rebound
    words = {name: each for name, each in words.items() if name not in own}
    reading = _Reading(function, words | ({me: base} if base else {}), word, base)
    module = reading.visit(ast.Module(statements, []))
    return CalledBody(word, function.__code__.co_filename, [*links, *module.body])


class _Reading(ast.NodeTransformer):
    """Gives a function's object the loop's name, what it returns to a word, and its own variables names that are no others'.

    Args:
        function: the function.
        words: the words of its parameters and outer variables.
        returned: the word of what it returns.
        base: the word of its object; "" if it has none.
    """

    def __init__(self, function: FunctionType, words: Mapping[str, str], returned: str, base: str) -> None:
        code = function.__code__
        own = {*code.co_varnames, *code.co_cellvars}
        self._words = {name: _word(function, name) for name in own} | {**words}
        self._object = base
        self._class = function.__qualname__.rpartition(".")[0].rpartition(".")[2]
        self._returned, self._first = returned, code.co_firstlineno

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, (ast.stmt, ast.expr)):
            node.lineno += self._first - 1
        return super().visit(node)

    def visit_Name(self, node: ast.Name) -> ast.expr:
        word = self._words.get(node.id)
        return ast.copy_location(new_expression(word), node) if word else node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        if isinstance(node.value, ast.Call) and last_name(node.value.func) == "super" and self._object:
            return ast.copy_location(
                new_expression(f"{self._object}.{node.attr}{_BEHIND}{self._class}"), node
            )
        self.generic_visit(node)
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.stmt:
        return node  # what it returns is not returned here

    def visit_Return(self, node: ast.Return) -> list[ast.stmt]:
        self.generic_visit(node)
        value = node.value or ast.Constant(None)
        made: list[ast.stmt] = [ast.Assign([new_expression(self._returned)], value)]
        # What is returned under one name may be several values.
        for at, each in enumerate(value.elts if isinstance(value, ast.Tuple) else [value] * _TOGETHER):
            made.append(ast.Assign([new_expression(word_at(self._returned, at))], each))
        return [ast.copy_location(each, node) for each in made]
