"""The names of a script's source, with their attributes, and what its statements assign to them."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from typing import Any


def word_of(node: ast.AST | None) -> str:
    """Return a name, or a name with its attributes, as the script has it; "" for other expressions."""
    if isinstance(node, ast.Name):
        return node.id
    base = word_of(node.value) if isinstance(node, ast.Attribute) else ""
    return f"{base}.{node.attr}" if base and isinstance(node, ast.Attribute) else ""


def words_in(node: ast.AST) -> set[str]:
    return {word for each in ast.walk(node) if (word := word_of(each))}


def expression(word: str) -> ast.expr:
    return ast.parse(word, mode="eval").body


def last_of(word: str) -> str:
    return word.rpartition(".")[2]


def key_of(word: str) -> str:
    """Return what is equal for attributes of one name."""
    return f".{last_of(word)}" if "." in word else word


def assigned(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Yield the word and the value of each plain name or attribute that a statement sets."""
    if not isinstance(node, (ast.Assign, ast.AnnAssign)) or node.value is None:
        return
    value: Any = node.value
    for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
        parts = target.elts if isinstance(target, ast.Tuple) else [target]
        held = (
            value.elts
            if isinstance(value, ast.Tuple) and len(value.elts) == len(parts)
            else [value] * len(parts)
        )
        for part, each in zip(parts, held, strict=True):
            if word := word_of(part):
                yield word, each


def set_anew(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Yield the same, without what changes itself."""
    yield from ((word, value) for word, value in assigned(node) if word not in words_in(value))


def changed_by_itself(node: ast.AST) -> Iterator[str]:
    """Yield the words of what a statement changes by what it was."""
    if isinstance(node, ast.AugAssign):
        if word := word_of(node.target):
            yield word
    else:
        for word, value in assigned(node):
            if word in words_in(value):
                yield word


def followed(inside: Iterable[Any], word: str, leaves: Callable[[str], object]) -> set[str]:
    """Return a word and all that follows from it in assignments, without those of the words that `leaves` is true for."""
    made: dict[str, list[str]] = {}
    for node in inside:
        sets = [(word_of(node.target), node.value)] if isinstance(node, ast.AugAssign) else assigned(node)
        for target, value in sets:
            for each in words_in(value) if target else ():
                made.setdefault(each, []).append(target)
    follows, waiting = {word}, [word]
    while waiting:
        for target in made.get(waiting.pop(), ()):
            if target not in follows and not leaves(target):
                follows.add(target)
                waiting.append(target)
    return follows
