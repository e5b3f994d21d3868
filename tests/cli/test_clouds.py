"""The commands that show and keep house, on each of the three clouds' stores; and what they say when one cannot be used."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spotguard.cli import main
from tests.e2e.clouds import CLOUDS, Day, begin_day
from tests.fakes.checkpoint import Save
from tests.fixtures_servers import FaultsBefore
from tests.tiers import few_fast

COMMANDS = {"ls": (), "inspect": (), "verify": (), "prune": ("--keep", "1")}


@pytest.fixture(params=CLOUDS)
def day(request: pytest.FixtureRequest, faults_before: FaultsBefore) -> Day:
    """A bucket with three checkpoints, of steps 10, 20 and 30."""
    made = begin_day(request.param, request, faults_before)
    for number in (1, 2, 3):
        Save(step=10 * number, save=number).write(made.behind)
    return made


def told(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> Any:
    assert main.main([*words, "--json"]) == code, capsys.readouterr()
    return json.loads(capsys.readouterr().out)


def refused(capsys: pytest.CaptureFixture[str], command: str, url: str, code: int = 1) -> str:
    """The one line that a command says instead of doing something."""
    assert main.main([command, url, *COMMANDS[command]]) == code
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    assert line.startswith("spotguard: error: ")
    return str(line)


def test_every_command_works_on_every_cloud(capsys: pytest.CaptureFixture[str], day: Day) -> None:
    """Found, looked into, read again, and the older ones deleted; then one byte is not what it was."""
    found = told(capsys, "ls", day.url)["checkpoints"]
    assert [(each["step"], each["status"]) for each in found] == [
        (30, "complete"),
        (20, "complete"),
        (10, "complete"),
    ]
    assert told(capsys, "inspect", day.url, "--step", "20")["step"] == 20
    own = f"{day.url}/{Save(step=20, save=2).prefix}"
    assert told(capsys, "inspect", own)["step"] == 20, "a checkpoint's own URL, as logs show it"
    assert [each["status"] for each in told(capsys, "verify", day.url, "--all")["checkpoints"]] == [
        "complete"
    ] * 3
    (done,) = told(capsys, "prune", day.url, "--keep", "2")["runs"]
    assert (len(done["kept"]), len(done["deleted"])) == (2, 1)
    assert [name for name in day.names() if name.startswith(Save(step=10, save=1).prefix)] == []

    damaged = max(name for name in day.names() if name.endswith(".safetensors"))
    data = bytearray(day.behind.get(damaged))
    data[-1] ^= 1
    day.behind.delete([damaged])
    day.behind.put(damaged, memoryview(data))
    verdicts = told(capsys, "verify", day.url, code=1)["checkpoints"]
    assert [(each["step"], each["status"]) for each in verdicts] == [(30, "damaged"), (20, "complete")]
    assert verdicts[0]["damage"][0].startswith(damaged)


@pytest.mark.parametrize("command", few_fast(COMMANDS))
def test_a_bucket_that_is_not_there(capsys: pytest.CaptureFixture[str], day: Day, command: str) -> None:
    day.remove()
    line = refused(capsys, command, day.url)
    assert f"there is no such {'container' if day.url.startswith('az:') else 'bucket'}" in line
    assert line.endswith(": make it, or correct the URL [SG303]")


@pytest.mark.parametrize("command", few_fast(COMMANDS))
def test_a_store_that_is_away(capsys: pytest.CaptureFixture[str], day: Day, command: str) -> None:
    day.network.vanish()
    line = refused(capsys, command, day.url)
    assert f" {day.url.partition('/some')[0]}/" in line
    assert "Connection refused" in line


@pytest.mark.parametrize("command", few_fast(reversed(COMMANDS), 2))
def test_a_store_that_lets_nobody_in(capsys: pytest.CaptureFixture[str], day: Day, command: str) -> None:
    """With the right that is missing; and nothing is deleted."""
    before = day.names()
    day.network.inject(replace(day.cloud.denied))
    right = {"s3": "s3:ListBucket", "gs": "storage.objects.list", "az": "Storage Blob Data Contributor"}
    assert right[day.url.partition(":")[0]] in refused(capsys, command, day.url)
    assert day.names() == before


@pytest.mark.parametrize(
    ("url", "code", "way_out"),
    [
        ("s3://bucket/prefix", 1, "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
        ("gs://bucket/prefix", 1, "name a key file in GOOGLE_APPLICATION_CREDENTIALS"),
        ("az://container/prefix", 2, "or set AZURE_STORAGE_ACCOUNT or AZURE_STORAGE_CONNECTION_STRING"),
    ],
)
def test_no_credentials_at_all(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    url: str,
    code: int,
    way_out: str,
) -> None:
    """Nothing was asked: there was nobody to ask as."""
    for name in ("STORAGE_EMULATOR_HOST", "AZURE_STORAGE_CONNECTION_STRING", "AWS_ACCESS_KEY_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    for command in COMMANDS:
        assert way_out in refused(capsys, command, url, code)


def test_a_url_of_no_cloud(capsys: pytest.CaptureFixture[str]) -> None:
    assert "s3n://bucket" in refused(capsys, "ls", "s3n://bucket", 2)
