"""Changes of registered values, and draws, between `guard.restore()` and the loop, as the script's source tells.

An uninterrupted run makes them once, before its first step. A resumed run makes them too, but behind its restore: on the weights, the
moments and the generators of a later step. What the script does only in some runs, under a condition, is left out.
"""

from __future__ import annotations

import ast
import logging
import os
from collections.abc import Iterator, Mapping, Set
from types import FrameType, FunctionType, ModuleType
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ...inventory.attribute_words import REFILLING, last_name
from ...inventory.call_stack import caller, script_functions, statements_at
from .assignments import assigned, expression, word_of, words_in
from .behind_boundary import trains_by_chance
from .registered_names import LOOPS, SCOPES, RegisteredNames, nodes

log = logging.getLogger("spotguard")

#: Functions of `torch`, `random` and `numpy.random` that seed a global generator, and those that draw from it.
_SEEDING = frozenset({"manual_seed", "seed", "seed_everything", "set_seed"})
_DRAWING = frozenset(
    {
        *("rand", "randn", "randint", "randperm", "rand_like", "randn_like", "normal", "bernoulli"),
        *("multinomial", "random", "shuffle", "sample", "choice", "choices", "uniform", "permutation"),
    }
)
#: Statements whose insides not every run executes, or not once.
_NOT_READ = (ast.If, ast.Try, ast.Match, *LOOPS, *SCOPES)

CHANGES = (
    "%s is changed between guard.restore() and the loop (%s), and a resumed run makes that change again, on restored values; make it "
    "before guard.restore() [SG426]"
)
DRAWS = (
    "%s between guard.restore() and the loop (%s) moves a generator that training draws from, and in a resumed run that is the restored "
    "one; do so before guard.restore() [SG426]"
)
COPIES = (
    "a copy of %s is made between guard.restore() and the loop (%s), and a resumed run copies the weights of its step; make it before "
    "guard.restore(), and register it [SG426]"
)


def changed_behind_restore(frame: FrameType | None, values: Mapping[str, Any]) -> tuple[str, str, str] | None:
    """Return what a script changes between its restore and its loop. It raises nothing: the script is any code.

    Args:
        frame: a frame of `guard.step()`.
        values: the registered values, by name.

    Returns:
        The message and its values: the name, and the place. None if nothing is found.
    """
    try:
        for each in script_functions(caller(frame)):
            for message, name, line in _found(each, values):
                return message, name, f"{os.path.basename(each.f_code.co_filename)}:{line}"
    except Exception:
        log.debug("the code behind guard.restore() cannot be read", exc_info=True)
    return None


def _found(frame: FrameType, values: Mapping[str, Any]) -> Iterator[tuple[str, str, int]]:
    chain = statements_at(frame)
    at = next((at for at, each in enumerate(chain) if isinstance(each, (*SCOPES, ast.Module))), len(chain))
    loops = [number for number, each in enumerate(chain[:at]) if isinstance(each, LOOPS)]
    if not loops or at == len(chain):
        return
    loop = chain[loops[-1]]
    outer = chain[loops[-1] + 1]
    block = next((held for _, held in ast.iter_fields(outer) if isinstance(held, list) and loop in held), [])
    before = block[: block.index(loop)] if block else []
    names = RegisteredNames(frame, values)
    restores = [number for number, each in enumerate(before) if names.guard_calls(each, "restore")]
    if not restores:
        return
    inside = [*nodes([loop])]
    used = {word for each in inside for word in words_in(each)}
    for each in inside:
        names.bind(each)
    draws = any(map(trains_by_chance, values.values())) or any(
        _moves_a_generator(each, names) for each in inside
    )
    options = any(issubclass(type(each), LRScheduler) for each in values.values()) or any(
        _sets_an_option(each, names, values) for each in inside
    )
    for node in _run_once(before[restores[-1] + 1 :], names):
        if name := _changed(node, names, values):
            if options or not (isinstance(node, ast.Assign) and _sets_an_option(node, names, values)):
                yield CHANGES, name, node.lineno
        elif draws and _moves_a_generator(node, names):
            yield DRAWS, f"{word_of(getattr(node, 'func', None))}()", node.lineno
        for word, value in assigned(node):
            copied = (_copied(each, names, values) for each in nodes([value]))
            if word in used and (name := next(filter(None, copied), "")):
                yield COPIES, name, node.lineno


def _run_once(statements: list[Any], names: RegisteredNames, items: Set[str] = frozenset()) -> Iterator[Any]:
    """Yield what every run executes once of some statements, or once for each part of a registered value.

    Args:
        items: the names of such parts. A condition that asks about them is the same in every run.
    """
    for each in statements:
        if isinstance(each, ast.For):
            names.bind(each)
            parts = {word for word in words_in(each.target) if names.owner(expression(word))}
            yield from _run_once(each.body if parts else [], names, items | parts)
        elif isinstance(each, ast.If) and items & words_in(each.test):
            yield from _run_once([*each.body, *each.orelse], names, items)
        elif not isinstance(each, _NOT_READ):
            yield from nodes([each])


def _sets_an_option(node: Any, names: RegisteredNames, values: Mapping[str, Any]) -> bool:
    """Return whether a statement sets an option of a registered optimizer, as a learning rate."""
    targets = getattr(node, "targets", [getattr(node, "target", None)])
    subscripts = [each for each in targets if isinstance(each, ast.Subscript)]
    return any(
        isinstance(values.get(names.owner(each)), Optimizer) and ".state" not in ast.unparse(each)
        for each in subscripts
    )


def _changed(node: Any, names: RegisteredNames, values: Mapping[str, Any]) -> str:
    """Return the name of the registered module, tensor or optimizer that an expression or a statement changes; "" for none."""
    asked: list[ast.expr] = []
    if isinstance(node, (ast.Assign, ast.AugAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        asked = [each for each in targets if isinstance(each, ast.Subscript)]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        method = node.func.attr
        if last_name(node.func.value) == "init" and method.endswith("_"):
            asked = node.args[:1]
        else:
            fills = method == "apply" and any(_fills(names.value(each)) for each in node.args)
            if fills or method in REFILLING | {"load_state_dict", "reset_parameters"}:
                asked = [node.func.value]
    owners = [names.owner(each) for each in asked]
    return next((each for each in owners if each and isinstance(values[each], (nn.Module, Optimizer))), "")


def _fills(function: object) -> bool:
    """Return whether a function of the script calls what fills a tensor in place, as `nn.init.normal_`."""
    return type(function) is FunctionType and any(
        name.endswith("_") and not name.startswith("_") and name != "requires_grad_"
        for name in function.__code__.co_names
    )


def _copied(node: Any, names: RegisteredNames, values: Mapping[str, Any]) -> str:
    """Return the name of the registered module of which a copy is made; "" for none."""
    if not isinstance(node, ast.Call) or last_name(node.func) not in ("deepcopy", "AveragedModel"):
        return ""
    owner = names.owner(node.args[0]) if node.args else ""
    return owner if owner and isinstance(values[owner], nn.Module) else ""


def _moves_a_generator(node: Any, names: RegisteredNames) -> bool:
    """Return whether a call seeds a global generator, or draws from it."""
    if not isinstance(node, ast.Call) or any(each.arg == "generator" for each in node.keywords):
        return False
    name = last_name(node.func)
    base = names.value(node.func.value) if isinstance(node.func, ast.Attribute) else None
    of_module = type(base) is ModuleType and base.__name__ in (
        "torch",
        "random",
        "numpy.random",
        "torch.cuda",
    )
    named = word_of(node.func).startswith("np.random.") or name in ("seed_everything", "set_seed")
    return (of_module or named) and name in _SEEDING | _DRAWING and not words_in(node) & {"generator"}
