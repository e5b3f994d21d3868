"""`doctor` beside a job that trains: it speaks of that job, by its own store, and of whether it would be saved."""

from __future__ import annotations

import json
from typing import Any

import pytest

from spotguard.providers.simulator.aws.service import AwsSimulator
from tests.e2e.harness import Machine
from tests.e2e.processes import eventually
from tests.e2e.speaker import SPEAKING, saw

pytestmark = pytest.mark.wholepath


def asked(machine: Machine, *words: str) -> tuple[int, dict[str, Any]]:
    """The exit code, and each check's last line."""
    doctor = machine.spotguard("doctor", "--json", *words)
    code = doctor.ended()
    assert doctor.err.to_the_end() == ""
    return code, {each["check"]: each for each in json.loads(doctor.out.to_the_end())["checks"]}


def test_a_job_that_fits_and_one_that_does_not(machine: Machine, aws: AwsSimulator) -> None:
    machine.store.mkdir()
    watched = ("--provider", "aws", "--metadata-endpoint", aws.endpoint)
    running = machine.run("", *SPEAKING, aws=aws)
    saw(running, "ready")
    running.say("step 3")
    eventually(lambda: machine.status()["sessions"][0]["step"] == 3, "heard of the step")

    code, said = asked(machine, *watched)
    assert code == 0
    (session,) = machine.status()["sessions"]
    assert said["job"]["bytes"] == session["bytes"] == said["verdict"]["bytes"] > 0
    assert (said["job"]["runs"], said["job"]["step"]) == (["job"], 3)
    assert said["store"]["url"] == machine.url, "nobody said one: it is the job's"
    assert (said["notices"]["sight"], said["agent"]["sessions"]) == ("seeing", 1)
    assert (said["verdict"]["fits"], said["window"]["warning_seconds"]) == (True, 120.0)
    assert "to spare" in said["verdict"]["found"]
    assert not list(machine.store.glob("job/probes")), "nothing of it stays"

    aws.fault("403")
    eventually(lambda: machine.status()["sources"][0]["sight"] == "blind", "blind")
    # And with a warning that is over before a commit can be made.
    code, said = asked(machine, *watched, "--run-id", "job", "--window", "0.001")
    assert code == 1
    assert "--http-endpoint enabled" in said["notices"]["advice"]
    assert "run job is BLIND" in said["agent"]["found"]
    assert (said["verdict"]["state"], said["verdict"]["fits"]) == ("fails", False)
    assert "would be enough" in said["verdict"]["advice"]

    running.say("end")
    assert running.ended() == 0
    assert '"preempt"' not in running.out.to_the_end(), "it was looked at, and not disturbed"
