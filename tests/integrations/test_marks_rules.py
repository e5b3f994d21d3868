"""Marks know of earlier processes: the store's records, and the note."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

from spotguard.integrations.marks.history import (
    Note,
    NoteFile,
    PastPreemption,
    newest_record,
    preemptions,
    steps_lost,
)
from spotguard.integrations.marks.loggers import follow_loggers
from spotguard.integrations.marks.tracker import follow
from spotguard.providers.stores.factory import open_store

pytestmark = pytest.mark.torch


def notice_at(step: int, *, committed: bool = True) -> PastPreemption:
    return PastPreemption(1, "terminate", "aws spot/instance-action", step, 0.0, committed)


@pytest.mark.parametrize(
    ("step", "note", "by", "lost", "exactly"),
    [
        (40, Note(1, 40), notice_at(40), 0, True),
        (40, Note(), notice_at(40), 0, True),  # no note: training was parked at the commit
        (30, Note(1, 40), notice_at(40), 10, True),  # the newest checkpoint was damaged
        (30, Note(1, 44), None, 14, False),  # killed
        (30, Note(1, 44, ended=True), None, 14, True),  # an exception
        (30, Note(1, 44), notice_at(40), 14, False),  # a notice was withdrawn, and a kill came later
        (30, Note(1, 44), notice_at(20, committed=False), 14, False),
        (30, Note(), None, None, False),
        (30, Note(), notice_at(20, committed=False), None, False),
        (30, Note(1, 20), None, 0, False),  # restored from another run, or from a later step
    ],
)
def test_the_steps_lost(
    step: int, note: Note, by: PastPreemption | None, lost: int | None, exactly: bool
) -> None:
    assert steps_lost(step, note, by) == (lost, exactly)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"attempt": 1}', '{"attempt": "x", "step": 1, "ended": 0}']
)
def test_a_note_that_is_none_or_cut_off(text: str) -> None:
    assert Note.parse(text) == Note()


def test_a_note_file(tmp_path: Path) -> None:
    note = NoteFile(tmp_path / "new" / "note.json")
    assert note.read() == ""
    note.write("one")
    note.write("two")
    assert note.read() == "two"
    assert [each.name for each in note.path.parent.iterdir()] == ["note.json"]


def record(kind: str = "terminate", step: int = 7, **more: Any) -> dict[str, Any]:
    notice = {
        "kind": kind,
        "source": "aws spot/instance-action",
        "ids": ["x"],
        "drill": more.pop("drill", False),
    }
    facts = {
        "committed": True,
        "level": "full",
        "reason": "",
        "bytes": 10,
        "url": "",
        "ended": 5.0,
        "seconds_left": 1.0,
    }
    return facts | {"notice": notice, "step": step} | more


def test_the_preemptions_are_one_for_each_attempt_that_a_notice_ended(tmp_path: Path) -> None:
    store = open_store(tmp_path.as_uri())

    def put(name: str, content: object) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        store.put(f"run/outcomes/{name}.json", memoryview(data))

    put("0001-01", record(step=5))  # withdrawn
    put("0001-02", record(step=9, ended=6.0, seconds=1.5, seconds_to_commit=2.5))
    put("0002-01", record("drill", drill=True))
    put("0003-01", b"{ damaged")
    put("0004-01", record(step=12, committed=False, reason="the store is full"))
    put("0005-01-00001", record(step=20))  # by rank 1
    put("0006-01", record(step=30))  # this attempt's own
    found = preemptions(store, "run", 6)
    assert [(each.attempt, each.step) for each in found] == [(1, 9), (4, 12), (5, 20)]
    first, lost, other = (each.mark("run", number) for number, each in enumerate(found, 1))
    assert first.numbers == {
        "spotguard/preempted/preemptions": 1,
        "spotguard/preempted/save_bytes": 10,
        "spotguard/preempted/save_seconds": 1.5,
        "spotguard/preempted/seconds_to_commit": 2.5,
    }
    assert (first.record, first.at) == ("run/outcomes/0001", 6.0)
    assert "nothing new is committed (the store is full)" in lost.text
    assert other.values == {"preemptions": 3, "save_bytes": 10}


def test_a_record_is_found_wherever_it_is_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "events"
    for at in ((1 << 20) - 10, 0, 3 << 20):
        path.write_bytes(b"x" * at + b"run/outcomes/0012" + b"x" * 50)
        assert newest_record("run", [path]) == 12
    assert newest_record("other", [path]) == 0
    assert newest_record("run", []) == 0


def test_other_ranks_and_prove_mark_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """They have neither a thread nor a call of the tracker."""
    tracker: Any = None
    follow(SimpleNamespace(view=SimpleNamespace(rank=1)), tracker)
    follow_loggers(SimpleNamespace(view=SimpleNamespace(rank=1)), None)
    monkeypatch.setenv("SPOTGUARD_PROVE", "plan")
    follow(SimpleNamespace(view=SimpleNamespace(rank=0)), tracker)
