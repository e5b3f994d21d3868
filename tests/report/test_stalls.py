"""The stacks of a stall: equal ranks together, and who waits for whom. The store may hold anything."""

from __future__ import annotations

import json
from typing import Any

import pytest

from spotguard.hooks.checkpoint.format.keys import dismissed_key, held_stacks_key, stacks_key
from spotguard.report.facts import StallFact
from spotguard.report.page import page
from spotguard.report.reckoning import reckon
from spotguard.report.stalls import READ, RankStacks, stall_fact
from spotguard.report.summary import as_json
from tests.report.kept import Kept
from tests.report.test_page import EVIL, Balanced

WAITS = [
    "MainThread:\n  /u/train.py:31 in main\n  /torch/distributed_c10d.py:9 in all_reduce",
    "other:\n  /x.py:1 in f",
]
READS = ["MainThread:\n  /u/train.py:13 in main\n  /u/data.py:6 in __getitem__"]


def collectives(number: int, *, inside: bool, group: str = "0 default_pg") -> dict[str, Any]:
    entry = {"name": "nccl:all_reduce", "number": number, "p2p": False, "group": group}
    return {"waits_in": entry if inside else None, "newest": [entry]}


def rank(number: int, stacks: list[str] = WAITS, phase: str = "collective", **facts: Any) -> RankStacks:
    return RankStacks.of(number, {"stacks": stacks, "phase": phase, "where": "train.py:31 in main", **facts})


def fact_of(*ranks: RankStacks, world: int | None = None) -> StallFact:
    return stall_fact(ranks, [each.rank for each in ranks], world or len(ranks))


def test_ranks_with_equal_stacks_are_one_group_and_the_cause_comes_first() -> None:
    """Threads beside the training thread stand anywhere, and make no group of their own."""
    ranks = [
        rank(0, collectives=collectives(7, inside=True)),
        rank(1, [WAITS[0], "other:\n  /x.py:2 in f"], collectives=collectives(7, inside=True)),
        rank(2, collectives=collectives(7, inside=True)),
        rank(3, READS, "data", where="train.py:13 in main", collectives=collectives(6, inside=False)),
        rank(5, collectives=collectives(7, inside=True)),
    ]
    found = stall_fact(ranks, [0, 1, 2, 3, 5], 6)
    assert found.culprit == "rank 3 in data at train.py:13 in main"
    place = "nccl:all_reduce, number 7 of process group 0 default_pg"
    assert found.waits == f"ranks 0-2, 5 wait in {place}, for rank 3"
    first, second = found.groups
    assert (first.ranks, first.count, first.stacks) == ("3", 1, tuple(READS))
    assert first.note == f"waits in no collective; its last one was {place.replace('7', '6')}"
    assert (second.ranks, second.count, second.stacks) == ("0-2, 5", 4, tuple(WAITS))
    assert second.note == f"waits in {place}"


@pytest.mark.parametrize(
    ("ranks", "culprit", "waits"),
    [
        pytest.param([rank(0), rank(1)], "", "", id="all wait, and nothing tells them apart"),
        pytest.param(
            [rank(0), rank(1, phase="data"), rank(2, by="agent", phase="")],
            "rank 2 in native code at train.py:31 in main",
            "rank 0 waits for rank 2",
            id="native code",
        ),
        pytest.param(
            [rank(each, collectives=collectives(4 + (each != 1), inside=True)) for each in range(3)],
            "rank 1 in collective at train.py:31 in main",
            "ranks 0, 2 wait in nccl:all_reduce, number 5 of process group 0 default_pg, for rank 1",
            id="a collective behind",
        ),
        pytest.param(
            [rank(each, collectives=collectives(each, inside=True, group=str(each))) for each in range(2)],
            "",
            "",
            id="numbers of different groups",
        ),
        pytest.param(
            [rank(0, phase="data", stood=90.0), rank(1, phase="forward", stood=60.0)],
            "rank 0 in data at train.py:31 in main",
            "",
            id="the one that stands longest",
        ),
        pytest.param(
            [rank(0, phase="ranks", stood=90.0), rank(1, phase="start", stood=60.0)],
            "rank 1 in start at train.py:31 in main",
            "rank 0 waits for rank 1",
            id="a start, and a rank that waits for it",
        ),
        pytest.param(
            [rank(0, phase="backward")], "rank 0 in backward at train.py:31 in main", "", id="the only rank"
        ),
        pytest.param([rank(0, phase="")], "rank 0 at train.py:31 in main", "", id="no phase"),
        pytest.param([rank(0, phase="data"), rank(1, phase="data")], "", "", id="all stand in the data"),
        pytest.param([rank(0, phase="data")], "rank 0 in data at train.py:31 in main", "", id="one alone"),
    ],
)
def test_the_cause_is_what_the_records_tell_and_no_more(
    ranks: list[RankStacks], culprit: str, waits: str
) -> None:
    found = fact_of(*ranks)
    assert (found.culprit, found.waits) == (culprit, waits)


def test_ranks_without_a_record_are_the_cause_if_all_others_wait() -> None:
    found = fact_of(rank(0), rank(3), world=4)
    assert found.culprit == "ranks 1-2, without a record of stacks"
    assert found.waits == "ranks 0, 3 wait for ranks 1-2"


def test_a_thousand_different_ranks_fit_on_a_page() -> None:
    ranks = [
        rank(each, ["MainThread:\n" + "  /deep.py:1 in f\n" * 5000 + f"  /train.py:{each} in g"])
        for each in range(1024)
    ]
    found = fact_of(*ranks)
    assert (len(found.groups), found.more, found.more_ranks) == (12, 1012, "12-1023")
    assert sum(len(text) for group in found.groups for text in group.stacks) < 100_000
    assert found.groups[0].stacks[0].startswith("MainThread:\n  …\n  /deep.py")


def test_each_stall_has_its_own_ranks_stacks_on_the_page_and_in_json() -> None:
    """By the store's clock, because each rank counts its own stalls. Everything is escaped."""
    kept = Kept()
    kept.claim()
    for number, at in ((1, 1100.0), (2, 1300.0)):
        kept.at(at).outcome(number=number, kind="stall", notice={"source": "spotguard", "drill": True})
    evil = {
        "stacks": [EVIL, 7, f"x:\n{EVIL}"],
        "phase": EVIL,
        "where": EVIL,
        "collectives": {"newest": [EVIL]},
    }
    kept.at(1101.0).put(stacks_key("run", 1, 1, 0), evil)
    kept.at(1301.0).put(
        stacks_key("run", 1, 1, 1), {"stacks": READS, "phase": "data", "where": "t.py:1 in f"}
    )
    kept.put(
        held_stacks_key("run", 1, 0, 1301.0), {"by": "agent", "stacks": [], "why": "py-spy is not installed"}
    )
    kept.put(stacks_key("run", 1, 9, 7), "[]")
    facts = kept.read()
    report = reckon(facts)
    first, second = (each.stall for each in report.alarms)
    assert first is not None
    assert second is not None
    assert (first.read, second.ranks, second.culprit) == (1, 3, "rank 0 in native code")
    text = page(report, facts)
    read = Balanced(text)
    assert "<script" not in text
    assert "<img" not in text
    assert EVIL in "".join(read.words)
    words = " ".join("".join(read.words).split())
    assert "rank 0: no Python runs there; py-spy is not installed" in words
    assert "rank 1: in data at t.py:1 in f" in words
    assert "/u/data.py:6 in __getitem__" in words
    alarms = json.loads(json.dumps(as_json(report)))["alarms"]
    assert [each["ranks"] for each in alarms[1]["stall"]["groups"]] == ["0", "1", "7"]


def test_stacks_of_a_stall_without_a_save_are_a_stall_that_can_be_dismissed() -> None:
    kept = Kept()
    kept.claim()
    kept.at(1200.0).put(held_stacks_key("run", 1, 0, 1200.0), {"by": "agent", "stacks": READS})
    (alarm,) = reckon(kept.read()).alarms
    assert (alarm.id, alarm.dismissed, alarm.at) == ("stall-0001-00", False, 1200.0)
    kept.put(dismissed_key("run", alarm.id), {})
    (alarm,) = reckon(kept.read()).alarms
    assert alarm.dismissed
    assert alarm.stall is not None


@pytest.mark.parametrize("first", [True, False])
def test_stacks_of_a_stall_whose_outcome_is_missing_are_not_those_of_another(first: bool) -> None:
    """Rank 0 was killed before it wrote the outcome. The other stall is an alarm of its own, which can be dismissed."""
    kept = Kept()
    kept.claim()
    kept.at(1100.0 if first else 1900.0).outcome(kind="stall", notice={"source": "spotguard", "drill": True})
    for number, (at, place) in enumerate(((1101.0, "a.py:1"), (1901.0, "b.py:2")), 1):
        for each in range(2):
            facts = {"stacks": [f"MainThread:\n  {place} in f"], "phase": "data", "where": place}
            kept.at(at).put(stacks_key("run", 1, number, each), facts)
    kept.put(held_stacks_key("run", 1, 1, 1902.0), {"by": "agent", "stacks": READS})
    early, late = reckon(kept.read()).alarms
    assert early.stall is not None
    assert late.stall is not None
    assert [each.where for each in early.stall.groups] == ["a.py:1"]
    assert late.stall.ranks == 2
    assert {each.where for each in late.stall.groups} >= {"b.py:2"}
    missing = late if first else early
    assert missing.id == "stall-0001-00"
    kept.put(dismissed_key("run", missing.id), {})
    assert [each.dismissed for each in reckon(kept.read()).alarms] == [not first, first]


@pytest.mark.parametrize("committed", [True, False])
def test_stacks_from_the_begin_of_a_long_save_are_not_those_of_the_stall_before(committed: bool) -> None:
    """The agent reads a rank in native code as the stall begins, and the ranks write theirs after its save."""
    kept = Kept()
    kept.claim()
    for number, began, ended in ((1, 1092.0, 1100.0), (2, 1180.0, 1480.0)):
        notice = {"source": "spotguard", "drill": True}
        facts: dict[str, Any] = {
            "committed": committed,
            "seconds": ended - began,
            "seconds_to_commit": ended - began,
        }
        kept.at(ended).outcome(number=number, kind="stall", notice=notice, **facts)
        kept.at(ended + 1).put(stacks_key("run", 1, number, 0), {"stacks": WAITS, "phase": "collective"})
    for rank, at in ((1, 1093.0), (2, 1101.0), (2, 1182.0), (3, 1190.0)):
        kept.at(at).put(held_stacks_key("run", 1, rank, at), {"by": "agent", "stacks": READS})
    first, second = (each.stall for each in reckon(kept.read()).alarms)
    assert first is not None
    assert second is not None
    assert (first.culprit, second.culprit) == ("ranks 1-2 in native code", "ranks 2-3 in native code")


def test_the_stacks_of_very_many_ranks_are_not_all_read() -> None:
    kept = Kept()
    kept.claim()
    kept.at(1100.0).outcome(kind="stall", notice={"source": "spotguard", "drill": True})
    for each in range(READ + 50):
        kept.put(stacks_key("run", 1, 1, each), {"stacks": READS, "phase": "data"})
    (alarm,) = reckon(kept.read()).alarms
    assert alarm.stall is not None
    assert (alarm.stall.read, alarm.stall.ranks) == (READ, READ + 50)
    assert alarm.stall.groups[0].ranks == f"0-{READ - 1}"
