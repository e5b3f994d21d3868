"""How each kind of loader begins a pass, says its position, and goes on at one.

A loader without a position that lets training resume exactly is *replayed*: the pass begins again, and its first batches are dropped.
The others go on at their own state, which costs no loading. A driver decides it at each boundary, from what the loader is made of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, SequentialSampler

from ....checkpoint.format.values.sameness import same
from ..values import has_state
from .passes import Pass
from .worker_draws import WorkerDraws

_END = object()


class ReplayDriver:
    """A loader that is replayed: torch's `DataLoader`, and whatever else can only be iterated.

    Args:
        loader: the loader.
    """

    #: Whether draws in workers matter, also where these do not stay for the next pass.
    _always_watches = False

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        #: Whether the pass under way drew random numbers when it began.
        self.drew = False
        #: The loader's own restored position, until it delivers.
        self.loaded: Any = None
        #: Whether it has delivered since the restore. One that has not would begin if it were asked for its state.
        self.has_begun = False
        #: Whether the dataset draws random numbers in workers; None while it does not matter.
        self.draws: WorkerDraws | None = None

    def watching(self) -> AbstractContextManager[None]:
        """Have workers that start in this block note whether the dataset draws random numbers in them."""
        base = getattr(self.loader, "base_dataloader", self.loader)
        if not isinstance(base, DataLoader) or base.num_workers == 0:
            return nullcontext()
        if not (self._always_watches or base.persistent_workers):
            return nullcontext()
        self.draws = WorkerDraws() if self.draws is None else self.draws
        return self.draws.watching(base)

    def order_from(self, begin: Any, made: Any) -> Any:
        """Return the generators from which a pass draws its order: those before `iter()`, or those behind it.

        Each iterator of torch's draws a seed for workers, also where there are none.
        """
        in_order = isinstance(getattr(self.loader, "sampler", None), SequentialSampler)
        return made if in_order else begin

    def begin(self) -> Iterator[Any]:
        """Return the iterator of a new pass, or of the position that `prepare` has set."""
        with self.watching():
            return iter(self.loader)

    def between(self, states: Any, put_back: Callable[[Any], None]) -> Any:
        """Go to the restored position between two passes; return the loader's own state there, which a replay begins from.

        Args:
            states: the generators, which this may move.
            put_back: sets the generators.
        """
        if self.loaded is not None:
            self.prepare(self.loaded, inside=False)
            put_back(states)
        return self.before() if self.has_begun or self.loaded is not None else None

    def before(self) -> Any:
        """Return the loader's own state where a pass begins; None if it has none."""
        return None

    def delivered(self, drew: bool) -> None:
        """Note a batch, or the end of a pass, and whether random numbers were drawn for the first batch."""
        self.has_begun, self.loaded, self.drew = True, None, self.drew or drew

    def position(self, taken: int | None) -> Any:
        """Return what a restart sets: the loader's own position, or the restored one until it delivers; None for a replay.

        Args:
            taken: the batches that training took of a pass; None between two.
        """
        return self.state(taken) if self.has_begun else self.loaded

    def restored(self, state: Any, this: Pass | None) -> None:
        """Take what `position` returned, and the pass that was interrupted."""
        self.loaded, self.has_begun = state, False
        begun = this.before if state is None and this is not None else state
        if begun is not None:
            self.load(begun)

    def state(self, taken: int | None) -> Any:
        """Return the loader's own position once it has delivered; None if it is to be replayed."""
        return None

    def load(self, state: Any) -> None:
        """Take a state of `state` or `before` at a restore, before any iterator is made."""

    def prepare(self, state: Any, inside: bool) -> Iterator[Any] | None:
        """Have the next `begin` go on at a state. It may draw random numbers, which the caller takes back.

        Args:
            state: the loader's position.
            inside: whether the position is in a pass, and not between two.

        Returns:
            The iterator, if the loader has made it already.
        """
        return None


class OwnDriver(ReplayDriver):
    """An iterable with a state of its own, such as a loader that the script has written.

    It is replayed if its passes begin with random numbers: no state of its own has the order that these make. So it is until its
    state has changed with the batches: one that does not, such as an epoch, is no position.
    """

    #: The batches taken, and the state with them, as of the last boundary of this pass.
    _seen: tuple[int, Any] | None = None
    #: Whether the state changes with the batches; None while that is not known.
    _moves: bool | None = None

    def before(self) -> Any:
        state = self.loader.state_dict()
        self._seen = 0, state
        return state

    def state(self, taken: int | None) -> Any:
        if taken is not None and self.drew:
            return None
        state = self.loader.state_dict()
        if taken is None:
            self._seen = None
            return state
        seen, self._seen = self._seen, (taken, state)
        if seen is not None and seen[0] != taken and self._moves is not False:
            self._moves = bool(same(seen[1], state))
        return state if self._moves else None

    def restored(self, state: Any, this: Pass | None) -> None:
        super().restored(state, this)
        self._seen, self._moves = None, True if this is not None and state is not None else None

    def load(self, state: Any) -> None:
        self.loader.load_state_dict(state)

    def prepare(self, state: Any, inside: bool) -> Iterator[Any] | None:
        self.load(state)
        return None


class StreamDriver(OwnDriver):
    """A `datasets.IterableDataset`, which keeps a loaded state aside until its next pass. Its buffer is filled again by a replay."""

    def before(self) -> Any:
        return None  # a state of the pass before, at which it would go on

    def state(self, taken: int | None) -> Any:
        return self.loader.state_dict() if taken is not None and not has_shuffle_buffer(self.loader) else None


class NodesDriver(ReplayDriver):
    """`torchdata.nodes.Loader`, which begins as soon as it is asked for its state."""

    def state(self, taken: int | None) -> Any:
        return None if self.loader._it is None else self.loader.state_dict()

    def prepare(self, state: Any, inside: bool) -> Iterator[Any] | None:
        loader, again = self.loader, self.loader.restart_on_stop_iteration
        loader.load_state_dict(state)
        loader.restart_on_stop_iteration = (
            False  # behind the last batch of a pass it would begin the next one unasked
        )
        try:
            batches: Iterator[Any] = iter(loader)
        finally:
            loader.restart_on_stop_iteration = again
        if inside:
            return batches
        next(batches, _END)  # its samplers count a pass that has ended
        return None


class StatefulDriver(ReplayDriver):
    """torchdata's `StatefulDataLoader`.

    Its state has the position of samplers and datasets that tell theirs. Others it would iterate again when it goes on, from
    generators at another state; and random numbers of its workers are in no state. Then it is replayed.
    """

    _always_watches = True
    #: The iterator whose workers were watched as they started. One that the script had made before was not, and may draw.
    _watched: Any = None

    def begin(self) -> Iterator[Any]:
        early = self.loader._iterator
        batches = super().begin()
        if self.loader._iterator is not early:
            self._watched = self.loader._iterator
        return batches

    def state(self, taken: int | None) -> Any:
        iterator = self.loader._iterator
        unseen = self.loader.num_workers > 0 and iterator is not self._watched
        if iterator is None or unseen or not self._tells(inside=taken is not None):
            return None
        epochs = {where: each.epoch for where, each in self._with_epochs().items()}
        return {"loader": self.loader.state_dict(), "epochs": epochs}

    def prepare(self, state: Any, inside: bool) -> Iterator[Any] | None:
        # A `datasets.IterableDataset` ignores the position of another epoch, and a sampler gives another order.
        told = {where: each.epoch for where, each in self._with_epochs().items()}
        self._set_epochs(state["epochs"])
        self.loader.load_state_dict(state["loader"])
        with self.watching():
            self.loader.state_dict()  # makes the iterator, which `begin` takes
        self._watched = self.loader._iterator
        if not inside:
            self._set_epochs(told)
            if not self.loader._iterator._finished:  # the loop ended the pass before the loader did
                forget_early_iterator(self.loader)
        return None

    def _tells(self, *, inside: bool) -> bool:
        loader = self.loader
        dataset, sampler, batches = loader.dataset, loader.sampler, loader.batch_sampler
        if keeps_loaded_aside(dataset):
            return inside and loader.num_workers <= 1 and not has_shuffle_buffer(dataset)
        if isinstance(dataset, IterableDataset):
            return has_state(dataset)
        if self.draws and not has_state(dataset):
            return False
        if batches is not None and not type(batches).__module__.startswith("torchdata."):
            return has_state(batches)
        ordered = type(sampler) in (SequentialSampler, DistributedSampler)
        return ordered or has_state(sampler) or type(sampler).__module__.startswith("torchdata.")

    def _with_epochs(self) -> dict[str, Any]:
        """Return the dataset and the samplers that are told their epoch by `set_epoch`, by where they are found."""
        holders = {"dataset": self.loader.dataset, "sampler": self.loader.sampler}
        holders["batch_sampler.sampler"] = getattr(self.loader.batch_sampler, "sampler", None)
        return {
            where: each
            for where, each in holders.items()
            if callable(getattr(each, "set_epoch", None)) and isinstance(getattr(each, "epoch", None), int)
        }

    def _set_epochs(self, epochs: dict[str, int]) -> None:
        for where, each in self._with_epochs().items():
            if where in epochs:
                each.set_epoch(epochs[where])


def driver_of(loader: Any) -> ReplayDriver:
    """Return the driver for a loader."""
    if is_stateful_loader(loader) and not hasattr(
        loader, "base_dataloader"
    ):  # accelerate's fetches one batch ahead
        return StatefulDriver(loader)
    if isinstance(loader, DataLoader) or hasattr(loader, "base_dataloader"):
        return ReplayDriver(loader)
    if hasattr(loader, "restart_on_stop_iteration") and hasattr(loader, "root"):
        return NodesDriver(loader)
    if keeps_loaded_aside(loader):
        return StreamDriver(loader)
    return OwnDriver(loader) if has_state(loader) else ReplayDriver(loader)


def is_stateful_loader(value: object) -> bool:
    """Return whether the value is torchdata's loader, or a subclass of it."""
    return hasattr(value, "_iterator") and any(
        cls.__module__.startswith("torchdata.") for cls in type(value).__mro__
    )


def keeps_loaded_aside(dataset: object) -> bool:
    """Return whether a dataset is a `datasets.IterableDataset`.

    After its `load_state_dict`, its `state_dict` returns the state of before until the first example is read.
    """
    return hasattr(dataset, "_starting_state_dict") and hasattr(dataset, "_state_dict")


def has_shuffle_buffer(dataset: object) -> bool:
    """Return whether a `datasets.IterableDataset` shuffles in a buffer. (Its steps are nested in private attributes.)"""
    # Each boundary asks, so only what a step holds of other steps is looked at: `generators.objects` would search their data too.
    waiting, seen = [getattr(dataset, "_ex_iterable", None)], 0
    while waiting and seen < 1000:
        each, seen = waiting.pop(), seen + 1
        if type(each).__name__ == "BufferShuffledExamplesIterable" and getattr(each, "buffer_size", 0) > 1:
            return True
        inside = [getattr(each, "ex_iterable", None), *(getattr(each, "ex_iterables", None) or ())]
        waiting += [one for one in inside if one is not None]
    return False


def keeps_workers(loader: Any) -> bool:
    """Return whether a loader with `persistent_workers` has its workers. Only the iterator that starts them draws a seed."""
    base = getattr(loader, "base_dataloader", loader)
    if not isinstance(base, DataLoader) or not base.persistent_workers or hasattr(base, "state_dict"):
        return False
    return base._iterator is not None


def set_workers(loader: Any, *, kept: bool) -> None:
    """Start a loader's persistent workers, or end them. To start them draws from the generators."""
    base = getattr(loader, "base_dataloader", loader)
    if kept and isinstance(base, DataLoader) and base.persistent_workers:
        DataLoader.__iter__(base)
    elif not kept:
        base._iterator = None


def forget_early_iterator(loader: Any) -> None:
    """Drop the iterator that torchdata's loader makes when it is asked for its state before the first pass, as accelerate does.

    Its workers have the first pass's order, and a later pass would train on it.
    """
    loader = getattr(loader, "base_dataloader", loader)
    if getattr(loader, "_initial_iter_for_state_dict", False):
        loader._iterator, loader._initial_iter_for_state_dict = None, False
