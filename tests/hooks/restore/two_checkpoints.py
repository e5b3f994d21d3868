"""A store with two checkpoints, made once for each file of tests, and stores that hold what a test made of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from spotguard.hooks.checkpoint.catalog import WholeCheckpoint, find_whole
from spotguard.providers.stores.base import BlobStore
from spotguard.providers.stores.file import FileStore
from tests.fakes.store import FakeStore
from tests.fakes.training import saved_each_step

TOTAL = 2


def saved(store: BlobStore, run_id: str = "run") -> list[dict[str, int]]:
    return saved_each_step(store, TOTAL, run_id=run_id)


@pytest.fixture(scope="module")
def made() -> tuple[dict[str, bytes], list[dict[str, int]], WholeCheckpoint]:
    """The objects of a store with two checkpoints, the bits after each step, and the newer one."""
    store = FakeStore()
    states = saved(store)
    whole = find_whole(store, "run")
    assert whole is not None
    assert whole.name.step == TOTAL
    return dict(store.objects), states, whole


# `tests/contract` proves that a directory answers as the fake store.
@pytest.fixture(params=["fake", pytest.param("file", marks=pytest.mark.slow)])
def stores(request: pytest.FixtureRequest, folder: Path) -> Callable[[dict[str, bytes]], BlobStore]:
    """Stores that hold so much."""
    count = 0

    def make(objects: dict[str, bytes]) -> BlobStore:
        nonlocal count
        count += 1
        store: BlobStore = FakeStore() if request.param == "fake" else FileStore(folder / str(count))
        for key, data in objects.items():
            store.put(key, memoryview(data))
        return store

    return make


Made = tuple[dict[str, bytes], list[dict[str, int]], WholeCheckpoint]
Stores = Callable[[dict[str, bytes]], BlobStore]
