"""What the tests of a writer share: leaves by name, and one save of them."""

from __future__ import annotations

from collections.abc import Callable

import torch

from spotguard.hooks.checkpoint.format.keys import CheckpointName
from spotguard.hooks.save.cancel_scope import Effort
from spotguard.hooks.save.plan.write_plan import Written
from spotguard.hooks.save.upload.writer import Writer
from spotguard.hooks.state.tensor_item import Leaf
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
