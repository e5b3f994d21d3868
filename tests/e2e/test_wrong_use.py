"""Wrong use, with the real thing: one clear line, the right exit code, and nothing lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from spotguard.providers.simulator.aws.service import AwsSimulator
from tests.e2e.harness import Machine
from tests.e2e.processes import eventually
from tests.e2e.trainee import Trainee
from tests.tiers import few_fast

pytestmark = pytest.mark.wholepath

OBEY = str(Path(__file__).parent / "programs" / "obey.py")


@pytest.mark.parametrize(
    ("words", "named"),
    few_fast(
        [
            (["--store", "ftp://host/x"], "ftp"),
            (["--windw", "5"], "--window"),
            (["--store", "s3//bucket/x"], "s3://"),
            (["--store", "file:///dev/null/checkpoints"], "/dev/null is a file"),
            (["--metadata-endpoint", "nonsense", "--provider", "aws"], "nonsense"),
            (["--window", "soon"], "soon"),
        ],
        2,
    ),
)
def test_a_usage_error_starts_nothing(machine: Machine, words: list[str], named: str) -> None:
    """Exit code 2 and one line that names the value or the way out; the command never ran."""
    marker = machine.folder / "it-ran"
    refused = machine.spotguard("run", *words, "--", "touch", str(marker))
    assert refused.ended() == 2
    (line,) = refused.err.to_the_end().splitlines()
    assert line.startswith("spotguard: error: ")
    assert named in line
    assert not marker.exists()


def test_blindness_is_said_once_and_harms_nothing(machine: Machine, aws: AwsSimulator) -> None:
    """A service that refuses everything: training goes on, the log says it in one line, `status` all the time."""
    aws.fault("403")
    running = machine.run("", sys.executable, OBEY, "USR1=3", aws=aws)
    running.out.until("^ready")
    running.err.until("instance-action: blind")
    aws.stop()  # and now nobody is there at all
    running.err.until("instance-action: blind \\(unreachable\\)")
    eventually(
        lambda: {s["reason"] for s in machine.status()["sources"]} == {"unreachable"}, "blind in status"
    )
    running.send(signal.SIGUSR1)
    assert running.ended() == 3
    said = running.err.to_the_end()
    assert said.count("instance-action: blind (") == 2, said


@pytest.mark.slow
@pytest.mark.torch
def test_a_disk_that_is_full_or_read_only_loses_nothing(trainee: Trainee) -> None:
    """The save that found no room is named in the outcome, a register that could never save fails at once; the
    checkpoint before is what a run with a healthy disk goes on from."""
    machine = trainee.machine
    if os.geteuid() != 0 or subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode:
        pytest.skip("needs root and mount namespaces, to have a small disk: run it as root")
    machine.mount_store("160k")
    first = trainee.guarded()
    trainee.begun(first)
    first.say("go 1")
    trainee.stepped(first, 1)
    first.say("save")
    first.out.until("^saved 1$")
    first.say("go 1")
    trainee.stepped(first, 2)
    full = machine.view(machine.store) / "others-data"
    with pytest.raises(OSError, match="No space left"):
        full.write_bytes(bytes(160 * 1024))
    first.send(signal.SIGTERM)
    assert first.ended() == 75
    outcome = machine.outcome()
    assert outcome["committed"] is None
    assert "No space left on device; free some room there, or use another store" in outcome["why"]
    assert machine.committed() == [(1, 1, 0)]
    full.unlink()

    remount = machine.start("mount", "-o", "remount,ro", str(machine.store))
    assert remount.ended() == 0
    second = trainee.guarded()
    assert second.ended() == 1
    last = second.err.to_the_end().splitlines()
    assert [line for line in last if "Read-only file system; make the directory writable" in line]
    assert not [line for line in last if "hooks/restore/startup.py" in line or "direct cause" in line]
    assert "restored" not in second.out.to_the_end()

    remount = machine.start("mount", "-o", "remount,rw", str(machine.store))
    assert remount.ended() == 0
    third = trainee.guarded()
    assert trainee.begun(third) == 1
    third.say("exit 0")
    assert third.ended() == 0
    assert machine.committed() == [(1, 1, 0)]


@pytest.mark.slow  # `tests/hooks/state` has it without an agent
@pytest.mark.torch
def test_an_object_that_cannot_be_saved_is_named_at_register(trainee: Trainee) -> None:
    """Then, and not at the notice; the store is untouched."""
    code = "import spotguard; spotguard.register(counter=iter([]))"
    running = trainee.machine.run("", sys.executable, "-c", code)
    assert running.ended() == 1
    said = running.err.to_the_end()
    assert "StateError: counter" in said
    assert trainee.machine.committed() == []
