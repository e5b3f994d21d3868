"""An outcome is loud: one record and one line for each notice, whatever became of it (law 13)."""

from __future__ import annotations

import errno
import json
import os
import resource
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest

from spotguard.agent import outcome as outcomes
from spotguard.agent.outcome import Outcome, SessionOutcome
from spotguard.hooks.ipc.protocol import Committed, Progress
from tests.fakes.story import START, Story

SEEN = datetime(2026, 11, 20, 10, 0, tzinfo=UTC)


def committed() -> Outcome:
    story = Story()
    ranks = [story.opens(201), story.opens(202)]
    story.notice()
    for rank in ranks:
        story.told(rank)
    story.until(0.02)
    story.says(ranks[0], Progress("n1", "gate", story.now, step=42))
    story.until(0.08)
    story.says(ranks[0], Progress("n1", "first-byte", story.now, step=42))
    for rank, at in zip(ranks, (4.0, 6.0), strict=True):
        story.until(at)
        story.says(rank, Committed("n1", 42, 256 << 20, at - 0.08, "file:///s/42", story.now))
    for rank in ranks:
        story.closes(rank)
    story.ends(-15)
    return story.outcomes[0]


def test_the_record_says_everything_in_seconds_after_the_notice() -> None:
    """Seen, left, told, step, bytes, rate, first byte, committed, slack, how it ended, both codes."""
    record = committed().record(SEEN)
    assert record["seen"] == "2026-11-20T10:00:00.000+00:00"
    expected = {
        "id": "n1",
        "kind": "terminate",
        "left": 120.0,
        "reserve": 12.0,
        "delivered": 0.0,
        "step": 42,
        "bytes": 512 << 20,
        "gate": 0.02,
        "first_byte": 0.08,
        "committed": 6.0,
        "slack": 114.0,
        "level": "full",
        "less": "",
        "why": "",
        "ended": "TERM after the commit",
        "returncode": -15,
        "code": 75,
        "drill": False,
    }
    assert {key: record[key] for key in expected} == expected
    assert record["rate"] == pytest.approx((512 << 20) / 5.92)
    assert [s["committed"] for s in record["sessions"]] == [4.0, 6.0]
    json.dumps(record, allow_nan=False)


def test_the_line_says_it_to_a_person() -> None:
    """One line."""
    line = committed().line()
    assert line == (
        "terminate notice from aws spot/instance-action: COMMITTED step 42 in 6.00 s (512.0 MiB at 86.5 MiB/s), 114.0 s to spare; "
        "TERM after the commit, exit code 75"
    )
    assert committed().measures() == "seen with 120.0 s left, delivered in 0 ms, first byte after 0.08 s"


def test_the_line_counts_the_ranks() -> None:
    """Those of this machine, and how many there are in all."""
    story = Story()
    a, b = (story.opens(201 + rank, rank=rank, world=4) for rank in range(2))
    story.notice()
    story.commits(a, step=7)
    story.fails(b, "full disk")
    story.closes(a)
    story.closes(b)
    story.ends(1)
    assert ", 1 of 2 ranks here (4 in all) committed step 7; " in story.outcomes[0].line()


def test_an_outcome_without_a_commit_says_why() -> None:
    """By rank where there are several; and the steps that differ are no agreed step."""
    story = Story()
    a, b = story.opens(201), story.opens(202)
    story.notice()
    story.commits(a, step=7)
    story.fails(b, "full disk")
    story.closes(a)
    story.closes(b)
    story.ends(1)
    (outcome,) = story.outcomes
    assert (outcome.committed, outcome.slack) == (None, None)
    assert outcome.why == "1 of 2: full disk"
    assert "NOT COMMITTED (1 of 2: full disk)" in outcome.line()


def test_a_commit_of_less_is_as_loud_as_none() -> None:
    """One rank had no time for its moments: the least of them counts, the line says so, and why."""
    story = Story()
    a, b = story.opens(201), story.opens(202)
    story.notice()
    story.until(4)
    story.commits(a)
    story.says(b, Committed("n1", 7, 10, 0.1, "u", story.now, "weights", "everything\ndoes not fit"))
    story.closes(a)
    story.closes(b)
    story.ends(75)
    (outcome,) = story.outcomes
    assert (outcome.level, outcome.less) == ("weights", "1 of 2: everything does not fit")
    assert [(said.level, said.less) for said in outcome.sessions] == [
        ("full", ""),
        ("weights", "everything does not fit"),
    ]
    said = "the weights alone, 116.0 s to spare, 1 of 2: everything does not fit;"
    assert said in outcome.line()


def test_a_peers_words_stay_one_line() -> None:
    """A reason with a line break, or an escape sequence, cannot forge a log line."""
    story = Story()
    session = story.opens()
    story.notice()
    story.fails(session, "bad\nspotguard 10:00 COMMITTED\x1b[2J" + "x" * 10_000)
    story.ends(1)
    line = story.outcomes[0].line()
    assert "\n" not in line
    assert "\x1b" not in line
    assert len(line) < 1000


def test_a_peers_figures_are_believed_only_as_far_as_they_can_be_true() -> None:
    """A commit before the notice, negative bytes, no seconds."""
    story = Story()
    session = story.opens()
    story.notice()
    story.until(5)
    story.says(session, Committed("n1", 7, -5, 0.0, "u", START - 1e9))
    story.ends(75)
    (outcome,) = story.outcomes
    assert (outcome.committed, outcome.bytes, outcome.rate) == (0.0, 0, None)


def test_the_wall_time_is_that_of_the_sight() -> None:
    """Not of the writing."""
    outcome = committed()
    assert outcomes.seen_time(outcome, outcome.seen_at + 10, SEEN.timestamp() + 10) == SEEN


def test_the_newest_stands_alone_and_all_stand_together(tmp_path: Path) -> None:
    """Atomically, for our eyes only, and nothing else is left behind."""
    outcomes.write({"id": "a"}, tmp_path, "run")
    path = outcomes.write({"id": "b"}, tmp_path, "run")
    assert path == tmp_path / "run.outcome.json"
    assert json.loads(path.read_text()) == {"id": "b"}
    every = (tmp_path / "run.outcomes.jsonl").read_text().splitlines()
    assert [json.loads(line)["id"] for line in every] == ["a", "b"]
    assert sorted(os.listdir(tmp_path)) == ["run.outcome.json", "run.outcomes.jsonl"]
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_record_that_does_not_fit_is_no_record(tmp_path: Path) -> None:
    """The file system takes a part and then refuses: the last whole record stays, and nothing else is left."""
    path = outcomes.write({"id": "a"}, tmp_path, "run")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            outcomes.write({"id": "b" * 100}, tmp_path, "run")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert json.loads(path.read_text()) == {"id": "a"}
    assert sorted(os.listdir(tmp_path)) == ["run.outcome.json", "run.outcomes.jsonl"]


def test_those_before_us_are_read_again_as_far_as_they_are_whole(tmp_path: Path) -> None:
    """Oldest first; what a full disk or a power cut left of a line is none. All of a long file: a count must not fall."""
    assert list(outcomes.earlier(tmp_path, "run")) == []
    file = tmp_path / "run.outcomes.jsonl"
    file.write_text('{"id": 1}\n{"id": 2\n[3]\n{"id": 4}\n{"id"')
    assert list(outcomes.earlier(tmp_path, "run")) == [{"id": 1}, {"id": 4}]
    long = "".join(json.dumps({"id": number, "detail": "x" * 1000}) + "\n" for number in range(2000))
    file.write_text(long)
    assert [record["id"] for record in outcomes.earlier(tmp_path, "run")] == list(range(2000))


def test_records_fill_two_files_at_most_and_each_is_counted_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service may live for years, and its counters must not fall when it starts again."""
    monkeypatch.setattr(outcomes, "_ROTATED_AT", 2000)
    kept = ("kind", "drill", "level", "ended")
    for number in range(200):
        drill, done = number % 2 == 0, number % 4 == 0
        record = {"kind": "drill" if drill else "terminate", "drill": drill, "level": "", "ended": "left"}
        outcomes.write(
            {**record, "committed": 1.0 if done else None, "id": number, "sessions": [{"rank": 0}]},
            tmp_path,
            "run",
        )
    sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert sizes.keys() == {"run.outcome.json", "run.outcomes.jsonl", "run.outcomes.jsonl.1"}
    assert max(sizes.values()) < 2500
    found = list(outcomes.earlier(tmp_path, "run"))
    assert len(found) == 200
    assert sum(each["committed"] is not None for each in found) == 50
    assert sum(each["drill"] for each in found) == 100
    assert all(each["sessions"] for each in found)
    assert [each["id"] for each in found if "id" in each][-1] == 199
    assert all(name in each for each in found for name in kept)


def test_a_full_disk_costs_no_record_that_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does it leave half a file."""
    monkeypatch.setattr(outcomes, "_ROTATED_AT", 2000)
    record = {"kind": "terminate", "drill": False, "level": "", "ended": "left", "text": "x" * 100}
    while True:
        before = len(list(outcomes.earlier(tmp_path, "run")))
        files = {path: path.read_bytes() for path in tmp_path.glob("run.outcomes*")}
        if before > 30 and max(len(data) for path, data in files.items() if path.suffix == ".jsonl") > 2000:
            break
        outcomes.write(record, tmp_path, "run")
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: full() if b'"times"' in data else write(fd, data))

    def full() -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(OSError, match="No space"):
        outcomes.write(record, tmp_path, "run")
    assert len(list(outcomes.earlier(tmp_path, "run"))) == before
    assert {path: path.read_bytes() for path in tmp_path.glob("run.outcomes*")} == files
    assert not list(tmp_path.glob(".*"))


def test_a_file_system_that_hangs_holds_nothing_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A kill may be due: neither the outcome nor the end waits, and the log says so."""
    hangs = threading.Event()
    monkeypatch.setattr(outcomes, "write", lambda *_: hangs.wait(100))
    monkeypatch.setattr(outcomes, "_PATIENCE", 0.0)
    files = outcomes.OutcomeFiles(tmp_path / "run.sock")
    for _ in range(70):
        files.add({})
    files.close()
    hangs.set()
    lines = {record.getMessage() for record in caplog.records}
    assert lines == {f"the outcome cannot be written beside {tmp_path}/run.sock: their file system hangs"}


def test_an_outcome_is_written_although_no_thread_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        files = outcomes.OutcomeFiles(tmp_path / "run.sock")
        files.add({"id": 1})
        files.close()
    assert list(outcomes.earlier(tmp_path, "run")) == [{"id": 1}]


def test_a_session_that_had_left_is_named_so() -> None:
    """Training had come to its end before the notice could matter."""
    from spotguard.hooks.ipc.protocol import Bye

    story = Story()
    session = story.opens()
    story.notice()
    story.says(session, Bye())
    story.ends(0)
    (said,) = story.outcomes[0].sessions
    assert isinstance(said, SessionOutcome)
    assert said.why == "training ended by itself"
