"""Runs a program of one process as one rank of several, whose gradients are averaged: `torchrun … in_a_group.py train.py`."""

from __future__ import annotations

import runpy
import sys
from typing import Any

from torch import distributed
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook


def average(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None:
                distributed.all_reduce(parameter.grad)
                parameter.grad /= distributed.get_world_size()


if __name__ == "__main__":
    distributed.init_process_group("gloo")
    register_optimizer_step_pre_hook(average)
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
    distributed.destroy_process_group()
