"""The base of the parts, each of which takes one registered value and puts it back, and the parts of plain values.

A part answers three questions:

- Which values are copied at each boundary? These are small, and change in forward or between steps.
- Which tensors stay unchanged until the next `optimizer.step()`? A save reads these in place.
- How does a saved tree go back into the same live objects?

The saved form of a value is a *tree* (`sharding.saved_trees`).
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self

import torch

from ....providers.errors import StateError
from ...checkpoint.format.dtypes import dtype_name
from ...checkpoint.format.values.meeting import NOTHING
from ...checkpoint.format.values.placeholders import opened
from ..device.events import unordered
from ..inventory.fit import Filling
from ..inventory.frozen import Copies, Forms, freeze, freeze_of, marked, marks
from ..inventory.looks import memory_like, unlike_layout
from ..inventory.ownership import Ownership
from ..inventory.walk import tensors_in
from ..memory_access import copy_into, copyable, expanded, unreadable
from ..sharding.dtensor import KnownTensor, RankOf, TargetMemory, local, state_tensor
from ..sharding.saved_trees import SavedTrees
from ..state_tensor import StateTensor

#: The most bytes of a set of tensors that is copied at each boundary. A larger set is read in place and checked twice.
COPY_AT_BOUNDARY = 8 * 2**20

#: Errors by which foreign code refuses a state. (An assertion is one. `LookupError` includes `KeyError` and its subclasses.)
REFUSALS = (
    LookupError,
    ValueError,
    TypeError,
    AttributeError,
    RuntimeError,
    AssertionError,
    ArithmeticError,
    BufferError,
)


class Part(ABC):
    """One registered value. Unless a class says otherwise, each boundary copies all of it.

    Args:
        name: the registered name.
        objects: whether a restore has live objects of classes to fill.
    """

    #: Whether its state is found by parameter names, in the tree of any rank that has it.
    by_name = False
    _frozen: Any = None

    def __init__(self, name: str, *, objects: bool = False) -> None:
        self.name = name
        #: The forms of the values that boundaries copy, and the devices of tensors among them.
        self.forms = Forms(objects=objects)
        #: Lines about values that are not, or not quite, restored.
        self.said: list[str] = []
        #: Names of what the next checkpoint to restore may lack, if the script names it in `missing`.
        self.may_lack: frozenset[str] = frozenset()

    @abstractmethod
    def at_boundary(self) -> None:
        """Copy the values that change between steps. On the training thread, after every step: microseconds count."""

    def copied(self) -> Mapping[str, Any] | None:
        """Return the attributes with what was copied at the last boundary; None if that is not all, or too large to be kept twice.

        On the training thread, after every step of a training on a device.
        """
        if self.forms.devices and sum(t.nbytes for t in tensors_in(self._frozen)) > COPY_AT_BOUNDARY:
            return None
        return {"_frozen": self._frozen}

    def as_of(self, copied: Mapping[str, Any]) -> Self:
        """Return a part that has the copies of an earlier boundary, and the same tensors in place. On the saver thread."""
        earlier = copy.copy(self)
        vars(earlier).update(copied)
        return earlier

    def state_tensors(self) -> list[StateTensor]:
        """Return the tensors that stay unchanged now, by name. On the saver thread, with the gate shut."""
        return []

    def tree(self) -> Any:
        """Return the complete value as it is now.

        A tensor of `state_tensors` appears as the very same object. With the gate shut.
        """
        return self._frozen

    # --- tensors that are read in place ---

    def in_place(self) -> list[torch.Tensor]:
        """Return the live tensors that only their owner may change between boundaries."""
        return []

    def sources(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return pairs of a live tensor and the alias that a save reads. Both must stay the same memory."""
        return []

    def named(self) -> Mapping[int, KnownTensor]:
        """Return each live tensor of a module by its id."""
        return {}

    # --- a restore ---

    def merge(self, trees: SavedTrees) -> Any:
        """Return one tree with the state that this rank holds."""
        return trees.own

    @abstractmethod
    def targets(self, tree: Any) -> None:
        """Check a decoded tree against the live object. Nothing is written yet.

        Raises:
            StateError: the tree does not fit. The message names the item, the live value and the checkpoint's value.
            CheckpointError: this version never writes such a tree.
        """

    def memory(self, tree: Any, name_of: Callable[[torch.Tensor], str]) -> Iterable[TargetMemory]:
        """Yield the memory for each tensor of an outline that fits (`targets`). All others are read into host memory.

        Args:
            tree: the outline: the decoded tree with tensors that have no memory.
            name_of: returns the name of an outline's tensor in the checkpoint.
        """
        return ()

    @abstractmethod
    def put_back(self, tree: Any) -> None:
        """Give the live object its restored tree. On the main thread, after all tensors are filled and verified."""

    def restored(self, tree: Any) -> Iterable[tuple[torch.Tensor, torch.Tensor]]:
        """Return pairs of a live tensor that is read in place, and the tensor of a tree that it has got."""
        return ((tensor, tensor) for tensor in tensors_in(tree))


def error_text(error: BaseException) -> str:
    """Return the message of a foreign error in one line: torch's own errors have several."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def has_state(value: object) -> bool:
    """Return whether a value says its state, and takes one back."""
    return callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None))


class StatefulPart(Part):
    """Any object with `state_dict` and `load_state_dict`: schedulers, GradScaler, a stateful loader, a sampler.

    Its state is the result of `state_dict`, which only the training thread calls. Restored tensors are on the host:
    `load_state_dict` knows where they belong.
    """

    def __init__(self, name: str, value: Any) -> None:
        super().__init__(name)
        self.value = value

    def at_boundary(self) -> None:
        self._frozen = freeze_of(self.name, self.value.state_dict(), self.forms)

    def targets(self, tree: Any) -> None:
        """Accept any tree: the object's own `load_state_dict` decides whether it fits."""

    def put_back(self, tree: Any) -> None:
        load_into(self.name, self.value, tree)


@contextmanager
def room(name: str) -> Iterator[None]:
    """Allocate a restored tensor's memory in the `with` block.

    Raises:
        StateError: there is not enough memory. This machine is too small; the checkpoint is not damaged.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        raise StateError(
            f"no memory for {name} on this machine ({error_text(error)}); restore on a machine with more"
        ) from error


def load_into(name: str, value: Any, state: Any) -> None:
    """Load a state into an object by its own `load_state_dict`.

    Raises:
        StateError: the object refuses the state.
    """
    try:
        value.load_state_dict(state)
    except REFUSALS as error:
        raise StateError(
            f"{name}: {type(value).__name__}.load_state_dict refuses the checkpoint's state "
            f"({error_text(error)}); register the same kind of object that was saved"
        ) from error


class DictPart(Part):
    """A dict of plain values for the user's own notes, restored into the same dict and into what it holds.

    A checkpoint does not record the devices of tensors in the dict. A restored tensor goes to the device of the
    tensor at its place, otherwise to the host.
    """

    def __init__(self, name: str, value: dict[Any, Any]) -> None:
        super().__init__(name, objects=True)
        self._value = value
        #: Of a part that has an earlier boundary's copies: those of all dicts.
        self._earlier: list[Copies] | None = None
        #: The filling of this dict together with the others of one restore.
        self._filling: Filling | None = None
        #: All registered dicts, which may hold one object at several places, and the tensors of all other values. The registry sets both.
        self.dicts: Sequence[DictPart] = (self,)
        self.others: Callable[[], Iterable[torch.Tensor]] = tuple
        #: The tensors of modules, and registered ones, by the names that saves have for them. The registry sets it.
        self.named_tensors: Callable[[], Mapping[str, torch.Tensor]] = dict

    def at_boundary(self) -> None:
        self._frozen = freeze_of(self.name, self._value, self.forms)

    def tree(self) -> Any:
        return marked(self._frozen, marks(self._copies(), self.named_tensors()))

    def _copies(self) -> list[Copies]:
        """Return the copies of all registered dicts, which may be one object at several places, as of this part's boundary."""
        if self._earlier is not None:
            return self._earlier
        forms = [(self if part.name == self.name else part).forms for part in self.dicts]
        return [each.copies for each in forms if each.copies is not None]

    def copied(self) -> Mapping[str, Any] | None:
        known = super().copied()
        return None if known is None else {**known, "_earlier": self._copies()}

    def targets(self, tree: Any) -> None:
        if not isinstance(opened(tree)[0], dict):
            raise StateError(f"{self.name} is a dict here and a {type(tree).__name__} in the checkpoint")

    def put_back(self, tree: Any) -> None:
        self.forms.restored = True
        filling = self._filling or self.filling({self.name: tree})
        self._filling = None
        try:
            self.said = filling.fill(self.name)
        except REFUSALS as error:
            raise StateError(
                f"{self.name}: a value in it refuses its saved state ({error_text(error)}); restore with the versions that saved it"
            ) from error

    def begin(self, trees: Mapping[str, Any]) -> None:
        """Prepare all registered dicts for `put_back`, which gives them what they share together.

        Args:
            trees: the trees of one restore, by registered name.
        """
        filling = self.filling(trees)
        for part in self.dicts:
            part._filling = filling

    def filling(self, trees: Mapping[str, Any]) -> Filling:
        dicts = {part.name: (part._value, trees.get(part.name, NOTHING)) for part in self.dicts}
        return Filling(
            dicts, lambda: Ownership(self.others(), [live for live, _ in dicts.values()]), self.named_tensors
        )


class TensorPart(Part):
    """A bare tensor. A small one is copied at each boundary, and a large one is read in place."""

    def __init__(self, name: str, value: torch.Tensor, ranks: RankOf) -> None:
        super().__init__(name)
        self._ranks = ranks
        check_savable(name, value)
        check_restorable(name, value)
        #: The tensor as registered. If it is a DTensor, a save reads only the local shard.
        self._whole = value
        self._value = local(value)
        self._small = self._value.nbytes <= COPY_AT_BOUNDARY
        self._alias = freeze(self._value) if self._small else self._value.detach()
        #: The copy of the boundary before, which the next boundary overwrites; None unless copies are kept twice.
        self._spare: torch.Tensor | None = None
        #: Which bytes the tensor's memory lacks after it was freed; "" if none. Then the boundary does not read it,
        #: and each save refuses it by name.
        self._lacks = ""

    @property
    def live(self) -> torch.Tensor:
        """The tensor as it is now; of a DTensor the local shard."""
        return self._value.detach()

    def at_boundary(self) -> None:
        if self._small:
            self._lacks = unreadable(self._value)
            if not self._lacks:
                if self._spare is not None:
                    self._alias, self._spare = self._spare, self._alias
                copyable(self._alias).copy_(copyable(self._value.detach()))

    def copied(self) -> Mapping[str, Any]:
        if self._small and self._spare is None:
            self._spare = freeze(self._alias)
        return {"_alias": self._alias}

    def state_tensors(self) -> list[StateTensor]:
        read_from = self._value if self._lacks else self._alias
        return [state_tensor(self.name, self._whole, self._ranks, read_from=read_from, still=self._small)]

    def in_place(self) -> list[torch.Tensor]:
        return [] if self._small else [self._whole]

    def sources(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return [] if self._small else [(self._whole, self._alias)]

    def restored(self, tree: Any) -> Iterable[tuple[torch.Tensor, torch.Tensor]]:
        return [(self._whole, tree)]

    def tree(self) -> Any:
        return self._alias

    def targets(self, tree: Any) -> None:
        if not isinstance(tree, torch.Tensor):
            raise StateError(f"{self.name} is a tensor here and a {type(tree).__name__} in the checkpoint")
        if tree is not self._alias:
            check_fits(self.name, self._whole, tree)
            self.said = unlike_layout(self.name, self._whole, tree)

    def memory(self, tree: Any, name_of: Callable[[torch.Tensor], str]) -> Iterator[TargetMemory]:
        if tree.shape == self._value.shape:
            into = memory_like(tree)
        else:
            into = torch.empty(self._value.shape, dtype=self._value.dtype, device="cpu")
        yield TargetMemory.of(tree, self._whole, into, self.name)

    def put_back(self, tree: Any) -> None:
        copy_into(self._value, tree)


def check_savable(
    name: str, tensor: torch.Tensor, instead: str = "use a plain tensor, or leave it out"
) -> None:
    """Raise `StateError` for a tensor whose bytes do not make up its value. For a DTensor, check the local shard.

    Args:
        name: the name for the message.
        tensor: the tensor.
        instead: what to do if the tensor is of a class of its own, or without memory.
    """
    tensor = local(tensor)
    if tensor.layout is not torch.strided or tensor.device.type == "meta":
        what = "on the meta device" if tensor.device.type == "meta" else f"of layout {tensor.layout}"
        raise StateError(f"{name} is {what}, which cannot be saved; make it dense, or leave it out [SG401]")
    if why := unreadable(tensor):
        raise StateError(f"{name} is {why}, which cannot be saved; {instead} [SG401]")
    if why := unordered(tensor.device):
        raise StateError(f"{name} is on {tensor.device}, {why}; move it to the host, or leave it out")
    try:
        dtype_name(tensor.dtype)
    except StateError as error:
        raise StateError(f"{name}: {error}") from error


def check_restorable(name: str, tensor: torch.Tensor) -> None:
    """Raise `StateError` for a user's tensor that no restore could write to."""
    if expanded(local(tensor)):
        raise StateError(
            f"{name} is expanded: its elements share memory, and nothing can be restored into them; give "
            "it its own memory with .clone(), or leave it out"
        )


def check_fits(name: str, here: torch.Tensor, saved: torch.Tensor) -> None:
    """Raise `StateError` unless shape and dtype are equal, and the live tensor has memory to restore into.

    The shape of a DTensor is that of the global tensor, whatever part of it is here.
    """
    if why := unreadable(local(here)):
        raise StateError(f"{name} is {why}, which cannot be restored into; use a plain tensor")
    check_restorable(name, here)
    if here.shape != saved.shape or here.dtype != saved.dtype:
        raise StateError(
            f"{name} is {tuple(here.shape)} {here.dtype} here and {tuple(saved.shape)} {saved.dtype} in the "
            "checkpoint; restore into the model it was saved from, or choose another run id"
        )
