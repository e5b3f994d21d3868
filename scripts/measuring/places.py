"""Places in the syntax of our sources: tests for several ranks, starts of threads, and readers of the environment."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from .sources import Sources, trees

#: Names of what a job of several ranks has and a job of one process has not, and of the number of ranks.
_NAMES = ("world", "world_size", "channel", "coordinator")
_TYPES = ("Channel", "Coordinator", "JobCoordinator")
_RANKS = ("ranks", "_ranks")


@dataclass(frozen=True, slots=True)
class Place:
    path: str
    line: int
    text: str
    #: What is found there; the kinds of one measure are counted apart.
    kind: str


# --- branches ---


def branches(sources: Sources, top: str = "hooks/") -> list[Place]:
    """Return the tests of world, number of ranks, channel or coordinator, or of their types.

    A "branch" is the condition of an if, while, conditional expression, assert or comprehension, or the subject or the guard
    of a match. An "other test" is a comparison, an `and`, an `or` or a `not` elsewhere, as in `alone = channel is None`. Each
    outermost condition counts once. Only an operand counts: `channel.rank == 0` tests the rank, not the channel.
    """
    return [place for path, tree in trees(sources, top) for place in _Branches(path).of(tree)]


class _Branches(ast.NodeVisitor):
    def __init__(self, path: str) -> None:
        self._path = path
        self._found: list[Place] = []

    def of(self, tree: ast.Module) -> list[Place]:
        self.visit(tree)
        return self._found

    def visit_If(self, node: ast.If | ast.IfExp | ast.While | ast.Assert) -> None:
        self._branch(node, node.test)

    visit_IfExp = visit_While = visit_Assert = visit_If

    def visit_comprehension(self, node: ast.comprehension) -> None:
        self._branch(node, *node.ifs)

    def visit_match_case(self, node: ast.match_case) -> None:
        self._branch(node, *([node.guard] if node.guard else []))

    def visit_Match(self, node: ast.Match) -> None:
        if _operand(node.subject) or any(_of_type(case.pattern) for case in node.cases):
            self._add(node.subject, "branch")
        self.generic_visit(node)

    def visit_Compare(self, node: ast.expr) -> None:
        if not self._condition(node, "other test"):
            self.generic_visit(node)

    visit_BoolOp = visit_UnaryOp = visit_Compare

    def visit_Call(self, node: ast.Call) -> None:
        if not (_identifier(node.func) == "isinstance" and self._condition(node, "other test")):
            self.generic_visit(node)

    def _branch(self, node: ast.AST, *conditions: ast.expr) -> None:
        counted = [each for each in conditions if self._condition(each, "branch")]
        for child in ast.iter_child_nodes(node):
            if child not in counted:
                self.visit(child)

    def _condition(self, node: ast.expr, kind: str) -> bool:
        if found := _tests(node):
            self._add(node, kind)
        return found

    def _add(self, node: ast.expr, kind: str) -> None:
        self._found.append(Place(self._path, node.lineno, ast.unparse(node), kind))


def _tests(node: ast.expr) -> bool:
    """Return whether a condition has an operand of ours."""
    match node:
        case ast.BoolOp(values=operands):
            return any(map(_tests, operands))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return _tests(operand)
        case ast.NamedExpr(value=value):
            return _tests(value)
        case ast.Compare(left=left, comparators=others):
            return any(_operand(each) for each in (left, *others))
        case ast.Call(func=ast.Name(id="isinstance"), args=[value, of]):
            return _operand(value) or any(_identifier(each) in _TYPES for each in ast.walk(of))
    return _operand(node)


def _operand(node: ast.expr) -> bool:
    match node:
        case ast.NamedExpr(value=value):
            return _operand(value)
        case ast.Call(func=ast.Name(id="len"), args=[counted]):
            return _identifier(counted) in _RANKS
        case ast.Call(func=called, args=[]):
            return _identifier(called) == "get_world_size"
    return _identifier(node).lstrip("_") in _NAMES


def _of_type(pattern: ast.pattern) -> bool:
    return any(
        isinstance(each, ast.MatchClass) and _identifier(each.cls) in _TYPES for each in ast.walk(pattern)
    )


def _identifier(node: ast.AST) -> str:
    """Return the last name of `a.b.c`; "" for another expression."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


# --- threads ---

_STARTERS = ("Thread", "Timer", "ThreadPoolExecutor", "start_new_thread")


def threads(sources: Sources) -> list[Place]:
    """Return the places that make a thread or a pool of threads. A subclass of `Thread` counts where an instance is made."""
    parsed = [*trees(sources)]
    classes = [
        (path, node) for path, tree in parsed for node in ast.walk(tree) if isinstance(node, ast.ClassDef)
    ]
    #: (name, the file in which it means a thread; "" for all files).
    starters = {(name, "") for name in _STARTERS}
    while (
        new := {
            (each.name, path if each.name.startswith("_") else "")
            for path, each in classes
            if any(_starts(base, path, starters) for base in each.bases)
        }
        - starters
    ):
        starters |= new
    return [
        Place(path, node.lineno, ast.unparse(node.func), "start")
        for path, tree in parsed
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and _starts(node.func, path, starters)
    ]


def _starts(node: ast.expr, path: str, starters: set[tuple[str, str]]) -> bool:
    return not starters.isdisjoint({(_identifier(node), ""), (_identifier(node), path)})


# --- the environment ---


def environment(sources: Sources) -> list[Place]:
    """Return the places that read the process's environment.

    A "read" is `os.environ` or `os.getenv`, whether it is read there or passed on; an assignment or a deletion is none. A
    "call of a reader" names the variable for a function of ours that reads the variable which its argument names.
    """
    parsed = [*trees(sources)]
    readers = {
        function.name
        for _, tree in parsed
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef) and _reads_its_argument(function)
    }
    found: list[Place] = []
    for path, tree in parsed:
        written = {id(each) for node in ast.walk(tree) for each in _written(node)}
        for node in ast.walk(tree):
            if not isinstance(node, ast.expr):
                continue
            if _is_environment(node) and id(node) not in written:
                found.append(Place(path, node.lineno, ast.unparse(node), "read"))
            elif isinstance(node, ast.Call) and _identifier(node.func) in readers and _names_variable(node):
                found.append(Place(path, node.lineno, ast.unparse(node), "call of a reader"))
    return sorted(found, key=lambda place: (place.path, place.line))


def _is_environment(node: ast.AST) -> bool:
    match node:
        case ast.Attribute(value=ast.Name(id="os"), attr="environ" | "environb" | "getenv"):
            return True
        case ast.Name(id="environ" | "getenv", ctx=ast.Load()):
            return True
    return False


def _written(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.Subscript(value=value, ctx=ast.Store() | ast.Del()):
            yield value
        case ast.Call(func=ast.Attribute(value=value, attr="update" | "clear")):
            yield value


def _reads_its_argument(function: ast.FunctionDef) -> bool:
    arguments = {each.arg for each in (*function.args.posonlyargs, *function.args.args)}
    for node in ast.walk(function):
        match node:
            case ast.Subscript(value=value, slice=ast.Name(id=key), ctx=ast.Load()):
                pass
            case ast.Call(func=ast.Attribute(value=value, attr="get"), args=[ast.Name(id=key), *_]):
                pass
            case ast.Call(func=ast.Attribute(attr="getenv") as value, args=[ast.Name(id=key), *_]):
                pass
            case _:
                continue
        if _is_environment(value) and key in arguments:
            return True
    return False


def _names_variable(call: ast.Call) -> bool:
    """Return whether the first argument is a text, or a constant of a module."""
    match call.args[:1]:
        case [ast.Constant(value=str())]:
            return True
        case [ast.Name(id=name) | ast.Attribute(attr=name)]:
            return name.isupper()
    return False
