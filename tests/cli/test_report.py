"""`spotguard report` and `spotguard ls --runs`: what they print, and what they refuse."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from spotguard.cli import main
from spotguard.hooks.checkpoint.attempts import claim_attempt
from spotguard.hooks.checkpoint.format.keys import end_key, failure_key, outcome_key
from spotguard.providers.stores.factory import open_store
from spotguard.providers.stores.file import FileStore
from tests.fakes.checkpoint import Save

FACTS = {"began": 1010.0, "first": 0, "step_seconds": 1.0, "periodic": 6, "completed": 10}


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A store with two runs; "gpt" was preempted at step 10, 20 s after its start."""
    store = FileStore(tmp_path / "store")
    for run_id, started in (("gpt", 1000.0), ("other", 2000.0)):
        claim_attempt(store, run_id, {"machines": ["vm"], "machine_count": 1}, created=started)
        Save(run_id).write(store)
    notice = {"ids": ["x"], "kind": "terminate", "source": "aws", "drill": False}
    record = {
        "notice": notice,
        "ended": 1020.0,
        "committed": True,
        "step": 10,
        "seconds": 1.0,
        "history": FACTS,
    }
    store.put(outcome_key("gpt", 1, 1), memoryview(json.dumps(record).encode()))
    store.put(end_key("other", 1), memoryview(b'{"why": "ended", "ended": 2030.0}'))
    return (tmp_path / "store").as_uri()


def test_it_prints_the_figures_and_the_attempts(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["report", url, "--run-id", "gpt", "--price", "2"]) == 0
    text = capsys.readouterr().out
    assert f"run gpt in {url}: preempted\n" in text
    for figure in ("ETTR", "kept          4 ", "money         $", "training that counts", "0 to 10"):
        assert figure in text


def test_json_has_the_same_figures(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["report", f"{url}/gpt", "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert (body["run_id"], body["state"], body["step"], body["kept"], body["money"]) == (
        "gpt",
        "notice",
        10,
        4,
        None,
    )
    (line,) = body["attempts"]
    assert (line["first"], line["last"], line["end"], line["machines"]) == (0, 10, "notice", ["vm"])


def test_the_page_is_written_where_it_is_asked_for(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "report.html"
    assert main.main(["report", url, "--run-id", "gpt", "--html", str(path)]) == 0
    assert capsys.readouterr().out == f"the report of run gpt is in {path}\n"
    assert path.read_text().startswith("<!DOCTYPE html>")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        pytest.param([], "holds several runs: pass --run-id with one of gpt, other", id="which run"),
        pytest.param(["--run-id", "no"], "has nothing of run no", id="no such run"),
        pytest.param(
            ["--run-id", "gpt", "--price", "cheap"], "--price 'cheap': expected the dollars", id="price"
        ),
        pytest.param(["--run-id", "gpt", "--price", "nan"], "--price 'nan': expected the dollars", id="nan"),
        pytest.param(
            ["--run-id", "gpt", "--html", "/no/such/folder/x.html"],
            "--html '/no/such/folder/x.html'",
            id="page",
        ),
    ],
)
def test_wrong_use_is_refused_in_a_line(
    url: str, words: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["report", url, *words]) in (1, 2)
    said = capsys.readouterr()
    assert why in said.err
    assert said.out == ""


def test_a_false_alarm_is_dismissed_once_and_for_all(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    store = open_store(url)
    error = {"says": "an error", "step": 9, "ended": 1030.0}
    store.put(failure_key("gpt", 1, 0), memoryview(json.dumps(error).encode()))
    assert main.main(["report", url, "--run-id", "gpt", "--dismiss", "failure-0002"]) == 2
    assert "--dismiss 'failure-0002': expected an id of the report: failure-0001" in capsys.readouterr().err
    assert not [*store.list("gpt/dismissed/")]
    for words in (["--dismiss", "failure-0001"], ["--dismiss", "failure-0001"], []):
        assert main.main(["report", url, "--run-id", "gpt", *words]) == 0
        text = capsys.readouterr().out
        assert "ended by an error that was dismissed" in text
        assert re.search(r"^failure-0001 .* dismissed: an error$", text, re.MULTILINE)
    assert [info.key for info in store.list("gpt/dismissed/")] == ["gpt/dismissed/failure-0001.json"]


def test_one_checkpoint_is_no_run(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    name = "gpt/checkpoints/000000010-0001-0000"
    assert main.main(["report", f"{url}/{name}"]) == 2
    assert "is one checkpoint: name the store or the run" in capsys.readouterr().err
    assert main.main(["ls", f"{url}/{name}", "--runs"]) == 2
    assert "pass the store or the run with --runs" in capsys.readouterr().err


def test_the_runs_of_a_store_are_listed(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["ls", url, "--runs"]) == 0
    _, gpt, other = capsys.readouterr().out.splitlines()
    assert gpt.split()[:3] == ["gpt", "preempted", "10"]
    assert other.split()[:4] == ["other", "ended", "by", "itself"]
    assert main.main(["ls", f"{url}/gpt", "--runs", "--json"]) == 0
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    assert (run["run_id"], run["state"], run["late"], run["attempts"]) == ("gpt", "notice", False, 1)


def test_a_store_without_runs_has_no_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["ls", tmp_path.as_uri(), "--runs"]) == 0
    assert capsys.readouterr().out == f"no run in {tmp_path.as_uri()}\n"
