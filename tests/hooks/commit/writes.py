"""What the tests of a writer share: leaves by name, writers of small objects, and one save of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from spotguard.hooks.checkpoint.format.keys import CheckpointName
from spotguard.hooks.checkpoint.format.manifest import RankManifest
from spotguard.hooks.commit.cancel_scope import CancelScope
from spotguard.hooks.commit.own_manifest import queue_manifest
from spotguard.hooks.commit.plan.write_plan import WrittenState
from spotguard.hooks.commit.publish import Published, publish_together
from spotguard.hooks.ipc.threads import join_ended
from spotguard.hooks.save.shard_writer import ShardWriter
from spotguard.hooks.state.state_tensor import StateTensor
from spotguard.providers.clock import Clock, SystemClock
from spotguard.providers.stores.base import BlobStore
from spotguard.providers.stores.file import FileStore
from tests.fakes.store import FakeStore

NAME = CheckpointName(1, 5, 0)

#: Bytes of an object. With 32 MiB, as in a training, several objects and the frames of their threads are half a GB.
OBJECT = 2**18


@contextmanager
def writer_of(store: BlobStore, object_bytes: int = OBJECT) -> Iterator[ShardWriter]:
    """A writer, of small objects unless said. Its threads end with the block, and their frames with them."""
    writer = ShardWriter(store, "run")
    writer.uploads.width.object_bytes = object_bytes
    try:
        yield writer
    finally:
        writer.close()
        join_ended()


def commit_together(
    writer: ShardWriter,
    mine: RankManifest,
    scope: CancelScope,
    clock: Clock,
    hopeless: Callable[[int], str] = lambda rank: "",
) -> Published:
    """As a rank does it whose objects are in the store."""
    queue = writer.requests(scope)
    return publish_together(queue, queue_manifest(queue, lambda: mine), scope, clock, hopeless)


def state_tensors(**tensors: torch.Tensor) -> list[StateTensor]:
    return [StateTensor(name, tensor) for name, tensor in tensors.items()]


def write(
    store: FakeStore | FileStore, what: list[StateTensor], moved: Callable[[], str] = str
) -> WrittenState:
    with writer_of(store) as writer:
        return writer.write(what, NAME, CancelScope(SystemClock()), moved=moved)
