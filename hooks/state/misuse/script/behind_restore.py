"""Changes of registered values, and draws, between `guard.restore()` and the loop, as the script's source tells.

An uninterrupted run makes them once, before its first step. A resumed run makes them too, but behind its restore: on the weights, the
moments and the generators of a later step. What the script does only in some runs, under a condition, is left out.
"""

from __future__ import annotations

import ast
import logging
import os
from collections.abc import Iterator, Mapping
from types import FrameType, ModuleType
from typing import Any

from torch import nn
from torch.optim import Optimizer

from ...inventory.attribute_words import REFILLING, last_name
from ...inventory.call_stack import caller, script_functions, statements_at
from .assignments import assigned, word_of, words_in
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
    used = {word for each in nodes([loop]) for word in words_in(each)}
    draws = any(map(trains_by_chance, values.values())) or any(
        _moves_a_generator(each, names) for each in nodes([loop])
    )
    for statement in before[restores[-1] + 1 :]:
        for node in () if isinstance(statement, _NOT_READ) else nodes([statement]):
            if name := _changed(node, names, values):
                yield CHANGES, name, node.lineno
            elif (name := _copied(node, names, values)) and used & {word for word, _ in assigned(statement)}:
                yield COPIES, name, node.lineno
            elif draws and _moves_a_generator(node, names):
                yield DRAWS, f"{word_of(getattr(node, 'func', None))}()", node.lineno


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
        elif method in REFILLING | {"load_state_dict", "reset_parameters"}:
            asked = [node.func.value]
    owners = [names.owner(each) for each in asked]
    return next((each for each in owners if each and isinstance(values[each], (nn.Module, Optimizer))), "")


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
