"""Whether training surely depends on a value of the script: by a loss, a call of something registered, or how long the loop goes on."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.optim import Optimizer

from ...inventory import objects
from ...inventory.attribute_words import FORM, SHOWING, last_name
from ...inventory.call_stack import parts_of, walk
from .assignments import (
    FORMING,
    assigned,
    base_of,
    edges,
    expression,
    is_by_equality,
    items_named_in,
    moved_by,
    set_anew,
    word_of,
    words_in,
)
from .registered_names import LOOPS, RegisteredNames, nodes
from .turn_blocks import TurnBlocks

#: Functions beside those named `save…` that write a file, and those that keep values beside the live ones.
_WRITING = frozenset({"copyfile", "copy2", "copytree", "dump"})
_COPYING = frozenset({"deepcopy", "state_dict"})
#: Functions that draw random numbers, those that begin a generator anew, and those that ask for no values.
_DRAWING = frozenset(
    {"rand", "randn", "randint", "randperm", "random", "uniform", "normal", "bernoulli", "choice"}
)
_SEEDING = frozenset({"manual_seed", "seed_everything", "set_seed"})
_OF_FORM = frozenset({"len", "zeros_like", "ones_like", "empty_like", "full_like"})


#: The most bodies, each of which another one calls, from a statement up to the loop.
_CALLS = 4


class _Places(NamedTuple):
    """The places at which a turn may read a word as an earlier turn has set it.

    Attributes:
        before: statements, all of which stand behind.
        without: the ids of expressions that are none.
    """

    before: list[Any]
    without: set[int]


class Dependence:
    """The uses that a loop, and what it calls, makes of registered values.

    Args:
        inside: the statements and expressions.
        names: the names of registered values in them.
        values: these values, by name.
        turn: the blocks of the loop.
    """

    def __init__(
        self, inside: list[Any], names: RegisteredNames, values: Mapping[str, Any], turn: TurnBlocks
    ) -> None:
        self._inside, self._names, self._values, self._turn = inside, names, values, turn
        self._edges = [each for each in edges(inside) if not turn.is_around_boundary(each[0])]
        #: The words that a turn gives other values.
        self.moved = {word for node in inside for word in moved_by(node)}
        self._follows: dict[str, int] = {}
        #: The words that a turn reads as an earlier turn has set them, with the statements that do so.
        self.left = dict[str, list[Any]]()
        self._places: dict[str, _Places] = {}
        self._find_left()
        self._followed, self._is_flag = "", False

    def _find_left(self) -> None:
        sets, reads = dict[str, list[Any]](), dict[str, list[Any]]()
        for node in self._inside:
            for word, _ in set_anew(node):
                sets.setdefault(word, []).append(node)
            if isinstance(getattr(node, "ctx", None), ast.Load):
                reads.setdefault(word_of(node), []).append(node)
        unread, by_number = self._unread(), self._set_by_number()
        for word in sets.keys() & reads.keys():
            statements, places = sets[word], _Places(sets[word], unread)
            if conditions := by_number.get(word):
                bodies = [each.body for each in conditions]
                if not {*map(id, statements)} <= {id(each) for body in bodies for each in nodes(body)}:
                    continue  # other turns set it too
                # What stands under a condition of that number, as this one does, reads what the turn itself has set.
                alike = {
                    id(each)
                    for one in self._conditions_like(conditions)
                    for part in (one.test, *one.body)
                    for each in (one, *walk(part))
                }
                places = _Places([], unread | alike)
            if any(self._is_left_at(each, places) for each in reads[word]):
                self.left[word], self._places[word] = statements, places

    def _is_left_at(self, node: Any, places: _Places) -> bool:
        return id(node) not in places.without and all(self._is_before(node, each) for each in places.before)

    def _unread(self) -> set[int]:
        """Return the expressions that read nothing of an earlier turn which training would miss.

        A first loss lets a loop go on, as any other does. What is compared for equality tells whether to do again what is done. What a
        comprehension names is its own, and what the number of a loop within the turn decides may be for all but its first one.
        """
        found = set[int]()
        for node in self._inside:
            if isinstance(node, ast.While):
                found |= {*map(id, walk(node.test))}
            elif isinstance(node, ast.Compare) and is_by_equality(node) and self._compares_what_moves(node):
                found |= {id(each) for each in (node.left, *node.comparators) if word_of(each)}
            elif isinstance(node, ast.For) and not self._turn.is_around_boundary(node):
                numbers = words_in(node.target)
                for each in walk(node):
                    if isinstance(each, ast.If) and numbers & words_in(each.test):
                        found |= {*map(id, walk(each))}
            elif own := items_named_in(node):
                found |= {id(each) for each in walk(node) if word_of(each) in own}
        return found

    def _compares_what_moves(self, node: ast.Compare) -> bool:
        """Return whether an expression compares a word with what the turn has set, or asks whether it is there: no test of a phase."""
        moving = [
            each for each in (node.left, *node.comparators) if not self.moved.isdisjoint(words_in(each))
        ]
        return len(moving) > 1 or _asks_for_none(node)

    def _set_by_number(self) -> dict[str, list[ast.If]]:
        """Return the words that turns of some numbers set, as each tenth or the hundredth does, with the conditions under which they do."""
        found = dict[str, list[ast.If]]()
        within = {
            id(each)
            for node in self._inside
            if isinstance(node, LOOPS) and not self._turn.is_around_boundary(node)
            for each in walk(node)
        }
        for node in self._inside:
            if not isinstance(node, ast.If) or id(node) in within or self._turn.is_around_boundary(node):
                continue
            asked = self._numbers_in(node.test)
            for word, value in (pair for each in nodes(node.body) for pair in set_anew(each)):
                # One that is tested too is made where there is none: by one turn, if others would make another one.
                tested = word in words_in(node.test)
                if (asked and not tested) or (
                    tested and _is_none(node.test) and self._is_of_the_turn(word, value)
                ):
                    # All remainders together may be all turns.
                    known = [] if _remainders(node.test) else found.get(word, [])
                    found[word] = [*known, node]
        return found

    def _numbers_in(self, test: ast.expr) -> set[str]:
        """Return the remainders, and the values of words that a turn sets, for which a condition asks, as `step % 10` and `step == 100`."""
        asked = _remainders(test)
        for each in walk(test):
            if isinstance(each, ast.Compare) and isinstance(each.ops[0], ast.Eq):
                sides = each.left, each.comparators[0]
                if [not self.moved.isdisjoint(words_in(side)) for side in sides] == [True, False]:
                    asked |= {ast.unparse(each)} if word_of(sides[0]) else set()
        return asked

    def _conditions_like(self, conditions: Iterable[ast.If]) -> Iterator[ast.If]:
        """Yield conditions, and those that ask for the same numbers."""
        asked = {each for one in conditions for each in self._numbers_in(one.test)}
        for node in self._inside:
            if isinstance(node, ast.If) and self._numbers_in(node.test) & asked:
                yield node

    def _is_before(self, one: Any, other: Any, depth: int = _CALLS) -> bool:
        """Return whether a statement or an expression stands before another one. What a body does stands where that is called."""
        bodies = self._turn.body_of(one), self._turn.body_of(other)
        if bodies[0] is bodies[1]:
            return bool(one.lineno < other.lineno)
        calls = [self._turn.calls_of(each) if each is not None and depth else [] for each in bodies]
        return (bool(calls[0]) and all(self._is_before(each, other, depth - 1) for each in calls[0])) or (
            bool(calls[1]) and all(self._is_before(one, each, depth - 1) for each in calls[1])
        )

    def is_read_before(self, word: str, changes: Iterable[Any]) -> bool:
        """Return whether a turn reads a word before it changes it, and elsewhere than to decide about that."""
        known = [*changes]
        ifs = (each for each in self._inside if isinstance(each, ast.If))
        around = (each.test for each in ifs if any(change in each.body for change in known))
        own = {id(each) for part in (*known, *around) for each in walk(part)}
        return any(
            word_of(each) == word and id(each) not in own and any(self._is_before(each, one) for one in known)
            for each in self._inside
            if isinstance(getattr(each, "ctx", None), ast.Load)
        )

    def on(self, word: str, *, is_flag: bool = False) -> bool:
        """Return whether training surely depends on a word. What a flag decides once, as a cache, a resumed run has once, too."""
        conditions = [each for each in self._inside if isinstance(each, ast.If)]
        if any(self._turn.is_around_boundary(each) and word in words_in(each.test) for each in conditions):
            return False  # a count of micro-batches, which is 0 again at the boundary that it decides
        self._follow(word, is_flag=is_flag)
        return any(map(self._depends, self._inside))

    def kept_by(self, word: str, *, names_it: bool) -> Iterator[tuple[Any, str]]:
        """Yield each call that keeps weights where a word decides it: the call, and the word of its copy; "" if it writes a file.

        Args:
            word: the word.
            names_it: whether only a call counts that is given what follows from the word, as the step in a file's name.
        """
        self._follow(word)
        for node in self._inside:
            if not isinstance(node, ast.If) or self._turn.is_around_boundary(node):
                continue
            if self._meets(node, words_in(node.test)):
                for each in nodes([*node.body, *node.orelse]):
                    found = self._kept(each)
                    yield from (
                        pair for pair in found if not names_it or self._meets(pair[0], words_in(pair[0]))
                    )

    def _kept(self, node: Any) -> Iterator[tuple[Any, str]]:
        if isinstance(node, ast.Call):
            name = last_name(node.func)
            if (name.startswith("save") or name in _WRITING) and not self._names.is_guards(node.func):
                yield node, ""
        for word, value in set_anew(node) if isinstance(node, ast.Assign) else ():
            calls = [each for each in walk(value) if isinstance(each, ast.Call)]
            copy = next((each for each in calls if last_name(each.func) in _COPYING), None)
            if copy is not None and any(map(self._owner, words_in(value))) and not self._owner(word):
                yield copy, word

    def _reads(self, node: Any, word: str) -> bool:
        """Return whether a word has the value there that is followed."""
        places = self._places.get(word) if word == self._followed else None
        return places is None or self._is_left_at(node, places)

    def _follow(self, word: str, *, is_flag: bool = False) -> None:
        """Find all that follows from a word, each with the line from which on it does; 0 for what is carried on.

        What is carried on follows from a flag only if that gives it what only this turn has.
        """
        self._followed, self._is_flag, self._follows = word, is_flag, {word: 0}
        found = True
        while found:
            found = False
            for node, words, targets in self._edges:
                if not self._meets(node, words):
                    continue
                kept = self._made_once(node) if is_flag else targets
                for target in targets:
                    own = self._turn.is_in_loop(node) and target in self._turn.always_set
                    if not (own or target in kept or self._is_of_a_call(node, target)):
                        continue
                    line = node.lineno if own else 0
                    # What a condition chooses is registered, and which one it is follows.
                    is_new = not self._owner(target) or isinstance(getattr(node, "value", None), ast.IfExp)
                    if line < self._follows.get(target, line + 1) and is_new:
                        self._follows[target], found = line, True

    def _made_once(self, node: Any) -> set[str]:
        """Return the words that a condition gives what only this turn has."""
        parts = (each for part in node.body for each in walk(part)) if isinstance(node, ast.If) else ()
        pairs = (pair for each in parts for pair in assigned(each))
        return {word for word, value in pairs if self._is_of_the_turn(word, value)}

    def _is_of_a_call(self, node: Any, word: str) -> bool:
        """Return whether a word is a variable of a body, which a statement of it or a call sets, or what it returns."""
        body = self._turn.body_of(node)
        if body is None:
            return "call" in vars(node)
        return word.partition("__at")[0] == body.word or (word.startswith("_") and not base_of(word))

    def _is_of_the_turn(self, word: str, value: ast.expr) -> bool:
        """Return whether a word gets what only this turn has: another value than in the first turn of a resumed run."""
        parts, waiting = list[ast.AST](), list[ast.AST]([value])
        while waiting:
            each = waiting.pop()
            name = last_name(each.func) if isinstance(each, ast.Call) else ""
            if not ((isinstance(each, ast.Attribute) and each.attr in FORM) or name in _OF_FORM):
                parts.append(each)
                waiting += parts_of(each)
        names = {last_name(each.func) for each in parts if isinstance(each, ast.Call)}
        held = self._names.value(expression(word))
        if isinstance(held, nn.Module):
            return "deepcopy" in names
        if not (isinstance(held, (torch.Tensor, int, float, dict)) or objects.is_array(held)):
            return False
        words = {word_of(each) for each in parts} - {""}
        copies = not names.isdisjoint(_COPYING | {"clone"}) and any(map(self._owner, words))
        return copies or not words.isdisjoint(self.moved - {word}) or not names.isdisjoint(_DRAWING)

    def _meets(self, node: Any, words: AbstractSet[str]) -> bool:
        """Return whether one of the words follows from the value, where a statement or a call stands."""
        lines = [self._follows[each] for each in words if each in self._follows and self._reads(node, each)]
        return bool(lines) and (not self._turn.is_in_loop(node) or node.lineno >= min(lines))

    def _owner(self, word: str) -> str:
        return self._names.owner(expression(word))

    def _depends(self, node: Any) -> bool:
        """Return whether a statement or an expression of training depends on what follows from the word."""
        if isinstance(node, ast.While):
            return self._turn.is_around_boundary(node) and self._meets(node, words_in(node.test))
        if isinstance(node, ast.If):
            if self._turn.is_around_boundary(node) or not self._meets(node, words_in(node.test)):
                return False
            parts = [*self._turn.executed([*node.body, *node.orelse])]
            trains = any(last_name(getattr(each, "func", None)) == "backward" for each in parts) or (
                bool(node.orelse) and all(map(self._steps, (node.body, node.orelse)))
            )
            return any(self._acts(each, trains=trains) for each in parts)
        if isinstance(node, (ast.Assign, ast.AugAssign)) and self._changes(node):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            inside = (each for target in targets for each in walk(target))
            places = (each.slice for each in inside if isinstance(each, ast.Subscript))
            return any(self._meets(node, words_in(each)) for each in (node.value, *places))
        if not isinstance(node, ast.Call) or last_name(node.func) in SHOWING:
            return False
        if isinstance(node.func, ast.Attribute) and node.func.attr in ("backward", "step"):
            return self._meets(node, words_in(node.func.value))
        given = [*node.args, *(each.value for each in node.keywords)]
        if not any(self._meets(node, words_in(each)) for each in given):
            return False
        # A registered object is called, or a method of it, or one of what it holds; or torch changes one in place.
        changes = last_name(node.func).endswith("_") and any(map(self._owner, words_in(node)))
        return bool(self._names.owner(node.func)) or changes

    def _steps(self, statements: list[ast.stmt]) -> bool:
        calls = (each.func for each in self._turn.executed(statements) if isinstance(each, ast.Call))
        return any(
            isinstance(each, ast.Attribute) and each.attr == "step" and self._names.owner(each.value)
            for each in calls
        )

    def _changes(self, node: Any) -> bool:
        """Return whether a statement sets a part of a registered value."""
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return any(
            isinstance(each, (ast.Subscript, ast.Attribute)) and self._names.owner(each.value)
            for each in targets
        )

    def _acts(self, node: Any, *, trains: bool) -> bool:
        """Return whether a statement that the word decides changes training: it ends the loop, or changes a registered value.

        Of what a flag decides counts what a resumed run does to restored values once more, and with another result.

        Args:
            trains: whether a step there is one of what the word decides, and not of what was gathered until then.
        """
        if isinstance(node, (ast.Break, ast.Return)):
            return self._turn.is_in_loop(node) and not self._is_flag
        if isinstance(node, (ast.Assign, ast.AugAssign)):
            return self._changes(node) and not (self._is_flag and isinstance(node, ast.Assign))
        function = getattr(node, "func", None)
        name = last_name(function)
        in_place = name.endswith("_") and not name.endswith("__") and not (self._is_flag and name in FORMING)
        if name in _SEEDING or (in_place and any(map(self._owner, words_in(node)))):
            return True
        owner = self._names.owner(function.value) if isinstance(function, ast.Attribute) else ""
        value = self._values[owner] if owner else None
        if isinstance(value, Optimizer) and isinstance(function, ast.Attribute):
            of_it = name == "clear" if self._is_flag else name != "zero_grad"
            return trains if name == "step" else of_it and not isinstance(function.value, ast.Name)
        return isinstance(value, nn.Module) and name == "load_state_dict"


def _asks_for_none(test: ast.Compare) -> bool:
    return any(getattr(each, "value", "") is None for each in test.comparators)


def _is_none(test: ast.expr) -> bool:
    """Return whether a condition holds where a word is None."""
    return (
        isinstance(test, ast.Compare) and isinstance(test.ops[0], (ast.Is, ast.Eq)) and _asks_for_none(test)
    )


def _remainders(test: ast.expr) -> set[str]:
    """Return the remainders of numbers that a condition asks for, as `step % 10` and `(step + 1) % 10`."""
    return {
        ast.unparse(each)
        for each in walk(test)
        if isinstance(each, ast.BinOp)
        and isinstance(each.op, ast.Mod)
        and word_of(each.left.left if isinstance(each.left, ast.BinOp) else each.left)
    }
