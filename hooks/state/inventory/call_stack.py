"""The functions of the script that call us: their statements, and their variables. None of their code runs."""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import linecache
import os
import sys
from collections import ChainMap
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any, NamedTuple, cast

from .attribute_words import last_name

#: The folders of the hooks, through which the script's calls come here, and of all that is spotguard's.
HOOKS = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
OURS = os.path.dirname(HOOKS)
#: Functions of a script, from the one that marks a boundary outwards.
_FRAMES = 4
#: All functions among which these are searched, and the most files of a script's folder that are read.
_CALLS, _FILES = 30, 20
_STDLIB = os.path.dirname(os.__file__) + os.sep
#: The same for the loop over passes.
_AROUND = 6
#: Fields of a source's nodes that no statement and no expression is in.
_WITHOUT_PARTS = frozenset({"ctx", "op", "ops", "id", "attr", "type_comment"})


@functools.lru_cache(maxsize=8)
def source_file(file: str) -> ast.Module:
    """Return what a file has as source; nothing if there is none."""
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):  # a cell with a line for the shell
        return ast.parse("")


@functools.cache
def _fields(kind: Any) -> tuple[str, ...]:
    return tuple(each for each in kind._fields if each not in _WITHOUT_PARTS and kind is not ast.Constant)


def parts_of(node: ast.AST) -> list[ast.AST]:
    """Return what a node of a source consists of, without operators, and without whether a name is read or set."""
    found: list[ast.AST] = []
    for name in _fields(cast(Any, type(node))):
        value = getattr(node, name, None)
        if type(value) is list:
            found += [each for each in value if isinstance(each, ast.AST)]
        elif isinstance(value, ast.AST):
            found.append(value)
    return found


def walk(node: ast.AST) -> list[ast.AST]:
    """Return a node of a source and all that it consists of, as `ast.walk` yields them, in a third of its time."""
    found = [node]
    for each in found:  # which grows
        found += parts_of(each)
    return found


def statements_at(frame: FrameType) -> list[ast.AST]:
    """Return the statement that a frame executes, and all that it is in, from the inside out; none if there is no source."""
    line, chain = frame.f_lineno or 0, list[ast.AST]()
    found: ast.AST | None = source_file(frame.f_code.co_filename)
    while found is not None:
        chain.append(found)
        inner = (
            each for each in ast.iter_child_nodes(found) if isinstance(each, (ast.stmt, ast.excepthandler))
        )
        there = [each for each in inner if each.lineno <= line <= (each.end_lineno or 0)]
        if len(there) > 1:  # several on one line
            # A code unit has two bytes (PEP 659), and a position (PEP 657) unless they are switched off.
            unit = max(frame.f_lasti, 0) // 2
            column = next(itertools.islice(frame.f_code.co_positions(), unit, None))[2] or 0
            there = [each for each in there if each.col_offset <= column][-1:] or there
        found = next(iter(there), None)
    return chain[::-1]


#: The references in `_let_go` to a frame's dict of variables that only the frame, and we, have.
_OURS_OF_LOCALS = 4


def variables_of(frame: FrameType) -> ChainMap[str, Any]:
    """Return the variables of a frame, and behind them those of its module, as they are now."""
    held = frame.f_locals
    own = {**held}
    _let_go(frame, held)
    return ChainMap(own, frame.f_globals)


def _let_go(frame: FrameType, held: Any) -> None:
    """Empty what `f_locals` has returned, unless the script has it too, as what `locals()` returned.

    Before Python 3.13 a function's frame keeps that dict, and so a batch and its activations, until the function ends. A tracer's is
    left alone.
    """
    if (
        frame.f_code.co_flags & inspect.CO_OPTIMIZED
        and type(held) is dict
        and sys.getrefcount(held) <= _OURS_OF_LOCALS
        and sys.gettrace() is None
    ):
        held.clear()


def script_functions(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield the functions of the script, from this one outwards; none behind an adapter of spotguard's, which a framework calls."""
    functions = 0
    for _ in range(_CALLS):
        if frame is None or frame.f_code.co_filename.startswith(OURS) or functions == _FRAMES:
            return
        if not is_library(frame.f_code.co_filename):
            functions += 1
            yield frame
        frame = frame.f_back


def parameters_of(code: CodeType) -> tuple[str, ...]:
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


def is_library(file: str) -> bool:
    """Return whether a file is Python's own, or an installed package's."""
    return f"{os.sep}site-packages{os.sep}" in file or file.startswith((_STDLIB, "<frozen "))


def files_beside(script: str) -> set[str]:
    """Return the files of the imported modules in a script's folder, and the script's own; none without a script."""
    return {script, *modules_beside(script)} if script else set()


def modules_beside(script: str) -> dict[str, str]:
    """Return the imported modules in a script's folder, without its own: by file the name."""
    return _modules_beside(os.path.abspath(script), len(sys.modules)) if script else {}


@functools.lru_cache(maxsize=4)
def _modules_beside(path: str, _: int) -> dict[str, str]:
    """Return them anew where another module was imported: a process has thousands of modules, and each look asks."""
    folder, found = os.path.dirname(path) + os.sep, dict[str, str]()
    for name, each in [*sys.modules.items()]:
        file = getattr(each, "__file__", None)
        if type(file) is str and file.startswith(folder) and file.endswith(".py") and not is_library(file):
            found.setdefault(file, name)
    found.pop(path, None)
    return {file: found[file] for file in sorted(found)[:_FILES]}


class AttributeSets(NamedTuple):
    """The attributes that statements of a file set, without those of `__init__`.

    Attributes:
        grown: those of other objects than `self` that are changed by what they were.
        anew: those that are set otherwise, each with the name of the class whose `self` has it; "" for other objects.
    """

    grown: frozenset[str]
    anew: frozenset[tuple[str, str]]


def attribute_sets(key: str, kind: type) -> tuple[bool, bool]:
    """Return whether a script changes an attribute of a class's objects by what it was, and whether it sets it otherwise.

    Asked are the files of the functions that call us, and those of the class.
    """
    files = {each.f_code.co_filename for each in script_functions(caller(sys._getframe(1)))}
    files |= {getattr(sys.modules.get(each.__module__), "__file__", None) or "" for each in kind.__mro__[:-1]}
    found = [_attribute_sets(file) for file in files if f"{os.sep}torch{os.sep}" not in file]
    owners = {"", *(each.__name__ for each in kind.__mro__)}
    return any(key in each.grown for each in found), any(
        (name, key) in each.anew for each in found for name in owners
    )


@functools.lru_cache(maxsize=64)
def _attribute_sets(file: str) -> AttributeSets:
    grown, anew = set[str](), set[tuple[str, str]]()
    waiting: list[tuple[ast.AST, str, bool]] = [(source_file(file), "", False)]
    while waiting:
        node, kind, begins = waiting.pop()
        if isinstance(node, ast.ClassDef):
            kind = node.name
        elif isinstance(node, ast.FunctionDef):
            begins = node.name == "__init__"
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        held: Any = (
            getattr(node, "value", None)
            if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign))
            else None
        )
        for each in (
            part for target in targets for part in getattr(target, "elts", [target]) if held is not None
        ):
            if isinstance(each, ast.Attribute):
                own, text = last_name(each.value) == "self", ast.unparse(each)
                if isinstance(node, ast.AugAssign) or any(
                    text == ast.unparse(one) for one in ast.walk(held) if isinstance(one, ast.Attribute)
                ):
                    grown |= set() if own else {each.attr}
                elif not begins:
                    anew.add((kind if own else "", each.attr))
        waiting += [(each, kind, begins) for each in ast.iter_child_nodes(node)]
    return AttributeSets(frozenset(grown), frozenset(anew))


def caller_by_hand(frame: FrameType | None) -> FrameType | None:
    """Return the first frame that is none of the hooks'; None if a loop over `guard.steps()`, which is a generator, is among these."""
    while frame is not None and frame.f_code.co_filename.startswith(HOOKS):
        if frame.f_code.co_flags & inspect.CO_GENERATOR:
            return None
        frame = frame.f_back
    return frame


def caller(frame: FrameType | None) -> FrameType | None:
    """Return the first frame that is none of the hooks'."""
    while frame is not None and frame.f_code.co_filename.startswith(HOOKS):
        frame = frame.f_back
    return frame


def counts_anew(
    frame: FrameType | None,
    *,
    inside: bool = False,
    leaves_out: Callable[[FrameType, ast.AST], bool] = lambda frame, loop: False,
) -> str:
    """Return the place of the outermost loop around a frame if each of them is at the first number of its range; "" if not, or in doubt.

    Args:
        inside: whether the frame stands in the body of its innermost loop, and not where that begins.
        leaves_out: whether a loop is passed over, which tells nothing.
    """
    place, first = "", not inside
    for _ in range(_AROUND):
        if frame is None:
            break
        file = frame.f_code.co_filename
        if "site-packages" in file and f"{os.sep}tqdm{os.sep}" not in file:
            break  # the script is called by a library, or a library has the loop
        # The first one is the loop whose iterator is made.
        for node in statements_at(frame)[first:] if "site-packages" not in file else []:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                break
            if isinstance(node, (ast.While, ast.For)) and not leaves_out(frame, node):
                begin, counter = _count_of(node)
                at = variables_of(frame).get(counter) if begin is not None else None
                if type(at) is not int or at != begin:
                    return ""
                place = f"{os.path.basename(file)}:{node.lineno}"
        first = first and "site-packages" in file
        frame = None if frame.f_code.co_name == "<module>" else frame.f_back
    return place


def range_of(values: ast.expr | None) -> ast.Call | None:
    """Return the `range(…)` that a loop goes over, perhaps in a progress bar or counted; None if it goes over anything else."""
    held = gone_through(values)
    if not isinstance(held, ast.Call) or not held.args:
        return None
    return held if last_name(held.func) in ("range", "trange") else None


def gone_through(values: ast.expr | None) -> ast.expr | None:
    """Return the values that a loop goes over, without the progress bar or the count around them."""
    while isinstance(values, ast.Call) and last_name(values.func) in ("tqdm", "enumerate") and values.args:
        values = values.args[0]
    return values


def _count_of(loop: ast.While | ast.For) -> tuple[int | None, str]:
    """Return the first number of a loop over a range, and the name that has the number; None if that is not in the source."""
    counted = range_of(loop.iter) if isinstance(loop, ast.For) else None
    if counted is None or not isinstance(loop, ast.For):
        return None, ""
    begin = counted.args[0] if len(counted.args) > 1 else ast.Constant(0)
    target: ast.expr = loop.target
    if isinstance(target, ast.Tuple):  # as in `for batch, i in enumerate(range(0, end, width))`
        target = target.elts[-1]
    if isinstance(begin, ast.Constant) and type(begin.value) is int and isinstance(target, ast.Name):
        return begin.value, target.id
    return None, ""


def scopes(frame: FrameType | None) -> Iterator[tuple[CodeType | None, dict[str, Any]]]:
    """Yield the variables of the script's functions, from the one that calls us outwards, and then those of their modules.

    Nothing is yielded where one of spotguard's adapters calls the hooks: the variables around it are a framework's.

    Args:
        frame: a frame of the hooks.

    Returns:
        A function's code with its variables; None with those of a module.
    """
    modules: dict[int, dict[str, Any]] = {}
    for each in script_functions(caller(frame)):
        modules[id(each.f_globals)] = each.f_globals
        if each.f_code.co_flags & inspect.CO_OPTIMIZED:
            yield each.f_code, dict(variables_of(each).maps[0])
    yield from ((None, each) for each in modules.values())
