"""What the tests of a writer share: leaves by name, and one save of them."""

from __future__ import annotations

from collections.abc import Callable

import torch

from spotguard.hooks.checkpoints.draft import Written
from spotguard.hooks.checkpoints.effort import Effort
from spotguard.hooks.checkpoints.writer import Writer
from spotguard.hooks.format.keys import CheckpointName
from spotguard.hooks.format.leaf import Leaf
from spotguard.providers.clock import SystemClock
from spotguard.providers.stores.file import FileStore
from tests.fakes.store import FakeStore

NAME = CheckpointName(1, 5, 0)


def leaves(**tensors: torch.Tensor) -> list[Leaf]:
    return [Leaf(name, tensor) for name, tensor in tensors.items()]


def write(store: FakeStore | FileStore, what: list[Leaf], moved: Callable[[], str] = str) -> Written:
    writer = Writer(store, "run")
    try:
        return writer.write(what, NAME, Effort(SystemClock()), moved=moved)
    finally:
        writer.close()
