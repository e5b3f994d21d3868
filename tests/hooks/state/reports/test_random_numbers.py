"""Public reports of resumed runs that drew other random numbers, or lost what a loop keeps: exact here, or said."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Sampler

from tests.fakes.passes import WIDTH, Loop, Rows
from tests.fakes.public_reports import Report, Table, epochs
from tests.fakes.training import seed

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")]

reports = Table()
report = reports.report


class Noisy(Rows):
    """Rows with noise of Python's, NumPy's and torch's global generators."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.rows[index] * random.random() + float(np.random.rand()) + torch.rand(WIDTH)


@report("huggingface/transformers#46628")
def augmentation_in_skipped_batches(loop: Loop) -> None:
    """The batches that a resumed pass skips draw the numbers of the next ones."""
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
    """Each worker seeds NumPy with its number, also behind a resume."""
    loader = DataLoader(Noisy(), 4, shuffle=True, num_workers=1, worker_init_fn=np.random.seed)
    epochs(loop, loader, 2)


@report("pytorch/ignite#851", cuts=(3, 5, 8))
def seed_of_each_pass(loop: Loop) -> None:
    """Each pass seeds all generators, also a pass that is resumed in its middle."""
    loader = loop.wrap(DataLoader(Noisy(), 4, shuffle=True))
    loop.restore(loader=loader)
    for epoch in range(loader.epoch, 3):
        seed(12 + epoch)
        for batch in loader:
            loop.learn(batch)


@report("k2-fsa/icefall#221", cuts=(3, 5, 8))
def seed_at_the_beginning_of_each_pass(loop: Loop) -> None:
    """The seed is set at the beginning of each pass."""
    loader = loop.wrap(DataLoader(Noisy(), 4, shuffle=True))
    loop.restore(loader=loader)
    for epoch in range(loader.epoch, 3):
        if loader.position == 0:
            seed(12 + epoch)
        for batch in loader:
            loop.learn(batch)


def validated(loop: Loop) -> None:
    """Run the model on a second loader, which draws a seed."""
    for each in DataLoader(Rows(), 4):
        loop.loss_of(each)


@report("pytorch/pytorch#80119", cuts=(3, 5, 8))
def validation_behind_a_pass(loop: Loop) -> None:
    """The loader of the validation changes the order of the training's."""
    loader = loop.wrap(DataLoader(Rows(), 4, shuffle=True))
    loop.restore(loader=loader)
    for _ in range(loader.epoch, 3):
        for each in loader:
            loop.learn(each)
        validated(loop)


@report("pytorch/pytorch#11062", cuts=(3, 8))
def validation_before_a_pass(loop: Loop) -> None:
    """The order of a pass depends on the number of validations before it."""
    loader = loop.wrap(DataLoader(Rows(), 4, shuffle=True))
    loop.restore(loader=loader)
    for _ in range(loader.epoch, 3):
        validated(loop)
        for each in loader:
            loop.learn(each)


@report("sktime/pytorch-forecasting#2148")
def look_before_the_loop(loop: Loop) -> None:
    """A look at batches before the training changes its random numbers."""
    loop.restore()
    validated(loop)
    for _ in loop.turns(12):
        loop.learn(torch.randn(4, WIDTH))


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
    """A stop within an accumulation window loses its gradients."""
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
    """Training cannot resume at the same place in the loaders of several tasks."""
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


@report("facebookresearch/dinov2#341", "a loader is not registered")
def loader_in_no_checkpoint(loop: Loop) -> None:
    """The data begins again at each restart."""
    loader = DataLoader(Rows(), 4, shuffle=True)
    loop.restore()
    for _ in range(loop.done // 5, 3):
        for each in loader:
            loop.learn(each)


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
def test_reported_random_numbers_and_loops_are_exact_or_said(
    row: Report, caplog: pytest.LogCaptureFixture
) -> None:
    row.check(caplog)
