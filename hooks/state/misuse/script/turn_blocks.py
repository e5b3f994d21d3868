"""The blocks of statements around a boundary, and in what the loop calls: which of them begins a count anew in each turn."""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from ...inventory.attribute_words import last_name
from ...inventory.call_stack import parts_of, walk
from .assignments import (
    assigned,
    base_of,
    container_of,
    is_of_many,
    object_of,
    refilled,
    set_anew,
    word_of,
    words_in,
)
from .called_bodies import CalledBody, gone_over, word_called
from .registered_names import LOOPS, nodes

#: Statements behind which nothing of the turn runs.
_LEAVING = (ast.Continue, ast.Break, ast.Return, ast.Raise)
#: Where statements hold others.
_BLOCKS = ("body", "orelse", "finalbody")


class TurnBlocks:
    """The loop around a boundary.

    Args:
        chain: the statement that marks the boundary, and all that it is in.
        loop: the outermost loop.
        bodies: what it calls.
    """

    def __init__(self, chain: list[ast.AST], loop: ast.AST, bodies: list[CalledBody]) -> None:
        self._chain = {*map(id, chain)}
        self._innermost = next((each for each in chain if isinstance(each, LOOPS)), loop)
        #: By the id of a statement: what it is in, and the statements beside it.
        self._blocks: dict[int, tuple[ast.AST, list[Any]]] = {}
        #: By the word of a body, the innermost statements that call it; and by the id of a statement, the body that it is in.
        self._calls: dict[str, list[ast.stmt]] = {}
        self._body_of: dict[int, CalledBody] = {}
        self._bodies: dict[str, list[ast.stmt]] = {}
        for body in bodies:
            self._bodies.setdefault(body.word, []).extend(body.statements)
        parts = (loop, *(ast.Module(each.statements, []) for each in bodies))
        for part in parts:
            for each in walk(part):
                for block in (getattr(each, name, None) for name in _BLOCKS):
                    if isinstance(block, list):
                        self._blocks.update((id(statement), (each, block)) for statement in block)
        for body in bodies:
            # What a call gives stands where the call does, and also in what is called.
            for each in nodes(body.statements):
                self._body_of.setdefault(id(each), body)
        #: By the id of an expression, the innermost statement that it is in.
        self._statement_of: dict[int, ast.stmt] = {}
        for statement in [each for _, block in self._blocks.values() for each in block]:
            if id(statement) not in self._statement_of:
                self._statement_of |= {id(each): statement for each in (statement, *_own(statement))}
                for word in self._called_by(statement):
                    self._calls.setdefault(word, []).append(statement)
        #: What is taken from a dict by a key that it may lack.
        self._got = [
            (target, value)
            for part in parts
            for node in walk(part)
            for target, value in assigned(node)
            if isinstance(value, ast.Call) and last_name(value.func) == "get"
        ]
        self._sets = {word: _always_set(statements) for word, statements in self._bodies.items()}
        self._loop = {*map(id, nodes([loop]))}
        #: The words that each turn sets anew in the loop's own statements, also those of loops in it.
        self.always_set = {
            word for each in nodes([loop]) if isinstance(each, LOOPS) for word in _always_set(each.body)
        }
        self._boundary = next((each for each in chain if id(each) in self._blocks), None)

    def is_around_boundary(self, node: ast.AST) -> bool:
        return id(node) in self._chain

    def is_in_loop(self, node: ast.AST) -> bool:
        """Return whether a statement stands in the loop itself, and in nothing that it calls."""
        return id(node) in self._loop

    def executed(self, statements: list[ast.stmt]) -> Iterator[ast.stmt | ast.expr]:
        """Yield what statements execute, with that of the bodies that they call, each once."""
        waiting, seen = deque([statements]), set[str]()
        while waiting:
            for node in nodes(waiting.popleft()):
                yield node
                if (word := word_called(node)) in self._bodies and word not in seen:
                    seen.add(word)
                    waiting.append(self._bodies[word])

    def body_of(self, node: ast.AST) -> CalledBody | None:
        """Return the body that a statement or an expression is in; None if it stands in the loop itself."""
        node = vars(node).get("call", node)
        return None if self.is_in_loop(node) else self._body_of.get(id(node))

    def calls_of(self, body: CalledBody) -> list[ast.stmt]:
        """Return the innermost statements that call a body."""
        return self._calls.get(body.word, [])

    def caller_of(self, statement: ast.AST) -> str:
        """Return the word by which the loop calls what a statement is in; "" if it stands in the loop itself."""
        body = self.body_of(statement)
        return body.word if body is not None else ""

    def is_item_of_a_loop(self, change: Any) -> bool:
        """Return whether a change sets one item of each that a loop within the turn goes over, and so all of them, to other values."""
        numbers = set[str]()
        statement = self._statement_of.get(id(change), change)
        while id(statement) in self._blocks:
            statement, _ = self._blocks[id(statement)]
            if isinstance(statement, ast.For) and not self.is_around_boundary(statement):
                numbers |= words_in(statement.target)
        targets = (each for each in getattr(change, "targets", ()) if isinstance(each, ast.Subscript))
        return any(
            numbers & words_in(each.slice) and container_of(each) not in words_in(change.value)
            for each in targets
        )

    def fills_a_gap(self, change: Any, word: str) -> bool:
        """Return whether a change of a dict is made only where that lacks the key: so does a cache, whose values are those of the key."""
        asked = {word, *(each for each, value in self._got if word in words_in(value))}
        statement = self._statement_of.get(id(change), change)
        while id(statement) in self._blocks:
            outer, block = self._blocks[id(statement)]
            if isinstance(outer, ast.ExceptHandler):
                return last_name(outer.type) in ("KeyError", "")
            # A block that has returned what is there goes on where nothing is.
            before = block[: block.index(statement)] if isinstance(statement, ast.stmt) else []
            if any(
                isinstance(each, ast.If) and _asks_for_a_key(each.test, asked) for each in (outer, *before)
            ):
                return True
            statement = outer
        return False

    def is_always_made(self, change: Any) -> bool:
        """Return whether each turn makes a change: no condition decides it."""
        statement = self._statement_of.get(id(change), change)
        while id(statement) in self._blocks:
            statement, _ = self._blocks[id(statement)]
            if isinstance(statement, (ast.If, ast.ExceptHandler)) and not self.is_around_boundary(statement):
                return False
        return True

    def ends_with(self, word: str, value: str) -> bool:
        """Return whether the last statement of a turn that sets a word, and that each turn executes, gives it this value."""
        pairs = (pair for each in getattr(self._innermost, "body", ()) for pair in set_anew(each))
        given = [ast.unparse(each) for target, each in pairs if target == word]
        return given[-1:] == [value]

    def begins_anew(self, word: str, changes: list[Any]) -> bool:
        """Return whether each turn begins a count anew: before it changes it, as a sum over a validation, or at its own begin or end."""
        if all(self._is_begun(each, word, boundary=False) for each in changes):
            return True
        return self._boundary is not None and self._is_begun(self._boundary, word, boundary=True)

    def _is_begun(self, statement: Any, word: str, *, boundary: bool, depth: int = 4) -> bool:
        """Return whether a statement before this one, in a block around it, sets the count, with no boundary between the two.

        One behind the boundary, in its own block, does so for the next turn, and in a process that begins there.
        """
        first = statement
        statement = self._statement_of.get(id(statement), statement)
        while id(statement) in self._blocks:
            outer, block = self._blocks[id(statement)]
            here = block.index(statement)
            marked = next((at for at, each in enumerate(block) if id(each) in self._chain), None)
            for at, each in enumerate(block if boundary else block[:here]):
                between = not boundary and marked is not None and at < marked <= here
                if not between and at != here and self._sets_anew(each, word):
                    return True
            if boundary and isinstance(outer, LOOPS):
                return False  # only a part of the turns would have set it
            statement = outer
        body = self._body_of.get(id(first))
        calls = self.calls_of(body) if body is not None and depth else []
        return bool(calls) and all(
            self._is_begun(each, word, boundary=False, depth=depth - 1) for each in calls
        )

    def _sets_anew(self, statement: ast.stmt, word: str) -> bool:
        """Return whether a statement sets a word, or what the word is a part of, whatever the values are."""
        around = [word]
        while base := base_of(around[-1]):
            around.append(base)
        if isinstance(
            statement, (ast.For, ast.AsyncFor)
        ):  # as one over the items of a dict, an array or a list
            numbers = words_in(statement.target)
            if any(not {target, object_of(over)}.isdisjoint(around) for target, over in gone_over(statement)):
                return any(self._sets_anew(each, word) for each in statement.body)
            return any(
                isinstance(target, ast.Subscript)
                and word_of(target.value) in (word, base_of(word))
                and numbers & words_in(target.slice)
                for node in nodes(statement.body)
                for target in getattr(node, "targets", ())
            )
        anew = {*_always_set([statement])}
        for called in self._called_by(statement):
            anew |= self._sets.get(called, set())
        return not anew.isdisjoint(around)

    def _called_by(self, statement: ast.stmt) -> set[str]:
        """Return the words of bodies that a statement calls by itself, and not by those in its blocks."""
        # The word of a body is also that of what it returns.
        targets = {*map(id, getattr(statement, "targets", ()))}
        return self._bodies.keys() & {
            word_called(each) for each in _own(statement) if id(each) not in targets
        }


def _asks_for_a_key(test: ast.expr, words: set[str]) -> bool:
    """Return whether a condition asks whether one of some dicts has a key, as `key in x`, or `x.get(key) is None`."""
    asks = (ast.In, ast.NotIn, ast.Is, ast.IsNot)
    compares = (each for each in walk(test) if isinstance(each, ast.Compare))
    return any(isinstance(each.ops[0], asks) and words & words_in(each) for each in compares)


def _always_set(statements: list[ast.stmt]) -> set[str]:
    """Return the words that statements set, whatever the values are."""
    found = set[str]()
    for each in statements:
        if isinstance(each, (ast.With, ast.AsyncWith)):
            found |= _always_set(each.body)
        elif isinstance(each, ast.If):
            found |= _always_set(each.body) & _always_set(each.orelse)
        elif isinstance(each, ast.Try):
            ends = [_always_set(one.body) for one in each.handlers if not isinstance(one.body[-1], _LEAVING)]
            found |= _always_set(each.body).intersection(*ends) | _always_set(each.finalbody)
        elif isinstance(each, ast.While):
            found |= _always_set(each.body) if getattr(each.test, "value", False) is True else set()
        elif not isinstance(each, (ast.Match, ast.For, ast.AsyncFor)):
            found |= {word for word, _ in set_anew(each)}
            found |= {word for one in walk(each) for word in refilled(one)}
            for target in getattr(each, "targets", ()):
                if isinstance(target, ast.Subscript) and is_of_many(target.slice):  # `del x[:]`, `x[...] = y`
                    found.add(word_of(target.value))
    return found


def leaves_out_turns(statement: ast.AST, loops: Sequence[ast.AST]) -> set[str]:
    """Return the words that a loop changes, or reads, before a statement in it leaves out a turn by its number."""
    numbers = {word for each in loops for word in words_in(getattr(each, "target", ast.Constant(0)))}
    passed, found = set[str](), set[str]()
    for each in getattr(statement, "body", ()):
        leaves = isinstance(each, ast.If) and any(isinstance(one, ast.Continue) for one in each.body)
        if leaves and numbers & words_in(each.test):
            found |= passed
        passed |= words_in(each)
    return found


def _own(statement: ast.stmt) -> Iterator[ast.stmt | ast.expr]:
    """Yield the expressions of a statement without those of the statements in it."""
    held = {id(each) for name in (*_BLOCKS, "handlers") for each in getattr(statement, name, ()) or ()}
    yield from nodes([each for each in parts_of(statement) if id(each) not in held])
