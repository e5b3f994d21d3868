"""The words in the source of an object's steps: keys to values, and calls whose name says what they do."""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
import re
import textwrap
from contextlib import suppress
from types import CodeType
from typing import Any

#: The keys from an object to a value: names of attributes, constants, `ITEM` for the one of a loop (with the source of what the
#: loop iterates over, for an index), and `SOME` for any other; `OLD` behind those of a local name whose attribute has got another
#: object since.
Keys = tuple[str, ...]
ITEM, SOME, OLD = "*", "?", "<"

#: Calls that only show what they are given.
SHOWING = frozenset({"print", "log", "debug", "info", "warning", "write", "add_scalar", "set_postfix"})
#: Methods that give a tensor, an array or a container other values as a whole.
REFILLING = frozenset({"copy_", "fill_", "zero_", "fill", "clear", "copyto"}) | {
    f"{each}_"
    for each in (
        "normal",
        "uniform",
        "bernoulli",
        "random",
        "exponential",
        "geometric",
        "log_normal",
        "cauchy",
    )
}
#: Modules whose functions refill their first argument, if they have one of these names.
MODULES = frozenset({"torch", "np", "numpy", "init"})
#: Calls with the same items in each loop of a turn.
_STEADY = frozenset(
    [
        "range",
        "len",
        "enumerate",
        "zip",
        "reversed",
        "sorted",
        "items",
        "keys",
        "values",
        "params",
        "parameters",
        "named_parameters",
        "modules",
        "children",
    ]
)
#: Attributes and methods that tell nothing of the values.
FORM = frozenset({"shape", "dtype", "device", "ndim", "size", "dim", "numel", "requires_grad"}) | {
    f"new_{each}" for each in ("zeros", "ones", "empty", "full")
}


def is_item(path: Keys) -> bool:
    return any(key[0] == ITEM for key in path)


def place_of(path: Keys) -> Keys:
    """Return the keys to an object with `ITEM` for each item."""
    return tuple(ITEM if key[0] in (ITEM, SOME) or key.isdigit() else key for key in path)


def loop_key(values: ast.expr) -> str:
    """Return the key for an index over these values: the same for another loop only if that certainly has the same indices."""
    calls = (last_name(each.func) for each in ast.walk(values) if isinstance(each, ast.Call))
    place = "" if {*calls} <= _STEADY else f" {values.lineno} {values.col_offset}"
    return f"{ITEM}{ast.unparse(values)}{place}"


@functools.cache
def words_of(key: str) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", key))


def source_of(method: Any) -> tuple[str, list[ast.stmt]]:
    """Return the name of a method's object in its source, "" if it takes nothing, and its statements; none if there is no source."""
    with suppress(Exception):  # code that a notebook or `exec` has made
        for each in _parsed(getattr(method, "fget", method)).body:
            if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef)):
                return each.args.args[0].arg if each.args.args else "", each.body
    return "", []


def _parsed(method: Any) -> ast.Module:
    """Return the source of a function, which ends where its code does: `inspect` asks a tokenizer, and takes four times as long."""
    function = inspect.unwrap(method)
    first, last = function.__code__.co_firstlineno, _last_line(function.__code__)
    lines = linecache.getlines(function.__code__.co_filename)[first - 1 : last]
    try:
        return ast.parse(textwrap.dedent("".join(lines)))
    except SyntaxError:  # no code stands in its last lines, as behind a comment
        return ast.parse(textwrap.dedent(inspect.getsource(function)))


def _last_line(code: CodeType) -> int:
    inner = (_last_line(each) for each in code.co_consts if isinstance(each, CodeType))
    return max(*(position[1] or 0 for position in code.co_positions()), *inner, code.co_firstlineno)


def refills(name: str, module: str) -> bool:
    return name.endswith("_") if module == "init" else name.removeprefix("_foreach_") in REFILLING


def last_name(node: object) -> str:
    """Return the last name of an expression; "" if it has none."""
    name: str = getattr(node, "attr", getattr(node, "id", ""))
    return name


def shows(statement: ast.AST) -> bool:
    """Return whether a statement does no more than to show values."""
    if isinstance(statement, ast.If):
        return all(map(shows, (*statement.body, *statement.orelse)))
    function = getattr(getattr(statement, "value", None), "func", None)
    return isinstance(statement, ast.Expr) and last_name(function) in SHOWING if function else False
