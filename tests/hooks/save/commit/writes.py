"""What the tests of a writer share: leaves by name, and one save of them."""

from __future__ import annotations

from collections.abc import Callable

import torch

from spotguard.hooks.checkpoint.format.keys import CheckpointName
from spotguard.hooks.save.cancel_scope import CancelScope
from spotguard.hooks.save.plan.write_plan import WrittenState
from spotguard.hooks.save.shard_writer import ShardWriter
from spotguard.hooks.state.state_tensor import StateTensor
from spotguard.providers.clock import SystemClock
from spotguard.providers.stores.file import FileStore
from tests.fakes.store import FakeStore

NAME = CheckpointName(1, 5, 0)


def state_tensors(**tensors: torch.Tensor) -> list[StateTensor]:
    return [StateTensor(name, tensor) for name, tensor in tensors.items()]


def write(
    store: FakeStore | FileStore, what: list[StateTensor], moved: Callable[[], str] = str
) -> WrittenState:
    writer = ShardWriter(store, "run")
    try:
        return writer.write(what, NAME, CancelScope(SystemClock()), moved=moved)
    finally:
        writer.uploads.close()
