"""Data loaders: torchdata's `StatefulDataLoader`, and `ResumableLoader` around a plain `DataLoader`.

torchdata's loader is asked for its state only while it iterates.
A loader that has not begun would begin when asked. Its workers start, and it draws a seed from torch's generator,
earlier than in a run without spotguard. A loader with a restored position draws that seed when it makes its iterator.
The uninterrupted run drew nothing there. So the restore makes that iterator before it restores the generators.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Sampler

from ....providers.errors import StateError
from . import rng
from .values import StatefulPart, prove


def is_stateful_loader(value: object) -> bool:
    """Return whether the value is torchdata's loader, or a subclass of it."""
    return hasattr(value, "_iterator") and any(
        cls.__module__.startswith("torchdata.") for cls in type(value).__mro__
    )


def is_position(value: object) -> bool:
    """Return whether the value's state is a position among the samples that one of N ranks reads."""
    return is_stateful_loader(value) or isinstance(value, (ResumableLoader, Sampler))


class LoaderPart(StatefulPart):
    """A stateful loader. Its tree is None until it has begun."""

    def __init__(self, name: str, value: Any) -> None:
        super().__init__(name, value)
        self._proven = False

    def at_boundary(self) -> None:
        if self.value._iterator is None:
            return
        super().at_boundary()
        if not self._proven:
            prove(self.name, self._frozen)  # `register` had no state to prove yet
            self._proven = True

    def put_back(self, tree: Any) -> None:
        self._frozen = tree
        if tree is not None:
            super().put_back(tree)
            self.value.state_dict()
        elif self.value._iterator is not None:
            super().put_back({})  # torchdata's form of "not begun"


_END = object()


class ResumableLoader:
    """A `DataLoader` that continues in the middle of a pass after a restart, with the batches of an uninterrupted run.

    A plain `DataLoader` knows no position. An iterator of it draws a seed from torch's generator when it is made, for the
    order of the samples and for the workers; after a restart it would draw another one. This wrapper records the
    generators at the beginning of each pass and counts the batches that training took (not those that workers
    prefetched). After a restore it makes the iterator from the recorded generators, drops the counted batches, and puts the
    generators of the restored step back. Dropped batches are loaded again, which costs their loading time once.

    Exact: shuffling, `num_workers`, random augmentation in workers, `DistributedSampler` with `set_epoch`. Not exact: a
    sampler that draws from a global generator in the middle of a pass while workers prefetch, and random augmentation in
    workers with `persistent_workers=True` after the first pass.

    A look at the first batch, as in `next(iter(loader))`, is no pass: neither `epoch` nor the position counts it. A pass
    that the loop leaves after a `guard.step()` is over.

    Args:
        loader: the loader. Everything that its dataset and samplers return must follow from the generators and the epoch.

    Attributes:
        loader: the wrapped loader. Its own attributes, such as `batch_size` and `sampler`, are the wrapper's too.
        epoch: passes that are over.

    Example:
        >>> loader = spotguard.ResumableLoader(DataLoader(dataset, batch_size=4, shuffle=True))
        >>> guard = spotguard.register(model=model, optimizer=optimizer, loader=loader)
        >>> guard.restore()
        >>> for epoch in range(loader.epoch, 10):
        ...     for batch in loader:
        ...         train(batch)
        ...         guard.step()
    """

    def __init__(self, loader: DataLoader[Any]) -> None:
        self.loader = loader
        self.epoch = 0
        self._taken = 0
        #: Batches of an interrupted pass that its next iterator drops.
        self._cut = 0
        #: Whether a boundary came since the iterator was made. The batches of an iterator without one trained nothing.
        self._stepped = False
        #: The generators at the beginning of this pass, and the epoch that the sampler had then.
        self._begin: dict[str, Any] = {}
        #: The generators of the restored step, once an iterator was made after it.
        self._after: tuple[Any, dict[str, torch.Tensor]] | None = None
        #: The iterator whose batches count; an older one that is used on changes nothing.
        self._current: object = None
        #: The number of restores. An iterator of before the last one is at another position than the state.
        self._restores = 0

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "loader":  # copies and pickles ask before there is a loader
            raise AttributeError(name)
        return getattr(self.loader, name)

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        if self._cut and not self._stepped:
            return self._resumed()
        if self._taken and self._stepped:  # the loop was left in the middle of a pass
            self.epoch += 1
        self._taken = self._cut = 0
        self._begin = {
            **self._own(),
            "global": rng.capture(),
            "epoch": self._sampler_epoch(),
            "iteration": getattr(self.loader, "iteration", None),
        }
        return self._counted(iter(self.loader))

    def _resumed(self) -> Iterator[Any]:
        """The rest of the pass that was interrupted."""
        if self._after is None:
            self._after = rng.capture(), self._own()
        rng.restore(self._begin["global"])
        self._set_own(self._begin)
        for each in self._samplers():
            if self._begin["epoch"] is not None and hasattr(each, "set_epoch"):
                each.set_epoch(self._begin["epoch"])
        # accelerate's loaders count their passes, and seed the samplers by it.
        if self._begin.get("iteration") is not None:
            self.loader.iteration = self._begin["iteration"]
        batches = iter(self.loader)
        for number in range(self._cut):
            if next(batches, _END) is _END:
                raise StateError(
                    f"the loader ended after {number} batches, and {self._cut} were taken before the restart: give it the "
                    "same dataset, batch size and number of ranks"
                )
        now, own = self._after
        rng.restore(now)
        self._set_own(own)
        self._taken = self._cut
        return self._counted(batches)

    def _counted(self, batches: Iterator[Any]) -> Iterator[Any]:
        self._current = batches
        self._stepped = False
        restores = self._restores

        def rest() -> Iterator[Any]:
            for batch in batches:
                if self._restores != restores:
                    raise StateError(
                        "an iterator of this loader was made before guard.restore(), and its batches are not those of the "
                        "restored position: call iter(loader) after guard.restore() [SG417]"
                    )
                if self._current is batches:
                    self._taken += 1
                yield batch
            if self._current is batches:
                self._current = None
                self.epoch += 1
                self._taken = self._cut = 0

        return rest()

    def state_dict(self) -> dict[str, Any]:
        """Return the position, with the generators that a resumed pass begins from. A boundary asks for it."""
        self._stepped = self._stepped or self._current is not None
        return {"epoch": self.epoch, "taken": self._taken, "begin": self._begin, "own": self._own()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take a position of `state_dict`. The next iterator continues there."""
        self.epoch, self._taken, self._begin = state["epoch"], state["taken"], state["begin"]
        self._cut, self._stepped, self._after = self._taken, False, None
        self._current = None
        self._set_own(state["own"])

    def restored(self) -> None:
        """Refuse the iterators made until now, after a restore or at a first start. `guard.restore()` calls this."""
        self._restores += 1
        self._current = None

    def _samplers(self) -> list[Any]:
        batched = getattr(self.loader, "batch_sampler", None)
        found = [getattr(self.loader, "sampler", None), batched, getattr(batched, "sampler", None)]
        return [each for at, each in enumerate(found) if each is not None and each not in found[:at]]

    def _sampler_epoch(self) -> int | None:
        return next(
            (each.epoch for each in self._samplers() if isinstance(getattr(each, "epoch", None), int)), None
        )

    def _generators(self) -> dict[str, torch.Generator]:
        """The loader's own generators, which nothing else saves, by where they are found."""
        holders = {"loader": self.loader} | {
            f"sampler {at}": each for at, each in enumerate(self._samplers())
        }
        found = {where: getattr(holder, "generator", None) for where, holder in holders.items()}
        return {where: each for where, each in found.items() if isinstance(each, torch.Generator)}

    def _own(self) -> dict[str, torch.Tensor]:
        return {where: each.get_state() for where, each in self._generators().items()}

    def _set_own(self, states: dict[str, Any]) -> None:
        for where, each in self._generators().items():
            # accelerate's seedable sampler makes its generator when a pass begins, and seeds it then.
            if where in states:
                each.set_state(states[where])
