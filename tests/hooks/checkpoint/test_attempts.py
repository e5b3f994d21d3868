"""The order of a commit, who marks it, and numbers that are claimed once."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from spotguard.hooks.checkpoint.attempts import claim_attempt, claim_step, newest_attempt, newest_claim
from spotguard.hooks.checkpoint.format.codec import decode_attempt, encode_manifest
from spotguard.hooks.checkpoint.format.keys import (
    MARKER,
    CheckpointName,
    attempt_key,
    manifest_name,
    side_key,
)
from spotguard.hooks.checkpoint.format.manifest import RankManifest
from spotguard.providers.errors import CheckpointError, NotSupportedError, UnavailableError
from spotguard.providers.stores.base import ObjectInfo
from tests.fakes.called import CalledStore
from tests.fakes.checkpoint import Save
from tests.fakes.clock import Impatient
from tests.fakes.commit import mark_alone, put_manifest
from tests.fakes.store import FakeStore, Fault


def test_a_single_rank_marks_its_complete_checkpoint_by_one_request() -> None:
    """By one request: its own manifest is not fetched again."""
    store, save = FakeStore(), Save(world=1)
    (mine,) = save.write(store, marker=False)
    store.calls.clear()
    assert mark_alone(store, mine, created=1.0).objects == len(mine.objects)
    assert store.calls == [("put", save.prefix + MARKER)]


def test_a_manifest_that_would_not_be_read_back_is_not_put() -> None:
    """Nothing is committed that no restore takes."""
    store = FakeStore()
    manifest = RankManifest("run", 10, 1, 0, 0, 4, state={"notes": ["x"] * 100})
    size = len(encode_manifest(manifest))
    with pytest.raises(
        CheckpointError,
        match=rf"rank 0 has {size} bytes, but a restore reads at most {size - 1}; register large",
    ):
        put_manifest(store, manifest, most=lambda world: size - 5 + world)
    assert not store.objects


def test_a_manifest_that_is_not_whole_is_not_marked() -> None:
    """A tensor that nobody wrote is said, and no marker appears."""
    store, save = FakeStore(), Save(world=1)
    mine = save.write_objects(store, 0)
    mine = replace(mine, tensors=tuple(entry._replace(chunks=()) for entry in mine.tensors))
    put_manifest(store, mine)
    with pytest.raises(CheckpointError, match="in no chunk"):
        mark_alone(store, mine, created=1.0)
    assert save.prefix + MARKER not in store.objects


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


def test_a_later_attempt_may_come_first_in_a_listing() -> None:
    """Keys are in the order of letters: 10000 stands before 9999, and a low step of a late attempt before a high one."""
    store = FakeStore()
    for number in (9999, 10000, 9998):
        store.put(attempt_key("run", number), memoryview(b"{}"))
    assert newest_claim(store, "run") == newest_attempt(store, "run") == 10000
    assert claim_attempt(store, "run", {}) == 10001
    store = FakeStore()
    Save(attempt=9, step=5).write(store)
    Save(attempt=2, step=10).write(store)
    assert newest_claim(store, "run") == 0
    assert newest_attempt(store, "run") == 9
    store.put(attempt_key("run", 4), memoryview(b"{}"))
    assert newest_attempt(store, "run") == 9


def test_a_listing_that_is_out_of_date_costs_a_try_for_each_number() -> None:
    """What decides is the conditional create: a number that is taken is passed over, and its record stands."""

    class Stale(FakeStore):
        def list(self, prefix: str, *, timeout: float | None = None) -> Iterator[ObjectInfo]:
            return iter([info for info in super().list(prefix, timeout=timeout) if "0001" in info.key])

    store = Stale()
    for number in (1, 2, 3):
        store.put(attempt_key("run", number), memoryview(b"another's"))
    store.calls.clear()
    assert claim_attempt(store, "run", {}) == 4
    assert [key for verb, key in store.calls if verb == "put_if_absent"] == [
        attempt_key("run", number) for number in (2, 3, 4)
    ]
    assert store.objects[attempt_key("run", 2)] == b"another's"


def test_a_timeout_is_that_of_each_request() -> None:
    """At the notice nothing may wait longer than the save has."""
    store = CalledStore(FakeStore())
    asks: list[tuple[Callable[[], object], list[str]]] = [
        (lambda: newest_claim(store, "run", timeout=2.5), ["list"]),
        (lambda: newest_attempt(store, "run", timeout=2.5), ["list", "list"]),
        (lambda: claim_attempt(store, "run", {}, timeout=2.5), ["list", "list", "put_if_absent", "get"]),
    ]
    for ask, verbs in asks:
        store.requests.clear()
        ask()
        assert [(each.verb, each.timeout) for each in store.requests] == [(verb, 2.5) for verb in verbs]


def test_rivals_get_different_numbers() -> None:
    """All at once, and none is left out."""
    store, barrier = FakeStore(), threading.Barrier(8)
    numbers: list[int] = []

    def start() -> None:
        barrier.wait(100)
        numbers.append(claim_attempt(store, "run", {}))

    threads = [threading.Thread(target=start, name=f"start-{i}") for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert sorted(numbers) == list(range(1, 9))


class LooksThenPuts(FakeStore):
    """Conditional create as Swift has it: somebody who looked at the same moment puts over what we put."""

    rival = b""

    def put_if_absent(self, key: str, data: memoryview, *, timeout: float | None = None) -> bool:
        fresh = super().put_if_absent(key, data, timeout=timeout)
        if key == attempt_key("run", 1):
            self.rival, self.objects[key] = self.objects[key], self.rival or self.objects[key]
        return fresh


def test_one_of_two_rivals_that_both_created_goes_on() -> None:
    """The claim is read back, and it is another's, though both start with the same words at the same time."""
    rival, store = FakeStore(), LooksThenPuts()
    assert claim_attempt(rival, "run", {"pid": 1}, created=1.0) == 1
    theirs = store.rival = rival.objects[attempt_key("run", 1)]
    assert claim_attempt(store, "run", {"pid": 1}, created=1.0) == 2
    assert store.objects[attempt_key("run", 1)] == theirs
    assert claim_attempt(store, "run", {"pid": 1}, created=1.0) == 3


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


def test_one_of_two_sides_that_claim_a_step_has_it() -> None:
    """Each by three ranks. The side that has it has it again and again; the next step is another matter."""
    store, start = FakeStore(), threading.Barrier(6)
    name = CheckpointName(2, 40, 6)
    got: list[tuple[int, bool]] = []

    def claim(side: int) -> None:
        start.wait()
        got.append((side, claim_step(store, "run", name, incarnation="n", side=side)))

    ranks = [threading.Thread(target=claim, args=(number % 2,)) for number in range(6)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    (has,) = {side for side, claimed in got if claimed}
    assert sorted(got) == sorted([(has, True)] * 3 + [(1 - has, False)] * 3)
    later = CheckpointName(2, 40, 2_000_000_003)
    assert claim_step(store, "run", later, incarnation="n", side=has)
    assert not claim_step(store, "run", later, incarnation="n", side=1 - has)
    assert claim_step(store, "run", CheckpointName(2, 41, 6), incarnation="n", side=1 - has)
    assert set(store.objects) == {side_key("run", 2, 40), side_key("run", 2, 41)}
    assert newest_attempt(store, "run") == 0  # a claim is no attempt


class Unconditional(FakeStore):
    """A store that answers 501 to a conditional create."""

    def put_if_absent(self, key: str, data: memoryview, *, timeout: float | None = None) -> bool:
        raise NotSupportedError("put: NotImplemented (501)")


class Overtaken(Impatient):
    """A clock in whose first pause another process's put arrives."""

    def __init__(self, store: FakeStore, key: str, data: bytes) -> None:
        super().__init__()
        self._store, self._key, self._data = store, key, data

    def wait(self, event: threading.Event, timeout: float) -> bool:
        if not self.waits:
            self._store.objects[self._key] = self._data
        return super().wait(event, timeout)


def test_attempts_are_claimed_by_put_without_a_conditional_create() -> None:
    """A taken number is passed over and its record stands; each claim settles before it is read back."""

    class Stale(Unconditional):
        def list(self, prefix: str, *, timeout: float | None = None) -> Iterator[ObjectInfo]:
            return iter([])

    store, clock = Stale(), Impatient()
    store.put(attempt_key("run", 1), memoryview(b"another's"))
    assert [claim_attempt(store, "run", {}, clock=clock) for _ in range(2)] == [2, 3]
    assert store.objects[attempt_key("run", 1)] == b"another's"
    assert len(clock.waits) == 2
    assert claim_attempt(store, "run", {}, clock=clock, timeout=0.4) == 4
    assert clock.waits[-1] < 0.4


def test_a_start_whose_put_was_overtaken_takes_the_next_number() -> None:
    """It never puts over the record that stands."""
    store, key = Unconditional(), attempt_key("run", 1)
    assert claim_attempt(store, "run", {}, clock=Overtaken(store, key, b"theirs")) == 2
    assert store.objects[key] == b"theirs"


def test_a_side_holds_a_claim_by_put_only_if_its_own_bytes_stand() -> None:
    """The later put stands, and the other side lets the step go."""
    store, name, key = Unconditional(), CheckpointName(2, 40, 6), side_key("run", 2, 40)
    theirs = json.dumps({"incarnation": "n", "side": 1}).encode()
    overtaken = Overtaken(store, key, theirs)
    assert not claim_step(store, "run", name, incarnation="n", side=0, clock=overtaken)
    assert claim_step(store, "run", name, incarnation="n", side=1, clock=Impatient())
    assert store.objects == {key: theirs}


def test_a_side_claims_by_put_again_and_again() -> None:
    """Each time after a pause, because the other side's put may be on its way; the bytes are put once."""
    store, clock, name = Unconditional(), Impatient(), CheckpointName(2, 40, 6)
    for _ in range(3):
        assert claim_step(store, "run", name, incarnation="n", side=0, clock=clock)
        assert not claim_step(store, "run", name, incarnation="n", side=1, clock=clock)
    assert len(clock.waits) == 3
    assert [verb for verb, _ in store.calls].count("put") == 1
