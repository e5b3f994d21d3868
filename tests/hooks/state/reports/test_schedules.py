"""Public reports of resumed runs with other learning rates: exact here, or said."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader

from tests.fakes.loops import Wrapper
from tests.fakes.passes import Loop, Rows
from tests.fakes.public_reports import Report, Table, batch

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore:Detected call of")]

reports = Table()
report = reports.report


def stepped(loop: Loop, scheduler: Any, total: int = 12, **values: Any) -> None:
    """Train with a registered scheduler that steps with each step."""
    loop.restore(scheduler=scheduler, **values)
    for _ in loop.turns(total):
        loop.note("rate", loop.optimizer.param_groups[0]["lr"])
        loop.learn(batch())
        scheduler.step()


@report("pytorch/pytorch#162591")
def sequence_of_schedules(loop: Loop) -> None:
    """A sequence of schedules resumes in its first one."""
    constant = lr_scheduler.ConstantLR(loop.optimizer, 0.1, 20)
    cosine = lr_scheduler.CosineAnnealingLR(loop.optimizer, 7)
    stepped(loop, lr_scheduler.SequentialLR(loop.optimizer, [constant, cosine], [3]))


@report("pytorch/pytorch#119168")
def schedulers_that_change_the_optimizer(loop: Loop) -> None:
    """Building the schedulers of a sequence changes the learning rate of the loaded optimizer."""
    schedulers = [
        lr_scheduler.LinearLR(loop.optimizer, 0.1, total_iters=4),
        lr_scheduler.ExponentialLR(loop.optimizer, 0.8),
    ]
    loop.optimizer.param_groups[0]["lr"] = 0.05
    stepped(loop, lr_scheduler.ChainedScheduler(schedulers))


@report("ultralytics/yolov5#292")
def rates_of_groups(loop: Loop) -> None:
    """A new `LambdaLR` sets the rates of all groups to their first ones."""
    loop.optimizer = torch.optim.SGD(loop.model[0].parameters(), lr=0.1, momentum=0.9, nesterov=True)
    loop.optimizer.add_param_group({"params": [loop.model[2].weight], "weight_decay": 0.1})
    loop.optimizer.add_param_group({"params": [loop.model[2].bias], "lr": 0.02})
    stepped(
        loop,
        lr_scheduler.LambdaLR(loop.optimizer, lambda n: 0.1 + 0.9 * (1 + math.cos(n * math.pi / 12)) / 2),
    )


@report("Lightning-AI/pytorch-lightning#4655", cuts=(4, 5, 10, 11))
def milestone_of_epochs(loop: Loop) -> None:
    """A schedule by epochs lags by one epoch behind a resume at an epoch's end."""
    scheduler = lr_scheduler.MultiStepLR(loop.optimizer, [1, 2])
    loader = loop.wrap(DataLoader(Rows(), 4, shuffle=True))
    loop.restore(scheduler=scheduler, loader=loader)
    for _ in range(loader.epoch, 4):
        for each in loader:
            loop.note("rate", loop.optimizer.param_groups[0]["lr"])
            loop.learn(each)
        scheduler.step()


@report("Lightning-AI/pytorch-lightning#1772", cuts=(5, 6, 10))
def schedule_behind_the_validation(loop: Loop) -> None:
    """The checkpoint is written between the validation and the scheduler's step."""
    scheduler = lr_scheduler.ReduceLROnPlateau(loop.optimizer, patience=0, threshold=0.5)
    loader = loop.wrap(DataLoader(Rows(), 4, shuffle=True))
    loop.restore(scheduler=scheduler, loader=loader)
    for _ in range(loader.epoch, 4):
        for each in loader:
            loop.learn(each)
        with torch.no_grad():
            scheduler.step(loop.loss_of(Rows().rows).item())
        loop.note("rate", loop.optimizer.param_groups[0]["lr"])


@report("facebookresearch/fairseq#4071")
def bad_epochs(loop: Loop) -> None:
    """The count of bad epochs of a plateau schedule begins at 0."""
    scheduler = lr_scheduler.ReduceLROnPlateau(loop.optimizer, patience=2, cooldown=1)
    loop.restore(scheduler=scheduler)
    for n in loop.turns(12):
        loop.learn(batch())
        scheduler.step(float(n))


class Prepared(Wrapper):
    def zero_grad(self, set_to_none: bool = True) -> None:
        self.optimizer.zero_grad(set_to_none)


@report("deepspeedai/DeepSpeed#4344")
def groups_of_a_wrapper(loop: Loop) -> None:
    """After a resume the scheduler changes other groups than those that the optimizer reads."""
    loop.optimizer = Prepared(loop.optimizer)
    stepped(loop, lr_scheduler.StepLR(loop.optimizer, 2, 0.7))


class Noam:
    """A schedule of one's own that counts its steps."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer, self.count = optimizer, 0

    def step(self) -> None:
        self.count += 1
        self.optimizer.param_groups[0]["lr"] = 0.1 * min(self.count**-0.5, self.count * 4**-1.5)


@report("joeynmt/joeynmt#127", "give it state_dict() and load_state_dict()")
def scheduler_without_a_state_dict(loop: Loop) -> None:
    """A scheduler of one's own has no `state_dict`, and begins anew."""
    stepped(loop, Noam(loop.optimizer))


@report("huggingface/accelerate#1673")
def values_of_a_scheduler(loop: Loop) -> None:
    """A custom scheduler is reset at a load."""
    scheduler = Noam(loop.optimizer)
    numbers = {"count": 0}
    loop.restore(numbers=numbers)
    for _ in loop.turns(12):
        loop.learn(batch())
        scheduler.count = numbers["count"]
        scheduler.step()
        numbers["count"] = scheduler.count


@report("huggingface/pytorch-image-models#909")
def schedule_by_the_number(loop: Loop) -> None:
    """Schedulers that take the epoch have no count of their own."""
    loop.restore()
    for n in loop.turns(12):
        for group in loop.optimizer.param_groups:
            group["lr"] = 0.1 * (1 + math.cos(math.pi * n / 12)) / 2
            group["weight_decay"] = 0.01 * n
        loop.learn(batch())


@pytest.mark.parametrize("row", reports.rows())
def test_reported_schedule_is_exact_or_said(row: Report, caplog: pytest.LogCaptureFixture) -> None:
    row.check(caplog)
