"""The functions of the script that call us: their statements, and their variables. None of their code runs."""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
import os
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

#: The folders of the hooks, through which the script's calls come here, and of all that is spotguard's.
HOOKS = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
OURS = os.path.dirname(HOOKS)


@functools.lru_cache(maxsize=8)
def _parsed(file: str) -> ast.Module:
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):  # a cell with a line for the shell
        return ast.parse("")


def statements_at(frame: FrameType) -> list[ast.AST]:
    """Return the statement that a frame executes, and all that it is in, from the inside out; none if there is no source."""
    line, chain = frame.f_lineno or 0, list[ast.AST]()
    found: ast.AST | None = _parsed(frame.f_code.co_filename)
    while found is not None:
        chain.append(found)
        inner = (
            each for each in ast.iter_child_nodes(found) if isinstance(each, (ast.stmt, ast.excepthandler))
        )
        found = next((each for each in inner if each.lineno <= line <= (each.end_lineno or 0)), None)
    return chain[::-1]


def variable_of(frame: FrameType, name: str) -> Any:
    """Return what a name stands for in a frame; None if nothing."""
    held = frame.f_locals
    value = held.get(name, frame.f_globals.get(name))
    _let_go(frame, held)
    return value


def _let_go(frame: FrameType, held: Any) -> None:
    """Empty what `f_locals` has returned.

    Before Python 3.13 a function's frame keeps that dict, and so a batch and its activations, until the function ends. A tracer's is
    left alone.
    """
    if frame.f_code.co_flags & inspect.CO_OPTIMIZED and type(held) is dict and sys.gettrace() is None:
        held.clear()


def scopes(frame: FrameType | None, most: int) -> Iterator[dict[str, Any]]:
    """Yield the variables of the script's functions, from the one that calls us outwards, and then those of their modules.

    Nothing is yielded where one of spotguard's adapters calls the hooks: the variables around it are a framework's.

    Args:
        frame: a frame of the hooks.
        most: the most functions.
    """
    while frame is not None and frame.f_code.co_filename.startswith(HOOKS):
        frame = frame.f_back
    modules: dict[int, dict[str, Any]] = {}
    for _ in range(most):
        if frame is None or frame.f_code.co_filename.startswith(OURS):
            break
        modules[id(frame.f_globals)] = frame.f_globals
        if frame.f_code.co_flags & inspect.CO_OPTIMIZED:
            held = frame.f_locals
            yield {**held}
            _let_go(frame, held)
        frame = frame.f_back
    yield from modules.values()
