"""The records of a run in a store whose clock the test sets."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from spotguard.hooks.checkpoint.attempts import claim_attempt
from spotguard.hooks.checkpoint.format.keys import outcome_key
from spotguard.report.facts import RunFacts
from spotguard.report.reading import read_run
from tests.fakes.checkpoint import Save
from tests.fakes.commit import put_manifest, put_marker
from tests.fakes.store import FakeStore

NOW = 9000.0


class Kept:
    """A store whose clock the test sets, and the records of one run in it."""

    def __init__(self, run_id: str = "run", store: FakeStore | None = None) -> None:
        self.store, self.run_id = store or FakeStore(), run_id
        self.at(1000.0)

    def at(self, seconds: float) -> Kept:
        self.store.time = lambda: seconds
        return self

    def claim(self, **info: Any) -> int:
        return claim_attempt(self.store, self.run_id, info, world=2, created=self.store.time())

    def save(self, step: int, attempt: int = 1, *, marker: bool = True, **history: Any) -> None:
        save = Save(self.run_id, attempt, step, tensors={})
        manifests = [
            replace(save.write_objects(self.store, rank), history=history if not rank else {})
            for rank in (0, 1)
        ]
        for each in manifests:
            put_manifest(self.store, each)
        if marker:
            put_marker(self.store, manifests, created=self.store.time())

    def put(self, key: str, record: object) -> None:
        text = record if isinstance(record, str) else json.dumps(record)
        self.store.put(key, memoryview(text.encode()))

    def outcome(self, attempt: int = 1, number: int = 1, kind: str = "terminate", **facts: Any) -> None:
        notice = {"ids": ["x"], "kind": kind, "source": "aws", "drill": False} | facts.pop("notice", {})
        record = {"notice": notice, "ended": self.store.time(), "committed": True, "step": 5, "seconds": 2.0}
        self.put(outcome_key(self.run_id, attempt, number), record | facts)

    def read(self) -> RunFacts:
        return read_run(self.store, self.run_id, NOW)
