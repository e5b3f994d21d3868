"""Ways in which a job has several ranks: those that torch shards or copies by itself, and those of a script's own."""

from __future__ import annotations

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.fakes import several


def stages(model: nn.Module, world: int) -> nn.Module:
    """Of a pipeline, each rank its own layer, named by its place in the whole; nobody knows of the others'."""
    return nn.Sequential(*([nn.Identity()] * dist.get_rank()), nn.Linear(5, 5))


def freezing_ddp(model: nn.Module, world: int) -> nn.Module:
    """Where parameters may be frozen in mid-run: DDP takes that for an error unless it is told to look for them."""
    return DistributedDataParallel(model, find_unused_parameters=True)


WAYS: dict[str, several.Way] = {**several.WAYS, "stages": stages, "freezing ddp": freezing_ddp}
