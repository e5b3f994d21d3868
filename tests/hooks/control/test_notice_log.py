"""The log of a notice: one line when a rank learns of it, one when its save has ended, and the rest for debugging."""

from __future__ import annotations

import logging
import re
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from spotguard.hooks.control.callback import NoticeCallback
from spotguard.hooks.control.gate_rule import Shut
from spotguard.hooks.ipc import protocol
from spotguard.hooks.ipc.protocol import PEER
from spotguard.providers.errors import FullError
from spotguard.testing import preempt
from tests.fakes.agent import FakeAgent
from tests.fakes.noticed import Heard, notice, trained
from tests.fakes.store import Fault
from tests.fakes.training import guarded, small, step_on
from tests.fakes.two_guards import on_all, two_guards
from tests.fakes.watched_store import WatchedStore
from tests.hooks.ranks.gang import until

pytestmark = pytest.mark.torch

LEARNS = "terminate notice from test: 60 s left, saving at step 2"
COMMITTED = (
    r"step 2 is committed: [0-9]+ bytes in [0-9.]+ s, level full, at \S+/run/checkpoints/000000002-0001-0000/"
)


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """The level and text of each line from INFO on, with whole seconds left: a busy machine takes some tenths."""

    def rounded(left: re.Match[str]) -> str:
        return f"{float(left[1]):.0f} s left"

    return [
        (each.levelname, re.sub(r"([0-9.]+) s left", rounded, each.getMessage()))
        for each in caplog.records
        if each.name == "spotguard" and each.levelno >= logging.INFO
    ]


@pytest.mark.parametrize("drill", [False, True])
def test_a_notice_is_two_lines(drill: bool, caplog: pytest.LogCaptureFixture) -> None:
    """A drill that has committed is no warning either. The line of its end is for debugging."""
    with trained(WatchedStore()) as (guard, job, heard):
        caplog.set_level(logging.DEBUG, "spotguard")
        caplog.clear()
        guard._agent.hear(notice(drill=drill))
        heard.wait(protocol.Committed)
        guard._agent.hear(notice(drill=drill))  # an agent that lost the connection delivers it again
        guard._agent.hear(protocol.Resume("n1") if drill else protocol.Withdrawn("n1"))
        (first, learns), (last, ends) = lines(caplog)
        over = "the drill is over" if drill else "the notice was withdrawn"
        assert f"training continues: {over}" in caplog.messages
        step_on(guard, job, 2)
    assert (first, last) == ("INFO", "INFO")
    assert learns == LEARNS
    assert re.fullmatch(COMMITTED, ends)


def test_the_next_notice_of_that_id_is_a_new_one(caplog: pytest.LogCaptureFixture) -> None:
    """A cloud may give its drills one id."""
    with trained(WatchedStore()) as (guard, _, heard):
        caplog.set_level(logging.INFO, "spotguard")
        caplog.clear()
        for count in (1, 2):
            guard._agent.hear(notice())
            heard.wait(protocol.Committed, count)
            guard._agent.hear(protocol.Withdrawn("n1"))
    assert [text for _, text in lines(caplog)].count(LEARNS) == 2


def test_why_nothing_is_committed_is_an_error(caplog: pytest.LogCaptureFixture) -> None:
    """Training is lost with the machine: that is for the user to see."""
    store = WatchedStore()
    with trained(store) as (guard, _, heard):
        caplog.set_level(logging.INFO, "spotguard")
        store.faults = [Fault(n, verbs=("put",), error=lambda: FullError("no")) for n in range(1, 20)]
        store.calls.clear()
        caplog.clear()
        guard._agent.hear(notice())
        heard.wait(protocol.Failed)
        found = lines(caplog)
        store.faults = []
    assert found[0] == ("INFO", LEARNS)
    assert ("ERROR", "nothing new is committed: no; there is no checkpoint yet [SG501]") in found


def test_before_training_there_is_nothing_to_lose(caplog: pytest.LogCaptureFixture) -> None:
    with guarded(WatchedStore(), small().values) as guard:
        heard = Heard(guard)
        caplog.set_level(logging.INFO, "spotguard")
        caplog.clear()
        guard._agent.hear(notice())
        heard.wait(protocol.Failed)
        assert lines(caplog) == [
            ("INFO", "terminate notice from test: 60 s left, training has not begun"),
            (
                "INFO",
                "nothing new is committed: training has not begun yet: there is nothing new to save; "
                "there is no checkpoint yet",
            ),
        ]


def test_a_stall_before_training_is_answered_by_each_rank_alone_and_holds_none() -> None:
    """A call to all ranks, for nothing, could be read behind its end: then a sound start stood at the gate for ten minutes."""
    store = WatchedStore()
    with guarded(store, small().values) as guard:
        heard = Heard(guard)
        guard._agent.hear(replace(notice(), kind=protocol.STALL))
        failed = heard.wait(protocol.Failed)
        assert "training has not begun yet" in failed.reason
        assert not guard._saver.has_notice
        assert guard._gate.place.shut is Shut.OPEN
        until(lambda: any("/stalls/" in info.key for info in store.list("")))


def test_a_notice_that_is_withdrawn_before_the_commit_says_that_nothing_is_saved(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = WatchedStore()
    with trained(store) as (guard, _, _):
        caplog.set_level(logging.INFO, "spotguard")
        caplog.clear()
        store.hold(lambda key: True)
        guard._agent.hear(notice())
        assert store.reached.wait(100)
        guard._agent.hear(protocol.Withdrawn("n1"))
        store.let_go()
        assert lines(caplog) == [
            ("INFO", LEARNS),
            ("INFO", "nothing is saved, and training continues: the notice was withdrawn"),
        ]


def test_a_notice_by_hand_is_a_notice(caplog: pytest.LogCaptureFixture) -> None:
    with trained(WatchedStore()) as (guard, _, heard):
        caplog.set_level(logging.INFO, "spotguard")
        caplog.clear()
        preempt(guard, seconds=30)
        heard.wait(protocol.Committed)
        (_, learns), (_, ends) = lines(caplog)
    assert learns == "test notice from spotguard.testing: 30 s left, saving at step 2"
    assert re.fullmatch(COMMITTED, ends)


def test_each_rank_has_its_two_lines(caplog: pytest.LogCaptureFixture) -> None:
    """The rank whose machine goes, and the other one: its agent tells it of the call once more, under an id of its own."""
    store = WatchedStore()
    with two_guards([store, store]) as trainers:
        for _ in range(2):
            on_all(lambda rank: trainers[rank].step())
        caplog.set_level(logging.INFO, "spotguard")
        caplog.clear()
        trainers[0].guard._agent.hear(notice())
        on_all(lambda rank: trainers[rank].heard.wait(protocol.Committed))
        (id,) = [each for each in trainers[1].guard._saver._preemption.ids if each.startswith("n1@")]  # type: ignore[union-attr]
        trainers[1].guard._agent.hear(protocol.Preempt(f"peer {id}", 600.0, 60.0, PEER, "test", False))
        found = lines(caplog)
        trainers[0].guard._agent.hear(protocol.Withdrawn("n1"))
    assert {level for level, _ in found} == {"INFO"}
    texts = [text for _, text in found]
    assert texts.count(LEARNS) == 1
    assert (
        sum(
            text.startswith("notice on another machine from test: 590 s left, saving at step 2")
            for text in texts
        )
        == 1
    )
    assert sum(text.startswith("step 2 is committed: ") for text in texts) == 2
    assert len(texts) == 4


def test_on_notice_has_its_two_lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "spotguard")
    with tempfile.TemporaryDirectory(prefix="sg", dir="/tmp") as folder:  # a socket's path must be short
        path = Path(folder, "a.sock")
        with FakeAgent(path) as agent:
            callback = NoticeCallback(lambda notice: None, str(path))
            try:
                agent.welcome()
                agent.say(notice())
                agent.hear(protocol.Committed)
            finally:
                callback.close()
    (first, learns), (last, ends) = lines(caplog)
    assert (first, last) == ("INFO", "INFO")
    assert learns == "terminate notice from test: 60 s left, calling the function passed to on_notice"
    assert re.fullmatch(r"the function passed to on_notice returned after [0-9.]+ s", ends)
