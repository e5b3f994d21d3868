"""`spotguard run --store s3://…`, and the two other clouds: taken back, run again, and nothing is lost."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.clouds import CLOUDS, Day, InCloud, begin_day
from tests.e2e.harness import Machine
from tests.e2e.trainee import Trainee
from tests.fixtures_servers import FaultsBefore

pytestmark = [pytest.mark.torch, pytest.mark.wholepath]


@pytest.fixture(params=CLOUDS)
def day(request: pytest.FixtureRequest, faults_before: FaultsBefore) -> Day:
    return begin_day(request.param, request, faults_before)


@pytest.fixture
def machine(tmp_path: Path, day: Day) -> Iterator[Machine]:
    made = InCloud(tmp_path, day)
    yield made
    made.close()


def test_a_run_that_is_taken_back_ends_with_75_and_goes_on(trainee: Trainee, day: Day) -> None:
    machine = trainee.machine
    running = trainee.guarded("--every off --window 120")
    assert trainee.begun(running) == 0
    running.say("go 5")
    trainee.stepped(running, 5)
    running.send(signal.SIGTERM)
    assert running.ended() == 75
    assert machine.committed() == [(1, 5, 0)]
    (session,) = machine.outcome()["sessions"]
    assert session["url"] == f"{day.url}/job/checkpoints/000000005-0001-0000/"

    again = trainee.guarded()
    assert trainee.begun(again) == 5
    again.say("free")
    trainee.finished(again)
    assert again.ended() == 0


@pytest.mark.slow  # `test_bad_days` has it without an agent
def test_a_run_whose_bucket_is_not_there_does_not_begin(trainee: Trainee, day: Day) -> None:
    """The script's error is the SDK's, in our words, and the code is the script's own."""
    day.remove()
    running = trainee.guarded()
    assert running.ended() == 1
    what = "container" if day.url.startswith("az:") else "bucket"
    assert f"there is no such {what}" in running.err.to_the_end()
    assert "restored" not in running.out.text
