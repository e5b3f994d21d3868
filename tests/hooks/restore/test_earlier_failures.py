"""The failures that ended a run before, by class: what the agents have counted, and what the store has."""

from __future__ import annotations

import json

import pytest

from spotguard.hooks.checkpoint.format.keys import attempt_key, failure_key, outcome_key
from spotguard.hooks.ipc.failure_classes import FAILURES
from spotguard.hooks.restore.startup import earlier_failures
from tests.fakes.noticed import trained
from tests.fakes.store import FakeStore

pytestmark = pytest.mark.torch


def fails(store: FakeStore, error: Exception | None = None) -> dict[str, int]:
    """Train, and end by this error; return what the attempt told of earlier ones."""
    with trained(store) as (guard, _, _):
        if error is not None:
            guard.fail(error)
        return dict(guard._position().failures)


@pytest.fixture
def with_rules(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setenv(FAILURES, "program=0")
    return monkeypatch


@pytest.mark.usefixtures("with_rules")
def test_each_attempt_adds_the_end_of_the_one_before() -> None:
    store = FakeStore()
    assert fails(store, ValueError("first")) == {"program": 0}
    assert fails(store) == {"program": 1}  # and this one ends without an error
    assert fails(store, ValueError("second")) == {"program": 1}
    assert fails(store) == {"program": 2}


def test_the_larger_count_is_the_right_one(with_rules: pytest.MonkeyPatch) -> None:
    """An agent knows deaths that left no record, and the store what ran under other agents."""
    store = FakeStore()
    fails(store, ValueError("first"))
    with_rules.setenv(FAILURES, "killed=3,program=0")
    assert fails(store) == {"killed": 3, "program": 1}
    with_rules.setenv(FAILURES, "killed=0,program=0")
    assert fails(store) == {"killed": 3, "program": 1}


@pytest.mark.usefixtures("with_rules")
def test_a_second_restore_counts_nothing_twice() -> None:
    store = FakeStore()
    fails(store, ValueError("first"))
    with trained(store) as (guard, _, _):
        guard.restore()
        assert guard._position().failures == {"program": 1}


@pytest.mark.usefixtures("with_rules")
def test_an_attempt_that_left_its_machine_stood_still() -> None:
    store = FakeStore()
    fails(store)
    store.objects[outcome_key("run", 1, 1)] = json.dumps({"notice": {"ids": ["leave-stall-12.5"]}}).encode()
    assert fails(store) == {"program": 0, "stall": 1}


@pytest.mark.usefixtures("with_rules")
def test_an_error_of_all_ranks_is_one_failure() -> None:
    store = FakeStore()
    fails(store)
    for rank in range(3):
        store.objects[failure_key("run", 1, rank)] = b'{"kind": "network"}'
    assert fails(store)["network"] == 1


@pytest.mark.parametrize("damaged", [b"", b"[]", b"[" * 100_000, b'{"kind": 7, "notice": 8}', b'{"notice": {"ids": 9}}', b"\xff"])  # fmt: skip
def test_records_that_are_none_are_passed_over(damaged: bytes) -> None:
    store = FakeStore()
    fails(store)
    for key in (attempt_key("run", 1), failure_key("run", 1, 0), outcome_key("run", 1, 1)):
        store.objects[key] = damaged
    assert earlier_failures(store, "run") == {}


def test_without_a_rule_nothing_is_asked_for() -> None:
    store = FakeStore()
    fails(store, ValueError("first"))
    store.calls.clear()
    assert fails(store) == {}
    assert not [key for verb, key in store.calls if verb == "list" and "failures" in key]
