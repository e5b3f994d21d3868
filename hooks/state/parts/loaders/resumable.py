"""`ResumableLoader`: a pass over the data that a restarted process goes on with."""

from __future__ import annotations

import logging
import sys
import weakref
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from .....providers.errors import StateError, UsageError
from ....checkpoint.format.values.sameness import same
from .. import rng
from .batch_mark import marked
from .drivers import ReplayDriver, driver_of, forget_early_iterator, keeps_workers, set_workers
from .epochs import LoaderEpochs
from .generators import OwnGenerators
from .loop_use import LoopUse
from .passes import Captured, Pass, first_draws

log = logging.getLogger("spotguard")

_END = object()


#: The loaders with an iterator that lives, by that iterator. `zip` leaves the others where one of them ends.
_iterated: weakref.WeakKeyDictionary[Any, ResumableLoader] = weakref.WeakKeyDictionary()
#: The loaders that were restored within a pass, until the first iterator of any loader.
_waiting: weakref.WeakSet[ResumableLoader] = weakref.WeakSet()


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
        #: The pass under way, or interrupted, and what the next iterator resumes of it.
        self._pass: Pass | None = None
        self._resumes: Pass | None = None
        #: The generators of the restored step, once an iterator was made after it.
        self._after: Captured | None = None
        #: The same before that, where the step lies within a pass, until the script begins a turn.
        self._restored: Captured | None = None
        #: Whether the script looks at a first batch before a pass. If not, a second iterator begins another pass; None: not known.
        self._looks: bool | None = None
        #: Whether the saved run kept its workers from an earlier pass; None once the next iterator is made.
        self._kept: bool | None = None
        #: The number of restores. An iterator of before the last one is at another position than the state.
        self._restores = 0
        #: Whether no iterator was made since.
        self._begins = False

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
        self.use.counts = True
        resumes = self._to_resume()
        return 0 if resumes is None else resumes.taken

    @property
    def _alone(self) -> bool:
        """Whether this process reads the samples."""
        return not getattr(self.loader, "num_workers", 0)

    @property
    def progress(self) -> tuple[int, int]:
        """The passes that are over, and the batches that training has taken of this one."""
        return self.epoch, 0 if self._pass is None else self._pass.taken

    def __iter__(self) -> Iterator[Any]:
        if self._begins:
            self._begins = False
            self.use.resumes(self.epoch, sys._getframe(1))
        restored = self._restored
        for each in [*_waiting]:
            each.turn_begins()
        if (resumes := self._to_resume()) is not None:
            return self._resumed(resumes, restored)
        this = self._pass
        if this is not None and this.taken and (this.stepped or self._resumes is not None):
            self.epoch += 1  # the loop was left in the middle of a pass
        elif this is not None and this.taken:
            self._looks = True
        self._resumes = None
        self._own.look()
        if self._driver.draws and keeps_workers(self.loader):
            self.use.workers_drew()
        self.align_workers(self._kept)
        begin = self.captured()
        before = self._driver.between(begin, self.put_back)
        kept = keeps_workers(self.loader)
        epoch = next((each for each in self.epochs.of_samplers() if each is not None), None)
        first_draws.watch(self, None)
        self.use.begins()
        this = Pass(begin, kept, epoch, self.epochs.passes(), before)
        batches = first_draws.by_loader(self._driver.begin)
        made = self.captured()
        self._driver.drew = same(made, begin) != ""
        first_draws.waiting[self] = [made, made]
        return self._counted(batches, this, made)

    def _to_resume(self) -> Pass | None:
        """Return the interrupted pass with which the next iterator goes on; None if it begins another one."""
        this, resumes = self._pass, self._resumes
        begun = this is not None and resumes is not None and this.taken > resumes.taken
        return None if begun and self._looks is False else resumes

    def _resumed(self, resumes: Pass, restored: Captured | None) -> Iterator[Any]:
        """The rest of the pass that was interrupted.

        Args:
            restored: the generators of the restored step, if nothing but what belongs to no turn can have drawn since.
        """
        self._own.look()
        self._after = self._after or restored or self.captured()
        self.align_workers(resumes.kept)
        self.use.begins()
        self.put_back(resumes.begin)
        loaded = self._driver.loaded
        self._driver.drew = loaded is None
        batches = None
        if loaded is not None:
            if resumes.first is not None:
                self.put_back(resumes.first)
            batches = self._driver.prepare(loaded, inside=True)
            self.put_back(resumes.made or self._after)
        else:
            if resumes.before is not None:
                self._driver.load(resumes.before)
                self.put_back(resumes.begin)
            self.epochs.set_samplers([resumes.epoch] * len(self.epochs.samplers()))
            self.epochs.set_passes(resumes.passes)
        batches = self._driver.begin() if batches is None else batches
        this = replace(resumes)
        if this.made is None:
            self._go_on(batches, this, self._after)
        else:
            first_draws.repeated.append((self, self._after))
        return self._counted(batches, this, None, repeats=this.made is not None)

    def _go_on(self, batches: Iterator[Any], this: Pass, after: Captured) -> None:
        """Bring an iterator to the interrupted position, and the generators to those of training."""
        if self._driver.loaded is None:
            if this.first is not None:
                self.put_back(this.first)
            self._replay(batches, this)
        self.put_back(after)

    def _replay(self, batches: Iterator[Any], this: Pass) -> None:
        """Take the batches of before the restart again, and drop them."""
        first = mark = 0
        # Without workers, a dataset draws its random numbers between those of training: what it draws here is dropped, so it may differ.
        drew = False
        for number in range(this.taken):
            before = rng.capture() if self._alone and number and not drew else None
            if (batch := next(batches, _END)) is _END:
                raise StateError(
                    f"the loader ended after {number} batches, and {this.taken} were taken before the restart: give it the "
                    "same dataset, batch size and number of ranks"
                )
            drew = drew or (before is not None and same(before, rng.capture()) != "")
            mark = marked(batch, mark)
            first = mark if number == 0 else first
        if first != this.marks[0] or (mark != this.marks[1] and not drew):
            log.warning(
                "%s's first %d batches are not those of before the restart, so the resumed run is not the uninterrupted one; "
                "likely first: something in the dataset draws without a seed (pass a seed to each shuffle), a dataset or sampler "
                "counts passes from 0 (call its set_epoch(loader.epoch)), or files come in another order (sort them) [SG420]",
                "the loader" if self.use.name == "loader" else self.use.name,
                this.taken,
            )
            this.marks = (first, mark)

    def captured(self) -> Captured:
        """Return the states of the global generators, and of those inside the loader."""
        return {"global": rng.capture(), "own": self._own.states()}

    def put_back(self, states: Captured) -> None:
        """Set the states that `captured` returned."""
        rng.restore(states["global"])
        self._own.set(states["own"])

    def align_workers(self, kept: bool | None) -> None:
        """After a restore, have the loader's workers or not, as the saved run had where the next iterator was made."""
        self._kept = None
        if kept is not None and keeps_workers(self.loader) != kept:
            now = self.captured()
            with self._driver.watching():
                set_workers(self.loader, kept=kept)
            self.put_back(now)

    def _counted(
        self, batches: Iterator[Any], this: Pass, made: Captured | None, *, repeats: bool = False
    ) -> Iterator[Any]:
        self._pass = this
        this.live = True
        restores = self._restores
        self.use.began(batches, this.taken)

        def rest() -> Iterator[Any]:
            # Not a for loop: that calls iter() again, and DeepSpeed's loader is an iterator that begins anew then.
            nonlocal repeats
            while self._limit is None or this.taken < self._limit:
                if self._restores != restores:
                    raise StateError(
                        "an iterator of this loader was made before guard.restore(), and its batches are not those of the "
                        "restored position: call iter(loader) after guard.restore(), which guard.steps() else calls at its first turn, "
                        "as in zip(guard.steps(total), loader) [SG417]"
                    )
                watched = bool(first_draws.repeated)
                first_draws.deliver()
                if repeats:
                    repeats = False
                    self._go_on(batches, this, self.captured())
                    if watched:
                        first_draws.watch(self, this)
                now = self._before_batch(this, made)
                before = rng.capture() if self.use.watches and self._alone else None
                batch = (
                    first_draws.by_loader(lambda: next(batches, _END))
                    if first_draws.waiting
                    else next(batches, _END)
                )
                if batch is _END:
                    break
                mark = marked(batch, this.marks[1])
                this.taken += 1
                this.marks = (mark if this.taken == 1 else this.marks[0], mark)
                if self._pass is this:
                    drew = now is not None and same(now, self.captured()) != ""
                    if before is not None:
                        if now is not None:
                            before = self._driver.order_from(this.begin, made or now)
                        after = self.captured() if now is not None else rng.capture()
                        moved = same(before, after) != ""
                        self.use.fetched(moved, self._own.states(), first=now is not None)
                    self._driver.delivered(drew)
                    self.use.took(batch)
                yield batch
            if self._pass is this:
                self._pass = self._resumes = None
                first_draws.watch(self, None)
                self._driver.delivered(False)
                self.epoch += 1
                self.use.ended()
                for other in {*_iterated.values()} - {self}:
                    other._left_by_another()

        iterator = rest()
        _iterated[iterator] = self
        return iterator

    def _left_by_another(self) -> None:
        """Note that a loop that reads another loader too may have ended with it. The next iterator begins a pass then."""
        if self._pass is not None and self._resumes is not None:
            self._pass.stepped, self._resumes = True, None
        self.use.left()

    def _before_batch(self, this: Pass, made: Captured | None) -> Captured | None:
        """Record the generators before a pass's first batch, and return them; None before any other batch."""
        if this.taken:
            return None
        now = self.captured()
        this.first = now if same(now, made) else None
        if self._pass is this:
            first_draws.decide(self, this, sure=False)
        return now

    def before_turn(self) -> None:
        """Note that `guard.steps()` yields for the first time. No turn repeats what the script has drawn until now."""
        first_draws.end()
        self.turn_begins()
        if self._pass is not None:
            first_draws.decide(self, self._pass, sure=True)

    def turn_begins(self) -> None:
        """Note that what is drawn from now on belongs to training."""
        self._restored = None
        _waiting.discard(self)

    def at_boundary(self) -> None:
        """Note that what was taken has trained. The training thread calls it after every step."""
        first_draws.boundary()
        self.turn_begins()
        if self._pass is not None and self._pass.live:
            self._pass.stepped, self._resumes = True, None
        self.use.boundary()

    def state_dict(self) -> dict[str, Any]:
        """Return the position, with the generators that a resumed pass begins from."""
        this = self._pass
        return {
            "epoch": self.epoch,
            "taken": 0 if this is None else this.taken,
            "marks": (0, 0) if this is None else this.marks,
            "begin": None if this is None else this.begun(),
            "looks": self._looks,
            "kept": keeps_workers(self.loader) if self._kept is None else self._kept,
            "own": self._own.states(),
            "passes": self.epochs.passes(),
            "loader": self._driver.position(None if this is None else this.taken),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take a position of `state_dict`. The next iterator continues there."""
        self.epoch, self._looks, self._kept = state["epoch"], state["looks"], state["kept"]
        self._pass = None
        if state["begin"] is not None:
            self._pass = Pass(**state["begin"], taken=state["taken"], marks=state["marks"])
        self._resumes = self._pass
        self._after = None
        if self.epoch:
            forget_early_iterator(self.loader)
        self._driver.restored(state["loader"], self._pass)
        self._own.look()
        self._own.set(state["own"])
        self.epochs.set_passes(state["passes"])

    def restored(self) -> None:
        """Refuse the iterators made until now, after a restore or at a first start. `guard.restore()` calls this."""
        self._restores += 1
        self._begins = True
        self._pass = self._resumes
        # A script that seeds or validates before each pass does so before a resumed one too, of which no uninterrupted run knows. Behind
        # the first iterator, though, training draws.
        self._restored = self.captured() if self._pass is not None and self._pass.taken else None
        _waiting.add(self)
        if not self.epoch and self._pass is None:  # from here on all looks are seen
            self._looks = False
        first_draws.forget()
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
