"""The words of a script's source, which are names with their attributes and entries of dicts, and what statements assign to them."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable, Iterator, Sequence, Set
from typing import Any

from ...inventory.attribute_words import REFILLING, last_name
from ...inventory.call_stack import walk

#: Methods by which a list, a deque or a set keeps what it has, and gets or loses items; and by which a file goes on.
_CHANGING = frozenset(
    {
        *("add", "append", "appendleft", "discard", "extend", "extendleft", "insert", "pop"),
        *("popleft", "remove", "reverse", "rotate", "sort", "readline", "read"),
    }
)
#: Methods that give a value another place or form, and do so once.
FORMING = frozenset(
    {
        *(
            "to",
            "cuda",
            "cpu",
            "float",
            "double",
            "half",
            "long",
            "bool",
            "clone",
            "detach",
            "copy",
            "astype",
        ),
        *("contiguous", "view", "reshape", "squeeze", "unsqueeze", "requires_grad_", "resize_", "numpy"),
    }
)
#: Functions that change what they are given first.
_CHANGING_FIRST = frozenset({"shuffle", "next", "heappush", "heappushpop", "heapreplace"})
_EQUALITY = (ast.Eq, ast.NotEq, ast.Is, ast.IsNot)
#: Functions that give a number another form.
_ROUNDING = frozenset({"round", "float", "int"})
#: Functions, and methods, that give their result once more for it.
_BOUNDING = _ROUNDING | {"min", "max", "abs", "bool", "str"}
_BOUNDING_METHODS = _BOUNDING | {"minimum", "maximum", "clip", "clamp"}


def word_of(node: ast.AST | None) -> str:
    """Return a name, or one with its attributes and entries, as the script has it; "" for other expressions."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        base = object_of(node.value)
        return f"{base}.{node.attr}" if base else ""
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        base = word_of(node.value)
        return f"{base}[{node.slice.value!r}]" if base and isinstance(node.slice.value, str) else ""
    return ""


def object_of(node: ast.AST | None) -> str:
    """Return the word of an expression that has attributes: also of an item, as in `callbacks[0].count` and `meters[name].count`."""
    by_number = isinstance(node, ast.Subscript) and type(getattr(node.slice, "value", None)) is int
    if isinstance(node, ast.Subscript) and (by_number or isinstance(node.slice, ast.Name)):
        base = object_of(node.value)
        return f"{base}[{ast.unparse(node.slice)}]" if base else ""
    return word_of(node)


@functools.lru_cache(maxsize=4096)
def words_in(node: ast.AST) -> frozenset[str]:
    """Return the words in an expression or a statement, without those that a comprehension in it gives its items."""
    parts = walk(node)
    own = {word for each in parts for word in items_named_in(each)}
    return frozenset({word for each in parts if (word := word_of(each))} - own)


def items_named_in(node: ast.AST) -> frozenset[str]:
    """Return the words that a comprehension gives its items; none of any other expression."""
    generators = getattr(node, "generators", ())
    return frozenset(word for each in generators for word in words_in(each.target))


def new_expression(word: str) -> ast.expr:
    """Return the expression of a word, for a place of its own in a source."""
    return ast.parse(word, mode="eval").body


#: The same to ask with: it stands nowhere, and nobody changes it.
expression = functools.lru_cache(maxsize=1024)(new_expression)


def last_of(word: str) -> str:
    """Return the last name in a word: of `self.count` and `state['count']` it is `count`."""
    node = expression(word)
    if isinstance(node, ast.Subscript):
        return str(getattr(node.slice, "value", ""))
    return str(getattr(node, "attr", getattr(node, "id", "")))


def base_of(word: str) -> str:
    """Return what a word is a part of; "" for a name."""
    return object_of(getattr(expression(word), "value", None))


def key_of(word: str) -> str:
    """Return what is equal for attributes, or for entries, of one name."""
    return word.removeprefix(base_of(word))


def assigned(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Yield the word and the value of each plain word that a statement sets, with the entries of a dict that it makes."""
    if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            yield from _given(target, node.value)


def _given(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(target, (ast.Tuple, ast.List)):
        held: list[ast.expr] = [value] * len(target.elts)
        if isinstance(value, (ast.Tuple, ast.List)) and not any(
            isinstance(each, ast.Starred) for each in (*target.elts, *value.elts)
        ):
            held = value.elts
        elif isinstance(value, ast.Call):
            held = [_one_of(value, at) for at in range(len(target.elts))]
        for part, each in zip(target.elts, held, strict=False):
            yield from _given(part, each)
    elif isinstance(target, ast.Starred):
        yield from _given(target.value, value)
    elif word := word_of(target):
        yield word, value
        yield from _entries(word, value)


def word_at(word: str, at: int) -> str:
    """Return a word for one of the values that a function returns together."""
    return f"{word}__at{at}"


def _one_of(call: ast.Call, at: int) -> ast.expr:
    """Return what one of the values follows from that a call returns: itself, the object and what that is given."""
    held = [call.func.value] if isinstance(call.func, ast.Attribute) else []
    word = word_of(call.func)
    own = [new_expression(word_at(word, at))] if word else []
    given = [*own, *held, *call.args, *(each.value for each in call.keywords)]
    one = ast.copy_location(ast.Tuple(given, ast.Load()), call)
    vars(one)["of_call"] = call  # for `Beginnings`: `h, c = init_hidden()` begins both
    return one


def _entries(word: str, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    for key, each in entries_of(value) or ():
        yield f"{word}[{key!r}]", each
        yield from _entries(f"{word}[{key!r}]", each)


def entries_of(value: ast.expr) -> list[tuple[str, ast.expr]] | None:
    """Return the keys and values of an expression that makes a dict, as far as the source tells; None for any other."""
    if isinstance(value, ast.Dict) and None not in value.keys:
        pairs = zip(value.keys, value.values, strict=True)
        return [
            (key.value, each)
            for key, each in pairs
            if isinstance(key, ast.Constant) and type(key.value) is str
        ]
    if isinstance(value, ast.Call) and getattr(value.func, "id", "") == "dict" and not value.args:
        given = [(each.arg, each.value) for each in value.keywords if each.arg]
        return given if len(given) == len(value.keywords) else None
    return None


def set_anew(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Yield the same, without what changes itself."""
    yield from ((word, value) for word, value in assigned(node) if word not in words_in(value))


def changed_by_itself(node: ast.AST) -> Iterator[str]:
    """Yield the words of what a statement, or a call, changes by what it was."""
    if isinstance(node, ast.AugAssign):
        if word := word_of(node.target):
            yield word
    elif isinstance(node, ast.Call):
        if word := container_of(_changed_by_call(node)):
            yield word
    else:
        for word, value in assigned(node):
            if word in words_in(value) and not _is_formed(value, word):
                yield word
    yield from (word for item, word in _items_set(node) if not is_of_many(item.slice))


def _items_set(node: ast.AST) -> Iterator[tuple[ast.Subscript, str]]:
    """Yield each item at a computed key that a statement sets, with the word of what it is in."""
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    for each in targets if isinstance(node, (ast.Assign, ast.AugAssign)) else ():
        if isinstance(each, ast.Subscript) and not word_of(each) and (word := container_of(each)):
            yield each, word


def container_of(node: ast.AST | None) -> str:
    """Return the word of what an item is in, as `table` of `table[state][action]`; of another expression its own word."""
    while isinstance(node, ast.Subscript) and not word_of(node):
        node = node.value
    return word_of(node)


def kept_as_best(inside: Iterable[ast.AST]) -> dict[str, list[ast.Assign]]:
    """Return the words that a condition compares with a value and its branches set to that, each with the statements that do so.

    A call of two values compares too, as `better(loss, best)`. What sets such a word where it is None is among the statements: the
    first value is the best one.
    """
    known = [*inside]
    flags = {word: value for node in known for word, value in assigned(node) if isinstance(node, ast.Assign)}
    kept, first = dict[str, list[ast.Assign]](), dict[str, list[ast.Assign]]()
    for node in known:
        if not isinstance(node, ast.If):
            continue
        sets = [
            (each, *pair) for each in walk(node) if isinstance(each, ast.Assign) for pair in _kept_by(each)
        ]
        for test in walk(flags.get(word_of(node.test), node.test)):
            if (sides := _sides(test)) is None:
                continue
            is_none = word_of(sides[0]) if getattr(sides[1], "value", "") is None else ""
            left, right = map(words_in, sides)
            for statement, word, value in sets:
                own, other = (left, right) if word in left else (right, left)
                better = word in own - other and not words_in(value).isdisjoint(other)
                if better and not is_by_equality(test):
                    kept.setdefault(word, []).append(statement)
                elif word == is_none:
                    first.setdefault(word, []).append(statement)
    return {word: [*each, *first.get(word, ())] for word, each in kept.items()}


def is_by_equality(test: ast.AST) -> bool:
    """Return whether an expression asks whether two values are the same: so a script asks whether to do again what it did for one."""
    return isinstance(test, ast.Compare) and all(isinstance(each, _EQUALITY) for each in test.ops)


def _sides(test: ast.AST) -> tuple[ast.expr, ast.expr] | None:
    """Return the two values that an expression compares, or hands to a function together."""
    if isinstance(test, ast.Compare) and len(test.comparators) == 1:
        return test.left, test.comparators[0]
    if isinstance(test, ast.Call) and len(test.args) == 2:
        return test.args[0], test.args[1]
    return None


def _kept_by(statement: ast.Assign) -> Iterator[tuple[str, ast.expr]]:
    """Yield what a statement sets: words, and containers by one of their items."""
    yield from assigned(statement)
    yield from ((word, statement.value) for _, word in _items_set(statement))


def is_of_many(index: ast.expr) -> bool:
    return any(isinstance(each, ast.Slice) or getattr(each, "value", None) is ... for each in walk(index))


def _is_formed(value: ast.expr, word: str) -> bool:
    """Return whether a value is a word's in another form or place, also item by item, or one that is refilled as a whole."""
    if isinstance(value, (ast.DictComp, ast.ListComp)) and len(value.generators) == 1:
        source, item = value.generators[0].iter, value.value if isinstance(value, ast.DictComp) else value.elt
        source = (
            source.func.value
            if isinstance(source, ast.Call) and isinstance(source.func, ast.Attribute)
            else source
        )
        if isinstance(item, ast.Call) and last_name(item.func) in FORMING | _ROUNDING:
            return word_of(source) == word and word not in words_in(item)
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        if value.func.attr in REFILLING:
            return True
        if value.func.attr not in FORMING:
            return False
        value = value.func.value
    return word_of(value) == word


def is_settled(value: ast.expr, word: str, moved: Set[str]) -> bool:
    """Return whether a word gets the same value in each turn, whatever it was, as in `size = min(size, most)` and `x = x or default`.

    Args:
        value: the value.
        word: the word.
        moved: the words that a turn sets.
    """
    parts: Sequence[ast.expr] = []
    function = value.func if isinstance(value, ast.Call) else None
    is_method = isinstance(function, ast.Attribute)
    if isinstance(value, ast.Call) and last_name(function) in (_BOUNDING_METHODS if is_method else _BOUNDING):
        parts = [*value.args, *(each.value for each in value.keywords)]
        parts = [*parts, function.value] if isinstance(function, ast.Attribute) else parts
    elif isinstance(value, ast.BoolOp):
        parts = value.values
    elif isinstance(value, ast.IfExp):
        parts = [value.body, value.orelse]
        if not words_in(value.test).isdisjoint(moved - {word}):
            return False
    # A part that is made of the word, as `size + 1`, moves it on.
    by_it = [each for each in parts if word in words_in(each)]
    return bool(by_it) and all(
        word_of(each) == word
        or (is_settled(each, word, moved) if each in by_it else words_in(each).isdisjoint(moved))
        for each in parts
    )


def refilled(node: ast.AST) -> Iterator[str]:
    """Yield the words whose values a call sets as a whole, as in `x.zero_()`, `x.normal_().mul_(2)` and `np.copyto(x, y)`."""
    while isinstance(node, ast.Call):
        name = last_name(node.func)
        held = node.func.value if isinstance(node.func, ast.Attribute) else None
        if name in REFILLING or name in ("seek", "clear"):
            while isinstance(held, ast.Call) and isinstance(held.func, ast.Attribute):
                held = held.func.value
            if word := word_of(node.args[0] if name == "copyto" and node.args else held):
                yield word
        node = held or ast.Constant(None)


def _changed_by_call(node: ast.Call) -> ast.expr | None:
    name = last_name(node.func)
    if name in _CHANGING_FIRST and node.args:
        return node.args[0]
    held = node.func.value if isinstance(node.func, ast.Attribute) else None
    if name in _CHANGING:
        return held
    if name.startswith("_") or not name.endswith("_") or name in REFILLING | FORMING:
        return None
    while isinstance(held, ast.Call) and isinstance(held.func, ast.Attribute):  # as in `x.mul_(0.9).add_(y)`
        if held.func.attr in REFILLING:
            return None
        held = held.func.value
    return held


def edges(inside: Iterable[Any]) -> Iterator[tuple[Any, frozenset[str], set[str]]]:
    """Yield each statement or call that gives words a value, those that it follows from, and these words.

    An assignment follows from its value, and all assignments within a condition from that.
    """
    for node in inside:
        if isinstance(node, ast.If):
            parts = (each for part in (*node.body, *node.orelse) for each in walk(part))
            yield node, words_in(node.test), {target for each in parts for target, _ in _set_by(each)}
        for target, value in _set_by(node):
            yield node, words_in(value), {target}


def moved_by(node: ast.AST) -> set[str]:
    """Return the words that a statement or a call gives other values, also in place, and those of a loop's items."""
    looped = words_in(node.target) if isinstance(node, (ast.For, ast.AsyncFor)) else frozenset()
    return {word for word, _ in _set_by(node)} | {*changed_by_itself(node), *looped}


def _set_by(node: Any) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(node, ast.AugAssign):
        if word := word_of(node.target):
            yield word, node.value
    elif isinstance(node, ast.Call) and last_name(node.func) in _CHANGING:
        if word := word_of(getattr(node.func, "value", None)):
            yield from ((word, each) for each in node.args)
    else:
        yield from assigned(node)
    for item, word in _items_set(node):
        yield word, ast.copy_location(ast.Tuple([item.slice, node.value], ast.Load()), node)
