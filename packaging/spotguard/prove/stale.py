"""What a restore does not bring back, although training may depend on it: variables, flags, layers. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from .compare import Difference, Unsteady, is_alias, is_tensor
from .record import Record

#: What stands before the type of a registered object in a record (`recorder.variables`), and before that of a helper: one whose
#: `vars()` a registered dict can be, and one that holds more than values.
REGISTERED, PLAIN, OTHER, ENVIRONMENT = "registered ", "plain ", "other ", "environment "
_NUMBER = re.compile(r"-?\d+$")
#: A generator, or a list of numbers.
_DRAWN = re.compile(r"generator |\[+-?\d")
_FLOAT = re.compile(r"-?(\d+\.\d*(e[-+]\d+)?|\d+e[-+]\d+|inf|nan)$")


@dataclass(frozen=True, slots=True)
class Stale:
    """A variable that changes from step to step and that a restore did not bring back."""

    name: str
    #: The value in the undisturbed run.
    plain: str
    #: The value in the resumed run.
    resumed: str
    #: The name of the registered or registrable object, or of the helper, whose field this is; "" if there is none.
    owner: str = ""
    #: The type of that object.
    kind: str = ""

    @property
    def is_left_out(self) -> bool:
        """Whether its owner is registered, but the owner's state leaves it out."""
        return self.kind.startswith(REGISTERED)

    @property
    def is_helpers(self) -> bool:
        """Whether its owner is a helper that has no state dict."""
        return self.kind.startswith((PLAIN, OTHER))

    @property
    def is_environments(self) -> bool:
        """Whether its owner is an environment of gymnasium."""
        return self.kind.startswith(ENVIRONMENT)

    @property
    def is_whole(self) -> bool:
        """Whether its owner is a helper that holds more than values."""
        return self.kind.startswith(OTHER)

    @property
    def is_length(self) -> bool:
        return self.name.startswith("len(")

    @property
    def is_generator(self) -> bool:
        return self.plain.startswith("generator ")

    @property
    def is_iterator(self) -> bool:
        """Whether it is one of the interpreter's iterators, over a list or the like."""
        return self.plain.startswith("iterator ")

    @property
    def is_loaders(self) -> bool:
        """Whether it belongs to a loader that cannot be registered by itself."""
        return "Loader" in self.kind and not self.kind.startswith("Resumable")

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
        opened = after.opened_variables.get(name)
        if opened is not None and opened == later.opened_variables.get(name):
            continue  # it is set after restore(), as a counter is that begins at what restore() returns
        # What restore() returned is another number than at a start by itself.
        if (
            mine not in (text, str(begin))
            and name not in left_out.variables
            and initial.variables.get(name, text) != text
        ):
            ranks[name] = (0, Stale(name, text, mine))
    for name, text in after.opened_variables.items():
        mine = later.opened_variables.get(name, text)
        if (
            name in ranks
            or mine in (text, str(begin))
            or name in left_out.variables
            or not _changes(plain, name)
        ):
            continue
        carried = here.variables.get(name) == text
        anew = first is not None and first.opened_variables.get(name) == mine
        if carried or (anew and not is_tensor(text)):
            ranks[name] = (0 if carried and anew else 1, Stale(name, text, mine))
    ranked = sorted(ranks.values(), key=lambda each: (each[0], _telling(each[1])))
    owners = {**here.objects, **after.objects, **later.objects}
    return tuple(_owned(each, owners) for _, each in ranked)


def drawn_anew(
    plain: Record, other: Record, begin: int, left_out: Unsteady, *, plainly: bool = False
) -> tuple[str, ...]:
    """Return variables and unregistered modules that are constant in a run and differ in the resumed run.

    They are made of random numbers that nothing seeds.

    Args:
        plainly: return the single values instead, which may as well be a time, or a count of files.
    """
    initial, here, there = plain.looks.get(0), plain.looks.get(begin), other.looks.get(begin)
    if initial is None or here is None or there is None:
        return ()
    names: dict[str, None] = {}
    for name, text in here.variables.items():
        constant = name not in left_out.variables and initial.variables.get(name) == text
        # A random text, such as a log's name, does not matter; numbers do.
        if constant and (text.startswith("'") or is_alias(here, there, name)):
            continue
        if constant and there.variables.get(name, text) != text and plainly is not _is_drawn(text):
            names[name] = None
    for name, text in here.items["modules"].items() if not plainly else ():
        if initial.items["modules"].get(name) == text != there.items["modules"].get(name, text):
            names[name.rpartition(".")[0] or name] = None
    return tuple(names)


def aliases(plain: Record, other: Record, begin: int) -> tuple[str, ...]:
    """Return variables that name what a registered object held, and that a restore has given another value."""
    here, there = plain.looks.get(begin), other.looks.get(begin)
    if here is None or there is None:
        return ()
    return tuple(
        name
        for name, text in here.variables.items()
        if is_alias(here, there, name) and there.variables.get(name, text) != text
    )


def registered(differing: Iterable[Difference], plain: Record) -> tuple[str, ...]:
    """Return the registered names that these differences belong to; a generator keeps its own name."""
    names: dict[str, None] = {}
    for each in differing:
        if each.kind == "generators":
            names[f"generator {each.name}"] = None
        else:
            owner = next((n for n in plain.kinds if within(each.name, n)), each.name)
            # An entry of a dict is one of the script's own values.
            names[each.name if plain.kinds.get(owner) == "dict" else owner] = None
    return tuple(names)


def changed_before_forward(plain: Record, other: Record, begin: int, *, late: bool) -> tuple[str, ...]:
    """Return registered state that differs at the first forward, though it was the same at the boundary.

    State that both runs have changed is left out: that difference follows from something else.

    Args:
        late: return the state that only the undisturbed run has changed; else the state that only the resumed run has.
    """
    here, there = plain.looks.get(begin), other.looks.get(begin)
    after, later = plain.looks.get(begin + 1), other.looks.get(begin + 1)
    if here is None or there is None or after is None or later is None:
        return ()
    changed = []
    for name, text in after.opened_state.items():
        saved, mine = here.items["state"].get(name, text), later.opened_state.get(name, text)
        if mine != text and there.items["state"].get(name, text) == saved and (text, mine)[late] == saved:
            changed.append(Difference(begin, "state", name, text, mine))
    return registered(changed, plain)


def averages(plain: Record, differing: Iterable[Difference]) -> tuple[Stale, ...]:
    """Return the copies of parameters that differ. The state of a registered object leaves its field out, which is another cause."""
    owners = plain.looks[plain.last].objects if plain.looks else {}
    found = (
        _owned(Stale(each.name, each.plain, each.other), owners) for each in differing if each.kind == "kept"
    )
    return tuple(each for each in found if not each.is_left_out)


def frozen(plain: Record, other: Record, step: int) -> tuple[str, ...]:
    """Return registered parameters that one of the runs freezes and the other one trains."""
    here, there = plain.looks.get(step), other.looks.get(step)
    return tuple(sorted({*here.frozen} ^ {*there.frozen})) if here and there else ()


def modes(plain: Record, other: Record, step: int) -> tuple[str, ...]:
    """Return trained modules and parts of them that are in evaluation mode in one of the runs only."""
    here, there = plain.looks.get(step), other.looks.get(step)
    unlike = sorted({*here.evaluating} ^ {*there.evaluating}) if here and there else []
    return tuple(name for name in unlike if any(within(name, module) for module in _trained(plain)))


def late_layers(plain: Record) -> tuple[str, ...]:
    """Return tensors of trained modules that were not there when the run began."""
    begun = plain.looks[0].items["state"] if 0 in plain.looks else {}
    new = plain.looks[plain.last].items["state"].keys() - begun.keys() if begun else set()
    return tuple(sorted(name for name in new if any(within(name, module) for module in _trained(plain))))


def _trained(plain: Record) -> set[str]:
    """Return the registered modules whose parameters an optimizer moves."""
    trains = [name for each in plain.optimizers.values() for name in each.trains]
    return {name for name in plain.kinds if any(within(each, name) for each in trains)}


def _owned(stale: Stale, owners: Mapping[str, str]) -> Stale:
    """Add the outermost object that has a state dict; without one, the innermost helper."""
    name = stale.name.removeprefix("len(")
    around = [owners[path].rpartition(": ") for path in sorted(owners, key=len) if within(name, path)]
    stateful = [each for each in around if not each[2].startswith((PLAIN, OTHER))]
    owner, _, kind = [*stateful[:1], *around[-1:], ("", "", "")][0]
    return replace(stale, owner=owner, kind=kind)


def _is_drawn(text: str) -> bool:
    return is_tensor(text) or _DRAWN.match(text) is not None


def _changes(plain: Record, name: str) -> bool:
    texts = {look.opened_variables[name] for look in plain.after(1) if name in look.opened_variables}
    return len(texts) > 1


def _telling(stale: Stale) -> int:
    """Return a variable's rank by its type: the smaller, the likelier that training depends on the variable."""
    if stale.plain.startswith("generator "):
        return 0
    if stale.is_length:
        return 5
    if _NUMBER.match(stale.plain):
        return 1
    if is_tensor(stale.plain):
        return 2 if "[" in stale.plain else 4
    return 3 if _FLOAT.match(stale.plain) or stale.is_iterator else 4


def within(name: str, owner: str) -> bool:
    return name == owner or name.startswith((f"{owner}.", f"{owner}["))
