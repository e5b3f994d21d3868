"""The first values that a script's source gives a word, and whether each process begins with them."""

from __future__ import annotations

import argparse
import ast
import functools
import types
from collections import Counter
from collections.abc import Iterable, Iterator
from types import FunctionType
from typing import Any

from ...inventory.attribute_words import last_name
from ...inventory.call_stack import source_file, walk
from ...inventory.objects import outer_variables
from .assignments import (
    FORMING,
    assigned,
    base_of,
    changed_by_itself,
    entries_of,
    expression,
    key_of,
    last_of,
    refilled,
    set_anew,
    word_of,
    words_in,
)
from .carried_values import FUNCTIONS, NUMBERS
from .registered_names import RegisteredNames

#: Calls that ask a clock: what follows from one is a limit of this process.
_CLOCKS = frozenset({"time", "perf_counter", "monotonic", "process_time"})
#: Dicts that begin each entry with a 0.
_ZEROS = frozenset({"defaultdict", "Counter"})
#: Calls that make a number or a container of what they are given.
_PLAIN = frozenset({"float", "int", "field", "list", "set", "dict", "deque", "range", "tensor", "array"})
#: Calls that make a tensor or an array of no data, whatever they are given.
_MAKING = frozenset({"zeros", "ones", "empty", "rand", "randn", "randint", "arange", "eye"}) | {
    f"{each}_like" for each in ("zeros", "ones", "empty", "full", "rand", "randn")
}
#: What holds the options of a run. What the source sets in it stands there.
_NAMESPACES = {each.__name__: each for each in (argparse.Namespace, types.SimpleNamespace)}
_OPTIONS = (*_NAMESPACES.values(), type)
#: Calls that give attributes by their keywords; classes do so too.
_GIVING = frozenset({"set_defaults", "replace", "_replace"})
#: The doubt about all attributes of a name or a class, and about all words.
_OF, _ALL = "of ", "*"


class _Source:
    """The values that the statements of a function, or of a file, give to words.

    Attributes:
        sets: by `key_of` the values that a name, or an attribute or entry of any object, is set to; without what changes itself.
        grown: how often a word is changed by what it was.
        shared: names that several functions set.
        doubts: words, and keys of words, with a value that is not known.
        given: words that get other values in place, as `x.copy_(saved)` gives them.
        refilled: the last names of dicts that get entries which the source does not name.
        unpacked: dicts whose entries become options, as in `Namespace(**saved)`.
        of_classes: by id the values that objects of a class get as their attributes, by `self` or by a call of the class.
    """

    def __init__(self, statements: Iterable[ast.AST]) -> None:
        self.sets: dict[str, list[ast.expr]] = {}
        self.grown: Counter[str] = Counter()
        self.shared, self.doubts, self.refilled = set[str](), set[str](), set[str]()
        self.given, self.of_classes, self.unpacked = set[str](), set[int](), list[ast.expr]()
        self._clocked, self._fields = set[str](), dict[str, list[str]]()
        known = [*statements]
        #: By the id of a node, the class that it is in.
        self._class_of = {
            id(inner): each.name for each in known if isinstance(each, ast.ClassDef) for inner in walk(each)
        }
        for node in known:
            if isinstance(node, (ast.stmt, ast.NamedExpr)):
                self._read(node)
        for node in known:
            if isinstance(node, ast.Call):
                self._read_call(node)

    def _read(self, node: Any) -> None:
        if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
            self._read_assignment(node)
        elif isinstance(node, ast.ClassDef):  # as a dataclass has them
            fields = [pair for statement in node.body for pair in assigned(statement)]
            self._fields[node.name] = [
                last_name(each.target) for each in node.body if isinstance(each, ast.AnnAssign)
            ]
            for word, value in fields:
                self._set(f".{word}", value)
        elif isinstance(node, (ast.For, ast.AsyncFor, ast.NamedExpr)):
            self.doubts |= words_in(node.target)
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            self.doubts |= {
                word for each in node.items if each.optional_vars for word in words_in(each.optional_vars)
            }
        elif isinstance(node, ast.Match):
            self.doubts |= {getattr(each, "name", None) or "" for each in walk(node)} - {""}
        elif isinstance(node, (ast.Global, ast.Nonlocal)):
            self.shared |= {*node.names}
        elif isinstance(node, ast.If) and any(isinstance(each, ast.Continue) for each in node.body):
            self.doubts |= words_in(node.test)  # the script leaves out what is done

    def _read_assignment(self, node: Any) -> None:
        self.grown.update(changed_by_itself(node))
        for word, value in set_anew(node):
            self._set(key_of(word), value)
            if word.startswith("self."):
                self.of_classes.add(id(value))
        value = node.value
        asks = value is not None and (
            any(isinstance(each, ast.Call) and last_name(each.func) in _CLOCKS for each in walk(value))
            or not self._clocked.isdisjoint(words_in(value))
        )
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            if asks:
                self._clocked |= words_in(target)
                self.doubts |= words_in(target) if isinstance(node, ast.AugAssign) else set()
            if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.BitOr):
                self.refilled.add(last_name(target))
            for each in walk(target):
                if isinstance(each, ast.Subscript) and not word_of(each):
                    self._read_item(each, value)

    def _read_item(self, item: ast.Subscript, value: ast.expr) -> None:
        """Note an entry without a word: of an object's attributes, or with a key that the source does not name."""
        if (owner := _owner_of_attributes(item.value)) is not None:
            key = item.slice.value if isinstance(item.slice, ast.Constant) else None
            if isinstance(key, str):
                self._set(f".{key}", value)
            else:
                self._doubt_attributes(owner)
        elif not isinstance(item.slice, ast.Constant):
            self.refilled.add(last_name(item.value))
            if isinstance(item.slice, ast.Slice) and not (
                isinstance(value, (ast.List, ast.Tuple)) and not value.elts
            ):
                self.doubts |= {key_of(word) for word in [word_of(item.value)] if word}
                self.given |= {word_of(item.value)}

    def _read_call(self, node: ast.Call) -> None:
        self.grown.update(changed_by_itself(node))
        self.given |= {*refilled(node)}
        name = last_name(node.func)
        held = getattr(node.func, "value", None)
        if name in ("setattr", "__setattr__"):
            keys = [
                each.value for each in node.args if isinstance(each, ast.Constant) and type(each.value) is str
            ]
            if keys:
                self.doubts.add(f".{keys[0]}")
            elif node.args:
                self._doubt_attributes(node.args[0])
        elif name == "update" and held is not None:
            if (owner := _owner_of_attributes(held)) is not None:
                self._doubt_attributes(owner)
            elif last_name(getattr(held, "func", None)) in ("globals", "locals"):
                self.doubts.add(_ALL)
            else:
                self.refilled.add(last_name(held))
        elif name == "parse_args" and node.args:
            self.doubts.add(_OF + argparse.Namespace.__name__)
        elif name[:1].isupper() or name in _GIVING or name in self._fields:
            for field, value in zip(self._fields.get(name, ()), node.args, strict=False):
                self._set(f".{field}", value)
            for each in node.keywords:
                if each.arg:
                    self._set(f".{each.arg}", each.value)
                    if name[:1].isupper() and name not in _NAMESPACES:
                        self.of_classes.add(id(each.value))
                elif name in _GIVING or name in _NAMESPACES:
                    self.unpacked.append(each.value)
                else:
                    self.doubts |= {f".{field}" for field in self._fields.get(name, ())}

    def _doubt_attributes(self, owner: ast.expr) -> None:
        """Doubt what the attributes of an object are: of each one of its class, if that is the method's own object.

        A name may be a parameter that stands for the options.
        """
        name = last_name(owner)
        if name not in ("self", "cls"):
            self.doubts |= {_OF + each for each in _NAMESPACES}
        self.doubts.add(_OF + (self._class_of.get(id(owner), name) if name in ("self", "cls") else name))

    def _set(self, key: str, value: ast.expr) -> None:
        self.sets.setdefault(key, []).append(value)


def _owner_of_attributes(value: ast.expr) -> ast.expr | None:
    """Return the object whose attributes an expression is: of `x.__dict__` and `vars(x)` it is `x`."""
    if isinstance(value, ast.Attribute) and value.attr == "__dict__":
        return value.value
    asks = isinstance(value, ast.Call) and last_name(value.func) == "vars"
    return value.args[0] if asks and isinstance(value, ast.Call) and value.args else None


@functools.lru_cache(maxsize=64)
def _source_of(file: str) -> _Source:
    return _Source(walk(source_file(file)))


@functools.lru_cache(maxsize=64)
def _source_around(file: str, line: int) -> _Source:
    """Return the source of the functions around the one that begins in a line, whose outer variables are theirs."""
    defined = [
        each for each in walk(source_file(file)) if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef))
    ]
    around = [each for each in defined if each.lineno < line <= (each.end_lineno or 0)]
    source = _Source(each for outer in around[:1] for each in walk(outer))
    source.doubts |= {each.arg for outer in around for each in walk(outer.args) if isinstance(each, ast.arg)}
    return source


class Beginnings:
    """The values that a function, and the files around it, give to words.

    Args:
        statements: those of the function.
        parameters: its parameters, whose values are not known.
        files: its file, and those whose functions it calls: attributes, entries and global names may be set there.
        names: tells what names stand for; without it only numbers are fresh.
    """

    def __init__(
        self,
        statements: Iterable[ast.AST],
        parameters: Iterable[str] = (),
        files: Iterable[str] = (),
        names: RegisteredNames | None = None,
    ) -> None:
        self._own, self._names = _Source(statements), names
        self._own.doubts |= {*parameters}
        self._files = [_source_of(each) for each in files]

    def _around(self, word: str) -> list[_Source]:
        """Return where a word may be set."""
        if (function := self._function_with(word)) is not None:
            return [_source_around(function.__code__.co_filename, function.__code__.co_firstlineno)]
        if base_of(word):
            return self._files
        return [each for each in self._files if word in each.shared] or [self._own]

    def _function_with(self, word: str) -> FunctionType | None:
        """Return the function whose outer variable a word is, as `tick.count`; None if it is another word."""
        held = (
            self._names.value(expression(base_of(word)))
            if self._names is not None and base_of(word)
            else None
        )
        return held if type(held) is FunctionType and last_of(word) in outer_variables(held) else None

    def _key(self, word: str) -> str:
        return key_of(word) if self._function_with(word) is None else last_of(word)

    def values(self, word: str) -> list[ast.expr]:
        """Return what a word is set to, without what changes it by what it was."""
        return [value for each in self._around(word) for value in each.sets.get(self._key(word), ())]

    def changes_itself(self, word: str) -> bool:
        """Return whether a statement changes a word, or an attribute of that name of any object, by what it was."""
        return any(key_of(word) in map(key_of, each.grown) for each in (*self._around(word), self._own))

    def is_doubted(self, word: str) -> bool:
        """Return whether a word may have a value that the source does not name."""
        known = {word, self._key(word), _ALL}
        if self._key(word).startswith("."):
            base = base_of(word)
            held = self._names.value(expression(base)) if self._names is not None else None
            known |= {_OF + last_of(base), *(_OF + each.__name__ for each in type(held).__mro__)}
            is_made = issubclass(type(held), _OPTIONS) or hasattr(type(held), "__dataclass_fields__")
            if is_made and any(map(self._is_registered, self._unpacked())):
                return True
        around = (*self._around(word), self._own)
        return any(word in each.given or not known.isdisjoint(each.doubts) for each in around)

    def _unpacked(self) -> Iterator[str]:
        values = (value for each in (self._own, *self._files) for value in each.unpacked)
        return (word for value in values for word in words_in(value))

    def _is_registered(self, word: str) -> bool:
        return self._names is not None and bool(self._names.owner(expression(word)))

    def first(self, word: str, changes: Iterable[ast.AST] = ()) -> str:
        """Return the source of the number, or of the option, that a word begins with; "…" if it begins otherwise.

        Args:
            word: the word.
            changes: statements that change it.
        """
        later = {each.lineno for each in changes if isinstance(each, (ast.stmt, ast.expr))}
        sets = (each for each in self.values(word) if each.lineno not in later)
        given = (each for each in sets if _is_a_number(each) or isinstance(each, ast.Attribute))
        return next(map(ast.unparse, given), "…")

    def grows(self, word: str) -> int:
        """Return how often statements change a word by what it was."""
        if self._function_with(word) is not None:
            return sum(each.grown[last_of(word)] for each in self._around(word))
        return sum(each.grown[word] for each in ([self._own] if base_of(word) else self._around(word)))

    def are_fresh(self, word: str, depth: int = 3, besides: Iterable[ast.expr] = ()) -> bool:
        """Return whether all that a word is set to is what each process begins with, as a number or an option of the run is.

        Args:
            word: the word.
            depth: how many names may stand for others.
            besides: values that the loop gives the word.
        """
        if self.is_doubted(word):
            return False
        made: list[ast.expr] = []
        if word.endswith("]"):
            base = base_of(word)
            made = self._own.sets.get(key_of(base), []) or self.values(base)
            if any(last_of(base) in each.refilled for each in (self._own, *self._files)) or not all(
                entries_of(each) is not None or _is_of_zeros(each) for each in made
            ):
                return False
        given = {each.lineno for each in besides}  # a body that the loop calls was parsed apart
        # `Adam(parameters, lr=args.lr)` gives an attribute of that name what `args.lr` is.
        sets = [each for each in self.values(word) if each.lineno not in given and word_of(each) != word]
        return all(self.is_fresh(each, depth) for each in sets) if sets else any(map(_is_of_zeros, made))

    def go_from_the_first(self, word: str) -> bool:
        """Return whether all iterators that a word is set to begin in each process with their first item."""
        sets = self.values(word)
        return bool(sets) and not self.is_doubted(word) and all(map(self._goes_from_the_first, sets))

    def _goes_from_the_first(self, value: ast.expr) -> bool:
        if not isinstance(value, ast.Call) or self._names is None:
            return False
        function = self._names.value(value.func)
        if type(function) is FunctionType:  # it may know by itself where to begin
            outer = [function.__globals__.get(name) for name in function.__code__.co_names]
            if function.__code__.co_freevars or any(type(each) is int for each in outer):
                return False
        for each in (*value.args, *(each.value for each in value.keywords)):
            held = self._names.value(each) if word_of(each) else None
            known = held is not None and type(held) not in (int, float) and not self._names.owner(each)
            if not (known or self.is_fresh(each) or self._goes_from_the_first(each)):
                return False
        return True

    def is_fresh(self, value: ast.expr, depth: int = 3) -> bool:
        """Return whether an expression is what each process begins with: `0`, `-1.0`, `float("inf")`, `math.inf`, `args.lr * 2`.

        Args:
            value: the expression.
            depth: how many names may stand for others.
        """
        if (call := getattr(value, "of_call", None)) is not None:
            return self.is_fresh(call, depth)
        if isinstance(value, ast.UnaryOp):
            return self.is_fresh(value.operand, depth)
        if isinstance(value, ast.BinOp):
            return self.is_fresh(value.left, depth) and self.is_fresh(value.right, depth)
        if isinstance(value, ast.Call):
            given = (*value.args, *(each.value for each in value.keywords if each.arg != "maxlen"))
            name = last_name(value.func)
            made = self._names.value(value.func) if self._names is not None else None
            if isinstance(made, type) and issubclass(made, tuple):  # a NamedTuple
                return all(self.is_fresh(each, depth) for each in given)
            if name in _MAKING:
                return True
            if name in ("len", "full") or name.startswith("init"):
                return self._goes_from_the_first(value)
            if name in FORMING and isinstance(value.func, ast.Attribute):
                return self.is_fresh(value.func.value, depth)
            return _is_of_zeros(value) or (
                name in _PLAIN and all(self.is_fresh(each, depth) for each in given)
            )
        if isinstance(value, (ast.List, ast.Tuple, ast.Set)):
            return all(self.is_fresh(each, depth) for each in value.elts)
        if isinstance(value, (ast.ListComp, ast.DictComp)):  # of equal items, whatever their number is
            return self.is_fresh(value.elt if isinstance(value, ast.ListComp) else value.value, 0)
        if isinstance(value, ast.IfExp):  # as by a mode
            return self.is_fresh(value.body, depth) and self.is_fresh(value.orelse, depth)
        if isinstance(value, ast.Dict):
            return None not in value.keys and all(self.is_fresh(each, depth) for each in value.values)
        if isinstance(value, ast.Constant) or last_name(value) in ("inf", "nan"):
            return True
        word = word_of(value)
        if not word or self._names is None or not depth or self.grows(word) or self._names.owner(value):
            return False
        if type(self._names.value(value)) in FUNCTIONS and not self.values(word):
            return True
        held = self._names.value(value.value) if isinstance(value, ast.Attribute) else None
        if hasattr(type(held), "__dataclass_fields__") and self.changes_itself(word):
            return False  # a method changes it
        if issubclass(type(held), _OPTIONS):
            of_it = [each for each in self.values(word) if word_of(each) != word]
            if not isinstance(held, type):
                of_it = [each for each in of_it if not any(id(each) in one.of_classes for one in self._files)]
            return not self.is_doubted(word) and all(self.is_fresh(each, depth - 1) for each in of_it)
        return self.are_fresh(word, depth - 1)


def _is_a_number(value: ast.expr) -> bool:
    """Return whether an expression is a number by itself, or a text: `0`, `-1.0`, `True`, `"warm"`, `math.inf`, `float("inf")`."""
    if isinstance(value, ast.UnaryOp):
        return _is_a_number(value.operand)
    if isinstance(value, ast.Call):
        return last_name(value.func) == "float" and all(isinstance(each, ast.Constant) for each in value.args)
    if isinstance(value, ast.Attribute):
        return value.attr in ("inf", "nan")
    return isinstance(value, ast.Constant) and type(value.value) in (*NUMBERS, str)


def _is_of_zeros(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and last_name(value.func) in _ZEROS and len(value.args) < 2
