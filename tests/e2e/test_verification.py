"""`--verify-every` in a whole run: damage in the store is found while training, and a notice ends the reading."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import pytest

from spotguard.agent.process import proctree
from tests.e2e.processes import eventually
from tests.e2e.trainee import Trainee

#: In the fast tier `tests/agent/core/failures` has the schedule, and `tests/agent/process/helpers` the process that reads.
pytestmark = [pytest.mark.torch, pytest.mark.wholepath, pytest.mark.slow]

#: Two seconds, in hours.
OFTEN = "--verify-every 0.0005"


def _readers() -> list[int]:
    """The verifications of this machine that run now."""
    found = []
    for pid in proctree.pids():
        with contextlib.suppress(OSError):
            if b"verify\0--background" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


def test_damage_is_found_while_training_and_the_next_checkpoint_is_whole(trainee: Trainee) -> None:
    machine = trainee.machine
    running = trainee.guarded(f"--every 3600 {OFTEN}")
    trainee.begun(running)
    running.say("go 3")
    trainee.stepped(running, 3)
    running.say("save")
    running.err.until("the checkpoint of step 3 was read again: every checksum agrees")
    damaged = next(machine.store.rglob("*.safetensors"))
    data = bytearray(damaged.read_bytes())
    data[-1] ^= 1
    damaged.write_bytes(data)
    running.err.until(
        r"ERROR: checkpoint 000000003-\S+ of run job in .* is DAMAGED: .*CRC32 differs.*\[SG508\]"
    )
    assert machine.status()["verification"]["status"] == "damaged"
    running.say("go 2")
    # The rank's line may come before its agent's.
    asked = "spotguard makes a background checkpoint at the next step: checkpoint 000000003-"
    eventually(lambda: asked in running.err.text, "the rank says what it does")
    running.err.until("the checkpoint of step 4 was read again: every checksum agrees")
    assert damaged.read_bytes() == bytes(data), "nothing is deleted"
    running.say("free")
    trainee.finished(running)
    assert running.ended() == 0
    assert not _ours(running.pid)


def test_a_notice_ends_a_verification_that_runs(trainee: Trainee) -> None:
    running = trainee.guarded(f"--every off {OFTEN}")
    trainee.begun(running)
    running.say("go 3")
    trainee.stepped(running, 3)
    running.say("save")
    held: list[int] = []

    def holds_one() -> bool:
        """Stop one in the middle, as a store that hangs would."""
        for pid in _ours(running.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
                held.append(pid)
        return bool(held)

    eventually(holds_one, "a verification")
    running.send(signal.SIGTERM)
    assert running.ended() == 75
    assert not any(Path(f"/proc/{pid}").exists() for pid in held)
    assert not _ours(running.pid)


def _ours(agent: int) -> list[int]:
    return [pid for pid in _readers() if _parent(pid) == agent]


def _parent(pid: int) -> int:
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[1])
    return 0
