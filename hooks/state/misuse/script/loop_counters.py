"""Values that a script's loop carries from turn to turn, that training depends on, and that no checkpoint has.

A resumed run begins them anew: counts of updates, of a schedule by hand, of turns without gain; replay buffers, hidden states, running
means, iterators. The source of the functions around `guard.step()`, and of what they call, tells what is carried and what follows from
it. In doubt nothing is named. What is only shown is no state, and neither is what each turn begins anew, or what the script sets by
what was restored.
"""

from __future__ import annotations

import ast
import inspect
import logging
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from types import FrameType, FunctionType
from typing import Any, NamedTuple

from ...inventory.attribute_words import last_name, shows
from ...inventory.call_stack import (
    caller,
    caller_by_hand,
    counts_anew,
    files_beside,
    parameters_of,
    range_of,
    script_functions,
    source_file,
    statements_at,
)
from .assignments import (
    assigned,
    base_of,
    changed_by_itself,
    expression,
    kept_as_best,
    last_of,
    object_of,
    word_of,
    words_in,
)
from .beginnings import Beginnings
from .behind_boundary import changed_behind
from .behind_restore import changed_behind_restore
from .called_bodies import called_bodies, gone_over, word_called
from .carried_values import is_carried, is_iterator
from .dependence import Dependence
from .registered_names import LOOPS, SCOPES, RegisteredNames, nodes
from .turn_blocks import TurnBlocks, leaves_out_turns

log = logging.getLogger("spotguard")

#: The most statements and expressions of a loop that is read: 0.1 s.
_MOST = 5_000
#: The most names of one message.
_FEW = 3

#: What ends a loop, and the errors behind which a script that catches them goes on as it would without.
_ENDING = (ast.Break, ast.Return, ast.Raise)
_OUTER = frozenset({"", "KeyboardInterrupt", "SystemExit", "Exception", "BaseException", "Preempted"})
#: Calls whose number follows from what they are given.
_COUNTING = frozenset({"len", "int", "min", "max", "round", "ceil", "floor", "size", "numel", "range"})

COUNTED = "%s (%s) begins anew in a resumed run, and %s depends on it; %s [SG425]"
_TRAINING = "training"
_NUMBER = ", or compute it from the step's number"
_KEEP = "keep %s in a registered dict, as in progress = {%s}"
_REGISTER = "add %s to spotguard.register(…)"
_HOLD = "register a dict that holds it, as in progress={'%s': %s}"
_OBJECT = "register the dict of its attributes, as in %s=vars(%s)"
_ITERATE = (
    "begin it at the step that guard.restore() returns, or wrap a loader in spotguard.ResumableLoader(…)"
)

AGAIN = (
    "the loop at %s begins at its first number again although training was resumed, so this run trains more steps than an uninterrupted "
    "one; %s"
)
_FROM_THE_STEP = "write `for step in range(guard.restore(), total)`, or loop over guard.steps(total)"
_FROM_THE_STEPS = "begin it, and the loop in it, at what follows from the step that guard.restore() returns"


def mistakes(frame: FrameType, values: Mapping[str, Any], *, resumed: bool) -> Iterator[tuple[str, ...]]:
    """Yield each mistake as a message and its values.

    Args:
        frame: a frame of `guard.step()`.
        values: the registered values, by name.
        resumed: whether a checkpoint was restored.
    """
    if (change := changed_behind(frame, values)) is not None:
        yield change
    if (setup := changed_behind_restore(frame, values)) is not None:
        yield setup
    if (counted := loop_counters(frame, values)) is not None:
        yield COUNTED, *counted
    if resumed and (place := begins_again(frame, values)):
        yield AGAIN, *place


def begins_again(frame: FrameType | None, values: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the place of the loop around the first boundary of a resumed run, if that begins at its first number, and a remedy.

    It raises nothing, and returns None if no loop surely does.

    Args:
        frame: a frame of `guard.step()`.
        values: the registered values, by name.
    """
    try:
        inner = caller_by_hand(frame)
        functions = [*script_functions(inner)]
        place = counts_anew(inner, inside=True)
        names = [RegisteredNames(each, values) for each in functions] if place else []
        ignores = _ignores_the_step(functions, names)
        fixed = (_has_a_fixed_end(*each, ignores) for each in zip(functions, names, strict=False))
        if not (place and all(fixed)):
            return None
        is_nested = sum(len(_loops(each)[0]) for each in functions) > 1
        return place, _FROM_THE_STEPS if is_nested else _FROM_THE_STEP
    except Exception:
        log.debug("the loop around guard.step() cannot be read", exc_info=True)
        return None


def _ignores_the_step(functions: list[FrameType], names: list[RegisteredNames]) -> bool:
    """Return whether the functions restore, and none of them uses the step that `guard.restore()` returns but to show it."""
    ignored = list[bool]()
    for frame, known in zip(functions, names, strict=False):
        inside = [*nodes(_loops(frame)[1])]
        calls = {
            id(each)
            for each in inside
            if isinstance(each, ast.Call) and last_name(each.func) == "restore" and known.is_guards(each.func)
        }
        statements = [each for each in inside if id(getattr(each, "value", None)) in calls]
        file = source_file(frame.f_code.co_filename)
        ignored += [isinstance(each, ast.Expr) or _is_only_shown(each, file) for each in statements]
        ignored += [False] * (len(calls) - len(statements))
    return bool(ignored) and all(ignored)


def _is_only_shown(statement: Any, file: ast.AST) -> bool:
    """Return whether a script does no more than to show what a statement sets."""
    targets = getattr(statement, "targets", [None])
    shown = {id(inner) for each in ast.walk(file) if shows(each) for inner in ast.walk(each)}
    return isinstance(targets[0], ast.Name) and not any(
        isinstance(each, ast.Name)
        and each.id == targets[0].id
        and isinstance(each.ctx, ast.Load)
        and id(each) not in shown
        for each in ast.walk(file)
    )


def _has_a_fixed_end(frame: FrameType, names: RegisteredNames, ignores: bool) -> bool:
    """Return whether the loops of a function end at a number that surely no restore decides, and nowhere else but by an option.

    Args:
        ignores: whether nothing follows from the step that `guard.restore()` returns.
    """
    loops, scope = _loops(frame)
    begun = Beginnings(nodes(scope), parameters_of(frame.f_code), [frame.f_code.co_filename], names)

    def is_fixed(end: ast.expr) -> bool:
        if may_be_restored(end):
            return False
        if ignores or isinstance(end, (ast.Constant, ast.Attribute)):
            return True
        if isinstance(end, ast.BinOp):
            return is_fixed(end.left) and is_fixed(end.right)
        return bool(word := word_of(end)) and begun.are_fresh(word)

    def may_be_restored(value: ast.expr, depth: int = 3) -> bool:
        if any(asks(each) for each in ast.walk(value) if isinstance(each, ast.Call)):
            return True
        for word in words_in(value):
            if names.owner(expression(word)) or begun.changes_itself(word) or is_a_property(word):
                return True
            if depth and any(may_be_restored(each, depth - 1) for each in begun.values(word)):
                return True
        return False

    def asks(call: ast.Call) -> bool:
        """Return whether a call may give what was restored."""
        if last_name(call.func) in _COUNTING:
            return False
        function = names.value(call.func)
        if not ignores or (function is None and isinstance(call.func, ast.Attribute)):
            held = names.value(call.func.value) if isinstance(call.func, ast.Attribute) else None
            return not ignores or type(held).__module__ == frame.f_globals.get("__name__")
        code = function.__code__ if isinstance(function, FunctionType) else None
        used = (*code.co_names, *code.co_freevars) if code is not None else ()
        return any(names.owner(expression(each)) for each in used)

    def is_a_property(word: str) -> bool:
        held = names.value(expression(base_of(word))) if base_of(word) else None
        return isinstance(inspect.getattr_static(type(held), last_of(word), None), property)

    for loop in loops:
        inside = [*nodes([loop])]
        by_options = {
            id(each)
            for node in inside
            if isinstance(node, ast.If) and (word := word_of(node.test)) and len(begun.values(word)) < 2
            if begun.is_fresh(node.test)
            for each in node.body
        }
        if any(isinstance(each, _ENDING) and id(each) not in by_options for each in inside):
            return False
        counted = range_of(getattr(loop, "iter", None))
        if counted is not None and not all(map(is_fixed, counted.args)):
            return False
    handlers = [each for tried in statements_at(frame) for each in getattr(tried, "handlers", ())]
    return all(last_name(each.type) in _OUTER for each in handlers)


def loop_counters(frame: FrameType | None, values: Mapping[str, Any]) -> tuple[str, str, str, str] | None:
    """Return what the loops around a boundary carry on and a resumed run begins anew. It raises nothing: the script is any code.

    Args:
        frame: a frame of `guard.step()`.
        values: the registered values, by name.

    Returns:
        The values of `COUNTED`: the words, the place at which the first one changes, what depends on it, and a remedy. None if nothing
        is found. What training depends on is named before what is kept beside it.
    """
    try:
        found = [each for function in script_functions(caller(frame)) for each in _counted(function, values)]
    except Exception:
        log.debug("the loop around guard.step() cannot be read", exc_info=True)
        return None
    if not found:
        return None
    found.sort(key=lambda each: (each.depends != _TRAINING, each.is_best))
    first = found[0]
    several = list({each.word: each for each in found if each.depends == first.depends}.values())
    words = [each.word for each in several]
    more = f" and {len(words) - _FEW} more" if len(words) > _FEW else ""
    remedy, owners = first.remedy, {base_of(each.word) for each in several}
    are_entries = any(each.word.endswith("]") for each in several)
    if (
        not (first.entries or are_entries)
        and len(several) > 1
        and len(owners) == 1
        and (owner := owners.pop())
    ):
        remedy = _OBJECT % (last_of(owner), owner)
    if first.entries:
        entries = dict[str, str]()
        # A name tells none of several objects of a class.
        for each in several[:_FEW]:
            for name, value in each.entries.items():
                entries[name if name not in entries else re.sub(r"\W+", "_", each.word).strip("_")] = value
        remedy = _KEEP % (
            "them" if len(entries) > 1 else "it",
            ", ".join(f"'{name}': {value}" for name, value in entries.items()),
        )
        remedy += _NUMBER if all(each.by_step for each in several) else ""
    return ", ".join(words[:_FEW]) + more, first.place, first.depends, remedy


class _Carried(NamedTuple):
    """A word that a loop carries on.

    Attributes:
        word: the word.
        place: where it changes.
        depends: what depends on it.
        is_best: whether a condition compares it with a value that it becomes.
        by_step: whether each turn changes it, by numbers of the source.
        entries: what a registered dict would hold for it, by name; and if that is no help:
        remedy: what is.
    """

    word: str
    place: str
    depends: str
    is_best: bool
    by_step: bool
    entries: dict[str, str]
    remedy: str


def _loops(frame: FrameType) -> tuple[list[ast.AST], list[Any]]:
    """Return the loops around the statement that a function executes, from the inside out, and all of the function's statements."""
    loops: list[ast.AST] = []
    for each in statements_at(frame):
        if isinstance(each, LOOPS):
            loops.append(each)
        elif isinstance(each, (*SCOPES, ast.Module)):
            return loops, getattr(each, "body", [])
    return loops, []


def _counted(frame: FrameType, values: Mapping[str, Any]) -> Iterator[_Carried]:
    """Yield each such word of a function."""
    loops, scope = _loops(frame)
    inside = [*nodes(loops[-1:])]
    if not 0 < len(inside) <= _MOST:
        return
    names = RegisteredNames(frame, values)
    code = frame.f_code
    bodies = called_bodies(inside, names, code.co_filename)
    files = {id(node): body.file for body in bodies for node in nodes(body.statements)}
    inside += [each for body in bodies for each in nodes(body.statements)]
    counts: dict[str, list[Any]] = {}
    for node in inside:
        for word in (*changed_by_itself(node), *_updated(node, names)):
            counts.setdefault(word, []).append(node)
    best = kept_as_best(inside)
    if not (counts or best) or len(inside) > _MOST:
        return
    for node in inside:
        names.bind(node)
    turn = TurnBlocks(statements_at(frame), loops[-1], bodies)
    begun = Beginnings(
        nodes(scope), parameters_of(code), files_beside(code.co_filename) | {*files.values()}, names
    )
    depends = Dependence(inside, names, values, turn)
    over = {name: object_of(held) for node in inside for name, held in gone_over(node)}
    looped = {*map(id, inside)}
    before = [each for each in nodes(scope) if id(each) not in looped]
    outside = {word_called(each) for each in before}
    given = {word for each in before if isinstance(each, ast.Call) for word in map(word_of, each.args)}
    replayed = {word for each in loops for word in leaves_out_turns(each, loops)}
    for word in sorted({*counts, *best}, key=lambda word: ((counts.get(word) or best[word])[0].lineno, word)):
        known, kept = expression(word), best.get(word, [])
        value = names.value(known)
        if names.owner(known) or not (is_carried(value, names) or (kept and value is None)):
            continue
        changes = [each for each in counts.get(word, ()) if not turn.is_item_of_a_loop(each)] + kept
        if issubclass(type(value), dict):
            changes = [each for each in changes if not turn.fills_a_gap(each, word)]
        if not changes:
            continue
        begins = begun.are_fresh(word, besides=[each.value for each in kept])
        if is_iterator(value):  # the script may have wound it
            begins = begun.go_from_the_first(word) and word not in given
        if not begins or begun.grows(word) > len(changes) or turn.begins_anew(word, changes):
            continue
        if word in replayed or any(
            (called := turn.caller_of(each)) and called in outside for each in changes
        ):
            continue  # the script counts again what is done

        def place(node: Any) -> str:
            return f"{os.path.basename(files.get(id(node), code.co_filename))}:{node.lineno}"

        is_count = not kept and type(value) in (int, float) and all(map(_is_by_a_number, changes))
        what, held = _TRAINING if depends.on(word) else "", ""
        if not what and (copy := next(depends.kept_by(word, names_it=is_count), None)) is not None:
            call, held = copy
            # A name that a body gives itself is another one there.
            name = ast.unparse(call.func) if not word_of(call.func).startswith("_") else last_name(call.func)
            what = f"what {name}(…) keeps ({place(call)})"
        if what:
            by_step = is_count and all(map(turn.is_always_made, changes))
            entries, remedy = dict[str, str](), ""
            if kept and not isinstance(known, ast.Subscript):
                entries = {last_of(word): begun.first(word)} | ({last_of(held): "None"} if held else {})
            else:
                if isinstance(known, ast.Subscript) and (whole := over.get(word_of(known.value))):
                    known = ast.Subscript(expression(whole), known.slice)
                entries, remedy = _remedy(known, value, changes, begun.first(word))
                remedy += _NUMBER if remedy and by_step else ""
            yield _Carried(word, place(changes[0]), what, bool(kept), by_step, entries, remedy)


def _updated(node: Any, names: RegisteredNames) -> Iterator[str]:
    """Yield the word of a counter or a set that a call adds to."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "update":
        word = word_of(node.func.value)
        if word and type(names.value(node.func.value)) in (Counter, set):
            yield word


def _is_by_a_number(change: Any) -> bool:
    """Return whether a statement changes a number by what stands in the source, as `n += 1` and `rate = rate * 0.9`."""
    value, target = getattr(change, "value", None), getattr(change, "target", None)
    targets = getattr(change, "targets", [target])
    return value is not None and words_in(value) <= {word_of(each) for each in targets}


def _remedy(word: ast.expr, value: Any, changes: list[Any], first: str) -> tuple[dict[str, str], str]:
    """Return what brings a value back: entries of a registered dict, or another way where it has a dict or only the script can."""
    name, text = last_of(ast.unparse(word)), ast.unparse(word)
    if is_iterator(value):
        return {}, _ITERATE
    if isinstance(word, ast.Subscript):
        return {}, _REGISTER % ast.unparse(word.value)
    if type(value) in (int, float):
        return {name: first}, ""
    in_place = not any(text in {known for known, _ in assigned(each)} for each in changes)
    return ({}, _HOLD % (name, text)) if in_place else ({name: "…"}, "")
