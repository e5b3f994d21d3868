"""Each cause is one incident, which ends when the cause does."""

from __future__ import annotations

import math
from typing import Any

import pytest

from spotguard.alerts.incidents import KINDS, Incidents

FAILURE = {"class": "data", "text": "rank 0: bad sample", "run_id": "gpt", "rank": 0}
STALL = {"text": "rank 0 in data", "run_id": "gpt", "rank": 0}
BLIND = {"source": "aws spot", "text": "blind (timeout): no answer in 2 s"}
XID = {"kind": "xid", "xid": 79, "scope": "machine", "text": "NVRM: Xid", "gpu": "3b", "run_id": "gpt"}


class Book:
    """The incidents, and a clock that the test moves."""

    def __init__(self) -> None:
        self.incidents, self.now = Incidents(), 1000.0

    def take(self, event: str, **facts: Any) -> list[str]:
        """Return what begins and ends by an event."""
        return [_shown(each) for each in self.incidents.take(event, facts, self.now)]

    def after(self, seconds: float) -> list[str]:
        self.now += seconds
        return [_shown(each) for each in self.incidents.tick(self.now)]

    @property
    def open(self) -> list[str]:
        return [each.name for each in self.incidents.open]


def _shown(incident: Any) -> str:
    return f"{incident.name} {'begins' if incident.ended is None else 'ends'}"


@pytest.fixture
def book() -> Book:
    return Book()


def test_a_failure_begins_at_once_each_time_and_ends_when_its_run_trains(book: Book) -> None:
    assert book.take("failure", **FAILURE) == ["failure begins"]
    (failure,) = book.incidents.open
    assert (failure.severity, failure.summary) == ("critical", "training failed (data): rank 0: bad sample")
    assert failure.labels == (("run_id", "gpt"), ("rank", "0"), ("class", "data"))
    assert book.take("failure", **FAILURE) == ["failure begins"]
    assert book.take("training", run_id="other") == []
    assert book.take("training", run_id="gpt") == ["failure ends"]
    assert book.open == []


def test_an_incident_that_nothing_ends_is_over_after_an_hour(book: Book) -> None:
    book.take("failure", **FAILURE)
    assert book.after(3599.0) == []
    assert book.after(1.0) == ["failure ends"]


@pytest.mark.parametrize("event", ["moving", "training", "launch", "gone", "failure"])
def test_a_stall_lasts_until_its_run_moves_begins_anew_fails_or_is_gone(book: Book, event: str) -> None:
    assert book.take("stall", **STALL) == ["stall begins"]
    assert book.take("stall", **STALL) == []
    assert book.after(1e6) == []
    if event != "launch":  # the start of a command is one of all its runs
        assert "stall ends" not in book.take(event, run_id="other")
    assert "stall ends" in book.take(event, run_id="gpt")
    assert "stall" not in book.open


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"failed": True, "drill": False}, ["steps-lost begins"]),
        ({"failed": True, "drill": True}, []),
        ({"failed": False, "drill": False}, []),
    ],
)
def test_an_outcome_is_an_incident_if_a_real_preemption_lost_steps(
    book: Book, facts: dict[str, bool], expected: list[str]
) -> None:
    assert book.take("outcome", run_id="gpt", line="step 4 is lost", **facts) == expected


def test_a_source_is_blind_after_two_minutes_without_sight(book: Book) -> None:
    assert book.take("blind", **BLIND) == []
    assert book.after(119.0) == []
    assert book.take("blind", **BLIND, detail="another detail of the same blindness") == []
    assert book.after(1.0) == ["blind begins"]
    (blind,) = book.incidents.open
    assert blind.began == 1000.0
    assert blind.summary == "notices cannot be seen: aws spot is blind (timeout): no answer in 2 s"
    assert book.take("blind", source="another", over=True) == []
    assert book.take("blind", source="aws spot", over=True) == ["blind ends"]


def test_a_source_that_sees_in_time_was_no_incident(book: Book) -> None:
    for _ in range(10):
        book.take("blind", **BLIND)
        assert book.after(100.0) == []
        assert book.take("blind", source="aws spot", over=True) == []
    assert book.after(1000.0) == []


@pytest.mark.parametrize("end", ["over", "launch", "gone"])
def test_failing_checkpoints_last_until_one_is_committed_or_the_process_ends(book: Book, end: str) -> None:
    facts = {"run_id": "gpt", "rank": 1}
    assert book.take("checkpoints-failing", **facts, text="403") == ["checkpoints-failing begins"]
    assert book.incidents.open[0].summary == "background checkpoints of run gpt, rank 1 fail: 403"
    ended = (
        book.take("checkpoints-failing", **facts, over=True)
        if end == "over"
        else book.take(end, run_id="gpt")
    )
    assert ended == ["checkpoints-failing ends"]


def test_another_rank_that_trains_again_ends_no_failing_checkpoints(book: Book) -> None:
    book.take("checkpoints-failing", run_id="gpt", rank=0, text="403")
    assert book.take("training", run_id="gpt", rank=1) == []


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("xid", "gpu-error"),
        ("disk", "hardware-error"),
        ("machine-check", "hardware-error"),
        ("oom", "memory-kill"),
    ],
)
def test_a_line_that_the_kernel_repeats_is_one_incident(book: Book, kind: str, name: str) -> None:
    facts = {**XID, "kind": kind}
    assert book.take("kernel", **facts) == [f"{name} begins"]
    book.after(299.0)
    assert book.take("kernel", **facts) == []
    book.after(2.0)
    assert book.take("kernel", **facts) == [f"{name} begins"]


def test_a_cause_that_comes_again_lasts_from_then_on(book: Book) -> None:
    book.take("gpu-memory-error", gpu="0", rise=1)
    book.after(3000.0)
    assert book.take("gpu-memory-error", gpu="0", rise=2) == []
    assert book.after(3599.0) == []
    assert book.after(1.0) == ["gpu-memory-error ends"]


def test_a_full_disk_begins_after_a_minute_and_ends_with_room(book: Book) -> None:
    full = {"place": "stage", "free": "1.0%", "over": False}
    assert book.take("disk-full", **full) == []
    assert book.after(60.0) == ["disk-full begins"]
    assert book.incidents.open[0].summary == "the disk of the stage is nearly full: 1.0% is free"
    assert book.take("disk-full", **{**full, "over": True}) == ["disk-full ends"]


def test_the_end_of_the_agent_ends_what_nobody_watches_any_more(book: Book) -> None:
    book.take("failure", **FAILURE)
    book.take("gpu-lost", gpu="0", over=False)
    book.take("checkpoints-failing", run_id="gpt", rank=0, text="403")
    assert [_shown(each) for each in book.incidents.close(book.now)] == [
        "gpu-lost ends",
        "checkpoints-failing ends",
    ]
    assert book.open == ["failure"]


def test_an_event_that_is_no_incident_begins_none(book: Book) -> None:
    for event in ("training", "moving", "launch", "gone", "news", "kernel"):
        assert book.take(event, run_id="gpt") == []


def test_a_fact_that_is_not_known_is_a_question_mark(book: Book) -> None:
    book.take("failure", run_id="gpt")
    assert book.incidents.open[0].summary == "training failed (?): ?"


def test_a_flood_of_causes_is_followed_up_to_a_bound(book: Book) -> None:
    for number in range(1000):
        book.take("stall", run_id="gpt", rank=number)
    assert len(book.open) == 500


@pytest.mark.parametrize("name", KINDS)
def test_an_incident_without_a_limit_has_a_cause_whose_end_is_seen(name: str, book: Book) -> None:
    kind = KINDS[name]
    if kind.lasts == math.inf:
        book.take(name, run_id="gpt")
        book.after(kind.after)
        assert book.open == [name]
        ended = book.take(kind.ended_by[0] if kind.ended_by else name, run_id="gpt", over=True)
        assert ended == [f"{name} ends"]
