"""The order of a commit, who marks it, and numbers that are claimed once."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from spotguard.hooks.checkpoints.commit import claim_attempt, commit_if_whole, newest_attempt, put_manifest
from spotguard.hooks.format.codec import decode_attempt
from spotguard.hooks.format.keys import MARKER, attempt_key, manifest_name
from spotguard.providers.errors import CheckpointError, UnavailableError
from tests.fakes.checkpoint import Save
from tests.fakes.store import FakeStore, Fault


def test_whoever_comes_last_marks_it() -> None:
    """The first finds the other's manifest missing and leaves it at that."""
    store, save = FakeStore(), Save()
    first, second = (save.write_objects(store, rank) for rank in range(2))
    put_manifest(store, first)
    assert commit_if_whole(store, first, created=1.0) is None
    assert save.prefix + MARKER not in store.objects
    put_manifest(store, second)
    whole = commit_if_whole(store, second, created=1.0)
    assert whole is not None
    assert save.prefix + MARKER in store.objects
    assert len(whole.manifests) == 2


def test_both_may_mark_it() -> None:
    """The marker is idempotent: nobody is told that he was too late."""
    store, save = FakeStore(), Save()
    for manifest in save.write(store, marker=False):
        assert commit_if_whole(store, manifest, created=1.0) is not None


def test_a_set_that_is_not_whole_is_not_marked() -> None:
    """Complete is not whole: a tensor that nobody wrote is said, and no marker appears."""
    store, save = FakeStore(), Save()
    save.write_rank(store, 0)
    mine = save.write_objects(store, 1)
    mine = replace(mine, tensors=tuple(entry._replace(chunks=()) for entry in mine.tensors))
    put_manifest(store, mine)
    with pytest.raises(CheckpointError, match="in no chunk"):
        commit_if_whole(store, mine, created=1.0)
    assert save.prefix + MARKER not in store.objects


def test_a_store_that_fails_is_not_a_missing_rank() -> None:
    """Not yet, and cannot see: two different answers."""
    store, save = FakeStore(), Save()
    mine = save.write(store, marker=False)[0]
    store.faults = [Fault(0, ("get",))]
    store.calls.clear()
    with pytest.raises(UnavailableError):
        commit_if_whole(store, mine, created=1.0)


def test_a_manifest_lies_where_it_is_looked_for() -> None:
    """By name, not by listing."""
    store, save = FakeStore(), Save(world=3)
    assert put_manifest(store, save.write_objects(store, 1)) == save.prefix + manifest_name(1, 3)


def test_attempts_count_from_one() -> None:
    """Each start has the next number, and its record says who it was."""
    store = FakeStore()
    assert newest_attempt(store, "run") == 0
    assert [
        claim_attempt(store, "run", {"pid": number}, incarnation="n", world=2) for number in range(3)
    ] == [1, 2, 3]
    assert claim_attempt(store, "other", {}) == 1
    record = decode_attempt(store.objects[attempt_key("run", 3)], "k")
    assert (record.attempt, record.info, record.incarnation, record.world) == (3, {"pid": 2}, "n", 2)
    assert newest_attempt(store, "run") == 3


def test_an_attempt_is_above_what_was_saved() -> None:
    """Also where somebody removed the records."""
    store = FakeStore()
    Save(attempt=7).write(store)
    assert claim_attempt(store, "run", {}) == 8


def test_rivals_get_different_numbers() -> None:
    """All at once, and none is left out."""
    store, barrier = FakeStore(), threading.Barrier(8)
    numbers: list[int] = []

    def start() -> None:
        barrier.wait(10)
        numbers.append(claim_attempt(store, "run", {}))

    threads = [threading.Thread(target=start, name=f"start-{i}") for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert sorted(numbers) == list(range(1, 9))


def test_a_claim_whose_answer_was_lost_is_only_a_gap() -> None:
    """The number is spent; the next start takes the one above."""
    store = FakeStore()
    store.faults = [Fault(0, ("put_if_absent",), after=True)]
    with pytest.raises(UnavailableError):
        claim_attempt(store, "run", {})
    assert claim_attempt(store, "run", {}) == 2


def test_foreign_files_among_the_attempts_count_for_nothing() -> None:
    """Whatever else lies in the folder."""
    store = FakeStore()
    for name in ("README", "9.json", "00000009.json", "0009.json.bak", "deep/0009.json"):
        store.put(f"run/attempts/{name}", memoryview(b"x"))
    assert claim_attempt(store, "run", {}) == 1
