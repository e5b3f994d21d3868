"""`ResumableLoader`: a pass over the data that a restarted process goes on with."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterator
from typing import Any

from .....providers.errors import StateError, UsageError
from .. import rng
from .batch_mark import marked
from .drivers import OwnDriver, ReplayDriver, driver_of, forget_early_iterator, keeps_workers, set_workers
from .epochs import LoaderEpochs
from .generators import OwnGenerators
from .loop_use import LoopUse

log = logging.getLogger("spotguard")

_END = object()


class Suspension:
    """The generators of training, while a resumed loader has those of its pass's beginning: from iter() to the first batch."""

    def __init__(self) -> None:
        self.generators: dict[str, Any] | None = None

    def begin(self, generators: dict[str, Any]) -> None:
        """Keep training's generators, unless another loader has done it."""
        self.generators = generators if self.generators is None else self.generators

    def end(self) -> bool:
        """Put training's generators back; return whether any were kept."""
        kept, self.generators = self.generators, None
        if kept is not None:
            rng.restore(kept)
        return kept is not None


#: Of all loaders of the process, as the generators are.
suspension = Suspension()
#: The loaders with an iterator that lives, by that iterator. `zip` leaves the others where one of them ends.
_iterated: weakref.WeakKeyDictionary[Any, ResumableLoader] = weakref.WeakKeyDictionary()


class ResumableLoader:
    """A loader that continues in the middle of a pass after a restart, with the batches of an uninterrupted run.

    It wraps a `DataLoader`, torchdata's `StatefulDataLoader` or `torchdata.nodes.Loader`, or any other iterable.

    An iterator draws random numbers when it is made and at its first batch, for the order of the samples and for the workers; after a
    restart it would draw others. This wrapper records the generators at both moments, those inside the loader, its dataset and
    transforms included, and counts the batches that training took (not those that workers prefetched). After a restore it makes
    the iterator from the recorded generators, drops the counted batches, and puts the generators of the restored step back.
    Dropped batches are loaded again, which costs their loading time once. A `StatefulDataLoader` and nodes go on at their own
    state instead, if that is exact.

    Exact: shuffling, `num_workers`, random augmentation, `DistributedSampler` with `set_epoch`. Not exact: a sampler that draws from
    a global generator in the middle of a pass while workers prefetch, and random augmentation in workers with
    `persistent_workers=True` after the first pass, which a warning reports.

    A restart that finds other batches than before warns: something draws numbers that no seed sets, or counts passes
    from 0 again.

    A look at the first batch, as in `next(iter(loader))`, is no pass: neither `epoch` nor the position counts it. A pass
    that the loop leaves after a `guard.step()` is over.

    Args:
        loader: the loader. Everything that its dataset and samplers return must follow from the generators and the epoch.
        limit: the batches of a pass, if that is to end earlier than the loader's. A restart behind the last of them yields nothing
            more, where one behind a `break` would go on.

    Attributes:
        loader: the wrapped loader. Its own attributes, such as `batch_size` and `sampler`, are the wrapper's too.
        epoch: passes that are over.
        position: the index of the batch with which the next `iter()` begins: 0, or the batches that were taken of an interrupted
            pass.

    Raises:
        UsageError: `limit` is no positive number of batches.

    Example:
        >>> loader = spotguard.ResumableLoader(DataLoader(dataset, batch_size=4, shuffle=True))
        >>> guard = spotguard.register(model=model, optimizer=optimizer, loader=loader)
        >>> guard.restore()
        >>> for epoch in range(loader.epoch, 10):
        ...     for number, batch in enumerate(loader, loader.position):
        ...         train(batch)
        ...         guard.step()
    """

    def __init__(self, loader: Any, *, limit: int | None = None) -> None:
        if limit is not None and (type(limit) is not int or limit < 1):
            raise UsageError(f"limit={limit!r}: expected the batches of a pass, a whole number from 1 on")
        self.loader = loader
        self.epoch = 0
        self._limit = limit
        self._driver: ReplayDriver = driver_of(loader)
        self._own = OwnGenerators(loader)
        #: The epochs of its samplers, and the passes that it counts itself.
        self.epochs = LoaderEpochs(loader)
        #: What the training loop does with the loader.
        self.use = LoopUse(loader)
        self._taken = 0
        #: Checksums over samples of the first batch, and of all batches that were taken.
        self._marks = (0, 0)
        #: Batches of an interrupted pass that its next iterator drops, and their checksums.
        self._cut = 0
        self._cut_marks = (0, 0)
        #: Whether a boundary came since the iterator was made. The batches of an iterator without one trained nothing.
        self._stepped = False
        #: The generators at the beginning of this pass, and the epoch that the sampler had then.
        self._begin: dict[str, Any] = {}
        #: The loader's own restored position, until it delivers.
        self._loaded: Any = None
        #: Whether it has delivered since the restore. One that has not would begin if it were asked for its state.
        self._has_begun = False
        #: The generators of the restored step, once an iterator was made after it.
        self._after: dict[str, Any] | None = None
        #: The iterator whose batches count; an older one that is used on changes nothing.
        self._current: object = None
        #: Whether the saved run kept its workers from an earlier pass; None once the next iterator is made.
        self._kept: bool | None = None
        #: The number of restores. An iterator of before the last one is at another position than the state.
        self._restores = 0

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name in (
            "loader",
            "use",
        ):  # copies and pickles ask before there is a loader
            raise AttributeError(name)
        return getattr(self.loader, name)

    def __len__(self) -> int:
        if self._limit is None:
            return len(self.loader)
        try:
            return min(self._limit, len(self.loader))
        except TypeError:  # a stream has no length
            return self._limit

    @property
    def position(self) -> int:
        return 0 if self._stepped else self._cut

    @property
    def delivered(self) -> int:
        """Batches that training has taken since the last boundary."""
        return self.use.delivered

    def __iter__(self) -> Iterator[Any]:
        if self.position:
            return self._resumed()
        if self._taken and self._stepped:  # the loop was left in the middle of a pass
            self.epoch += 1
        self._taken = self._cut = 0
        self._marks = (0, 0)
        self._own.look()
        self._report_draws()
        self.align_workers(self._kept)
        if self._loaded is not None:
            now = self._captured()
            self._driver.prepare(self._loaded, inside=False)
            self._put_back(now)
        self._begin = {
            **self._captured(),
            "kept": keeps_workers(self.loader),
            "epoch": self.epochs.of_first_sampler(),
            "passes": self.epochs.passes(),
            "before": self._driver.before() if self._has_begun or self._loaded is not None else None,
            "made": None,
            "first": None,
        }
        self._driver.drew = False
        return self._counted(self._driver.begin())

    def _resumed(self) -> Iterator[Any]:
        """The rest of the pass that was interrupted."""
        self._own.look()
        if self._after is None:
            held = suspension.generators
            self._after = {"global": rng.capture() if held is None else held, "own": self._own.states()}
        begin = self._begin
        self.align_workers(begin["kept"])
        self._put_back(begin)
        self._driver.drew = self._loaded is None
        batches = None
        if self._loaded is not None:
            if begin["first"] is not None:
                self._put_back(begin["first"])
            batches = self._driver.prepare(self._loaded, inside=True)
            self._put_back(begin["made"] or self._after)
        else:
            if begin["before"] is not None:
                self._driver.load(begin["before"])
                self._put_back(begin)
            self.epochs.set_all(begin["epoch"])
            self.epochs.set_passes(begin["passes"])
        batches = self._driver.begin() if batches is None else batches
        self._taken, self._marks = self._cut, self._cut_marks
        if begin["made"] is None:
            self._go_on(batches)
            return self._counted(batches, resumed=True)
        # What the script draws between iter() and the first batch, it draws again. Another loader may begin there.
        suspension.begin(self._after["global"])
        return self._counted(batches, resumed=True, suspended=True)

    def _go_on(self, batches: Iterator[Any]) -> None:
        """Bring an iterator to the interrupted position, and the generators to those of training."""
        after, begin = self._after or self._captured(), self._begin
        if begin["made"] is None:
            suspension.generators = None  # of another loader: training goes on from here
        elif not suspension.end():
            after = self._captured()  # training has gone on by another loader
        if self._loaded is None:
            if begin["first"] is not None:
                self._put_back(begin["first"])
            self._replay(batches)
        self._put_back(after)

    def _replay(self, batches: Iterator[Any]) -> None:
        """Take the batches of before the restart again, and drop them."""
        first = mark = 0
        # Without workers, a dataset draws its random numbers between those of training: what it draws here is dropped, so it may differ.
        alone = not getattr(self.loader, "num_workers", 0)
        drew = False
        for number in range(self._cut):
            before = rng.capture() if alone and number and not drew else None
            if (batch := next(batches, _END)) is _END:
                raise StateError(
                    f"the loader ended after {number} batches, and {self._cut} were taken before the restart: give it the "
                    "same dataset, batch size and number of ranks"
                )
            drew = drew or (before is not None and not rng.same(before, rng.capture()))
            mark = marked(batch, mark)
            first = mark if number == 0 else first
        if first != self._cut_marks[0] or (mark != self._cut_marks[1] and not drew):
            log.warning(
                "%s's first %d batches are not those of before the restart, so the resumed run is not the uninterrupted one; "
                "likely first: something in the dataset draws without a seed (pass a seed to each shuffle), a dataset or sampler "
                "counts passes from 0 (call its set_epoch(loader.epoch)), or files come in another order (sort them) [SG420]",
                "the loader" if self.use.name == "loader" else self.use.name,
                self._cut,
            )
            self._marks = (first, mark)

    def _captured(self) -> dict[str, Any]:
        return {"global": rng.capture(), "own": self._own.states()}

    def _put_back(self, states: dict[str, Any]) -> None:
        rng.restore(states["global"])
        self._own.set(states["own"])

    def _report_draws(self) -> None:
        """Warn if workers that stay for this pass have drawn random numbers."""
        if self._driver.draws and keeps_workers(self.loader):
            self.use.workers_drew()

    def align_workers(self, kept: bool | None) -> None:
        """After a restore, have the loader's workers or not, as the saved run had where the next iterator was made."""
        self._kept = None
        if kept is not None and keeps_workers(self.loader) != kept:
            now = self._captured()
            with self._driver.watching():
                set_workers(self.loader, kept=kept)
            self._put_back(now)

    def _counted(
        self, batches: Iterator[Any], *, resumed: bool = False, suspended: bool = False
    ) -> Iterator[Any]:
        self._current = batches
        self._stepped = False
        restores = self._restores
        made = None if resumed else self._captured()
        self.use.began(batches, self._taken)

        def rest() -> Iterator[Any]:
            # Not a for loop: that calls iter() again, and DeepSpeed's loader is an iterator that begins anew then.
            nonlocal suspended
            first = not resumed
            while self._limit is None or self._taken < self._limit or self._current is not batches:
                if self._restores != restores:
                    raise StateError(
                        "an iterator of this loader was made before guard.restore(), and its batches are not those of the "
                        "restored position: call iter(loader) after guard.restore() [SG417]"
                    )
                if first and self._current is batches:
                    self._begins(made)
                if suspended:
                    suspended = False
                    self._go_on(batches)
                if (batch := next(batches, _END)) is _END:
                    break
                if self._current is batches:
                    self._took(batch, first)
                first = False
                yield batch
            if self._current is batches:
                self._current, self._loaded, self._has_begun = None, None, True
                self.epoch += 1
                self._taken = self._cut = 0
                self._marks = (0, 0)
                self.use.ended()
                for other in {*_iterated.values()} - {self}:
                    other._left_by_another()

        iterator = rest()
        _iterated[iterator] = self
        return iterator

    def _left_by_another(self) -> None:
        """Note that a loop that reads another loader too may have ended with it. The next iterator begins a pass then."""
        self._stepped = self._stepped or self._cut > 0
        self.use.left()

    def _begins(self, made: dict[str, Any] | None) -> None:
        """Record the generators before a pass's first batch, if they moved since the iterator was made."""
        now = self._captured()
        if not rng.same(now, made):
            # Behind a boundary, what moved them was training, which a restart does not repeat here.
            self._begin = {**self._begin, "made": None if self._stepped else made, "first": now}

    def _took(self, batch: Any, first: bool) -> None:
        self._taken += 1
        self._has_begun, self._loaded = True, None
        mark = marked(batch, self._marks[1])
        self._marks = (mark if self._taken == 1 else self._marks[0], mark)
        if first and isinstance(self._driver, OwnDriver):
            now = self._captured()
            self._driver.drew = not all(rng.same(now[each], self._begin[each]) for each in ("global", "own"))
        self.use.took(batch)

    def at_boundary(self) -> None:
        """Note that what was taken has trained. The training thread calls it after every step."""
        suspension.end()
        self._stepped = self._stepped or self._current is not None
        self.use.boundary()

    def state_dict(self) -> dict[str, Any]:
        """Return the position, with the generators that a resumed pass begins from."""
        own = self._driver.state(self._taken > 0) if self._has_begun else self._loaded
        kept = keeps_workers(self.loader) if self._kept is None else self._kept
        position = {"epoch": self.epoch, "taken": self._taken, "marks": self._marks, "kept": kept}
        return {
            **position,
            "begin": self._begin,
            "own": self._own.states(),
            "passes": self.epochs.passes(),
            "loader": own,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take a position of `state_dict`. The next iterator continues there."""
        self.epoch, self._taken, self._begin = state["epoch"], state["taken"], state["begin"]
        self._cut, self._stepped, self._after = self._taken, False, None
        self._current = None
        self._marks = self._cut_marks = state["marks"]
        self._kept = state["kept"]
        self._loaded, self._has_begun = state["loader"], False
        if self.epoch:
            forget_early_iterator(self.loader)
        if (begun := self._loaded if self._loaded is not None else self._begin.get("before")) is not None:
            self._driver.load(begun)
        self._own.look()
        self._own.set(state["own"])
        self.epochs.set_passes(state["passes"])

    def restored(self) -> None:
        """Refuse the iterators made until now, after a restore or at a first start. `guard.restore()` calls this."""
        self._restores += 1
        self._current = None
        suspension.generators = None
        for iterator in [each for each, loader in _iterated.items() if loader is self]:
            del _iterated[iterator]
        self.use.restored()

    @property
    def unsavable_generators(self) -> dict[str, str]:
        """Generators of the loader, its dataset and transforms that no save can hold: their types, by where they are."""
        self._own.look()
        return self._own.unsavable

    def reads(self, value: object) -> bool:
        """Return whether the value is the dataset or a sampler of the loader, so that the loader's position counts for it."""
        inside = [self.loader, getattr(self.loader, "dataset", None), *self.epochs.samplers()]
        return any(each is value for each in inside)

    def own_generators(self) -> dict[str, Any]:
        """Return the states of the generators of the loader and its samplers, by where they are found."""
        self._own.look()
        return self._own.states()

    def set_own_generators(self, states: dict[str, Any]) -> None:
        """Set the states that `own_generators` returned."""
        self._own.set(states)
