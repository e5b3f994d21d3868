"""What the agent is told while a save runs: each phase, then a few words a second, and none that waits for it."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from spotguard.hooks.checkpoint.format.keys import outcome_key
from spotguard.hooks.control.report import Report
from spotguard.hooks.ipc import protocol
from spotguard.hooks.ipc.failures.flight_recorder import RecordedCollective, RecordedCollectives
from spotguard.hooks.ipc.failures.progress import ProgressSeen
from spotguard.hooks.ipc.notice import BY_HAND, PreemptionNotice
from spotguard.hooks.save.request import SavedCheckpoint
from spotguard.providers.errors import DeniedError
from tests.fakes.clock import ManualClock

pytestmark = pytest.mark.torch


def test_progress_is_rare_and_droppable() -> None:
    """Each phase at once, how far it is four times a second at most; all of it may be dropped."""
    clock = ManualClock()
    heard: list[tuple[str, int]] = []

    def send(message: protocol.Message, *, droppable: bool = False) -> bool:
        assert isinstance(message, protocol.Progress)
        assert droppable
        heard.append((message.phase, message.done_bytes))
        return True

    report = Report(
        lambda key, data, seconds: None,
        "run",
        lambda: 1,
        clock,
        send,
        lambda preemption: None,
        lambda preemption, committed: None,
    )
    preemption = PreemptionNotice(["n1"], 100.0, 90.0, "test", "terminate")
    for phase in ("begun", "gate", "first-byte"):
        report.progress(preemption, phase, 5, 0, 1000)
    for done in range(1000):
        report.progress(preemption, "writing", 5, done, 1000)
        clock.advance(0.001)
    report.progress(preemption, "written", 5, 1000, 1000)
    assert [phase for phase, _ in heard[:3]] == ["begun", "gate", "first-byte"]
    assert [phase for phase, _ in heard[3:-1]] == ["writing"] * 4
    assert heard[-1] == ("written", 1000)
    other = PreemptionNotice(["n2"], 100.0, 90.0, "test", "terminate")
    report.progress(other, "written", 5, 1000, 1000)
    assert len(heard) == 9


class Listening:
    """An agent, and a store for outcomes."""

    def __init__(self, *, rank: int = 0, keeps: bool = True) -> None:
        self.words: list[protocol.Message] = []
        self.kept: dict[str, bytes] = {}
        self.report = Report(
            self._put,
            "run",
            lambda: 3,
            ManualClock(),
            self._send,
            lambda preemption: None,
            lambda preemption, committed: None,
            rank=rank,
            keeps=lambda: keeps,
            place=lambda: ProgressSeen("data", 61.25, "train.py:13 in main"),
        )

    def _put(self, key: str, data: memoryview, seconds: float) -> None:
        self.kept[key] = bytes(data)

    def _send(self, message: protocol.Message, *, droppable: bool = False) -> bool:
        self.words.append(message)
        return True


def notice_of(kind: str) -> PreemptionNotice:
    return PreemptionNotice(["sigterm"], 1024.0, 1020.0, "SIGTERM", kind, by_hand=True)


SAVED = SavedCheckpoint(7, "file:///s/7", 10, 0.5, 1001.0, "partial-extras", "rank 1 of 2 has not answered")

#: What a save comes to, and how it begins.
ENDS: list[Callable[[Report, PreemptionNotice], None]] = [
    lambda report, preemption: report.committed(preemption, SAVED),
    lambda report, preemption: report.failed(preemption, "the store is full", 5),
    lambda report, preemption: report.progress(preemption, "begun", -1, 0, 0),
]


@pytest.mark.parametrize("end", ENDS, ids=["committed", "failed", "begun"])
def test_the_agent_is_told_of_a_launcher_s_notice_before_any_other_word_of_it(
    end: Callable[[Report, PreemptionNotice], None],
) -> None:
    """Once for each: it did not send it, and keeps an outcome all the same."""
    told = Listening()
    for preemption in (notice_of(protocol.LAUNCHER), notice_of(protocol.LAUNCHER)):
        del told.words[:]
        told.report.progress(preemption, "gate", 7, 0, 0)
        end(told.report, preemption)
        first, *rest = told.words
        left = preemption.deadline - ManualClock().monotonic()
        assert first == protocol.Delivered("sigterm", ManualClock().monotonic(), "launcher", "SIGTERM", left)
        assert rest
        assert not any(isinstance(word, protocol.Delivered) for word in rest)


def test_other_notices_send_no_delivered_message() -> None:
    told = Listening()
    for kind in ("terminate", BY_HAND):
        for end in ENDS:
            end(told.report, notice_of(kind))
    assert not any(isinstance(word, protocol.Delivered) for word in told.words)


def test_the_agent_learns_of_a_commit_whose_record_cannot_be_uploaded() -> None:
    told = Listening()

    def refuses(key: str, data: memoryview, seconds: float) -> None:
        raise DeniedError("read-only")

    told.report._put = refuses
    told.report.committed(notice_of("terminate"), SAVED)
    assert [word.step for word in told.words if isinstance(word, protocol.Committed)] == [7]


@pytest.mark.parametrize(
    ("rank", "key"), [(0, "run/outcomes/0003-01.json"), (2, "run/outcomes/0003-01-00002.json")]
)
def test_the_record_in_the_store_is_kept_by_whoever_speaks(rank: int, key: str) -> None:
    """With the level, and why it is not full. Another rank keeps none."""
    told = Listening(rank=rank)
    told.report.committed(notice_of(protocol.LAUNCHER), SAVED)
    ((name, data),) = told.kept.items()
    record = json.loads(data)
    assert (name, record["level"], record["reason"]) == (key, "partial-extras", SAVED.why)
    other = Listening(rank=rank, keeps=False)
    other.report.committed(notice_of(protocol.LAUNCHER), SAVED)
    other.report.failed(notice_of(protocol.LAUNCHER), "the store is full", 5)
    assert other.kept == {}


@pytest.mark.parametrize("kind", [protocol.STALL, protocol.PEER])
def test_the_record_of_a_stall_is_one_whichever_machine_has_seen_it(kind: str) -> None:
    told = Listening()
    stall = PreemptionNotice(
        ["x"], 9.0, 9.0, "spotguard", kind, drill=True, stall=True, detail="rank 1 in data"
    )
    told.report.committed(stall, SAVED)
    notice = json.loads(told.kept["run/outcomes/0003-01.json"])["notice"]
    assert (notice["kind"], notice["detail"]) == (protocol.STALL, "rank 1 in data")


def test_the_records_of_a_new_attempt_are_numbered_from_one() -> None:
    kept: list[str] = []
    attempts = [3]
    report = Report(
        lambda key, data, seconds: kept.append(key),
        "run",
        lambda: attempts[-1],
        ManualClock(),
        lambda message, droppable=False: True,
        lambda preemption: None,
        lambda preemption, committed: None,
    )
    for attempt in (3, 3, 4):
        attempts.append(attempt)
        report.failed(notice_of(protocol.LAUNCHER), "the store is full", 5)
    assert kept == [outcome_key("run", 3, 1), outcome_key("run", 3, 2), outcome_key("run", 4, 1)]


def test_a_rank_keeps_its_stacks_at_a_stall_that_another_machine_has_seen(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Once, although the agents of both machines may see it, and its save may end twice."""
    told = Listening(rank=1, keeps=False)
    stall = PreemptionNotice(
        ["stall-1@aa"], 1600.0, 1600.0, "spotguard", protocol.PEER, drill=True, stall=True
    )
    told.report.committed(stall, SAVED)
    stall.ids.append("stall-2")
    told.report.committed(stall, SAVED)
    ((key, data),) = told.kept.items()
    assert key == "run/stalls/0003-01-00001.json"
    assert json.loads(data)["stacks"][0].startswith("MainThread:\n")
    assert sum("stands still here" in line for line in caplog.messages) == 1
    drill = PreemptionNotice(["drill-1"], 1600.0, 1600.0, "spotguard drill", protocol.PEER, drill=True)
    told.report.committed(drill, SAVED)
    assert len(told.kept) == 1


@pytest.mark.parametrize("end", ENDS[:2], ids=["committed", "failed"])
def test_a_stall_that_its_agent_releases_at_the_answer_has_its_record_and_its_stacks(
    end: Callable[[Report, PreemptionNotice], None],
) -> None:
    """Before training nothing is saved, so the answers of all ranks are there at once."""
    stall = PreemptionNotice(["stall-1"], 1600.0, 1600.0, "spotguard", protocol.STALL, drill=True)

    class Releasing(Listening):
        def _send(self, message: protocol.Message, *, droppable: bool = False) -> bool:
            if isinstance(message, protocol.Committed | protocol.Failed):
                stall.ids.remove("stall-1")
            return True

    told = Releasing()
    told.report.told(protocol.Preempt("stall-1", 600.0, 0.0, protocol.STALL, "spotguard", drill=True))
    end(told.report, stall)
    assert json.loads(told.kept["run/outcomes/0003-01.json"])["notice"]["ids"] == ["stall-1"]
    assert json.loads(told.kept["run/stalls/0003-01-00000.json"])["notice"] == "stall-1"


def test_at_a_stall_each_rank_keeps_its_stacks_and_its_collectives(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In one record. The collectives are read last, for torch may hang there."""
    told = Listening(rank=1, keeps=False)
    waits = RecordedCollective("gloo:all_reduce", 6, False, "0 default_pg", "scheduled", 61.0, ((3,),), 1)
    reads: list[list[protocol.Message]] = []

    def read() -> RecordedCollectives:
        reads.append([*told.words])
        return RecordedCollectives((waits,), waits)

    monkeypatch.setattr("spotguard.hooks.control.report.recorded_collectives", read)
    told.report.told(protocol.Preempt("stall-1", 600.0, 0.0, protocol.STALL, "spotguard", drill=True))
    assert reads == []
    stall = PreemptionNotice(["stall-1"], 1600.0, 1600.0, "spotguard", protocol.STALL, drill=True)
    told.report.committed(stall, SAVED)
    assert len(reads) == 1
    ((key, data),) = told.kept.items()
    record = json.loads(data)
    assert key == "run/stalls/0003-01-00001.json"
    assert record["stacks"][0].startswith("MainThread:\n")
    assert (record["phase"], record["where"], record["stood"]) == ("data", "train.py:13 in main", 61.2)
    assert record["collectives"]["waits_in"]["number"] == 6
    assert record["collectives"]["newest"] == [record["collectives"]["waits_in"]]
    line = "training stands still here: it waits in gloo:all_reduce, number 6 of process group 0 default_pg, for 61 s"
    assert line in caplog.messages
