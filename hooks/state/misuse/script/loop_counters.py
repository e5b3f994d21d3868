"""Values that a script's loop carries from turn to turn, that training depends on, and that no checkpoint has.

A resumed run begins them anew: counts of updates, of a schedule by hand, of turns without gain; replay buffers, hidden states, running
means, iterators. The source of the functions around `guard.step()`, and of what they call, tells what is carried and what follows from
it. In doubt nothing is named. What is only shown is no state, and neither is what each turn begins anew, or what the script sets by
what was restored.
"""

from __future__ import annotations

import ast
import logging
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Set
from types import FrameType
from typing import Any, NamedTuple

from ...inventory.attribute_words import last_name
from ...inventory.call_stack import (
    caller,
    files_beside,
    parameters_of,
    script_functions,
    statements_at,
)
from .assignments import (
    assigned,
    base_of,
    changed_by_itself,
    expression,
    is_settled,
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
from .carried_values import FUNCTIONS, NUMBERS, is_carried, is_iterator, is_setting
from .dependence import Dependence
from .registered_names import LOOPS, SCOPES, RegisteredNames, nodes
from .turn_blocks import TurnBlocks, leaves_out_turns

log = logging.getLogger("spotguard")

#: The most statements and expressions of a loop that is read: 0.1 s.
_MOST = 5_000
#: The most names of one message.
_FEW = 3

COUNTED = "%s (%s) begins anew in a resumed run, and %s depends on it; %s [SG425]"
_TRAINING = "training"
_NUMBER = ", or compute it from the step's number"
_KEEP = "keep %s in a registered dict, as in progress = {%s}"
_REGISTER = "add %s to spotguard.register(…)"
_HOLD = "register a dict that holds it, as in progress={'%s': %s}"
_OBJECT = "register the dict of its attributes, as in %s=vars(%s)"
_WHICH = "keep which one it is in a registered dict"
_ITERATE = (
    "begin it at the step that guard.restore() returns, or wrap a loader in spotguard.ResumableLoader(…)"
)


def mistakes(frame: FrameType, values: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield each mistake as a message and its values.

    Args:
        frame: a frame of `guard.step()`.
        values: the registered values, by name.
    """
    if (change := changed_behind(frame, values)) is not None:
        yield change
    if (setup := changed_behind_restore(frame, values)) is not None:
        yield setup
    if (counted := loop_counters(frame, values)) is not None:
        yield COUNTED, *counted


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


def loops_around(frame: FrameType) -> tuple[list[ast.AST], list[Any]]:
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
    loops, scope = loops_around(frame)
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
    if len(inside) > _MOST:
        return
    for node in inside:
        names.bind(node)
    turn = TurnBlocks(statements_at(frame), loops[-1], bodies)
    begun = Beginnings(
        nodes(scope), parameters_of(code), files_beside(code.co_filename) | {*files.values()}, names
    )
    depends = Dependence(inside, names, values, turn)
    left = {word: each for word, each in depends.left.items() if word not in (*counts, *best)}
    over = {name: object_of(held) for node in inside for name, held in gone_over(node)}
    looped = {*map(id, inside)}
    before = [each for each in nodes(scope) if id(each) not in looped]
    outside = {word_called(each) for each in before}
    given = {word for each in before if isinstance(each, ast.Call) for word in map(word_of, each.args)}
    replayed = {word for each in loops for word in leaves_out_turns(each, loops)}
    carried = left | counts
    changed = best | carried
    for word in sorted(changed, key=lambda word: (changed[word][0].lineno, word)):
        known, kept = expression(word), best.get(word, [])
        value = names.value(known)
        if names.owner(known) or not (is_carried(value, names) or (kept and value is None)):
            continue
        changes = [each for each in carried.get(word, ()) if not turn.is_item_of_a_loop(each)] + kept
        settles = all(_is_settled(each, word, depends.moved) for each in changes)
        if settles and not depends.is_read_before(word, changes):
            continue
        if issubclass(type(value), dict):
            changes = [each for each in changes if not turn.fills_a_gap(each, word)]
        if not changes:
            continue
        begins = begun.are_fresh(word, besides=[each.value for each in (*kept, *left.get(word, ()))])
        if is_iterator(value):  # the script may have wound it
            begins = begun.go_from_the_first(word) and word not in given
        if (
            not begins
            or begun.grows(word) > len(changes)
            or (word not in left and turn.begins_anew(word, changes))
        ):
            continue
        if word in replayed or any(
            (called := turn.caller_of(each)) and called in outside for each in changes
        ):
            continue  # the script counts again what is done

        def place(node: Any) -> str:
            return f"{os.path.basename(files.get(id(node), code.co_filename))}:{node.lineno}"

        is_count = (
            word in counts and not kept and type(value) in (int, float) and all(map(_is_by_a_number, changes))
        )
        is_flag = is_setting(value) or all(map(_is_by_a_constant, changes))
        if is_flag and not kept and turn.ends_with(word, begun.first(word, changes)):
            continue
        if type(value) in FUNCTIONS and word in counts:
            continue  # a function that is compiled, or wrapped, is so in each process
        what, held = _TRAINING if depends.on(word, is_flag=is_flag) else "", ""
        if (
            not (what or is_flag)
            and word not in left
            and (copy := next(depends.kept_by(word, names_it=is_count), None)) is not None
        ):
            call, held = copy
            # A name that a body gives itself is another one there.
            name = ast.unparse(call.func) if not word_of(call.func).startswith("_") else last_name(call.func)
            what = f"what {name}(…) keeps ({place(call)})"
        if what:
            by_step = is_count and all(map(turn.is_always_made, changes))
            entries, remedy = dict[str, str](), ""
            if kept and not isinstance(known, ast.Subscript):
                entries = {last_of(word): begun.first(word, changes)} | (
                    {last_of(held): "None"} if held else {}
                )
            else:
                if isinstance(known, ast.Subscript) and (whole := over.get(word_of(known.value))):
                    known = ast.Subscript(expression(whole), known.slice)
                entries, remedy = _remedy(known, value, changes, begun.first(word, changes))
                remedy += _NUMBER if remedy and by_step else ""
            yield _Carried(word, place(changes[0]), what, bool(kept), by_step, entries, remedy)


def _is_by_a_constant(change: Any) -> bool:
    return isinstance(change, ast.Assign) and isinstance(change.value, ast.Constant)


def _is_settled(change: Any, word: str, moved: Set[str]) -> bool:
    values = [value for target, value in assigned(change) if target == word]
    return bool(values) and all(is_settled(each, word, moved) for each in values)


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
    if type(value) in FUNCTIONS:
        return {}, _WHICH
    if type(value) in NUMBERS or is_setting(value):
        return {name: first}, ""
    in_place = not any(text in {known for known, _ in assigned(each)} for each in changes)
    return ({}, _HOLD % (name, text)) if in_place else ({name: "…"}, "")
