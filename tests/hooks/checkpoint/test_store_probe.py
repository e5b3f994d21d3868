"""What a job needs of its store, tried before it begins: each missing right is said by its name, and nothing stays."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spotguard.hooks.checkpoint.attempts import claim_attempt
from spotguard.hooks.checkpoint.listing import list_checkpoints, list_runs
from spotguard.hooks.checkpoint.local_stage import usable
from spotguard.hooks.checkpoint.retention import plan_pruning
from spotguard.hooks.checkpoint.store_probe import probe
from spotguard.hooks.restore.retrying_store import PATIENCE, RetryingStore
from spotguard.providers.errors import (
    CorruptError,
    DeniedError,
    FullError,
    NotFoundError,
    NotSupportedError,
    StoreError,
    UnavailableError,
)
from spotguard.providers.stores.base import BlobStore, ObjectInfo
from spotguard.providers.stores.factory import open_store
from spotguard.providers.stores.file import FileStore
from tests.fakes.checkpoint import Save
from tests.fakes.clock import Impatient
from tests.fakes.store import FakeStore, Fault
from tests.servers.moto import Moto
from tests.servers.swift import Swift

#: In the order in which they are tried: the verb, and what S3 calls the right.
STEPS = [
    ("put", "write is missing: s3:PutObject"),
    ("put_if_absent", "write is missing: s3:PutObject"),
    ("get", "read is missing: s3:GetObject"),
    ("list", "list is missing: s3:ListBucket"),
]


def denied(verb: str) -> Fault:
    return Fault(0, (verb,), error=lambda: DeniedError(f"{verb}: AccessDenied (403)"))


def test_a_store_that_can_is_left_as_it_was(caplog: pytest.LogCaptureFixture) -> None:
    """All of them, on one key that is gone at the end, and one that never was."""
    store = FakeStore("s3://bucket")
    probe(store, "run")
    assert [verb for verb, _ in store.calls] == ["put", "put_if_absent", "get", "list", "get", "delete"]
    assert {key.rpartition("/")[0] for _, key in store.calls} == {"run/probes"}
    assert len({key for _, key in store.calls}) == 2
    assert store.objects == {}
    assert caplog.records == []


def test_two_probes_never_meet() -> None:
    """Also of one process."""
    store = FakeStore()
    for _ in range(2):
        probe(store, "run")
    assert len({key for verb, key in store.calls if verb == "put"}) == 2


@pytest.mark.parametrize(("verb", "missing"), STEPS)
def test_a_missing_right_is_named(verb: str, missing: str) -> None:
    """In one line, with what the store itself said; the object is gone all the same."""
    store = FakeStore("s3://bucket")
    store.faults = [denied(verb)]
    with pytest.raises(DeniedError) as raised:
        probe(RetryingStore(store, Impatient(), "Training was not started"), "run")
    said = str(raised.value)
    assert said.startswith(
        f"training was not started, because it could never be saved and restored: {verb}: Acc"
    )
    assert missing in said
    assert "\n" not in said
    assert store.objects == {}


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("s3://b", "s3:GetObject"),
        ("gs://b", "storage.objects.get"),
        ("az://b", "blobs/read"),
        ("file:///b", "read is missing"),
    ],
)
def test_a_right_has_the_name_that_its_cloud_gives_it(url: str, name: str) -> None:
    """A folder has none."""
    store = FakeStore(url)
    store.faults = [denied("get")]
    with pytest.raises(DeniedError, match=name):
        probe(store, "run")


def test_without_the_right_to_delete_training_begins(caplog: pytest.LogCaptureFixture) -> None:
    """Retention will not work, and that is said."""
    store = FakeStore("s3://bucket")
    store.faults = [denied("delete")]
    probe(store, "run")
    assert "old checkpoints pile up" in caplog.text
    assert "the permission to delete is missing: s3:DeleteObject" in caplog.text


def test_a_leftover_probe_is_ignored_by_all_readers() -> None:
    """Neither a run, nor a checkpoint, nor an attempt, nor anything to prune."""
    store = FakeStore("s3://bucket")
    store.faults = [denied("delete")]
    probe(store, "run")
    assert len(store.objects) == 1
    assert list_runs(store) == []
    Save().write(store)
    assert [each.status for each in list_checkpoints(store, "run")] == ["complete"]
    assert plan_pruning(store, "run", keep=1).departing == ()
    store.objects = {key: data for key, data in store.objects.items() if "/probes/" in key}
    assert claim_attempt(store, "run", {}) == 1


def test_a_store_without_a_conditional_create_is_told_once_and_training_begins(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A 501 is an answer, which nobody waits out: the claim goes by put."""
    store, clock = FakeStore(), Impatient()
    refused = lambda: NotSupportedError("put: NotImplemented (501)")  # noqa: E731
    store.faults = [Fault(at, ("put_if_absent",), error=refused) for at in range(9)]
    patient = RetryingStore(store, clock, "Training was not started")
    probe(patient, "run")
    assert clock.waits == []
    assert claim_attempt(patient, "run", {}, clock=clock) == 1
    assert caplog.text.count("SG314") == 1
    assert len(store.objects) == 1


def test_a_directory_without_hard_links_is_told_once_and_a_stage_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As FAT, which has no conditional create. Nobody claims an attempt in a stage."""

    def link(*args: object, **kwargs: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", link)
    usable(tmp_path / "stage", "run")
    assert caplog.records == []
    store = FileStore(tmp_path / "store")
    probe(store, "run")
    assert claim_attempt(store, "run", {}, clock=Impatient()) == 1
    assert caplog.text.count("SG314") == 1
    assert "no hard links" in caplog.text
    assert len(list(store.list(""))) == 1


@pytest.mark.parametrize("verb", ["put", "put_if_absent", "get", "list", "delete"])
def test_a_store_that_is_away_for_a_moment_is_asked_again(verb: str) -> None:
    """At whatever step."""
    store, clock = FakeStore(), Impatient()
    store.faults = [Fault(at, (verb,)) for at in range(4)]
    probe(RetryingStore(store, clock, "Training was not started"), "run")
    assert clock.waits == [0.1, 0.2, 0.4, 0.8]
    assert store.objects == {}


@pytest.mark.parametrize("verb", ["put", "put_if_absent", "get", "list"])
def test_a_store_that_stays_away_is_an_error(verb: str) -> None:
    """After a minute; the object is removed where it was put."""
    store, clock = FakeStore(), Impatient()
    store.faults = [Fault(at, (verb,)) for at in range(1000)]
    with pytest.raises(UnavailableError, match="Training was not started"):
        probe(RetryingStore(store, clock, "Training was not started"), "run")
    assert clock.now >= PATIENCE
    assert store.objects == {}


@pytest.mark.parametrize("error", [NotFoundError, FullError, StoreError])
def test_errors_of_the_store_keep_its_own_words(error: type[StoreError]) -> None:
    """No bucket, no room: its own words come out."""
    store = FakeStore()
    store.faults = [Fault(0, ("put",), error=lambda: error("its own words"))]
    with pytest.raises(error, match=r"^its own words$"):
        probe(store, "run")
    assert store.objects == {}


def test_a_denied_answer_for_a_missing_key_is_refused() -> None:
    """Amazon says "denied" to who may list a part of the bucket only: a save would take that for the end."""
    store = FakeStore("s3://bucket")
    store.faults = [Fault(1, ("get",), error=lambda: DeniedError("get: AccessDenied (403)"))]
    with pytest.raises(DeniedError, match=r"s3:ListBucket \(on the bucket, without a condition\)"):
        probe(store, "run")
    assert store.objects == {}


class Careless(FakeStore):
    """Every conditional create succeeds."""

    def put_if_absent(self, key: str, data: memoryview, *, timeout: float | None = None) -> bool:
        self.put(key, data, timeout=timeout)
        return True


class Forgetful(FakeStore):
    """Lists what was there a while ago."""

    def list(self, prefix: str, *, timeout: float | None = None) -> Iterator[ObjectInfo]:
        return iter(())


class Garbling(FakeStore):
    """Gives back other bytes."""

    def get(self, key: str, *, timeout: float | None = None) -> bytes:
        return super().get(key, timeout=timeout)[::-1]


def test_a_conditional_create_that_is_none_is_said(caplog: pytest.LogCaptureFixture) -> None:
    """It costs a number that is used twice, no checkpoint (DESIGN 6): a warning."""
    store = Careless()
    probe(store, "run")
    assert "start one at a time" in caplog.text
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert store.objects == {}


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [(Forgetful, StoreError, "does not list"), (Garbling, CorruptError, "other bytes")],
)
def test_a_store_that_does_not_keep_its_word_is_refused(
    make: Callable[[], FakeStore], error: type[StoreError], said: str
) -> None:
    """A restore from it would be of chance."""
    store = make()
    with pytest.raises(error, match=said):
        probe(store, "run")
    assert store.objects == {}


def _probed(store: BlobStore, caplog: pytest.LogCaptureFixture) -> None:
    probe(store, "run")
    assert list(store.list("")) == []
    assert caplog.records == []


def test_moto_is_probed(moto: Moto, caplog: pytest.LogCaptureFixture) -> None:
    """A real answer to each step."""
    _probed(open_store(f"{moto.fresh()}/some/prefix"), caplog)


def test_swift_is_probed(swift: Swift, caplog: pytest.LogCaptureFixture) -> None:
    """Its conditional create is check-then-write: of one writer at a time it is right."""
    _probed(open_store(f"{swift.fresh()}/some/prefix"), caplog)


def test_a_refusal_by_a_proxy_names_no_right(caplog: pytest.LogCaptureFixture) -> None:
    """Its code is a mere status: the store has not answered, and no right of the store's would help."""
    for verb in ("put", "get", "list"):
        store = FakeStore("s3://bucket")
        store.faults = [Fault(0, (verb,), error=lambda: DeniedError("no code (401)", "401"))]
        with pytest.raises(DeniedError, match=r"could never be saved and restored: no code \(401\)$"):
            probe(store, "run")
        assert store.objects == {}
    store = FakeStore("s3://bucket")
    store.faults = [Fault(0, ("delete",), error=lambda: DeniedError("no code (401)", "401"))]
    probe(store, "run")
    assert "old checkpoints pile up" in caplog.text
    assert "missing" not in caplog.text
