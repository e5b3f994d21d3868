"""What a window is long enough for, and what is left where it is not."""

from __future__ import annotations

import shlex
import signal

import pytest

from tests.e2e.harness import Machine
from tests.e2e.speaker import SPEAKING, saw
from tests.e2e.trainee import Trainee
from tests.tiers import few_fast

pytestmark = pytest.mark.wholepath

SPEAK = shlex.join(SPEAKING)


@pytest.mark.slow
@pytest.mark.torch
def test_a_window_that_is_too_short_leaves_the_last_checkpoint(trainee: Trainee) -> None:
    """A step that does not end, then a store that hangs: the save gives up before the reserve, nothing new is whole,
    the outcome says why, and the run goes on from the checkpoint before."""
    first = trainee.guarded("--every off --window 2 --reserve 1")
    trainee.begun(first)
    first.say("go 2")
    trainee.stepped(first, 2)
    first.say("save")
    first.out.until("^saved 2$")
    first.say("half")
    first.out.until("^half$")
    first.send(signal.SIGTERM)
    assert first.ended() == 75
    outcome = trainee.machine.outcome()
    assert outcome["committed"] is None
    assert outcome["why"] == "out of time: training reached no guard.step() before the deadline [SG502]"
    assert trainee.machine.committed() == [(1, 2, 0)]

    second = trainee.guarded("--every off --window 2 --reserve 1")
    assert trainee.begun(second) == 2
    second.say("go 1")
    trainee.stepped(second, 3)
    second.say("stall 3")
    second.out.until("^doomed$")
    second.send(signal.SIGTERM)
    second.out.until("^doom at")
    assert second.ended() == 75
    outcome = trainee.machine.outcome()
    assert outcome["committed"] is None
    assert outcome["why"].startswith("out of time; ")
    assert trainee.machine.committed() == [(1, 2, 0)]
    assert not list(trainee.machine.store.glob("job/checkpoints/000000003-*/COMMIT.json"))


@pytest.mark.torch
@pytest.mark.parametrize(
    ("word", "ended_by"),
    # The kernel may hand TERM to another thread, which does not wake a main thread that waits: then it is KILL too.
    few_fast([("stick-in-c", (-signal.SIGKILL,)), ("stick", (-signal.SIGTERM, -signal.SIGKILL))]),
)
def test_a_main_thread_that_never_comes_back_loses_no_step(
    trainee: Trainee, word: str, ended_by: tuple[int, ...]
) -> None:
    """It is saved from where it stands, and ended by the agent after the commit: by TERM, or where no handler
    of Python can run, by KILL."""
    running = trainee.guarded("--every off --window 10 --reserve 3")
    trainee.begun(running)
    running.say("go 4")
    trainee.stepped(running, 4)
    running.say(word)
    running.out.until("^stuck$")
    running.send(signal.SIGTERM)
    assert running.ended() == 75
    assert trainee.machine.committed() == [(1, 4, 0)]
    outcome = trainee.machine.outcome()
    assert (outcome["step"], outcome["why"]) == (4, "")
    assert outcome["returncode"] in ended_by


def test_a_process_that_registers_during_a_notice_is_told_at_once(machine: Machine) -> None:
    running = machine.run("--signal none --window 120", "sh", "-c", f"echo ready; read go; exec {SPEAK}")
    running.out.until("^ready$")
    running.send(signal.SIGTERM)
    running.err.until("notice from SIGTERM")
    running.say("go")
    assert saw(running, "preempt")["kind"] == "signal"
    running.say("fail training has not begun yet")
    assert saw(running, "leave")["code"] == 75
    assert running.ended() == 75
    (session,) = machine.outcome()["sessions"]
    assert session["why"] == "training has not begun yet"


@pytest.mark.slow  # `tests/hooks/control/test_agent_session.py` has it without an agent
@pytest.mark.torch
def test_a_process_that_registers_during_a_notice_never_trains(trainee: Trainee) -> None:
    """It parks before its first step, and leaves with 75."""
    train = shlex.join(trainee.command())
    running = trainee.machine.run(
        "--signal none --window 120 --every off", "sh", "-c", f"echo ready; read go; exec {train}"
    )
    running.out.until("^ready$")
    running.send(signal.SIGTERM)
    running.err.until("notice from SIGTERM")
    running.say("go")
    running.say("free")
    running.out.until("^registered")
    assert running.ended() == 75
    assert "step" not in running.out.to_the_end()
    assert trainee.newest() == 0
    assert len(trainee.machine.outcome()["sessions"]) == 1
