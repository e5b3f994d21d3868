"""The attributes that an object's own steps read and change, as their source tells, in the order of execution.

A turn leaves nothing for the next in an attribute that is set, or refilled as a whole, before each read. A branch that does not set it
leaves it old behind the branches. A loop counts as run.
"""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

from .attribute_words import (
    FORM,
    ITEM,
    MODULES,
    OLD,
    REFILLING,
    SOME,
    Keys,
    is_item,
    last_name,
    loop_key,
    place_of,
    refills,
    shows,
    source_of,
    words_of,
)


class Uses:
    """The uses of an object's attributes by the steps and the forward of its class. No names come from code without source.

    Attributes:
        read: the attributes that they read for more than to change or show them, as an earlier turn left them.
        changed: those that they change.
        grown: those of them that they do not merely set anew.
        given: what they set anew in an object that they hold, before each use of it, by the keys to that object.
        taken: what they read there as an earlier turn left it.
    """

    def __init__(self, kind: type) -> None:
        self._classes = [
            each for each in kind.__mro__ if not each.__module__.startswith(("torch.", "builtins"))
        ]
        self.read, self.changed, self.grown = set[str](), set[str](), set[str]()
        self.given: dict[Keys, set[str]] = {}
        self.taken: dict[Keys, set[str]] = {}
        names = {key for each in self._classes for key in vars(each)}
        self._called = set[str]()
        self._beside: dict[str, bool] = {}
        self._sources: dict[tuple[int, str], tuple[str, list[ast.stmt]]] = {}
        for name in sorted(names, key=lambda name: (name.startswith("_"), name)):
            if ("step" in name or name in ("forward", "__call__")) and name not in self._called:
                self._alone(name)
                self._called |= {each for each, _, _ in self._known}
                self.read |= self.old
                self.changed |= self.grown | (self.anew & self.old)

    def _alone(self, name: str) -> None:
        """Execute a method by itself."""
        self.old, self.anew = set[str](), set[str]()
        self._known: dict[tuple[str, int, frozenset[Keys]], frozenset[Keys] | None] = {}
        with suppress(RecursionError):  # an expression of a thousand terms
            self.execute(name, 0, frozenset())

    def grows_beside(self, key: str) -> bool:
        """Return whether a method that no step calls changes an attribute by what it was, and that method or a step reads it."""
        if key not in self._beside:
            self._beside[key] = self._grows_beside(key)
        return self._beside[key]

    def _grows_beside(self, key: str) -> bool:
        kept = self.grown, self.given, self.taken
        try:
            for name in {name for each in self._classes for name in vars(each)} - self._called:
                method = next(vars(each)[name] for each in self._classes if name in vars(each))
                code = getattr(inspect.unwrap(method) if callable(method) else method, "__code__", None)
                if key in getattr(code, "co_names", ()) and not name.startswith("__"):
                    self.grown, self.given, self.taken = set(), {}, {}
                    self._alone(name)
                    if key in self.grown and key in self.old | self.read:
                        return True
        finally:
            self.grown, self.given, self.taken = kept
        return False

    def execute(self, name: str, first: int, fresh: frozenset[Keys]) -> frozenset[Keys] | None:
        """Execute a method, and return what is set anew behind it; None if it always raises.

        Args:
            name: its name.
            first: the first class of the method resolution order that may have it.
            fresh: what is set anew before it.
        """
        key = name, first, fresh
        if key not in self._known:
            self._known[key] = fresh  # also of a method that calls itself
            for at, each in enumerate(self._classes):
                if at >= first and name in vars(each):
                    if (at, name) not in self._sources:
                        self._sources[at, name] = source_of(vars(each)[name])
                    me, statements = self._sources[at, name]
                    if statements:
                        self.old.add(
                            me
                        )  # so that a method with source that reads nothing is no method without source
                        self._known[key] = _Execution(self, at, me, fresh).ended(statements)
                    break
        return self._known[key]

    def has_property(self, name: str) -> bool:
        found = next((vars(each)[name] for each in self._classes if name in vars(each)), None)
        return hasattr(type(found), "__get__") and not callable(found)


uses = functools.cache(Uses)


class _Execution:
    """One execution of a method of the class at `at`, on the object `me`."""

    def __init__(self, uses: Uses, at: int, me: str, fresh: Iterable[Keys]) -> None:
        self._uses, self._at = uses, at
        #: What is set anew so far; None behind a `return` or a `break`.
        self._fresh: set[Keys] | None = {*fresh}
        #: The same where the method, and each loop that runs, ends otherwise than at its last statement.
        self._returns: list[set[Keys] | None] = []
        self._breaks: list[list[set[Keys] | None]] = []
        #: What local names stand for, and those that loops give a value.
        self._names: dict[str, Keys] = {me: ()}
        self._targets: dict[str, str] = {}
        #: Attributes that the present statement has read as they were, and that it sets.
        self._loads, self._sets = set[str](), set[str]()

    def ended(self, statements: Sequence[ast.stmt]) -> frozenset[Keys] | None:
        self._run(statements)
        end = _all([self._fresh, *self._returns])
        return None if end is None else frozenset(end)

    # --- statements ---

    def _run(self, statements: Iterable[ast.stmt]) -> set[str]:
        """Execute statements, and return what they set if they read nothing else."""
        sets, reads = set[str](), False
        for each in statements:
            if self._fresh is not None and not shows(each):
                own, others = self._execute(each)
                sets, reads = sets | own, reads or bool(others)
        return set() if reads else sets

    def _execute(self, node: ast.stmt) -> tuple[set[str], set[str]]:
        """Execute a statement, and return what it sets, and what else it reads; without the statements in it."""
        self._loads, self._sets = set(), set()
        iterated = self._begin(node)
        # What changes itself reads nothing, but what moves on to another attribute does.
        sets, loads = self._sets, self._loads - (self._sets if len(self._sets) == 1 else set())
        if isinstance(node, ast.If):
            # As in a history that is cut when it is long.
            loads -= self._branches(self._chooses(node.test), node.body, node.orelse)
        elif isinstance(node, (ast.For, ast.AsyncFor, ast.While)):
            self._breaks.append([])
            self._run(node.body)
            self._fresh = _all([self._fresh, *self._breaks.pop()])
            if self._fresh is not None:
                self._fresh |= {path for path in iterated if (*path, ITEM) in self._fresh}
            self._run(node.orelse)
        elif isinstance(node, ast.Match):
            self._branches(False, *(each.body for each in node.cases), [])
        elif isinstance(node, ast.Try):
            self._branches(False, [*node.body, *node.orelse], *(each.body for each in node.handlers))
            self._run(node.finalbody)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            returns, self._returns = self._returns, []
            self._branches(False, node.body, [])
            self._returns = returns
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            suppresses = any(
                last_name(getattr(each.context_expr, "func", None)) == "suppress" for each in node.items
            )
            self._branches(False, node.body, *[[]] * suppresses)
        elif isinstance(node, (ast.Return, ast.Raise, ast.Break, ast.Continue)):
            if isinstance(node, ast.Return):
                self._returns.append(self._fresh)
            elif not isinstance(node, ast.Raise) and self._breaks:
                left_out = isinstance(node, ast.Break)
                reached = {each for each in self._fresh or () if not (left_out and is_item(each))}
                self._breaks[-1].append(reached)
            self._fresh = None
        self._uses.old |= loads
        return sets, loads

    def _branches(self, each_item: bool, *branches: Iterable[ast.stmt]) -> set[str]:
        """Execute branches of which one runs, or another one for each item of a loop; return what the first sets, if it reads nothing else."""
        before, ends, only = self._fresh or set(), list[set[Keys] | None](), list[set[str]]()
        left = len(self._breaks[-1]) if self._breaks else 0
        for each in branches:
            self._fresh = {*before}
            only.append(self._run(each))
            ends.append(self._fresh)
        self._fresh = _all(ends)
        if each_item:  # items that a test leaves out here it leaves out at each read
            if self._breaks:
                del self._breaks[-1][left:]
            if self._fresh is not None:
                self._fresh |= {path for end in ends for path in end or () if is_item(path)}
        return only[0]

    def _chooses(self, test: ast.expr) -> bool:
        """Return whether a test chooses the same items of a loop in each turn: by their form, and nothing else."""
        nodes = [*ast.walk(test)]
        calls = [each.func for each in nodes if isinstance(each, ast.Call)]
        names = {each.id for each in nodes if isinstance(each, ast.Name) and each not in calls}
        fixed = all(last_name(each) in FORM | {"isinstance", "hasattr", "len"} for each in calls)
        return bool(names) and names <= {*self._targets} and fixed

    def _begin(self, node: ast.stmt) -> list[Keys]:
        """Execute the expressions of a statement, and return what it iterates over item by item."""
        if isinstance(node, (ast.For, ast.AsyncFor)):
            return [*self._bind(node.target, node.iter)]
        if isinstance(node, ast.AugAssign):
            self._visit(node.value)
            if (path := self._path(node.target)) and not self._is_fresh(path):
                self._uses.grown.add(path[0])
                self._take(path)
                self._sets.add(path[0])
            self._forget(last_name(node.target))
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            path = self._path(node.value) if node.value and isinstance(targets[-1], ast.Name) else None
            if node.value and not path:
                self._visit(node.value)
            for each in targets:
                self._visit(each)
                if path and isinstance(each, ast.Name):
                    self._names[each.id] = path
        else:
            for child in ast.iter_child_nodes(node):
                if isinstance(child, (ast.expr, ast.withitem)):
                    self._visit(child)
            function = getattr(getattr(node, "value", None), "func", None)
            path = self._path(function.value) if isinstance(function, ast.Attribute) else None
            if path and isinstance(node, ast.Expr):
                self._sets.add(path[0])
                self._uses.grown |= {path[0]} & self._loads
        return []

    def _bind(self, target: ast.expr, values: ast.expr) -> Iterator[Keys]:
        """Give a loop's names what they stand for, and yield what the loop iterates over item by item."""
        names = [each.id for each in ast.walk(target) if isinstance(each, ast.Name)]
        key = loop_key(values)
        for name in names:
            self._names.pop(name, None)
            if self._targets.get(name) != key:
                self._forget(name)
            self._targets[name] = key
        parts = target.elts if isinstance(target, ast.Tuple) else []
        if isinstance(values, ast.Call):
            function = last_name(values.func)
            if function == "zip" and len(parts) == len(values.args):
                for part, each in zip(parts, values.args, strict=True):
                    yield from self._bind(part, each)
                return
            if function == "enumerate" and len(parts) == 2 and values.args:
                yield from self._bind(parts[1], values.args[0])
                return
            pairs = function == "items" and len(parts) == 2
            if isinstance(values.func, ast.Attribute) and (pairs or function == "values"):
                yield from self._bind(parts[1] if pairs else target, values.func.value)
                return
        path = self._path(values)
        if not path or SOME in path:
            self._visit(values)
            return
        for name in names:
            self._names[name] = (*path, ITEM) if isinstance(target, ast.Name) else (*path, ITEM, SOME)
        yield path

    # --- expressions ---

    def _visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.Call):
            self._call(node)
        elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            self._names.pop(node.id, None)
            self._targets.pop(node.id, None)
            self._forget(node.id)
        elif path := self._path(node):
            for each in ast.walk(node):
                if isinstance(each, ast.Subscript):
                    self._visit(each.slice)
            if isinstance(getattr(node, "ctx", None), ast.Load):
                self._load(path)
            else:
                self._set(path, rebinds=True)
        else:
            before = {*(self._fresh or ())}
            outer, generators = ({**self._names}, {**self._targets}), getattr(node, "generators", ())
            for each in generators:
                for _ in self._bind(each.target, each.iter):
                    pass
            for each in ast.iter_child_nodes(node):
                for child in each.ifs if isinstance(each, ast.comprehension) else [each]:
                    self._visit(child)
            if generators:
                self._names, self._targets = outer
            if isinstance(node, (ast.BoolOp, ast.IfExp, ast.Lambda)):  # perhaps not executed
                self._fresh = before

    def _call(self, node: ast.Call) -> None:
        name, function = last_name(node.func), node.func
        given = [*node.args, *(each.value for each in node.keywords if each.arg != "out")]
        filled = [each.value for each in node.keywords if each.arg == "out"]
        before = function.value if isinstance(function, ast.Attribute) else None
        receiver = None if before is None else self._path(before)
        if before is not None and receiver and name in REFILLING:
            filled.append(before)
        elif (
            before is not None and given and last_name(before) in MODULES and refills(name, last_name(before))
        ):
            filled.append(given.pop(0))
        elif name.endswith("_like") and given and self._path(given[0]):
            del given[0]
        for each in given:
            self._visit(each)
        if isinstance(before, ast.Call) and last_name(before.func) == "super":
            self._enter(name, self._at + 1)
        elif isinstance(function, ast.Name) and self._names.get(function.id) == ():
            self._enter("__call__", 0)
            self._enter("forward", 0)
        elif receiver and name not in REFILLING and name not in FORM:
            self._load(receiver)
        elif receiver == ():
            self._enter(name, 0)
            self._load((name,))
        elif not receiver:
            self._visit(function)
        for out in filled:
            for each in out.elts if isinstance(out, ast.Tuple) else [out]:
                if path := self._path(each):
                    self._set(path, rebinds=False)
                else:
                    self._visit(each)

    def _enter(self, name: str, first: int) -> None:
        before = frozenset(self._fresh or ())
        end = self._uses.execute(name, first, before)
        self._fresh = None if end is None else {*end}
        for path in (end or before) - before:
            self._outdate(path)

    def _path(self, node: ast.AST | None) -> Keys | None:
        """Return the keys from the object to what an expression stands for; None if it does not begin with the object."""
        keys: list[str] = []
        while isinstance(node, (ast.Attribute, ast.Subscript)):
            if isinstance(node, ast.Subscript):
                keys.append(self._item(node.slice))
            elif node.attr != "data":
                keys.append(node.attr)
            node = node.value
        base = self._names.get(node.id) if isinstance(node, ast.Name) else None
        return None if base is None else (*base, *(key for key in reversed(keys) if key))

    def _item(self, index: ast.expr) -> str:
        """Return the key of a subscript; "" if that is all of it."""
        if isinstance(index, ast.Constant):
            return "" if index.value is ... else repr(index.value)
        if isinstance(index, ast.Slice) and not (index.lower or index.upper or index.step):
            return ""
        return self._targets.get(index.id, SOME) if isinstance(index, ast.Name) else SOME

    def _is_fresh(self, path: Keys) -> bool:
        return path[-1] != OLD and any(path[:end] in (self._fresh or ()) for end in range(1, len(path) + 1))

    def _load(self, path: Keys) -> None:
        if self._uses.has_property(path[0]):
            self._enter(path[0], 0)
        else:  # a method that is handed on: perhaps called
            self._uses.execute(path[0], 0, frozenset(self._fresh or ()))
        given = {each[-1] for each in self._fresh or () if len(each) > 1 and each[:-1] == path}
        place = place_of(path)
        self._uses.given[place] = given & self._uses.given.get(place, given)
        if not self._is_fresh(path) and FORM.isdisjoint(path[1:]):
            self._take(path)

    def _take(self, path: Keys) -> None:
        """Note a read of what an earlier turn left."""
        self._loads.add(path[0])
        for end in range(1, len(path)):
            self._uses.taken.setdefault(place_of(path[:end]), set()).add(path[end])

    def _forget(self, name: str) -> None:
        """Drop what loops have set by an index over something that depends on this name."""
        self._fresh = self._fresh and {
            path for path in self._fresh if not any(name in words_of(key) for key in path if key[0] == ITEM)
        }

    def _outdate(self, path: Keys) -> None:
        """Note that local names stand for what an attribute was before."""
        old = {name: each for name, each in self._names.items() if each[: len(path)] == path}
        self._names |= {name: (*each, OLD) for name, each in old.items()}

    def _set(self, path: Keys, rebinds: bool) -> None:
        """Note that a value is another one: another object, if it `rebinds`."""
        if rebinds:
            self._sets.add(path[0])
            if len(path) == 1:
                self._forget(path[0])
        if self._is_fresh(path) or self._fresh is None:
            return
        if rebinds:
            self._outdate(path)
        if path[0] in self._loads:
            self._uses.grown.add(path[0])
        else:
            self._uses.anew.add(path[0])
            if not {SOME, OLD} & {*path}:
                self._fresh.add(path)


def _all(ends: Iterable[set[Keys] | None]) -> set[Keys] | None:
    """Return what is set anew at each of these ends that is reached; None if none is."""
    reached = [each for each in ends if each is not None]
    return set.intersection(*reached) if reached else None
