"""`ResumableLoader` around a plain `DataLoader`. (`stateful` has the loaders with a state of their own.)"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, DistributedSampler, Sampler

from ....providers.errors import StateError
from ...checkpoint.format.crc import crc32
from ..memory_access import copyable, unreadable
from . import rng

log = logging.getLogger("spotguard")

_END = object()


class ResumableLoader:
    """A `DataLoader` that continues in the middle of a pass after a restart, with the batches of an uninterrupted run.

    A plain `DataLoader` knows no position. An iterator of it draws a seed from torch's generator when it is made, for the
    order of the samples and for the workers; after a restart it would draw another one. This wrapper records the
    generators at the beginning of each pass and counts the batches that training took (not those that workers
    prefetched). After a restore it makes the iterator from the recorded generators, drops the counted batches, and puts the
    generators of the restored step back. Dropped batches are loaded again, which costs their loading time once.

    Exact: shuffling, `num_workers`, `persistent_workers`, random augmentation in workers, `DistributedSampler` with
    `set_epoch`. Not exact: a sampler that draws from a global generator in the middle of a pass while workers prefetch, and
    random augmentation in workers with `persistent_workers=True` after the first pass.

    A restart that finds other batches than before warns: something draws numbers that no seed sets, or counts passes
    from 0 again.

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
        #: A checksum over samples of the batches that were taken.
        self._mark = 0
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
        #: Whether the saved run kept its workers from an earlier pass; None once the next iterator is made.
        self._kept: bool | None = None
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
        self._taken = self._cut = self._mark = 0
        self.align_workers(self._kept)
        self._begin = {
            **self.own_generators(),
            "kept": keeps_workers(self.loader),
            "global": rng.capture(),
            "epoch": self._sampler_epoch(),
            "passes": self._passes(),
        }
        return self._counted(iter(self.loader))

    def _resumed(self) -> Iterator[Any]:
        """The rest of the pass that was interrupted."""
        if self._after is None:
            self._after = rng.capture(), self.own_generators()
        self.align_workers(self._begin["kept"])
        rng.restore(self._begin["global"])
        self.set_own_generators(self._begin)
        for each in self._samplers():
            if self._begin["epoch"] is not None and hasattr(each, "set_epoch"):
                each.set_epoch(self._begin["epoch"])
        self._set_passes(self._begin["passes"])
        batches, mark = iter(self.loader), 0
        for number in range(self._cut):
            if (batch := next(batches, _END)) is _END:
                raise StateError(
                    f"the loader ended after {number} batches, and {self._cut} were taken before the restart: give it the "
                    "same dataset, batch size and number of ranks"
                )
            mark = _marked(batch, mark)
        if mark != self._mark:
            log.warning(
                "the loader's first %d batches are not those of before the restart, so the resumed run is not the "
                "uninterrupted one: seed everything that draws, and let what counts passes begin at loader.epoch [SG420]",
                self._cut,
            )
            self._mark = mark
        now, own = self._after
        rng.restore(now)
        self.set_own_generators(own)
        self._taken = self._cut
        return self._counted(batches)

    def align_workers(self, kept: bool | None) -> None:
        """After a restore, have the loader's workers or not, as the saved run had where the next iterator was made."""
        self._kept = None
        if kept is not None and keeps_workers(self.loader) != kept:
            own, now = self.own_generators(), rng.capture()
            set_workers(self.loader, kept=kept)
            rng.restore(now)
            self.set_own_generators(own)

    def _drop_early_iterator(self) -> None:
        """Drop the iterator that torchdata's loader makes when it is asked for its state before the first pass, as accelerate
        does. Its workers have the first pass's order, and a later pass would train on it.
        """
        loader = getattr(self.loader, "base_dataloader", self.loader)
        if getattr(loader, "_initial_iter_for_state_dict", False):
            loader._iterator, loader._initial_iter_for_state_dict = None, False

    def _counted(self, batches: Iterator[Any]) -> Iterator[Any]:
        self._current = batches
        self._stepped = False
        restores = self._restores

        def rest() -> Iterator[Any]:
            # Not a for loop: that calls iter() again, and DeepSpeed's loader is an iterator that begins anew then.
            while (batch := next(batches, _END)) is not _END:
                if self._restores != restores:
                    raise StateError(
                        "an iterator of this loader was made before guard.restore(), and its batches are not those of the "
                        "restored position: call iter(loader) after guard.restore() [SG417]"
                    )
                if self._current is batches:
                    self._taken += 1
                    self._mark = _marked(batch, self._mark)
                yield batch
            if self._current is batches:
                self._current = None
                self.epoch += 1
                self._taken = self._cut = self._mark = 0

        return rest()

    def state_dict(self) -> dict[str, Any]:
        """Return the position, with the generators that a resumed pass begins from. A boundary asks for it."""
        self._stepped = self._stepped or self._current is not None
        position = {"epoch": self.epoch, "taken": self._taken, "mark": self._mark}
        position["kept"] = keeps_workers(self.loader)
        return {**position, "begin": self._begin, "own": self.own_generators(), "passes": self._passes()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take a position of `state_dict`. The next iterator continues there."""
        self.epoch, self._taken, self._begin = state["epoch"], state["taken"], state["begin"]
        self._cut, self._stepped, self._after = self._taken, False, None
        self._current, self._mark = None, state["mark"]
        self._kept = state["kept"]
        if self.epoch:
            self._drop_early_iterator()
        self.set_own_generators(state["own"])
        self._set_passes(state["passes"])

    def restored(self) -> None:
        """Refuse the iterators made until now, after a restore or at a first start. `guard.restore()` calls this."""
        self._restores += 1
        self._current = None

    def _passes(self) -> dict[str, int]:
        """The passes that the loader or its dataset counts itself, and shuffles by, by the name of the count."""
        counts = {name: getattr(holder, name, None) for name, holder in self._counters()}
        return {name: count for name, count in counts.items() if isinstance(count, int)}

    def _set_passes(self, passes: dict[str, int]) -> None:
        for name, holder in self._counters():
            if name in passes:
                setattr(holder, name, passes[name])

    def _counters(self) -> list[tuple[str, Any]]:
        """The counts of accelerate's loaders, of Fabric's, and of mosaicml-streaming's datasets."""
        dataset = getattr(self.loader, "dataset", None)
        return [("iteration", self.loader), ("_num_iter_calls", self.loader), ("next_epoch", dataset)]

    def sampler_epochs(self) -> list[int | None]:
        """Return the epochs of the samplers, in a fixed order; None for one without."""
        epochs = (getattr(each, "epoch", None) for each in self._samplers())
        return [each if isinstance(each, int) else None for each in epochs]

    def set_sampler_epochs(self, epochs: list[int | None]) -> None:
        """Set the epochs that `sampler_epochs` returned."""
        for each, epoch in zip(self._samplers(), epochs, strict=False):
            if epoch is not None and hasattr(each, "set_epoch"):
                each.set_epoch(epoch)

    def _samplers(self) -> list[Any]:
        """The samplers of the loader, and those inside them: accelerate's sampler of a rank wraps the loader's own, and
        Lightning's one has it in a dataset.
        """
        found: list[Any] = []
        waiting: list[Any] = [self.loader]
        while waiting:
            each = waiting.pop()
            inside = [getattr(each, name, None) for name in ("sampler", "batch_sampler")]
            if isinstance(each, DistributedSampler):
                held = getattr(each.dataset, "__dict__", {}).values()
                inside += [value for value in held if isinstance(value, Sampler)]
            new = [one for one in inside if one is not None and not any(one is known for known in found)]
            found += new
            waiting += new
        return found

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

    def own_generators(self) -> dict[str, torch.Tensor]:
        """Return the states of the generators of the loader and its samplers, by where they are found."""
        return {where: each.get_state() for where, each in self._generators().items()}

    def set_own_generators(self, states: dict[str, Any]) -> None:
        """Set the states that `own_generators` returned."""
        for where, each in self._generators().items():
            # accelerate's seedable sampler makes its generator when a pass begins, and seeds it then.
            if where in states:
                each.set_state(states[where])


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


#: The most values of a batch that count for its mark, and the bytes at each end of a tensor.
_MARKED_VALUES, _MARKED_BYTES = 32, 64


def _marked(batch: Any, mark: int) -> int:
    """Return a checksum of samples of a batch and of the batches before it.

    Only shapes count of tensors that are not on the host: reading one would wait for its device.
    """
    waiting, values = [batch], 0
    while waiting and values < _MARKED_VALUES:
        value = waiting.pop()
        if isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, (list, tuple)):
            waiting += value[:_MARKED_VALUES]
        else:
            values += 1
            mark = crc32(_sample(value), mark)
    return mark


def _sample(value: Any) -> bytes:
    if not isinstance(value, torch.Tensor):
        if isinstance(value, (str, bytes)):
            value = value[:_MARKED_BYTES]
        return repr(value).encode() if isinstance(value, (bool, int, float, str, bytes)) else b""
    about = f"{value.dtype}{tuple(value.shape)}".encode()
    if type(value) is not torch.Tensor or not value.is_cpu or unreadable(value) or not value.numel():
        return about
    if not value.is_contiguous():
        value = copyable(value.detach()[:1]).contiguous()
    # By address: the same by torch's calls takes 50 µs.
    start, count = value.data_ptr(), min(_MARKED_BYTES, value.nbytes)
    return b"".join(
        [about, ctypes.string_at(start, count), ctypes.string_at(start + value.nbytes - count, count)]
    )
