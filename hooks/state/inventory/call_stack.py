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
#: Functions of a script, from the one that marks a boundary outwards.
_FRAMES = 4


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


def grown_by_script(key: str) -> bool:
    """Return whether a statement of the functions that call us, or of their files, changes an attribute by what it was."""
    frame, files = _caller(sys._getframe(1)), set[str]()
    for _ in range(_FRAMES):
        if frame is None or frame.f_code.co_filename.startswith(OURS):
            break
        files.add(frame.f_code.co_filename)
        frame = frame.f_back
    return any(_grows(node, key) for file in files for node in ast.walk(_parsed(file)))


def _grows(node: ast.AST, key: str) -> bool:
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    own = [each for each in targets if isinstance(each, ast.Attribute) and each.attr == key]
    own = [
        each for each in own if getattr(each.value, "id", "") != "self"
    ]  # a class's own, which `attribute_uses.py` reads
    if isinstance(node, ast.AugAssign) or not own or not isinstance(node, (ast.Assign, ast.AnnAssign)):
        return isinstance(node, ast.AugAssign) and bool(own)
    text = ast.unparse(own[0])
    return node.value is not None and any(
        ast.unparse(each) == text for each in ast.walk(node.value) if isinstance(each, ast.Attribute)
    )


def _caller(frame: FrameType | None) -> FrameType | None:
    """Return the first frame that is none of the hooks'."""
    while frame is not None and frame.f_code.co_filename.startswith(HOOKS):
        frame = frame.f_back
    return frame


def scopes(frame: FrameType | None) -> Iterator[dict[str, Any]]:
    """Yield the variables of the script's functions, from the one that calls us outwards, and then those of their modules.

    Nothing is yielded where one of spotguard's adapters calls the hooks: the variables around it are a framework's.

    Args:
        frame: a frame of the hooks.
    """
    frame = _caller(frame)
    modules: dict[int, dict[str, Any]] = {}
    for _ in range(_FRAMES):
        if frame is None or frame.f_code.co_filename.startswith(OURS):
            break
        modules[id(frame.f_globals)] = frame.f_globals
        if frame.f_code.co_flags & inspect.CO_OPTIMIZED:
            held = frame.f_locals
            yield {**held}
            _let_go(frame, held)
        frame = frame.f_back
    yield from modules.values()
