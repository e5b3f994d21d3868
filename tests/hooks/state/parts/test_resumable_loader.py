"""`ResumableLoader`: a plain loader goes on in the middle of a pass with the batches of an uninterrupted run."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, DistributedSampler, RandomSampler, Sampler

import spotguard
from spotguard.providers.errors import StateError
from tests.fakes.store import FakeStore
from tests.fakes.training import bits, different, guarded, seed
from tests.tiers import few_fast

#: torchdata calls what torch has deprecated.
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")]

SAMPLES, BATCH, PASSES = 11, 3, 3
EACH = -(-SAMPLES // BATCH)
TOTAL = EACH * PASSES


class Samples(Dataset[torch.Tensor]):
    """Each sample is augmented by random numbers, in the process that loads it."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((4,), float(index)) + torch.rand(4) + random.random()


Loader = DataLoader[torch.Tensor]


def plain() -> Loader:
    return DataLoader(Samples(), batch_size=BATCH)


def shuffled() -> Loader:
    return DataLoader(Samples(), batch_size=BATCH, shuffle=True)


def with_workers() -> Loader:
    return DataLoader(Samples(), batch_size=BATCH, shuffle=True, num_workers=2)


class Fixed(Samples):
    """Workers that stay go on with their generators, so here they draw nothing."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((4,), float(index))


def with_workers_that_stay() -> Loader:
    return DataLoader(Fixed(), batch_size=BATCH, shuffle=True, num_workers=2, persistent_workers=True)


def with_a_generator() -> Loader:
    return DataLoader(Samples(), batch_size=BATCH, shuffle=True, generator=torch.Generator().manual_seed(5))


def with_a_samplers_generator() -> Loader:
    sampler = RandomSampler(Samples(), replacement=True, generator=torch.Generator().manual_seed(5))
    return DataLoader(Samples(), batch_size=BATCH, sampler=sampler)


def distributed() -> Loader:
    sampler: Sampler[int] = DistributedSampler(Samples(), num_replicas=1, rank=0, shuffle=True)
    return DataLoader(Samples(), batch_size=BATCH, sampler=sampler)


class Shard(BatchSampler):
    """A batch sampler around the loader's own, as accelerate's sampler of a rank."""

    def __init__(self, batch_sampler: BatchSampler) -> None:
        self.batch_sampler = batch_sampler

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.batch_sampler)

    def __len__(self) -> int:
        return len(self.batch_sampler)


def with_a_wrapped_samplers_generator() -> Loader:
    sampler = RandomSampler(Samples(), generator=torch.Generator().manual_seed(5))
    return DataLoader(Samples(), batch_sampler=Shard(BatchSampler(sampler, BATCH, drop_last=False)))


class Indices(Dataset[int]):
    """The indices that a sampler draws, as Lightning gives them to its sampler of a rank."""

    def __init__(self, sampler: Sampler[int]) -> None:
        self._sampler = sampler
        self.drawn: list[int] = []

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> int:
        return self.drawn[index]


class OfIndices(DistributedSampler[int]):
    dataset: Any

    def __iter__(self) -> Iterator[int]:
        self.dataset.drawn = list(self.dataset._sampler)
        return (self.dataset[at] for at in super().__iter__())


def with_a_generator_of_the_sampler_in_a_dataset() -> Loader:
    sampler = RandomSampler(Samples(), generator=torch.Generator().manual_seed(5))
    ranks = OfIndices(Indices(sampler), num_replicas=1, rank=0, shuffle=False)
    return DataLoader(Samples(), batch_size=BATCH, sampler=ranks)


def asked_for_its_state() -> Loader:
    """As accelerate asks: torchdata's loader makes its first iterator then, whose worker takes an order at once."""
    data = pytest.importorskip("torchdata.stateful_dataloader")
    loader: Loader = data.StatefulDataLoader(Samples(), batch_size=BATCH, shuffle=True, num_workers=1)
    loader.state_dict()  # type: ignore[attr-defined]
    return loader


class OwnIterator(DataLoader[torch.Tensor]):
    """A loader that is its own iterator, as DeepSpeed's: each call of iter() begins anew."""

    def __iter__(self) -> Any:
        self._batches = super().__iter__()
        return self

    def __next__(self) -> torch.Tensor:
        batch: torch.Tensor = next(self._batches)
        return batch


class Counting(DataLoader[torch.Tensor]):
    """A loader that counts its passes and shuffles by the count, as accelerate's and Fabric's."""

    iteration = 0

    def __iter__(self) -> Any:
        order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(self.iteration))
        for rows in order.split(BATCH):
            yield torch.stack([self.dataset[int(row)] for row in rows])
        self.iteration += 1


def counting() -> Loader:
    return Counting(Samples(), batch_size=BATCH)


def its_own_iterator() -> Loader:
    return OwnIterator(Samples(), batch_size=BATCH, shuffle=True)


Make = Callable[[], Loader]


class Training:
    """A model with dropout, trained for `PASSES` passes: it stops for good after `until` steps."""

    def __init__(self, make: Make) -> None:
        seed()
        self.model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.loader = spotguard.ResumableLoader(make())
        self.values: dict[str, Any] = {
            "model": self.model,
            "optimizer": self.optimizer,
            "loader": self.loader,
        }

    def batches(self) -> Iterator[torch.Tensor]:
        for epoch in range(self.loader.epoch, PASSES):
            if isinstance(sampler := self.loader.loader.sampler, DistributedSampler):
                sampler.set_epoch(epoch)
            yield from self.loader

    def learn(self, batch: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        self.model(batch).square().mean().backward()
        self.optimizer.step()


def undisturbed(make: Make) -> dict[str, int]:
    """Unguarded, and with the plain loader itself: the helper must not change that either."""
    training = Training(make)
    loader = training.loader.loader
    seed()
    for epoch in range(PASSES):
        if isinstance(loader.sampler, DistributedSampler):
            loader.sampler.set_epoch(epoch)
        for batch in loader:
            training.learn(batch)
    return bits({"model": training.model, "optimizer": training.optimizer})


def live(store: FakeStore, make: Make, until: int, kind: type[Training] = Training) -> dict[str, int]:
    """One life of a guarded training: from the newest checkpoint to `until` steps, and a save there."""
    training = kind(make)
    seed(99)  # whatever the generators are in a new process
    with guarded(store, training.values) as guard:
        if not (done := guard.restore()):
            seed()  # a fresh start draws from the job's own
        for batch in training.batches() if done < until else ():
            training.learn(batch)
            guard.step()
            done += 1
            if done == until:
                break
        guard.save()
    assert done == until
    return bits({"model": training.model, "optimizer": training.optimizer})


LOADERS: list[Make] = [
    plain,
    shuffled,
    with_workers,
    with_workers_that_stay,
    with_a_generator,
    with_a_samplers_generator,
    with_a_wrapped_samplers_generator,
    with_a_generator_of_the_sampler_in_a_dataset,
    asked_for_its_state,
    distributed,
    its_own_iterator,
    counting,
]
#: Steps after which a run ends: twice in one pass; in the middle of passes, and after a pass's last batch.
TWICE = ((EACH + 1, EACH + 2),)
CUTS = ((1,), (EACH - 1,), (EACH,), (TOTAL - 1,))


@pytest.mark.parametrize(
    ("make", "several"),
    [
        *((make, TWICE) for make in LOADERS),
        (shuffled, CUTS),
        # The other loaders go the same way, and those with workers fork for each life.
        *few_fast(((make, CUTS) for make in LOADERS if make is not shuffled), 0),
    ],
)
def test_a_run_that_is_cut_anywhere_ends_with_the_same_bits(
    make: Make, several: tuple[tuple[int, ...], ...]
) -> None:
    expected = undisturbed(make)
    for cuts in several:
        store = FakeStore()
        for cut in cuts:
            live(store, make, cut)
        assert different(live(store, make, TOTAL), expected) == [], cuts


def test_a_pass_that_the_loop_leaves_after_a_step_is_over() -> None:
    """As with a plain loader: the next loop begins a pass. A boundary asks for the position."""
    loader = spotguard.ResumableLoader(plain())
    batches = iter(loader)
    next(batches)
    loader.at_boundary()
    next(batches)
    assert len(list(loader)) == len(loader) == EACH
    assert loader.epoch == 2
    assert loader.state_dict()["taken"] == 0


def first_batch(loader: Any) -> torch.Tensor:
    seed()  # for the augmentation
    batch: torch.Tensor = next(iter(loader))
    return batch


def test_a_checkpoint_between_two_passes_has_the_loaders_count_of_passes() -> None:
    store = FakeStore()
    first = Training(counting)
    with guarded(store, first.values) as guard:
        guard.restore()
        for batch in first.loader:
            first.learn(batch)
            guard.step()
        guard.save()
    second = Training(counting)
    with guarded(store, second.values) as guard:
        assert guard.restore() == EACH
        assert torch.equal(first_batch(second.loader), first_batch(first.loader))


def test_a_look_at_the_first_batch_is_no_pass() -> None:
    """Before each pass, and before what is left of one after a restart."""

    class Peeks(Training):
        def batches(self) -> Iterator[torch.Tensor]:
            for _ in range(self.loader.epoch, PASSES):
                next(iter(self.loader))
                yield from self.loader

    expected = live(FakeStore(), shuffled, TOTAL, Peeks)
    for cuts in ((1,), (EACH - 1,), (EACH + 1, EACH + 2), (TOTAL - 1,)):
        store = FakeStore()
        for cut in cuts:
            live(store, shuffled, cut, Peeks)
        assert different(live(store, shuffled, TOTAL, Peeks), expected) == [], cuts


def test_the_loaders_own_attributes_are_the_wrappers() -> None:
    loader = spotguard.ResumableLoader(distributed())
    assert (loader.batch_size, loader.sampler) == (BATCH, loader.loader.sampler)
    assert not hasattr(loader, "no_such_thing")
    assert len(list(copy.copy(loader))) == EACH


def test_an_iterator_of_before_a_restore_counts_no_more() -> None:
    loader = spotguard.ResumableLoader(plain())
    early = iter(loader)
    next(early)
    state = loader.state_dict()
    assert state["taken"] == 1
    loader.load_state_dict(state)
    next(early)
    assert loader.state_dict()["taken"] == 1
    assert len(list(loader)) == EACH - 1
    assert (loader.epoch, loader.state_dict()["taken"]) == (1, 0)


def test_an_iterator_made_before_the_restore_is_refused() -> None:
    """At the first start already, where its batches would be the right ones: after a restart they would not be."""
    training = Training(shuffled)
    early = iter(training.loader)
    with guarded(FakeStore(), training.values) as guard:
        guard.restore()
        with pytest.raises(StateError, match=r"made before guard\.restore\(\).* \[SG417\]"):
            next(early)
        assert len(list(training.loader)) == EACH


def test_a_loader_with_fewer_batches_than_were_taken_is_refused() -> None:
    loader = spotguard.ResumableLoader(plain())
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    shorter = spotguard.ResumableLoader(DataLoader(Samples(), batch_size=SAMPLES))
    shorter.load_state_dict(loader.state_dict())
    with pytest.raises(StateError, match="ended after 1 batches, and 3 were taken before the restart"):
        iter(shorter)


def test_a_samplers_epoch_is_that_of_the_pass_that_was_cut() -> None:
    """Also where the loop sets none after the restart."""
    sampler: DistributedSampler[int] = DistributedSampler(range(SAMPLES), num_replicas=1, rank=0)  # type: ignore[arg-type]
    loader = spotguard.ResumableLoader(DataLoader(range(SAMPLES), batch_size=BATCH, sampler=sampler))  # type: ignore[arg-type]
    sampler.set_epoch(7)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    expected = [batch.tolist() for batch in batches]
    sampler.set_epoch(0)
    loader.load_state_dict(state)
    assert [batch.tolist() for batch in loader] == expected
