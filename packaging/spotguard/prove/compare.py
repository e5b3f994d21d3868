"""The first difference between two runs. Pure: records come in, differences go out.

Compared are: the losses of each turn, registered state, the generators, modules and optimizers that are not registered, and
parameters that any optimizer has moved. The model's inputs are reported with a difference and never decide: a batch that
matters changes a loss. The script's variables are only evidence, with one exception: tensors that have exactly the shapes of
parameters, as averages of parameters have, are compared too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Literal

from .record import BoundaryRecord, Record

#: A tensor in a record: "float32[4, 8] 5d1653c7", or "float32 2.5" for a tensor of one number.
_TENSOR = re.compile(r"(bfloat|float|complex|int|uint|bool)\d*(\[[\d, ]*\] [0-9a-f]{8}| \S+)$")
_SHAPE = re.compile(r"(\w+\[[\d, ]+\]) [0-9a-f]{8}$")

#: Kinds that are compared right after a restore; the others are compared from the next boundary on.
_RESTORED = ("state", "generators")
#: Kinds in the order in which a step makes them. Those of a turn are numbered, those of a boundary have names.
_OF_TURN = ("input", "loss")
_OF_LOOK = ("state", "generators", "modules", "optimizers", "moved")

#: How a person reads the name of an item.
_KINDS = {
    "input": "input {} of the model",
    "loss": "loss {}",
    "state": "{}",
    "generators": "generator {}",
    "modules": "{} (not registered)",
    "optimizers": "{} (not registered)",
    "moved": "{} (not registered)",
    "kept": "{} (not registered)",
}

#: How the batches of a resumed run relate to those of the undisturbed one.
Data = Literal["same", "ahead", "behind", "anew", "other", "unseen"]
#: The largest shift, in batches, at which a run is recognised as ahead or behind.
_FARTHEST = 8


@dataclass(frozen=True, slots=True)
class Difference:
    """One item that differs between two runs at one step."""

    step: int
    #: "input", "loss", "state", "generators", "modules", "optimizers", "moved" or "kept".
    kind: str
    name: str
    #: The undisturbed run's value; "" if the run does not have the item.
    plain: str
    #: The other run's value; "" if the run does not have the item.
    other: str
    rank: int = 0
    #: Whether the item differs right after the restore, before any training.
    restored: bool = False

    @property
    def is_of_tensors(self) -> bool:
        return self.kind in _OF_TURN or is_tensor(self.plain or self.other)

    @property
    def words(self) -> str:
        return _KINDS[self.kind].format(self.name)


@dataclass(frozen=True, slots=True)
class Unsteady:
    """Items that differ between two undisturbed runs and are not compared: clocks, names, unseeded generators."""

    #: The kind and the name of each item.
    items: frozenset[tuple[str, str]] = frozenset()
    variables: frozenset[str] = field(default_factory=frozenset)


@cache
def is_tensor(text: str) -> bool:
    return _TENSOR.match(text) is not None


def unsteady(first: Record, second: Record) -> Unsteady:
    """Return the items and variables that differ between two undisturbed runs."""
    items: set[tuple[str, str]] = set()
    variables: set[str] = set()
    for look in first.looks.values():
        other = second.looks.get(look.step)
        if other is None:
            continue
        for each in _of_look(look, other, _OF_LOOK):
            # A generator that is seeded late differs at first, but no longer at the last boundary.
            if not each.is_of_tensors and (
                each.kind != "generators" or look.step == min(first.last, second.last)
            ):
                items.add((each.kind, each.name))
        variables |= _unlike(look.variables, other.variables)
        variables |= _unlike(look.opened_variables, other.opened_variables)
    return Unsteady(frozenset(items), frozenset(variables))


def differences(plain: Record, other: Record, left_out: Unsteady) -> list[Difference]:
    """Return the differences of the first step that has any, the first cause first; empty if the runs are equal.

    Args:
        other: a run from the start, or a resumed one.
        left_out: items that are not compared.
    """
    begin = other.began or 0
    for look in other.after(begin):
        if look.step > plain.last:
            break
        known = plain.looks.get(look.step)
        if known is None:
            continue
        differing = _at(known, look, left_out, begin)
        if differing:
            return differing
    return _kept(plain, other, left_out)


def _at(known: BoundaryRecord, look: BoundaryRecord, left_out: Unsteady, begin: int) -> list[Difference]:
    restored = look.step == begin
    kinds: tuple[str, ...] = _OF_LOOK
    if restored:
        kinds = _RESTORED if begin else ("state",)  # a run that begins may seed after its restore
    differing = [
        each
        for each in _of_look(known, look, kinds, restored=restored)
        if (each.kind, each.name) not in left_out.items
    ]
    if restored:
        return differing
    differing = [*_of_turn(known, look, "loss", begin), *differing]
    return [*_of_turn(known, look, "input", begin), *differing] if differing else []


def _of_turn(known: BoundaryRecord, look: BoundaryRecord, kind: str, begin: int) -> Iterator[Difference]:
    here, there = known.values(kind), look.values(kind)
    if look.step == begin + 1 and len(there) > len(here):
        there = there[
            len(there) - len(here) :
        ]  # skip what a script does once, between its restore and its loop
    for number in range(max(len(here), len(there))):
        plain = here[number] if number < len(here) else ""
        other = there[number] if number < len(there) else ""
        if plain != other:
            yield Difference(look.step, kind, str(number + 1), plain, other)


def _of_look(
    known: BoundaryRecord, look: BoundaryRecord, kinds: tuple[str, ...], *, restored: bool = False
) -> Iterator[Difference]:
    for kind in kinds:
        here, there = known.items[kind], look.items[kind]
        for name in here:
            # An unregistered item may be made later: it is compared once both runs have it.
            if name in there and here[name] != there[name]:
                yield Difference(look.step, kind, name, here[name], there[name], restored=restored)
            elif name not in there and kind == "state":
                yield Difference(look.step, kind, name, here[name], "", restored=restored)
        if kind == "state":
            for name in there.keys() - here.keys():
                yield Difference(look.step, kind, name, "", there[name], restored=restored)


def _kept(plain: Record, other: Record, left_out: Unsteady) -> list[Difference]:
    """Return tensors in variables that differ at the first boundary and at the last.

    Only tensors with the type and shape of a trained parameter count.
    """
    steps = [step for step in sorted(other.looks) if step in plain.looks and step > (other.began or 0)]
    if not steps:
        return []
    first, last = steps[0], steps[-1]
    shapes = {
        match[1]
        for kind in ("state", "modules", "moved")
        for text in plain.looks[first].items[kind].values()
        if (match := _SHAPE.match(text))
    }

    def is_log(name: str) -> bool:
        """Report whether `name` is an item of a container whose length differs: such a list is only being filled anew."""
        lengths = [f"len({name[:at]})" for at, sign in enumerate(name) if sign == "["]
        here, there = plain.looks[last].variables, other.looks[last].variables
        return any(here.get(each) != there.get(each) for each in lengths)

    def differs(step: int, name: str) -> bool:
        here, there = plain.looks[step].variables.get(name, ""), other.looks[step].variables.get(name, "")
        return here != there and is_tensor(here) and is_tensor(there)

    return [
        Difference(first, "kept", name, text, other.looks[first].variables[name])
        for name, text in plain.looks[first].variables.items()
        if (match := _SHAPE.match(text))
        and match[1] in shapes
        and name not in left_out.variables
        and not (
            is_alias(plain.looks[first], other.looks[first], name)
            and plain.looks[last].variables.get(name) == text
        )
        and differs(first, name)
        and differs(last, name)
        and not is_log(name)
    ]


def is_alias(here: BoundaryRecord, there: BoundaryRecord, name: str) -> bool:
    """Report whether a variable still names what a registered object held at the restore, in both runs.

    A restore fills such a tensor or leaves it behind, so that one that never changes in a run differs although nothing may read
    it. If training does, a loss or state differs.
    """
    return name in here.held and name in there.held


def _unlike(here: Mapping[str, str], there: Mapping[str, str]) -> set[str]:
    return {name for name in here.keys() & there.keys() if here[name] != there[name]}


def batches(plain: Record, other: Record, begin: int) -> tuple[Data, int]:
    """Return how the batches of a run resumed at `begin` relate to the undisturbed run's, and by how many they are off."""
    answers = [_batches_by(kind, plain, other, begin) for kind in ("input", "batch")]
    # If random numbers change a batch on its way into the model, the batch is recognised as it was fetched.
    return next((each for each in answers if each[0] not in ("unseen", "other")), answers[0])


def _batches_by(kind: str, plain: Record, other: Record, begin: int) -> tuple[Data, int]:
    here = {look.step: tuple(look.values(kind)) for look in plain.after(1) if look.has(kind)}
    there = {look.step: tuple(look.values(kind)) for look in other.after(begin + 1) if look.has(kind)}
    if not here or not there:
        return "unseen", 0

    def shifted(by: int) -> bool:
        pairs = [(value[:1], here[step + by][:1]) for step, value in there.items() if step + by in here]
        return len(pairs) >= min(2, len(there)) and all(a == b for a, b in pairs)

    if all(here.get(step) == value for step, value in there.items()):
        return "same", 0
    if shifted(-begin):
        return "anew", begin
    for by in range(1, _FARTHEST + 1):
        if shifted(by):
            return "ahead", by
        if shifted(-by):
            return "behind", by
    return "other", 0
