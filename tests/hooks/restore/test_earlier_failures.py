"""The failures that ended a run before, by class: what the agents have counted, and what the store has."""

from __future__ import annotations

import json

import pytest

from spotguard.alerts.readings.kernel_log import KernelFinding
from spotguard.alerts.records.failure_record import diagnosed, record_of
from spotguard.hooks.checkpoint.format.keys import attempt_key, failure_key, outcome_key
from spotguard.hooks.control.report import Report
from spotguard.hooks.ipc.failure_classes import RECOVERED
from spotguard.hooks.restore.startup import earlier_errors, earlier_failures
from tests.fakes.noticed import trained
from tests.fakes.store import FakeStore

pytestmark = pytest.mark.torch


def fails(store: FakeStore, error: Exception | None = None) -> dict[str, int]:
    """Train, and end by this error; return what the attempt told of earlier ones."""
    with trained(store) as (guard, _, _):
        if error is not None:
            guard.fail(error)
        return dict(guard._position().failures)


@pytest.fixture(autouse=True)
def rules(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setenv("SPOTGUARD_RUN_ID", "run")
    monkeypatch.setenv(RECOVERED, "program=leave:0")
    return monkeypatch


def test_each_attempt_adds_the_end_of_the_one_before() -> None:
    """The agent of a run that left its machine is gone, too."""
    store = FakeStore()
    assert fails(store, ValueError("first")) == {"program": 0}
    assert fails(store) == {"program": 1}  # and this one ends without an error
    assert fails(store, ValueError("second")) == {"program": 1}
    assert fails(store) == {"program": 2}


def test_the_same_error_on_the_next_machine_is_known(
    rules: pytest.MonkeyPatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent of the machine that the run has left is gone. Without a rule to leave, there was no other machine."""
    told: list[bool] = []
    monkeypatch.setattr(Report, "error", lambda _, message: told.append(message.repeats))
    store = FakeStore()
    for attempt, text in enumerate(("bad sample 57", "bad sample 57", "another", "bad sample 57"), 1):
        fails(store, ValueError(text))
        key = failure_key("run", attempt, 0)
        record = json.loads(store.objects[key])
        store.objects[key] = json.dumps(
            {**record, "step": record["step"] + 2}
        ).encode()  # each start trains two
    rules.setenv(RECOVERED, "program=restart:0")
    fails(store, ValueError("bad sample 57"))
    assert told == [False, True, False, False, False]


def test_an_agent_that_starts_its_command_again_counts_by_itself(rules: pytest.MonkeyPatch) -> None:
    """torchrun may have started the ranks again, which takes none of the times."""
    rules.setenv(RECOVERED, "program=restart:0")
    store = FakeStore()
    fails(store, ValueError("first"))
    assert fails(store, ValueError("second")) == {"program": 0}
    rules.setenv(RECOVERED, "program=restart:1")
    assert fails(store) == {"program": 1}
    rules.setenv(RECOVERED, "program=restart:0")
    assert fails(store) == {"program": 1}, "an agent on another machine"


def test_the_larger_count_is_the_right_one(rules: pytest.MonkeyPatch) -> None:
    """An agent knows deaths that left no record, and the store what ran under other agents."""
    store = FakeStore()
    fails(store, ValueError("first"))
    rules.setenv(RECOVERED, "killed=restart:3,program=leave:0")
    assert fails(store) == {"killed": 3, "program": 1}
    rules.setenv(RECOVERED, "killed=restart:0,program=leave:0")
    assert fails(store) == {"killed": 3, "program": 1}


def test_a_second_restore_counts_nothing_twice() -> None:
    store = FakeStore()
    fails(store, ValueError("first"))
    with trained(store) as (guard, _, _):
        guard.restore()
        assert guard._position().failures == {"program": 1}


def test_an_attempt_that_left_its_machine_stood_still(rules: pytest.MonkeyPatch) -> None:
    rules.setenv(RECOVERED, "stall=leave:0")
    store = FakeStore()
    fails(store)
    store.objects[outcome_key("run", 1, 1)] = json.dumps({"notice": {"ids": ["leave-stall-12.5"]}}).encode()
    assert fails(store) == {"stall": 1}


@pytest.mark.parametrize("cause", ["disk-full", "killed"])
def test_an_error_of_all_ranks_is_one_failure_and_one_that_follows_is_none(
    rules: pytest.MonkeyPatch, cause: str
) -> None:
    rules.setenv(RECOVERED, f"{cause}=leave:0,peer-lost=leave:0")
    store = FakeStore()
    fails(store)
    for rank, kind in enumerate(("peer-lost", cause, cause)):
        store.objects[failure_key("run", 1, rank)] = json.dumps({"kind": kind}).encode()
    assert fails(store) == {cause: 1, "peer-lost": 0}


def test_a_cause_of_a_high_rank_counts(rules: pytest.MonkeyPatch) -> None:
    """The ranks before it have lost it as a peer."""
    rules.setenv(RECOVERED, "killed=leave:0,peer-lost=leave:0")
    store = FakeStore()
    fails(store)
    for rank in range(50):
        record = {"kind": "killed" if rank == 40 else "peer-lost", "step": 7, "fingerprint": f"of {rank}"}
        store.objects[failure_key("run", 1, rank)] = json.dumps(record).encode()
    assert ("of 40", 7) in [*earlier_errors(store, "run")]
    assert fails(store) == {"killed": 1, "peer-lost": 0}


def test_an_attempt_that_left_its_machine_behind_many_notices_stood_still(rules: pytest.MonkeyPatch) -> None:
    rules.setenv(RECOVERED, "stall=leave:0")
    store = FakeStore()
    fails(store)
    for number in range(1, 21):
        ids = ["leave-stall-12.5" if number == 20 else f"drill-{number}"]
        store.objects[outcome_key("run", 1, number)] = json.dumps({"notice": {"ids": ids}}).encode()
    assert fails(store) == {"stall": 1}


def test_the_class_counts_by_which_the_agent_has_decided(rules: pytest.MonkeyPatch) -> None:
    """Else `--recover killed=leave` would leave machines without end: with the kernel's log, the record tells of the GPU."""
    rules.setenv(RECOVERED, "killed=leave:0,gpu=leave:0")
    store = FakeStore()
    fails(store)
    xid = KernelFinding("xid", "Xid 79", xid=79, scope="machine")
    record = record_of(diagnosed({"class": "killed"}, [xid]), 0.0)
    assert record["kind"] == "gpu"
    store.objects[failure_key("run", 1, 0)] = json.dumps(record).encode()
    assert fails(store) == {"killed": 1, "gpu": 0}


LEAVES = ("gpu", "stall")


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        b"[]",
        b"[" * 100_000,
        b'{"kind": 7, "notice": 8}',
        b'{"kind": "%s"}' % (b"x" * 300_000),
        b'{"notice": {"ids": 9}}',
        b"\xff",
    ],
)
def test_records_that_are_none_are_passed_over(damaged: bytes) -> None:
    store = FakeStore()
    fails(store)
    for key in (attempt_key("run", 1), failure_key("run", 1, 0), outcome_key("run", 1, 1)):
        store.objects[key] = damaged
    store.objects[failure_key("run", 1, 1)] = b'{"kind": "peer-lost"}'
    assert earlier_failures(store, "run", (*LEAVES, "peer-lost")) == {"peer-lost": 1}


def test_another_run_of_the_command_has_its_own_failures(rules: pytest.MonkeyPatch) -> None:
    rules.setenv("SPOTGUARD_RUN_ID", "pretraining")
    store = FakeStore()
    fails(store, ValueError("first"))
    assert fails(store) == {}


def test_without_a_rule_nothing_is_asked_for(rules: pytest.MonkeyPatch) -> None:
    rules.delenv(RECOVERED)
    store = FakeStore()
    fails(store, ValueError("first"))
    store.calls.clear()
    assert fails(store) == {}
    assert not [key for verb, key in store.calls if verb == "list" and "failures" in key]
