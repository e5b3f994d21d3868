"""One of two replicas below torchrun is killed, and torchrun ends the other one, which saves first: with the real agent, the
outcome of a notice that no cloud sent."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.harness import Machine
from tests.e2e.processes import Running

pytestmark = [pytest.mark.torch, pytest.mark.wholepath]

KILLED = str(Path(__file__).parent / "programs" / "killed.py")
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
#: Steps of the program, the one behind which rank 1 dies, and what is said of that.
STEPS, DIES = 6, 4
LATE = "no answer in time from rank {} of 2"


def life(machine: Machine, *words: int, options: str = "") -> Running:
    return machine.run(f"--every off {options}", *TORCHRUN, KILLED, *map(str, words))


def crashed(machine: Machine, saved: int, victim: int = 1) -> dict[str, Any]:
    """One line in the log and one record beside the socket, which is returned; it agrees with the one in the store."""
    pytest.importorskip("torch")
    run = life(machine, STEPS, saved, DIES, victim)
    line = run.err.until(r"WARNING: (launcher notice from SIGTERM: COMMITTED .*)$")[1]
    assert run.ended() == 1  # torchrun's own
    assert run.err.to_the_end().count("launcher notice from SIGTERM: COMMITTED") == 1
    assert len(machine.socket().with_suffix(".outcomes.jsonl").read_text().splitlines()) == 1
    outcome, (kept,) = machine.outcome(), machine.outcomes_in_store()
    assert (outcome["kind"], outcome["line"], outcome["code"]) == ("launcher", line, None)
    assert (kept["step"], kept["level"], kept["reason"]) == (DIES, outcome["level"], outcome["less"])
    assert (kept["committed"], outcome["step"]) == (True, DIES)
    return outcome


def listed(machine: Machine) -> list[tuple[int, str, list[int]]]:
    asked = machine.spotguard("ls", machine.url, "--json")
    assert asked.ended() == 0
    found = json.loads(asked.out.to_the_end())["checkpoints"]
    return [(each["step"], each["level"], each["missing"]) for each in found]


@pytest.mark.slow  # `tests/hooks/ranks` has it without launcher and agent
def test_the_others_save_what_a_dead_rank_had_too_and_the_next_start_says_what_it_lacks(
    machine: Machine,
) -> None:
    outcome = crashed(machine, 2)
    assert outcome["level"] == "partial-extras"
    assert outcome["less"].startswith(f"{LATE.format(1)}: its extras are missing")
    assert re.search(
        rf"COMMITTED .* in {outcome['committed']:.2f} s .*, as partial-extras, ", outcome["line"]
    )
    assert listed(machine) == [(DIES, "partial-extras", [1]), (2, "full", [])]

    again = life(machine, STEPS, options="--extras-worth 1")
    said = {again.out.until("^(rank [01] at step .*)$")[1] for _ in range(2)}
    assert said == {f"rank {rank} at step {DIES}: whose 0, drawn {DIES}" for rank in range(2)}
    assert again.ended() == 0
    errors = again.err.to_the_end()
    assert "rank 1 resumes with rank 0's mine: its own were not saved" in errors
    assert "rank 1 was gone when the other ranks saved: its own rng is lost" in errors


@pytest.mark.slow
def test_the_first_rank_is_lost_as_any_other_is(machine: Machine) -> None:
    """It served the job's store."""
    outcome = crashed(machine, 2, victim=0)
    assert outcome["level"] == "partial-extras"
    assert outcome["less"].startswith(f"{LATE.format(0)}: its extras are missing")
    assert listed(machine) == [(DIES, "partial-extras", [0]), (2, "full", [])]
    again = life(machine, STEPS, options="--extras-worth 1")
    said = {again.out.until("^(rank [01] at step .*)$")[1] for _ in range(2)}
    assert said == {f"rank {rank} at step {DIES}: whose 1, drawn {DIES}" for rank in range(2)}
    assert again.ended() == 0


@pytest.mark.soak  # `tests/hooks/ranks` has it without launcher and agent
def test_a_complete_checkpoint_of_the_same_step_stands(machine: Machine) -> None:
    """Nothing is saved, and the outcome says so."""
    outcome = crashed(machine, DIES)
    stands = f"{LATE.format(1)}, and the complete checkpoint of step {DIES} is as new"
    assert (outcome["level"], outcome["less"]) == ("full", stands)
    assert stands in outcome["line"]
    assert listed(machine) == [(DIES, "full", [])]
