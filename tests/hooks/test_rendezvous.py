"""What the ranks of a job say of the place where their launchers meet, and who is meant by it."""

from __future__ import annotations

from typing import Any

import pytest

from spotguard.hooks import rendezvous
from spotguard.hooks.format.codec import decode_attempt
from spotguard.hooks.format.keys import attempt_key
from tests.fakes.clock import ManualClock
from tests.fakes.store import FakeStore

MOVED = {rendezvous.VARIABLE: rendezvous.variable("node1:29400", "10.0.0.2:29400")}


def test_the_record_of_an_attempt_says_where_it_met_and_a_launcher_goes_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("torch")
    from spotguard.hooks.beginning import Beginning

    store = FakeStore()
    beginning = Beginning(store, "run", ManualClock(), None)
    for attempt, env in enumerate((MOVED, {}), start=1):
        monkeypatch.delenv(rendezvous.VARIABLE, raising=False)
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        assert beginning.claim() == attempt
    first, second = (decode_attempt(store.objects[attempt_key("run", number)], "k") for number in (1, 2))
    assert first.info["meeting"] == {"instead_of": "node1:29400", "at": "10.0.0.2:29400"}
    assert rendezvous.moved_to(first.info, "node1:29400") == "10.0.0.2:29400"
    assert "meeting" not in second.info
    assert rendezvous.moved_to(second.info, "node1:29400") == ""


@pytest.mark.parametrize(
    "meeting",
    [
        None,
        "10.0.0.2:29400",
        {},
        {"instead_of": "node9:29400", "at": "10.0.0.2:29400"},  # of those who were told another place
        {"instead_of": "node1:29400"},
        {"instead_of": "node1:29400", "at": 7},
        {"instead_of": "node1:29400", "at": "node1:29400"},
        {"instead_of": "node1:29400", "at": "--rdzv-id=other"},  # it would be an option
        {"instead_of": "node1:29400", "at": "node2:29400 x"},
        {"instead_of": "node1:29400", "at": "n" * 300},
    ],
)
def test_what_says_nothing_for_us_moves_nobody(meeting: Any) -> None:
    assert rendezvous.moved_to({"meeting": meeting}, "node1:29400") == ""


def test_who_goes_is_also_the_place_that_we_were_told_if_we_meet_there_instead() -> None:
    """`run` moves what its command says."""
    assert rendezvous.also_called(("Node2", "10.0.0.2"), MOVED) == ("Node2", "10.0.0.2", "node1")
    assert rendezvous.also_called(("node3", "10.0.0.3"), MOVED) == ("node3", "10.0.0.3")
    assert rendezvous.also_called(("node2", "10.0.0.2"), {}) == ("node2", "10.0.0.2")
