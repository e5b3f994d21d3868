"""`drill` and `status` on a job that trains: a real save, and training goes on as if nothing had been."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.e2e.harness import Machine
from tests.e2e.processes import Running
from tests.e2e.trainee import Trainee

pytestmark = pytest.mark.wholepath


def answers(machine: Machine, *words: str) -> tuple[int, list[dict[str, Any]]]:
    """What a command with --json says: one document, or one in each line."""
    asked: Running = machine.spotguard(*words, "--json")
    code = asked.ended()
    said = asked.out.to_the_end()
    assert asked.err.to_the_end() == ""
    return code, [json.loads(said)] if words[0] == "status" else [json.loads(x) for x in said.splitlines()]


@pytest.mark.torch
def test_a_drill_saves_and_training_goes_on_bit_for_bit(trainee: Trainee) -> None:
    """Its checkpoint is real, the job is not ended; with --preempt it is."""
    machine = trainee.machine
    running = trainee.guarded()
    trainee.begun(running)
    running.say("go 3")
    trainee.stepped(running, 3)

    code, said = answers(machine, "drill", "--window", "60")
    assert code == 0
    text = " ".join(body.get("text", "") for body in said)
    assert re.search(r"has the notice.* gate at step 3.* first-byte at step 3.* committed step 3", text)
    outcome = said[-1]["outcome"]
    assert (outcome["drill"], outcome["step"], outcome["ended"]) == (True, 3, "training continues")
    assert machine.committed() == [(1, 3, 0)]
    running.err.until("drill from spotguard drill: COMMITTED")
    assert (
        "no notice source is watched: only SIGTERM and `spotguard drill` trigger a save" in running.err.text
    )
    assert "WARNING" not in running.err.text, "nothing needs attention"
    verdict = said[-1]["verdict"]
    assert (verdict["fits"], verdict["bytes"]) == (True, outcome["bytes"])
    assert verdict["seconds"] == pytest.approx(outcome["committed"], abs=0.02)
    assert verdict["slack_seconds"] == pytest.approx(outcome["slack"] - outcome["reserve"], abs=0.05)

    running.say("go 2")
    trainee.stepped(running, 5)
    code, said = answers(machine, "status", "--run-id", "job")
    assert code == 0
    (agent,) = said[0]["agents"]
    (session,) = agent["sessions"]
    assert (agent["run_id"], agent["phase"], agent["notice"]) == ("job", "watching", None)
    assert agent["window"] == 25, "what a SIGTERM leaves: no cloud, and nobody has said more"
    assert (session["mode"], session["checkpoint_step"], session["saving"]) == ("window", 3, None)
    assert session["step"] in (3, 5), "a commit says it too, or its own word every few seconds"
    assert agent["last_outcome"]["drill"] is True

    preempting = machine.spotguard("drill", "--preempt")
    running.err.until("gate at step 5")
    running.say("free")
    running.out.until("^preempted 75$")
    assert running.ended() == 75
    assert preempting.ended() == 0
    shown = preempting.out.to_the_end()
    assert shown.splitlines()[0] == "preempting run job"
    assert "COMMITTED" in shown
    assert re.match(
        r"verdict: [0-9.]+ KiB in 22.0 s needs .*: fits with [0-9.]+ s to spare$", shown.splitlines()[-1]
    )
    assert machine.committed() == [(1, 3, 0), (1, 5, 1)]


@pytest.mark.slow
@pytest.mark.torch
def test_a_run_goes_on_where_a_drill_to_the_end_has_left_it(trainee: Trainee) -> None:
    first = trainee.guarded()
    trainee.begun(first)
    first.say("go 5")
    trainee.stepped(first, 5)
    preempting = trainee.machine.spotguard("drill", "--preempt")
    first.err.until("gate at step 5")
    first.say("free")
    assert first.ended() == 75
    assert preempting.ended() == 0
    last = trainee.guarded()
    assert trainee.begun(last) == 5
    last.say("free")
    trainee.finished(last)
    assert last.ended() == 0


def test_without_a_guarded_process_status_and_drill_say_so(machine: Machine) -> None:
    """One line and exit code 1: nothing was said wrongly, and nothing could be done."""
    status = machine.spotguard("status")
    assert (status.ended(), status.out.to_the_end().count("\n")) == (1, 1)
    drill = machine.spotguard("drill")
    assert (drill.ended(), drill.err.to_the_end().count("\n")) == (1, 1)


def test_a_command_that_saves_by_itself_at_sigterm_is_rehearsed_to_the_end(machine: Machine) -> None:
    """A plain drill says how, and ends nothing; its own save that ends with 0 is no error."""
    running = machine.run(
        "", "sh", "-c", 'trap "echo saved; exit 0" TERM; echo trains; while :; do read x; done'
    )
    running.out.until("^trains$")
    code, said = answers(machine, "status")
    assert said[0]["agents"][0]["sessions"] == []
    plain = machine.spotguard("drill")
    assert plain.ended() == 1
    assert "spotguard drill --preempt" in plain.err.to_the_end()
    assert running.running

    code, said = answers(machine, "drill", "--preempt")
    assert (code, running.ended()) == (0, 75)
    outcome = said[-1]["outcome"]
    assert (outcome["ended"], outcome["returncode"], outcome["ended_well"]) == ("signalled", 0, True)
    assert running.out.to_the_end().splitlines() == ["trains", "saved"]
    log = running.err.to_the_end()
    assert "the command ended with 0 (no process was registered); signalled, exit code 75" in log
    assert "ERROR" not in log
    assert "NOT COMMITTED" not in log
    assert machine.committed() == []


def test_a_run_that_counts_on_no_warning_is_drilled_for_a_said_one_only(machine: Machine) -> None:
    """30 s that nobody gave it would make a verdict that no notice keeps."""
    running = machine.run("--window 0", "sh", "-c", "read end")
    running.err.until("guarding")
    drill = machine.spotguard("drill")
    assert drill.ended() == 2
    assert "--window 30" in drill.err.to_the_end()
    running.say("end")
    assert running.ended() == 0
