"""Objects whose `state_dict` cannot be called at every boundary as it is: loaders, datasets, gradient scalers on a device.

torchdata's loader is asked for its state only while it iterates.
A loader that has not begun would begin when asked. Its workers start, and it draws a seed from torch's generator,
earlier than in a run without spotguard. A loader with a restored position draws that seed when it makes its iterator.
The uninterrupted run drew nothing there. So the restore makes that iterator before it restores the generators.

Some states do not let training resume exactly. `check_position` refuses those that are known.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, Sampler

from ....providers.errors import StateError
from ..inventory.frozen import freeze, freeze_of, prove
from .loaders import ResumableLoader
from .values import StatefulPart


def is_stateful_loader(value: object) -> bool:
    """Return whether the value is torchdata's loader, or a subclass of it."""
    return hasattr(value, "_iterator") and any(
        cls.__module__.startswith("torchdata.") for cls in type(value).__mro__
    )


def is_position(value: object) -> bool:
    """Return whether the value's state is a position among the samples that one of N ranks reads."""
    return (
        is_stateful_loader(value)
        or keeps_loaded_aside(value)
        or isinstance(value, (ResumableLoader, Sampler))
    )


def check_position(name: str, value: object) -> None:
    """Refuse a loader or a dataset whose own state does not let training resume exactly.

    Raises:
        StateError: it is a `DataLoader` with a state of its own, or its dataset has a shuffle buffer, or several workers
            read a dataset that keeps a loaded state aside.
    """
    if isinstance(value, DataLoader) and not is_stateful_loader(value) and hasattr(value, "state_dict"):
        raise StateError(
            f"{name} is a {type(value).__name__}, whose iterator draws a seed from torch's generator when it resumes, and an "
            f"uninterrupted run draws none there: wrap it, as in {name} = spotguard.ResumableLoader({name}) [SG402]"
        )
    if isinstance(value, ResumableLoader):
        return  # it loads the batches again, and so fills the buffer again
    dataset = value.dataset if isinstance(value, DataLoader) else value
    if isinstance(value, DataLoader) and keeps_loaded_aside(dataset) and value.num_workers > 1:
        raise StateError(
            f"{name} reads a datasets.IterableDataset in {value.num_workers} workers, and a worker whose batches training has "
            "not reached since a resume reports no position, so the next resume would read its samples again; use at most "
            f"1 worker, or a plain DataLoader, as in {name} = spotguard.ResumableLoader(DataLoader(dataset)) [SG402]"
        )
    if _has_shuffle_buffer(dataset):
        raise StateError(
            f"{name} reads a datasets.IterableDataset with a shuffle buffer, and its state_dict() does not hold the examples "
            f"in the buffer: a resumed run would train on others; use a plain DataLoader, as in {name} = "
            "spotguard.ResumableLoader(DataLoader(dataset)), or leave shuffle() out [SG402]"
        )


def keeps_loaded_aside(dataset: object) -> bool:
    """Return whether a dataset is a `datasets.IterableDataset`.

    After its `load_state_dict`, its `state_dict` returns the state of before until the first example is read.
    """
    return hasattr(dataset, "_starting_state_dict") and hasattr(dataset, "_state_dict")


def check_class(name: str, here: str, saved: str) -> None:
    """Raise `StateError` unless a saved object was of this class."""
    if here != saved:
        raise StateError(
            f"{name} is {here} here and {saved} in the checkpoint; register the same class, or leave it out of register to "
            "start it fresh [SG602]"
        )


def class_of(value: Any) -> str:
    """Return the name of a class, with those of the schedulers that an object is made of.

    A wrapper that shows a scheduler's state as its own (Accelerate's) counts as the scheduler.
    """
    if not isinstance(value, LRScheduler) and hasattr(
        inside := getattr(value, "scheduler", None), "state_dict"
    ):
        return class_of(inside)
    several = getattr(value, "_schedulers", ())
    return type(value).__qualname__ + (f"({', '.join(map(class_of, several))})" if several else "")


class ClassedPart(StatefulPart):
    """A scheduler, or an optimizer with its own `state_dict`. Their `load_state_dict` accepts the state of another class."""

    def tree(self) -> Any:
        return {"class": class_of(self.value), "state": self._frozen}

    def targets(self, tree: Any) -> None:
        if not isinstance(tree, dict) or not {"class", "state"} <= tree.keys():
            raise StateError(
                f"{self.name}: the checkpoint holds no scheduler or optimizer under this name [SG602]"
            )
        check_class(self.name, class_of(self.value), tree["class"])

    def put_back(self, tree: Any) -> None:
        super().put_back(tree["state"])


def is_like_scheduler(value: object) -> bool:
    """Return whether the value changes an optimizer's options, even if it is not torch's, or wraps such a scheduler."""
    return (
        isinstance(value, LRScheduler)
        or isinstance(getattr(value, "scheduler", None), LRScheduler)
        or (hasattr(value, "optimizer") and hasattr(value, "get_last_lr"))
    )


class StreamPart(StatefulPart):
    """A `datasets.IterableDataset`."""

    def put_back(self, tree: Any) -> None:
        super().put_back(tree)
        self.value._state_dict = freeze(tree)


class ScalerPart(StatefulPart):
    """A `GradScaler`, whose `state_dict` reads two numbers from the device.

    One that is not enabled has an empty state, which an enabled one would refuse, and no place for the state of another.

    Read at each boundary, they would have training wait there for all kernels of the step. So a boundary copies them on
    the device, and a save, which waits for the device anyway, reads the copies.
    """

    def at_boundary(self) -> None:
        scaler = self.value
        scale, growth = getattr(scaler, "_scale", None), getattr(scaler, "_growth_tracker", None)
        if scale is None or scale.is_cpu:  # it makes them at its first use
            super().at_boundary()
            return
        state = {
            "scale": scale,
            "growth_factor": scaler.get_growth_factor(),
            "backoff_factor": scaler.get_backoff_factor(),
            "growth_interval": scaler.get_growth_interval(),
            "_growth_tracker": growth,
        }
        self._frozen = freeze_of(self.name, state, self.forms)

    def tree(self) -> Any:
        tree = self._frozen
        if not isinstance(tree, dict):
            return tree
        return {key: each.item() if isinstance(each, torch.Tensor) else each for key, each in tree.items()}

    def put_back(self, tree: Any) -> None:
        self.said = []
        if bool(tree) == self.value.is_enabled():
            super().put_back(tree)
        elif tree:
            self.said = [
                f"{self.name} is not enabled here, and was when it was saved: its scale of {tree.get('scale')} is not restored; "
                "enable it before register to go on with it"
            ]
        else:
            self.said = [
                f"{self.name} was not enabled when it was saved: it begins with its own scale of {self.value.get_scale()}"
            ]


def reads_a_device(value: object) -> bool:
    """Return whether the value is a `GradScaler` of torch's own state."""
    return (
        isinstance(value, torch.amp.GradScaler)
        and type(value).state_dict is torch.amp.GradScaler.state_dict
        and type(value).get_scale is torch.amp.GradScaler.get_scale
    )


def _has_shuffle_buffer(dataset: object) -> bool:
    """Return whether a `datasets.IterableDataset` shuffles in a buffer. (Its steps are nested in private attributes.)"""
    waiting, seen = [getattr(dataset, "_ex_iterable", None)], 0
    while waiting and seen < 1000:
        each, seen = waiting.pop(), seen + 1
        if type(each).__name__ == "BufferShuffledExamplesIterable" and getattr(each, "buffer_size", 0) > 1:
            return True
        inside = [getattr(each, "ex_iterable", None), *(getattr(each, "ex_iterables", None) or ())]
        waiting += [one for one in inside if one is not None]
    return False


#: The key of the epochs in a stateful loader's tree.
_EPOCHS = "spotguard.epochs"


def _with_epochs(loader: Any) -> dict[str, Any]:
    """Return the dataset and the samplers that are told their epoch by `set_epoch`, by where they are found."""
    holders = {"dataset": getattr(loader, "dataset", None), "sampler": getattr(loader, "sampler", None)}
    holders["batch_sampler.sampler"] = getattr(getattr(loader, "batch_sampler", None), "sampler", None)
    return {
        where: each
        for where, each in holders.items()
        if callable(getattr(each, "set_epoch", None)) and isinstance(getattr(each, "epoch", None), int)
    }


class LoaderPart(StatefulPart):
    """A stateful loader. Its tree is None until it has begun.

    The script calls `set_epoch` before each pass, and so after the restore has made the iterator. By then workers have
    begun with the epoch of a fresh start: a `datasets.IterableDataset` ignores the position of another epoch, and a
    sampler gives another order. So the tree has the epochs, too.
    """

    def __init__(self, name: str, value: Any) -> None:
        super().__init__(name, value)
        self._proven = False
        #: The iterator that a restore made, and the batches that it had yielded then.
        self._restored: tuple[object, int] | None = None

    def at_boundary(self) -> None:
        if self.value._iterator is None or self._restored == self._progress():
            return  # a dataset may report no position before its first sample: the restored state holds
        super().at_boundary()
        if isinstance(self._frozen, dict) and (holders := _with_epochs(self.value)):
            self._frozen[_EPOCHS] = {where: each.epoch for where, each in holders.items()}
        if not self._proven:
            prove(self.name, self._frozen)  # `register` had no state to prove yet
            self._proven = True

    def put_back(self, tree: Any) -> None:
        self._frozen, self._restored = tree, None
        if tree is not None:
            epochs = tree.get(_EPOCHS, {}) if isinstance(tree, dict) else {}
            for where, each in _with_epochs(self.value).items():
                if where in epochs:
                    each.set_epoch(epochs[where])
            super().put_back({key: each for key, each in tree.items() if key != _EPOCHS} if epochs else tree)
            self.value.state_dict()
            self._restored = self._progress()
        elif self.value._iterator is not None:
            super().put_back({})  # torchdata's form of "not begun"

    def _progress(self) -> tuple[object, int]:
        iterator = self.value._iterator
        return iterator, getattr(iterator, "_num_yielded", -1)
