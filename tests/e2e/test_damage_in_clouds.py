"""What lies damaged in one of the three clouds is never loaded: a restore takes the checkpoint before it, bit for bit.

One of each sort over a real server. Every chunk and every byte of a manifest are tried over a fake: tests/hooks/restore/test_damage.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

pytest.importorskip("torch")

from spotguard.hooks.checkpoint.catalog import WholeCheckpoint, find_whole
from spotguard.hooks.checkpoint.format.codec import encode_manifest
from spotguard.hooks.checkpoint.format.keys import manifest_name
from spotguard.hooks.restore.reads.verify import verify
from spotguard.providers.stores.base import BlobStore
from tests.e2e.clouds import CLOUDS, begin_day
from tests.fakes.training import different, guarded, restored, small
from tests.fixtures_servers import FaultsBefore
from tests.servers.faultplan import Fault
from tests.tiers import few_fast

pytestmark = pytest.mark.torch


def overwrite(store: BlobStore, key: str, data: bytes) -> None:
    store.delete([key])
    store.put(key, memoryview(data))


def flip(store: BlobStore, whole: WholeCheckpoint) -> None:
    """One bit in the middle of the moments."""
    key = whole.manifests[0].object_key(1)
    data = bytearray(store.get(key))
    data[(len(data) + whole.manifests[0].objects[1].header) // 2] ^= 4
    overwrite(store, key, bytes(data))


def cut(store: BlobStore, whole: WholeCheckpoint) -> None:
    key = whole.manifests[0].object_key(0)
    overwrite(store, key, store.get(key)[:-1])


def remove(store: BlobStore, whole: WholeCheckpoint) -> None:
    store.delete([whole.manifests[0].object_key(0)])


def remove_manifest(store: BlobStore, whole: WholeCheckpoint) -> None:
    store.delete([manifest_key(whole)])


def put_anothers_manifest(store: BlobStore, whole: WholeCheckpoint) -> None:
    """Sound in itself, and all that it names is there."""
    overwrite(store, manifest_key(whole), encode_manifest(replace(whole.manifests[0], run_id="other")))


def manifest_key(whole: WholeCheckpoint) -> str:
    return f"run/checkpoints/{whole.name}/{manifest_name(0, 1)}"


@pytest.mark.parametrize("damage", few_fast([flip, cut, remove, remove_manifest, put_anothers_manifest]))
@pytest.mark.parametrize("scheme", CLOUDS)
def test_damaged_checkpoints_are_never_loaded(
    scheme: str,
    damage: Callable[[BlobStore, WholeCheckpoint], None],
    request: pytest.FixtureRequest,
    faults_before: FaultsBefore,
) -> None:
    day = begin_day(scheme, request, faults_before)
    job = small()
    states = [job.bits()]
    with guarded(day.store, job.values) as guard:
        guard.restore()
        for number in range(2):
            job.step(number)
            states.append(job.bits())
            guard.step()
            guard.save()
    whole = find_whole(day.behind, "run")
    assert whole is not None
    assert (whole.name.step, verify(day.behind, whole)) == (2, [])
    damage(day.behind, whole)
    step, state = restored(day.store, small)
    assert step == 1
    assert different(state, states[1]) == []


@pytest.mark.parametrize("scheme", CLOUDS)
def test_a_bit_that_flips_on_its_way_costs_no_step(
    scheme: str, request: pytest.FixtureRequest, faults_before: FaultsBefore, caplog: pytest.LogCaptureFixture
) -> None:
    """Of one range of an object: it is read once more."""
    day = begin_day(scheme, request, faults_before)
    job = small()
    with guarded(day.store, job.values) as guard:
        guard.restore()
        job.step(0)
        guard.step()
        guard.save()
        saved = job.bits()
    day.network.inject(
        Fault(
            "corrupt",
            "response",
            times=1,
            matching=lambda asked: asked.path.partition("?")[0].endswith("safetensors"),
        )
    )
    step, state = restored(day.store, small)
    assert day.network.faults_met("corrupt") == 1
    assert step == 1
    assert different(state, saved) == []
    assert "damaged" not in caplog.text
