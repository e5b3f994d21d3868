"""Which store, run and checkpoint an URL means: what the pages say, what logs show, and what only looks like it."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from spotguard.cli import main
from spotguard.cli.select_checkpoint import Target, target
from spotguard.providers.stores.factory import open_store
from spotguard.providers.stores.file import FileStore
from tests.fakes.checkpoint import Save
from tests.tiers import few_fast

COMMANDS = (["ls"], ["inspect"], ["verify"], ["prune", "--keep", "1"])


#: Whatever reads a store.
READERS = (*COMMANDS, ["export", "--to", "safetensors", "{folder}/x.safetensors"])


def filled(folder: Path, run_id: str = "run-7") -> Path:
    """A store with a run of two checkpoints, and its attempt's record."""
    store = FileStore(folder)
    store.put(f"{run_id}/attempts/0001.json", memoryview(b"{}"))
    for number in (1, 2):
        Save(run_id=run_id, step=10 * number, save=number).write(store)
    return folder


def told(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert main.main([*words, "--json"]) == 0, capsys.readouterr()
    return json.loads(capsys.readouterr().out)


def runs_of(body: Any) -> set[str]:
    lines = body.get("checkpoints", body.get("runs", [body]))
    return {line["run_id"] for line in lines}


def meant(url: str | None, run_id: str | None = None) -> Target:
    return target(argparse.Namespace(url=url, run_id=run_id))


@pytest.mark.parametrize("command", READERS, ids=lambda words: words[0])
@pytest.mark.parametrize("run", [[], ["--run-id", "run-7"]], ids=["any run", "one run"])
def test_a_folder_that_is_missing_is_said_to_be(
    run: list[str], command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the same words by each command, and nobody makes it."""
    words = [word.format(folder=tmp_path) for word in command]
    assert main.main([words[0], str(tmp_path / "gone"), *words[1:], *run]) == 1
    assert f"there is no directory {tmp_path / 'gone'}: check the URL" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "place",
    few_fast(["checkpoints", "shared/checkpoints/", "shared/checkpoints", "a/checkpoints/checkpoints"], 2),
)
@pytest.mark.parametrize("command", COMMANDS, ids=lambda words: words[0])
@pytest.mark.parametrize("way", ["url", "with --run-id", "environment"])
def test_a_store_in_a_folder_of_that_name_is_a_store(
    way: str,
    command: list[str],
    place: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The pages' own examples end so. The folder above it is no run, whoever asks and however it is named."""
    filled(tmp_path / place)
    url = tmp_path.as_uri() + "/" + place
    words = {"url": [url], "with --run-id": [url, "--run-id", "run-7"], "environment": []}[way]
    if way == "environment":
        monkeypatch.setenv("SPOTGUARD_STORE", url)
    assert runs_of(told(capsys, *command, *words)) == {"run-7"}


@pytest.mark.parametrize("command", COMMANDS, ids=lambda words: words[0])
@pytest.mark.parametrize("store", ["store", "checkpoints", "run-7/checkpoints"])
def test_a_runs_own_folder_is_known_by_what_lies_in_it(
    store: str, command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of two runs only this one, also in a store that lies in a folder of that name."""
    filled(tmp_path / store)
    filled(tmp_path / store, "run-8")
    for end in ("", "/", "/checkpoints", "/checkpoints/"):
        url = (tmp_path / store / "run-8").as_uri() + end
        assert runs_of(told(capsys, *command, url)) == {"run-8"}


@pytest.mark.parametrize("run_id", ["checkpoints", "attempts", "000000010-0001-0001"])
@pytest.mark.parametrize("place", ["store", "checkpoints"])
def test_a_run_of_a_misleading_name_makes_no_run_of_its_store(
    place: str, run_id: str, tmp_path: Path
) -> None:
    found = meant(filled(tmp_path / place, run_id).as_uri())
    assert (found.run_id, found.runs()) == (None, [run_id])


def test_a_place_that_is_a_store_and_a_run_of_another_one_is_the_store(tmp_path: Path) -> None:
    filled(tmp_path, "shared")
    filled(tmp_path / "shared", "run-7")
    assert meant((tmp_path / "shared").as_uri()).runs() == ["run-7"]
    assert meant((tmp_path / "shared/checkpoints").as_uri()).run_id == "shared"


def test_a_run_that_has_saved_nothing_yet_is_a_run(tmp_path: Path) -> None:
    FileStore(tmp_path).put("run-7/attempts/0001.json", memoryview(b"{}"))
    assert meant((tmp_path / "run-7").as_uri()).run_id == "run-7"


@pytest.mark.parametrize("store", ["store", "checkpoints"])
def test_a_checkpoints_own_url_is_taken_apart_unasked(store: str, tmp_path: Path) -> None:
    folder = filled(tmp_path / store)
    save = Save(run_id="run-7", step=10, save=1)
    found = meant((folder / save.prefix).as_uri())
    assert (found.store.url, found.run_id, found.name) == (folder.as_uri(), "run-7", save.name)


@pytest.mark.parametrize(
    "url",
    [
        "file:///mnt/checkpoints",
        "file:///mnt/checkpoints/",
        "file:///checkpoints/000000010-0001-0001",
        "file:///no/such/place/checkpoints",
        "file:///no/such/checkpoints-2",
        "file:///no/such/checkpoints/run",
    ],
)
def test_a_url_without_a_run_is_the_store_itself(url: str) -> None:
    found = meant(url)
    assert (found.store.url, found.run_id, found.name) == (url, None, None)


def test_the_environment_names_a_store_whatever_it_looks_like(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`spotguard run` saves there and nowhere above it."""
    folder = filled(tmp_path / "store")
    url = (folder / Save(run_id="run-7").prefix).as_uri()
    monkeypatch.setenv("SPOTGUARD_STORE", url)
    found = meant(None)
    assert (found.store.url, found.run_id, found.name) == (url, None, None)


def test_a_buckets_folder_of_that_name_is_a_store(moto: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """With and without a folder above it; the options stay behind the path."""
    bucket, mark, options = moto.fresh().partition("?")
    for place in ("checkpoints", "shared/checkpoints"):
        url = f"{bucket}/{place}{mark}{options}"
        Save(run_id="run-7").write(open_store(url))
        assert runs_of(told(capsys, "ls", url)) == {"run-7"}
    save = Save(run_id="run-7")
    assert meant(f"{bucket}/shared/checkpoints/{save.prefix}{mark}{options}").name == save.name
    assert meant(f"{bucket}/shared/checkpoints/run-7/checkpoints{mark}{options}").run_id == "run-7"


@pytest.mark.parametrize("command", READERS, ids=lambda words: words[0])
@pytest.mark.parametrize("way", ["url", "environment", "default"])
def test_a_file_is_no_store_that_holds_nothing(
    way: str,
    command: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As `run` says of it; "no checkpoint" would be an answer."""
    file = tmp_path / "spotguard-checkpoints"
    file.touch()
    words = [word.format(folder=tmp_path) for word in command]
    monkeypatch.chdir(tmp_path)
    if way == "environment":
        monkeypatch.setenv("SPOTGUARD_STORE", file.as_uri())
    assert main.main([*words, *([f"{file.as_uri()}/run-7"] if way == "url" else [])]) == 2
    said = capsys.readouterr()
    origin = {"url": "URL", "environment": "SPOTGUARD_STORE", "default": "the default"}[way]
    assert said.out == ""
    assert said.err.startswith(f"spotguard: error: {origin}: store 'file://")
    assert f": {file} is a file: name a directory, or another store" in said.err
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("command", READERS, ids=lambda words: words[0])
@pytest.mark.parametrize("way", ["url", "environment", "default"])
def test_a_directory_that_is_missing_is_an_error(
    way: str,
    command: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As ls(1) has it. Nothing is made there."""
    folder = tmp_path / "spotguard-checkpoints"
    words = [word.format(folder=tmp_path) for word in command]
    monkeypatch.chdir(tmp_path)
    if way == "environment":
        monkeypatch.setenv("SPOTGUARD_STORE", folder.as_uri())
    assert main.main([*words, *([folder.as_uri()] if way == "url" else [])]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"spotguard: error: {folder.as_uri()}")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", READERS, ids=lambda words: words[0])
@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("s3://ab?region=eu-west-1", "'ab' is no name that S3 gives a bucket"),
        ("gs://My_Bucket", "'My_Bucket' is no name that Google Cloud Storage gives a bucket"),
        ("az://My_Container?account=acme", "'My_Container' is no container's name"),
    ],
)
def test_endpoints_that_no_cloud_has_given_are_not_asked(
    url: str,
    said: str,
    command: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "STORAGE_EMULATOR_HOST"):
        monkeypatch.delenv(name)
    assert main.main([*(word.format(folder=tmp_path) for word in command), url]) == 2
    assert said in capsys.readouterr().err
