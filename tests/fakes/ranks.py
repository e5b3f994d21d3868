"""One process that is any rank of any job, for questions that need no other: torch's fake process group moves nothing."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore


@contextmanager
def rank_of(rank: int, world: int) -> Iterator[None]:
    """Be that rank inside. Collectives return at once, with anything in their tensors."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dist.init_process_group("fake", rank=rank, world_size=world, store=FakeStore())
        try:
            yield
        finally:
            dist.destroy_process_group()
