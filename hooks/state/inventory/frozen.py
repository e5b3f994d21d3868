"""Copies of values at a boundary, and the forms that they had there.

`freeze` copies. What it meets on its way (types, dtypes, layouts, devices, factories) is the signature of a part's values. A form that
was not there before is proven at that boundary, as `register` proves all of them.
"""

from __future__ import annotations

import copy
import logging
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Collection, Hashable, Mapping, Sequence
from operator import itemgetter
from typing import Any

import torch

from ....providers.errors import StateError
from ...checkpoint.format.manifest import bounded
from ...checkpoint.format.packing import pack_state
from ...checkpoint.format.values.decoder import decode
from ...checkpoint.format.values.encoder import FACTORIES, encode
from ...checkpoint.format.values.meeting import NOTHING, placed
from ...checkpoint.format.values.placeholders import SHARED, SavedObject
from ...checkpoint.format.values.sameness import same
from ..device.events import unordered
from ..memory_access import copyable, lack
from ..sharding.dtensor import is_dtensor
from .objects import is_array, is_mutable, saved_object
from .ownership import extent, is_whole, layouts
from .walk import ATOMS, Way, children, place, walk

log = logging.getLogger("spotguard")

_TEXTS = frozenset({str})
_TENSORS = frozenset({torch.Tensor, torch.nn.Parameter})
#: Values in one registered value below which it is not weighed when it has grown: 0.9 million rows of two numbers can be saved.
_MANY, _COUNTED = 500_000, frozenset({dict, list, tuple})
#: The mark of a tensor or an array that is a part of other memory, which no registered dict has.
VIEW = "view"
#: The mark of a tensor that is one of a registered module's, or a registered one itself: this and the name of that.
ALIAS = "="
#: The same of a parameter itself, and not of its data.
ITSELF = f"{ALIAS}{ALIAS}"


class Copies:
    """The copies of one boundary, as far as a restore may fill their values, or put them at several places."""

    __slots__ = ("again", "memory", "of", "parameters", "views")

    def __init__(self) -> None:
        #: The copies, by the ids of the values.
        self.of: dict[int, Any] = {}
        #: The ids of values that were met again, and of tensors and arrays that are parts of other memory.
        self.again: set[int] = set()
        self.views: set[int] = set()
        #: The ids of tensors that are parameters.
        self.parameters: set[int] = set()
        #: By the id of a tensor or an array: the address of its first element, and its strides.
        self.memory: dict[int, tuple[int, Sequence[int]]] = {}

    def keep(self, value: Any, copied: Any) -> None:
        """Note the copy of a value."""
        if type(value) in _TENSORS and value.layout is torch.strided:
            self.memory[id(value)] = value.data_ptr(), value.stride()
            if type(value) is torch.nn.Parameter:
                self.parameters.add(id(value))
        elif is_array(value):
            self.memory[id(value)] = value.__array_interface__["data"][0], value.strides
        elif type(value) is tuple or not is_mutable(value):
            return
        self.of[id(value)] = copied
        if id(value) in self.memory and not is_whole(value):
            self.views.add(id(value))


class Forms:
    """The forms that the values of one part have had.

    Args:
        objects: whether a restore has live objects of classes to fill. Otherwise they are refused.
    """

    __slots__ = ("_known", "_proven", "_weighed", "copies", "devices", "held", "objects", "restored", "seen")

    def __init__(self, *, objects: bool = False) -> None:
        #: The devices of copied tensors; never the host.
        self.devices: set[torch.device] = set()
        self.objects = objects
        self.seen: set[Any] = set()
        #: The copies of this boundary; None unless it matters which of the values are one object.
        self.copies: Copies | None = None
        #: The number of values in the containers of the last copy, and at the last proof.
        self.held = self._weighed = 0
        #: Whether a restore has just filled the values.
        self.restored = False
        #: The number of forms that a proof has covered. `register` makes the first one, after the first copy.
        self._proven = -1
        #: The classes of objects that a restore has met at `register`, or a boundary has named.
        self._known: set[str] = set()

    def tensor(self, value: torch.Tensor) -> None:
        """Note a tensor's form.

        Raises:
            StateError: no call can report when its device has copied it.
        """
        form = (value.dtype, value.layout, value.device)
        if form not in self.seen:
            if not value.is_cpu and value.device not in self.devices:
                if why := unordered(value.device):
                    raise StateError(
                        f"a tensor on {value.device}, {why}; move it to the host, or leave it out"
                    )
                self.devices.add(value.device)
            self.seen.add(form)

    def keys(self, value: dict[Any, Any]) -> None:
        """Note the types of a dict's keys."""
        if (kinds := {*map(type, value)}) - _TEXTS:
            self.seen.update(kinds)

    def check(self, name: str, frozen: Any) -> None:
        """Prove a part's values again if there are new forms among them. Log once what no save can hold."""
        if self.held > max(_MANY, 1.25 * self._weighed):
            if self._proven >= 0 and not self.restored:  # what comes from a checkpoint could be read
                self._weigh(name, frozen)
            self._weighed = self.held
        self.restored = False
        if len(self.seen) == self._proven:
            return
        if self._proven >= 0:
            try:
                prove(name, frozen)
            except StateError as error:
                left_out: list[str] = []
                encode(frozen, lambda tensor: "", name, left_out)
                if left_out:
                    log.error(
                        "no save can hold %s: each save leaves that out, and a restore leaves the value that is there then; use plain "
                        "values (numbers, strings, lists, dicts, tensors) [SG424]",
                        ", ".join(bounded(left_out)),
                    )
                else:
                    log.error("no save is possible: %s", error)
        if self.objects and RecursionError not in self.seen:
            self._say_new_classes(name, frozen)
        self._proven = len(self.seen)

    def _weigh(self, name: str, frozen: Any) -> None:
        try:
            pack_state({name: encode(frozen, lambda tensor: "", name, [])}, lambda _: largest(name, frozen))
        except StateError as error:
            log.error("no save is possible: %s", error)

    def _say_new_classes(self, name: str, frozen: Any) -> None:
        for way, each in walk(frozen):
            if isinstance(each, SavedObject) and each.cls not in self._known:
                self._known.add(each.cls)
                if self._proven >= 0:
                    log.warning(
                        "%s is a %s since this step, and a restore only fills an object that is there: put one there before "
                        "guard.restore(), or keep its values in a dict",
                        place(name, way),
                        each.cls,
                    )


def freeze(value: Any, forms: Forms | None = None) -> Any:
    """Return a copy of `value` that later changes cannot reach: containers and tensors are copied, atoms are shared.

    A value that cannot be copied is returned as it is. It cannot be saved either, and the encoder refuses it by name.

    Args:
        value: a tree of any objects.
        forms: receives the forms that the copied values have.

    Raises:
        StateError: a tensor's memory was freed, or no call can report when a device has copied the tensor.
    """
    kind = type(value)
    if kind in ATOMS:
        return value
    if forms is None or (copies := forms.copies) is None:
        return _copied(value, forms)
    if id(value) in copies.of:
        copies.again.add(id(value))
        return copies.of[id(value)]
    copied = _copied(value, forms)
    if kind is list or kind is dict:
        copies.of[id(value)] = copied
    else:
        copies.keep(value, copied)
    return copied


def _copied(value: Any, forms: Forms | None) -> Any:
    kind = type(value)
    if forms is not None and kind in _COUNTED:
        forms.held += len(value)
    # Most values are numbers in a list or a dict: a call for each of them would cost three times as much.
    if kind is dict:
        if forms is not None:
            forms.keys(value)
        return {k: v if type(v) in ATOMS else freeze(v, forms) for k, v in value.items()}
    if kind is list:
        if ATOMS.issuperset(map(type, value)):
            return value[:]
        return [v if type(v) in ATOMS else freeze(v, forms) for v in value]
    if kind is tuple:
        return tuple([v if type(v) in ATOMS else freeze(v, forms) for v in value])
    if isinstance(value, torch.Tensor):
        return _copy(value, forms)
    if kind is deque:
        return deque([freeze(v, forms) for v in value], value.maxlen)
    if kind is OrderedDict:
        return OrderedDict([(k, freeze(v, forms)) for k, v in value.items()])
    if kind is defaultdict:
        factory = value.default_factory
        if forms is not None and FACTORIES.get(getattr(factory, "__name__", "")) is not factory:
            forms.seen.add((kind, factory is None))
        return defaultdict(factory, {k: freeze(v, forms) for k, v in value.items()})
    if forms is not None:
        if forms.objects and (found := saved_object(value)) is not None:
            forms.seen.add((found.kind, found.cls))
            return SavedObject(found.kind, found.cls, _copied_fields(found, forms))
        forms.seen.add((kind, getattr(value, "dtype", None)))
    try:
        copied = copy.deepcopy(value)
        return copied if type(copied) is kind else value  # its `__reduce__` may make any other object of it
    except Exception:  # noqa: BLE001 - any code may run here, and pickle raises errors of every kind
        return value


def _copied_fields(found: SavedObject, forms: Forms) -> Any:
    """Return a copy of the values in an object. The dicts and the tuple that list them are not the script's."""
    if found.kind == "mapping":
        return tuple([_copied(each, forms) for each in found.value])
    return _copied(found.value, forms) if found.kind in ("dataclass", "namedtuple") else freeze(found.value)


def marks(all_copies: Collection[Copies], named: Mapping[str, torch.Tensor]) -> dict[int, str]:
    """Return, by the id of its copy, the mark of each value that is at several places, or shares memory with another one.

    The marks of two values begin with one number if they are one object, or share memory. The rest says how each lies there.

    Args:
        all_copies: the copies of all registered dicts.
        named: the tensors of all other registered values, by name. What is one of them is marked with that name.
    """
    places = Counter(key for each in all_copies for key in (*each.of, *each.again))
    extents = {key: extent(each.of[key], *at) for each in all_copies for key, at in each.memory.items()}
    owners = {extent(each): name for name, each in named.items()} if extents else {}
    owners.pop(None, "")  # without elements, or freed
    lie = layouts({key: each for key, each in extents.items() if each is not None})
    members = Counter(run for run, _ in lie.values())
    numbers: dict[Hashable, int] = {}
    found: dict[int, str] = {}
    for copies in all_copies:
        for key, copied in copies.of.items():
            run, layout = lie.get(key, (-1, ""))
            if (owner := owners.get(extents.get(key))) is not None:
                found[id(copied)] = (ITSELF if key in copies.parameters else ALIAS) + owner
            elif places[key] > 1 or members[run] > 1:
                number = numbers.setdefault(key if run < 0 else ("run", run), len(numbers))
                found[id(copied)] = f"{number}{layout}"
            elif key in copies.views:
                found[id(copied)] = VIEW
    return found


def marked(value: Any, found: Mapping[int, str]) -> Any:
    """Return a copied tree with the marks of its values."""
    if not found or type(value) in ATOMS:
        return value
    if isinstance(value, SavedObject):
        made: Any = SavedObject(value.kind, value.cls, marked(value.value, found))
    elif isinstance(value, (dict, list, tuple, deque)):
        made = placed(copy.copy(value), NOTHING, lambda key, each, live: marked(each, found))
    else:
        made = value
    return SavedObject(SHARED, found[id(value)], made) if id(value) in found else made


def _copy(value: torch.Tensor, forms: Forms | None) -> torch.Tensor:
    if is_dtensor(value):
        raise StateError(
            "a DTensor outside a module or an optimizer, which cannot be saved; use a plain tensor, or leave it out [SG401]"
        )
    if value.layout is torch.strided and value.device.type != "meta" and (why := lack(value)):
        raise StateError(f"{why}, which cannot be saved; use a plain tensor, or leave it out [SG401]")
    if forms is not None:
        forms.tensor(value)
    if value.layout is not torch.strided:
        return value.detach().clone()  # the encoder refuses it by name
    return copyable(value.detach()).clone().view(value.dtype)


def freeze_of(name: str, value: Any, forms: Forms) -> Any:
    """Do the work of `freeze` for a registered value, whose name is in errors, and check its new forms."""
    forms.copies, forms.held = Copies() if forms.objects else None, 0
    try:
        frozen = freeze(value, forms)
    except StateError as error:
        raise StateError(f"{name} holds {error}") from error
    except RecursionError:  # deeper than any savable value, or a circle: no copy, as above
        forms.copies = None
        forms.seen.add(RecursionError)
        frozen = value
    forms.check(name, frozen)
    return frozen


def largest(name: str, tree: Any) -> str:
    """Return the innermost value of a tree that holds most of what it holds: its path, and how many values are in it."""
    way: Way = ()
    while below := [(_count(each), key, each) for key, each in children(tree) if type(each) not in ATOMS]:
        most, key, each = max(below, key=itemgetter(0))
        if 2 * most < _count(tree):
            break
        way, tree = (*way, key), each
    return f"{place(name, way)}, with {sum(1 for _ in children(tree)):,} values,"


def _count(value: Any) -> int:
    return 1 + sum(1 if type(each) in ATOMS else _count(each) for _, each in children(value))


def prove(name: str, tree: Any, trees: dict[str, Any] | None = None) -> Any:
    """Save a tree and read it back, in memory; return the tree that came back.

    Args:
        trees: receives the encoded tree under its name.

    Raises:
        StateError: the tree that came back differs. The message names the difference and its path.
    """
    kept: dict[str, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> str:
        kept[f"#{len(kept)}"] = tensor
        return f"#{len(kept) - 1}"

    encoded = encode(tree, keep, name)
    if trees is not None:
        trees[name] = encoded
    back = decode(encoded, kept.__getitem__)
    if (path := same(tree, back)) != "":
        raise StateError(f"{name}{path} does not survive saving and reading back; leave it out")
    return back
