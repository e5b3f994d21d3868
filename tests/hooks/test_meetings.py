"""All ranks at once go on from one checkpoint, and fetch for one another what they all need."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch.distributed import HashStore  # type: ignore[attr-defined]

from spotguard.hooks.agreement.c10d import Store
from spotguard.hooks.agreement.channel import Channel
from spotguard.hooks.checkpoints.commit import put_manifest
from spotguard.hooks.checkpoints.draft import Draft
from spotguard.hooks.checkpoints.effort import Effort
from spotguard.hooks.checkpoints.writer import Writer
from spotguard.hooks.format.keys import CheckpointName, checkpoint_prefix, manifest_name
from spotguard.hooks.format.manifest import RankManifest
from spotguard.hooks.meetings import restore_together
from spotguard.hooks.state.registered import State
from spotguard.providers.clock import SystemClock
from spotguard.providers.errors import SpotguardError
from tests.fakes.store import FakeStore

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

PATIENCE = 30.0
WORLD = 4


def state(rank: int, value: int) -> State:
    made = State({"notes": {"a": torch.full((3,), value)}}, lambda: None, rank=rank, world=WORLD)
    made.at_boundary()
    return made


def saved(store: FakeStore, step: int) -> str:
    """A checkpoint of all ranks; returns where it lies."""
    name = CheckpointName(1, step, 0)
    for rank in range(WORLD):
        collected = state(rank, 10 * step + rank).collect()
        with closing(Writer(store, "run", rank, WORLD)) as writer:
            effort = Effort(SystemClock())
            written = writer.write(
                collected.leaves, name, effort, draft=Draft(writer.outline(collected.leaves))
            )
        put_manifest(
            store,
            RankManifest("run", step, 1, 0, rank, WORLD, written.objects, written.tensors, collected.trees),
        )
    return checkpoint_prefix("run", name)


def restored(store: FakeStore, machines: Sequence[str]) -> list[Any]:
    """What each rank has then, or why it has nothing."""
    met = cast(Store, HashStore())

    def one(rank: int) -> Any:
        here = state(rank, -1)
        channel = Channel.join(met, rank, WORLD, machines[rank], SystemClock(), meet=lambda _: b"life")
        try:
            done = restore_together(channel, store, "run", here, step=None, must=False)
            here.at_boundary()
            return done.step, here.parts[0].tree()["a"].tolist()
        except SpotguardError as error:
            return str(error)
        finally:
            channel.close()

    with ThreadPoolExecutor(WORLD) as pool:
        return [each.result(PATIENCE) for each in [pool.submit(one, rank) for rank in range(WORLD)]]


def fetched(store: FakeStore, prefix: str) -> list[int]:
    counts = Counter(key for verb, key in store.calls if verb == "get")
    return [counts[prefix + manifest_name(rank, WORLD)] for rank in range(WORLD)]


@pytest.mark.parametrize(
    ("machines", "times"), [("aaaa", 1), ("aabb", 2), ("abab", 2), ("abbb", 2), ("abcd", 4)]
)
def test_each_machine_fetches_a_manifest_once(
    machines: str, times: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    store = FakeStore()
    prefix = saved(store, 7)
    store.calls.clear()
    assert restored(store, machines) == [(7, [70 + rank] * 3) for rank in range(WORLD)]
    assert fetched(store, prefix) == [times] * WORLD
    assert list(tmp_path.iterdir()) == []


def test_where_no_folder_can_be_had_each_rank_fetches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    store = FakeStore()
    prefix = saved(store, 7)
    store.calls.clear()
    assert restored(store, "aaaa") == [(7, [70 + rank] * 3) for rank in range(WORLD)]
    assert fetched(store, prefix) == [WORLD] * WORLD


def test_damage_that_one_rank_finds_sends_all_to_the_older_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which they fetch once again, and leave nothing behind."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    store = FakeStore()
    older, newer = saved(store, 7), saved(store, 8)
    key = next(key for key in store.objects if key.startswith(newer + "00002-of"))
    store.objects[key] = store.objects[key][:-1] + b"?"
    store.calls.clear()
    assert restored(store, "aabb") == [(7, [70 + rank] * 3) for rank in range(WORLD)]
    assert fetched(store, older) == fetched(store, newer) == [2] * WORLD
    assert list(tmp_path.iterdir()) == []
