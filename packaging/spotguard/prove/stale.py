"""Variables of the script that a restore does not bring back, although training may depend on them. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from .compare import Unsteady, is_tensor
from .record import Record

#: What stands before the type of a registered object in a record (`recorder.variables`).
REGISTERED = "registered "
_NUMBER = re.compile(r"-?\d+$")
_FLOAT = re.compile(r"-?(\d+\.\d*(e[-+]\d+)?|\d+e[-+]\d+|inf|nan)$")


@dataclass(frozen=True, slots=True)
class Stale:
    """A variable that changes from step to step and that a restore did not bring back."""

    name: str
    #: The value in the undisturbed run.
    plain: str
    #: The value in the resumed run.
    resumed: str
    #: The name of the registered or registrable object whose field this is; "" if there is none.
    owner: str = ""
    #: The type of that object.
    kind: str = ""

    @property
    def is_left_out(self) -> bool:
        """Whether its owner is registered, but the owner's state leaves it out."""
        return self.kind.startswith(REGISTERED)

    @property
    def is_length(self) -> bool:
        return self.name.startswith("len(")

    @property
    def is_mode(self) -> bool:
        """Whether it is a module's mode, which an evaluation leaves behind and the next `train()` sets anew."""
        return self.name.endswith(".training")

    @property
    def is_generator(self) -> bool:
        return self.plain.startswith("generator ")

    @property
    def is_iterator(self) -> bool:
        """Whether it is one of the interpreter's iterators, over a list or the like."""
        return self.plain.startswith("iterator ")

    @property
    def is_loaders_iterator(self) -> bool:
        """Whether it is the position of a loader's iterator."""
        return self.kind.endswith("DataLoaderIter")


def stale_variables(plain: Record, other: Record, begin: int, left_out: Unsteady) -> tuple[Stale, ...]:
    """Return variables that an undisturbed run carries from step to step, and that a resumed run has as at its start."""
    ranks: dict[str, tuple[int, Stale]] = {}
    here, there = plain.looks.get(begin), other.looks.get(begin)
    after, later = plain.looks.get(begin + 1), other.looks.get(begin + 1)
    initial = plain.looks.get(0)
    if here is None or there is None or after is None or later is None or initial is None:
        return ()
    first = plain.looks.get(1)
    for name, text in here.variables.items():
        mine = there.variables.get(name, text)
        # Inside restore(), no variable can depend on its return value yet.
        if mine != text and name not in left_out.variables and initial.variables.get(name, text) != text:
            ranks[name] = (0, Stale(name, text, mine))
    for name, text in after.opened_variables.items():
        mine = later.opened_variables.get(name, text)
        if name in ranks or mine == text or name in left_out.variables or not _changes(plain, name):
            continue
        carried = here.variables.get(name) == text
        anew = first is not None and first.opened_variables.get(name) == mine
        if carried or (anew and not is_tensor(text)):
            ranks[name] = (0 if carried and anew else 1, Stale(name, text, mine))
    ranked = sorted(ranks.values(), key=lambda each: (each[0], _telling(each[1])))
    owners = {**here.objects, **after.objects, **later.objects}
    return tuple(_owned(each, owners) for _, each in ranked)


def drawn_anew(plain: Record, other: Record, begin: int, left_out: Unsteady) -> tuple[str, ...]:
    """Return variables and unregistered modules that are constant in a run and differ in the resumed run.

    They are made of random numbers that nothing seeds.
    """
    initial, here, there = plain.looks.get(0), plain.looks.get(begin), other.looks.get(begin)
    if initial is None or here is None or there is None:
        return ()
    names: dict[str, None] = {}
    for name, text in here.variables.items():
        constant = name not in left_out.variables and initial.variables.get(name) == text
        # A random text, such as a log's name, does not matter; numbers do.
        if constant and text.startswith("'"):
            continue
        if constant and there.variables.get(name, text) != text:
            names[name] = None
    for name, text in here.items["modules"].items():
        if initial.items["modules"].get(name) == text != there.items["modules"].get(name, text):
            names[name.rpartition(".")[0] or name] = None
    return tuple(names)


def _owned(stale: Stale, owners: Mapping[str, str]) -> Stale:
    path = next((path for path in owners if within(stale.name, path)), "")
    if not path:
        return stale
    owner, _, kind = owners[path].rpartition(": ")
    return replace(stale, owner=owner, kind=kind)


def _changes(plain: Record, name: str) -> bool:
    texts = {look.opened_variables[name] for look in plain.after(1) if name in look.opened_variables}
    return len(texts) > 1


def _telling(stale: Stale) -> int:
    """Return a variable's rank by its type: the smaller, the likelier that training depends on the variable."""
    if stale.plain.startswith("generator "):
        return 0
    if stale.is_length or stale.is_mode:
        return 5
    if _NUMBER.match(stale.plain):
        return 1
    if is_tensor(stale.plain):
        return 2 if "[" in stale.plain else 4
    return 3 if _FLOAT.match(stale.plain) or stale.is_iterator else 4


def within(name: str, owner: str) -> bool:
    return name == owner or name.startswith((f"{owner}.", f"{owner}["))
