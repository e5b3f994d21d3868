"""The whole visit: its order, its answer and exit code, and a store that is as it was, however it ends."""

from __future__ import annotations

import json
import logging
import re
import signal
from contextlib import closing, suppress
from pathlib import Path

import pytest

from spotguard.cli import main
from spotguard.cli.commands.trials import doctor
from spotguard.doctor.finding import Finding, any_fails, fails, ok, warning
from spotguard.doctor.run import Patient, visit
from spotguard.providers.clock import SystemClock
from spotguard.providers.simulator.aws.service import AwsSimulator
from spotguard.providers.stores.factory import open_store
from tests.agent.sources.test_factory import machine
from tests.fakes.patient import A_MOMENT, patient
from tests.fixtures_servers import FaultsBefore
from tests.servers.faultplan import Fault as WireFault
from tests.servers.moto import Moto

ORDER = ["cloud", "agent", "start", "window", "store", "disk", "credentials", "clock"]
RIGHTS = ["put", "create", "get", "list", "delete"]


def visited(who: Patient) -> list[Finding]:
    with closing(visit(who)) as findings:
        return list(findings)


def checks(found: list[Finding]) -> list[str]:
    return [each.check for each in found]


def test_a_laptop_with_a_folder(tmp_path: Path) -> None:
    found = visited(patient(machine(tmp_path, sys_vendor="LENOVO")))
    assert checks(found) == [*ORDER, *RIGHTS, "rate", "job", "verdict"]
    assert [each.check for each in found if each.state != "ok"] == ["cloud"]
    assert found[-1].facts["fits"] is None
    assert found[-1].facts["most_bytes"] > 0
    assert not (tmp_path / "store").exists()


def test_a_cloud_with_a_store_on_a_network(aws: AwsSimulator, moto: Moto, tmp_path: Path) -> None:
    url = f"{moto.fresh()}/prefix"
    found = visited(patient(tmp_path, provider="aws", metadata_endpoint=aws.endpoint, store=url))
    assert [each.check for each in found if each.state != "ok"] == []
    assert "disk" not in checks(found)
    assert {"notices", "credentials", "clock"} <= set(checks(found))
    rate = next(each for each in found if each.check == "rate")
    assert (rate.facts["connections"], rate.facts["rate"] > 0) == (8, True)
    assert list(open_store(url).list("")) == []


def test_a_store_that_dies_with_the_machine(aws: AwsSimulator, tmp_path: Path) -> None:
    found = visited(patient(tmp_path, provider="aws", metadata_endpoint=aws.endpoint))
    disk = next(each for each in found if each.check == "disk")
    assert (disk.state, "--store" in disk.advice) == ("warning", True)
    clock = next(each for each in found if each.check == "clock")
    assert clock.found.startswith("within 5 s of the metadata service's")


class _Ahead(SystemClock):
    """A machine whose time is wrong by so many seconds, and goes on as any."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def time(self) -> float:
        return super().time() + self._seconds


def test_a_clock_that_is_wrong_is_no_reason_why_a_folder_would_not_be_written(
    aws: AwsSimulator, tmp_path: Path
) -> None:
    found = visited(patient(tmp_path, _Ahead(1000.0), provider="aws", metadata_endpoint=aws.endpoint))
    clock = next(each for each in found if each.check == "clock")
    assert (clock.state, "ahead of the metadata service's" in clock.found) == ("warning", True)
    assert not any_fails(found)


def test_a_clock_that_is_wrong_beside_a_store_that_takes_it_all_fails_nothing(
    moto: Moto, tmp_path: Path
) -> None:
    found = visited(patient(tmp_path, _Ahead(1000.0), store=f"{moto.fresh()}/prefix"))
    clock = next(each for each in found if each.check == "clock")
    assert (clock.state, "this store takes it all the same" in clock.found) == ("warning", True)
    assert not any_fails(found)


def test_a_store_that_does_not_answer_leaves_no_verdict(tmp_path: Path) -> None:
    found = visited(patient(tmp_path, store="s3://bucket/run?endpoint=http://127.0.0.1:9"))
    assert not set(checks(found)) & {*RIGHTS, "rate", "credentials"}
    assert {each.check for each in found if each.state == "fails"} == {"store", "verdict"}
    assert found[-1].found.startswith("not known")


def test_a_store_whose_sdk_is_not_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str, package: str) -> None:
        raise ModuleNotFoundError("No module named 'boto3'")

    monkeypatch.setattr("importlib.import_module", missing)
    found = visited(patient(tmp_path, store="s3://bucket/run"))
    store = next(each for each in found if each.check == "store")
    assert (store.state, "boto3" in store.found) == ("fails", True)


def test_a_probe_that_could_not_be_removed_stops_the_large_ones(
    moto: Moto, faults_before: FaultsBefore, tmp_path: Path
) -> None:
    """Gigabytes would stay."""
    url = f"{moto.fresh()}/prefix"
    refused = WireFault("answer", status=403, matching=lambda asked: asked.method in ("POST", "DELETE"))
    faults_before(moto).inject(refused)
    found = visited(patient(tmp_path, store=url))
    rate = next(each for each in found if each.check == "rate")
    assert (rate.state, rate.facts["rate"]) == ("warning", None)
    assert {each.check for each in found if each.state == "fails"} == {"delete", "verdict"}


@pytest.mark.parametrize("at", [*RIGHTS, "rate"])
def test_interrupted_it_leaves_nothing(at: str, tmp_path: Path) -> None:
    """Wherever Ctrl-C comes: who reads the page closes the visit."""
    with suppress(KeyboardInterrupt), closing(visit(patient(tmp_path))) as findings:
        for finding in findings:
            if finding.check == at:
                raise KeyboardInterrupt
    assert not (tmp_path / "store").exists()


# --- the command ---


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to be in, and a measurement that is over in a moment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(doctor, "PACE", A_MOMENT)
    return tmp_path


def test_nothing_fails_is_0_and_json_is_one_document(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["doctor", "--provider", "none", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["fails"], said["fits"]) == (False, None)
    assert said["verdict"] == said["checks"][-1]["found"]
    assert [each["check"] for each in said["checks"]][-1] == "verdict"
    for each in said["checks"]:
        assert {"check", "state", "found", "advice"} <= set(each)
        assert each["state"] in ("ok", "warning", "fails")
    assert list(here.iterdir()) == []


def test_something_fails_is_1(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["doctor", "--provider", "none", "--window", "0"]) == 1
    said = capsys.readouterr().out
    assert "  FAILS    window" in said
    assert said.splitlines()[-1] == "This machine would NOT save in time: window (1 warning)"


@pytest.mark.parametrize(
    "words",
    [
        ["--store", "nowhere:"],
        ["--store", "file:///dev/null/store"],
        ["--stage", "/dev/null"],
        ["--window", "soon"],
        ["--frobnicate"],
        ["--metadata-endpoint", "http://127.0.0.1:9"],
    ],
)
def test_a_usage_error_of_doctor_exits_with_2(
    words: list[str], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["doctor", *words]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_it_hears_the_words_of_run(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the environment and the file too; the command behind `--` names the run and is not started."""
    (here / "spot.toml").write_text('provider = "none"\nwindow = 60\n')
    monkeypatch.setenv("SPOTGUARD_RESERVE", "10")
    words = [
        "--config",
        "spot.toml",
        "--store",
        (here / "there").as_uri(),
        "--json",
        "--",
        "touch",
        "started",
    ]
    assert main.main(["doctor", *words]) == 0
    said = {each["check"]: each for each in json.loads(capsys.readouterr().out)["checks"]}
    assert (said["window"]["warning_seconds"], said["window"]["budget_seconds"]) == (60.0, 50.0)
    assert said["store"]["url"] == (here / "there").as_uri()
    assert [path.name for path in here.iterdir()] == ["spot.toml"]


@pytest.mark.parametrize("form", [[], ["--json-log"], ["--log-level", "error"], ["--log-level", "debug"]])
def test_log_lines_beside_the_page_name_their_logger(
    form: list[str], here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `run` logs it; but the page itself tells what goes well. And nothing of it outlives the command."""
    monkeypatch.setenv("SPOTGUARD_STROE", "file:///x")
    logger = logging.getLogger("spotguard")
    before = logger.level, logger.handlers[:], logger.propagate
    assert main.main(["doctor", "--provider", "none", *form]) == 0
    assert (logger.level, logger.handlers, logger.propagate) == before
    lines = [line for line in capsys.readouterr().err.splitlines() if "STROE" in line or "debug" in form]
    if "error" in form:
        assert lines == []
    elif "--json-log" in form:
        assert [json.loads(line)["service.name"] for line in lines] == ["spotguard"]
    else:
        words = r"spotguard [\d:]{8} WARNING: .*: SPOTGUARD_STROE: did you mean SPOTGUARD_STORE\? \[SG701\]"
        assert len([line for line in lines if re.fullmatch(words, line)]) == 1
        assert [line for line in lines if not line.startswith("spotguard ")] == []


def test_a_word_that_is_no_program_is_told_about(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Behind the options it is a command, as `run` takes it; behind `--` a cloud's name is one too."""
    assert main.main(["doctor", "--provider", "none", "train.py"]) == 1
    assert "  FAILS    start        command not found: 'train.py'" in capsys.readouterr().out
    assert main.main(["doctor", "--provider", "none", "--", "azure"]) == 1
    assert "  FAILS    start        command not found: 'azure'" in capsys.readouterr().out


def test_a_sigterm_leaves_nothing_either(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `timeout 5 spotguard doctor` sends it."""

    def show(out: object, finding: Finding) -> None:
        if finding.check == "put":
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(doctor, "_show", show)
    with pytest.raises(SystemExit) as ended:
        main.main(["doctor", "--provider", "none"])
    assert ended.value.code == 128 + signal.SIGTERM
    assert list(here.iterdir()) == []
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_any_failing_line_decides() -> None:
    assert not any_fails([ok("job", "x"), warning("disk", "y")])
    assert any_fails([ok("job", "x"), fails("put", "y")])
