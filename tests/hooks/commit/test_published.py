"""Everybody who may read a store reads its records: SECURITY.md lists what they hold, and a new field is listed there first."""

from __future__ import annotations

import json
from typing import Any

import pytest

from spotguard.hooks.ipc import protocol
from tests.fakes.noticed import notice, trained
from tests.fakes.store import FakeStore

pytestmark = pytest.mark.torch

CHECKPOINT = {
    "store_format",
    "run_id",
    "step",
    "attempt",
    "save",
    "world",
    "level",
    "missing",
    "history",
    "suspect",
    "left_out",
    "kind",
    "created",
    "objects",
}
FIELDS = {
    "attempt": {"store_format", "run_id", "attempt", "world", "incarnation", "created", "info"},
    "manifest": CHECKPOINT | {"rank", "incarnation", "tensors", "state", "environment", "digests"},
    "commit": CHECKPOINT | {"nbytes", "elsewhere"},
    "outcome": {
        "notice",
        "ended",
        "seconds_left",
        "committed",
        "step",
        "bytes",
        "url",
        "level",
        "reason",
        "suspect",
        "left_out",
        "seconds",
        "seconds_to_commit",
        "history",
    },
}
INNER = {
    "info": {"pid", "command", "launch", "launchers", "machines", "machine_count", "up"},
    "environment": {"python", "torch", "threads", "machine", "device"},
    "notice": {"ids", "kind", "source", "drill"},
    "history": {"began", "first", "step_seconds", "saves", "cost", "periodic", "interval", "completed"},
}
OF_SLURM = {"SLURM_JOB_ID": "17", "SLURM_JOB_NODELIST": "node-[1-2]", "SLURM_JOB_PARTITION": "canary"}


def records(store: FakeStore) -> dict[str, dict[str, Any]]:
    """One of each kind, by the word under which it stands; an outcome has none."""
    found = {}
    for key, data in store.objects.items():
        if key.endswith(".json"):
            said = json.loads(data)
            kind = next((kind for kind in FIELDS if kind in said), "outcome")
            found[kind] = said.get(kind, said)
    return found


def test_records_hold_what_the_page_lists_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start in Slurm, a checkpoint, and a notice; of the environment the job's number and nodes alone."""
    for name, value in OF_SLURM.items():
        monkeypatch.setenv(name, value)
    store = FakeStore()
    with trained(store) as (guard, _, heard):
        guard._agent.hear(notice())
        heard.wait(protocol.Committed)
    found = records(store)
    assert {kind: set(record) for kind, record in found.items()} == FIELDS
    inner = {name: record[name] for record in found.values() for name in INNER if name in record}
    assert {name: set(fields) for name, fields in inner.items()} == INNER
    (launcher,) = inner["info"]["launchers"]
    assert launcher == {"name": "slurm", "job": "17", "restarts": 0, "nodes": "node-[1-2]"}
    assert not [key for key, data in store.objects.items() if b"canary" in bytes(data)]
