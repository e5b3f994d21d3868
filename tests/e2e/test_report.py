"""The report of a real run of three lives: preempted by a notice, ended by an error, finished."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from spotguard.providers.simulator.aws.service import AwsSimulator
from tests.e2e.trainee import Trainee

pytestmark = [pytest.mark.torch, pytest.mark.wholepath, pytest.mark.slow]


def asked(trainee: Trainee, *words: str) -> dict[str, Any]:
    running = trainee.machine.spotguard(*words, "--json")
    assert running.ended() == 0
    body: dict[str, Any] = json.loads(running.out.to_the_end())
    return body


def test_the_figures_of_three_lives_are_what_happened(
    trainee: Trainee, aws: AwsSimulator, tmp_path: Path
) -> None:
    machine = trainee.machine
    began = time.time()
    first = trainee.guarded(aws=aws)
    trainee.begun(first)
    first.say("go 5")
    trainee.stepped(first, 5)
    first.say("save")
    first.out.until("^saved 5$")
    first.say("go 4")
    trainee.stepped(first, 9)
    aws.preempt(120)
    first.err.until("gate at step 9")
    first.say("free")
    first.out.until("^preempted 75$")
    assert first.ended() == 75

    second = trainee.guarded()
    assert trainee.begun(second) == 9
    second.say("go 2")
    trainee.stepped(second, 11)
    second.say("save")
    second.out.until("^saved 11$")
    second.say("go 3")
    trainee.stepped(second, 14)
    second.say("half")  # so that the error costs the steps since the save
    second.out.until("^half$")
    second.say("fail boom <b>")
    assert second.ended() == 1

    third = trainee.guarded(SAVES_ITS_END="1")
    assert trainee.begun(third) == 11
    third.say("free")
    trainee.finished(third)
    assert third.ended() == 0
    took = time.time() - began

    body = asked(trainee, "report", machine.url, "--price", "3600")
    assert (body["run_id"], body["state"], body["step"], body["counted"]) == ("job", "ended", 20, 20)
    lines = body["attempts"]
    assert [(each["end"], each["first"], each["last"], each["lost"], each["kept"]) for each in lines] == [
        ("notice", 0, 9, 0, 4),
        ("error", 9, 14, 3, 0),
        ("ended", 11, 20, 0, None),
    ]
    assert (body["lost"], body["kept"], body["notes"]) == (3, 4, [])
    assert [each["saves"] for each in lines[:2]] == [1, 1]
    assert "terminate notice from aws" in lines[0]["cause"]
    assert "RuntimeError: boom <b>" in lines[1]["cause"]
    # Its time is that of the processes, less their start and their end, and its parts are the whole.
    assert 0 < body["wall"] < took
    assert body["ettr"] == pytest.approx(
        sum((each["last"] - each["first"] - each["lost"]) * each["step_seconds"] for each in lines)
        / body["wall"],
        rel=0.5,  # the medians of nine steps of a millisecond, in two records that are made a moment apart
    )
    assert sum(each["seconds"] for each in body["shares"]) == pytest.approx(body["wall"], rel=1e-3)
    lived = sum(each["ended"] - each["started"] for each in lines)
    assert body["money"]["spent"] == pytest.approx(lived)  # a dollar for a second
    assert all(each["machine_count"] == 1 and each["machines"] for each in lines)
    assert lines[0]["started"] <= lines[0]["began"] < lines[0]["ended"] < lines[1]["started"]

    path = tmp_path / "report.html"
    page = machine.start(sys.executable, "-m", "spotguard", "report", machine.url, "--html", str(path))
    assert page.ended() == 0
    assert "RuntimeError: boom &lt;b&gt;" in path.read_text()

    (run,) = asked(trainee, "ls", machine.url, "--runs")["runs"]
    assert (run["run_id"], run["state"], run["late"], run["step"], run["attempts"]) == (
        "job",
        "ended",
        False,
        20,
        3,
    )
    assert run["failed_attempt"] == 2
