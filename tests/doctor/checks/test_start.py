"""What `run` would refuse is refused here with the same words: each thing once, with its advice."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spotguard.agent import app
from spotguard.agent.config.options import Options
from spotguard.agent.telemetry.metrics import assembly
from spotguard.doctor.checks import start
from spotguard.doctor.finding import Finding
from spotguard.providers.clock import SystemClock
from spotguard.providers.errors import SpotguardError
from tests.fakes.patient import options

if TYPE_CHECKING:
    from spotguard.agent.telemetry.metrics.http import Endpoint


def looked(command: Sequence[str] = (), running: Sequence[str] = (), **said: str) -> list[Finding]:
    clock = SystemClock()
    return list(start.look(options(**said), command, lambda: running, os.environ, os.geteuid(), clock))


def measured(mine: Options, port: int) -> Endpoint:
    """Return the endpoint of a run's metrics."""
    return assembly.opened(mine, port, "gpt-small-7", SystemClock(), service=False)[1]


def refused(command: Sequence[str] = (), **said: str) -> Finding:
    """The one line that fails; `run` refuses the same, in the same words."""
    (found,) = looked(command, **said)
    assert found.state == "fails"
    said = {"provider": "none", "run_id": "gpt-small-7", "log_level": "error", **said}
    with pytest.raises(SpotguardError) as caught:
        app.run(options(**said), command or ["true"], service_socket=Path("/nowhere/agent.sock"))
    words = " ".join(str(caught.value).split())
    assert words.startswith(found.found)
    assert words.endswith(found.advice)
    return found


@pytest.fixture
def taken() -> Iterator[int]:
    """A port at which somebody listens, and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


def test_a_command_that_run_accepts_is_well(tmp_path: Path) -> None:
    (found,) = looked(["sh", "train.sh"], deadline="+3600", notice_file=str(tmp_path / "notice"))
    assert (found.state, found.facts["program"]) == ("ok", found.found.rpartition(" is ")[2])
    assert os.path.basename(found.facts["program"]) == "sh"
    assert looked()[0].facts["program"] is None


def test_a_port_that_is_taken(taken: int) -> None:
    pytest.importorskip("prometheus_client")
    found = refused(metrics_port=str(taken))
    assert (
        found.found == f"--metrics-port {taken}: cannot listen at 127.0.0.1:{taken}: Address already in use"
    )
    assert found.advice.startswith("give another port")


def test_a_port_that_this_very_run_has_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asks beside the job says the job's own words."""
    pytest.importorskip("prometheus_client")
    monkeypatch.setattr(start, "_ANSWERS", 30.0)  # loaded processors
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    mine = options(metrics_port=str(port))
    with closing(measured(mine, port)) as endpoint:
        endpoint.start()
        assert looked(running=["gpt-small-7"], metrics_port=str(port))[0].state == "ok"
        assert looked(running=["another"], metrics_port=str(port))[0].state == "fails"


def test_a_run_that_starts_meanwhile_is_asked_for_when_its_port_was_found_taken() -> None:
    """Its port is its own then, also where it did not run when the visit began."""
    pytest.importorskip("prometheus_client")
    order = []

    def running() -> list[str]:
        order.append("asked")
        return ["gpt-small-7"]

    with closing(measured(options(), 0)) as endpoint:
        endpoint.start()
        port = endpoint.url.rpartition(":")[2].partition("/")[0]
        said = options(metrics_port=port)
        found = start.look(said, (), running, os.environ, os.geteuid(), SystemClock())
        assert [each.state for each in found] == ["ok"]
    assert order == ["asked"]
    with closing(measured(options(), int(port))):  # free again, but for us
        pass
    found = start.look(said, (), running, os.environ, os.geteuid(), SystemClock())
    assert [each.state for each in found] == ["ok"]
    assert order == ["asked"], "nobody is asked for a port that is free"


def test_a_port_at_which_somebody_is_silent_is_no_runs(taken: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("prometheus_client")
    monkeypatch.setattr(start, "_ANSWERS", 0.2)
    assert looked(running=["gpt-small-7"], metrics_port=str(taken))[0].state == "fails"


def test_prometheus_s_library_is_not_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    assert refused(metrics_port="1").advice.startswith("pip install ")


def test_a_deadline_that_is_past() -> None:
    found = refused(deadline="2001-01-01T00:00Z")
    assert found.found.startswith("--deadline '2001-01-01T00:00Z': expected a time to come")
    assert found.advice == "pass a later one"
    assert refused(deadline="3600").advice == "for seconds from now pass +3600"


def test_a_notice_file_in_no_folder(tmp_path: Path) -> None:
    found = refused(notice_file=str(tmp_path / "none" / "notice"))
    assert found.found.endswith(f"{tmp_path / 'none'}: No such file or directory")
    assert found.advice == "make it first"
    assert not (tmp_path / "none").exists()


def test_a_notice_file_that_others_could_put_there(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    assert (
        refused(notice_file=str(tmp_path / "notice")).advice
        == "use a directory of your own, or of root [SG109]"
    )


def test_a_socket_folder_that_others_may_write_to(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    found = refused(socket=str(tmp_path / "a.sock"))
    assert found.advice.startswith(f"chmod go-w {tmp_path}")
    tmp_path.chmod(0o700)
    assert looked(socket=str(tmp_path / "a.sock"))[0].state == "ok"
    assert list(tmp_path.iterdir()) == []


def test_without_a_run_id_the_directory_of_all_runs_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert looked()[0].state == "ok"
    assert not (tmp_path / "spotguard").exists()
    (tmp_path / "spotguard").mkdir()
    (tmp_path / "spotguard").chmod(0o777)
    assert refused().advice.startswith(f"chmod go-w {tmp_path / 'spotguard'}")
    assert os.listdir(tmp_path / "spotguard") == []


def test_a_file_where_the_run_s_own_socket_would_lie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "spotguard").mkdir(mode=0o700)
    (tmp_path / "spotguard" / "zz.sock").write_text("mine")
    assert "is there and is no socket" in refused(run_id="zz").found
    assert os.listdir(tmp_path / "spotguard") == ["zz.sock"]


def test_a_command_that_is_not_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert refused(["trian"]).advice == "name a program on PATH or a path to one, as in python train.py"
    (tmp_path / "train.py").write_text("")
    found = refused(["train.py"])
    assert found.found == "command not found: 'train.py': it is a file in this directory"
    assert found.advice == "use ./train.py, or the program that runs it, as in python train.py"
    assert found.facts["program"] is None
    assert "chmod +x ./train.py" in refused(["./train.py"]).advice


@pytest.mark.parametrize(
    ("first", "why"),
    [
        ("#!/no/such/python\n", "the interpreter that its first line (#!) names is not there"),
        ("#! \t/bin/sh\r\n", "the interpreter that its first line (#!) names is not there"),  # of Windows
        ("#!{folder}/here\n", "Permission denied"),
        ("#!{folder} -u\n", "Permission denied"),
        ("#!\n", "it is no program"),
    ],
)
def test_a_script_whose_interpreter_cannot_be_started(tmp_path: Path, first: str, why: str) -> None:
    """`run` hears it from the kernel."""
    (tmp_path / "here").touch(mode=0o644)
    script = tmp_path / "train"
    script.write_text(first.format(folder=tmp_path))
    script.chmod(0o755)
    found = refused([str(script)])
    assert found.found == f"cannot execute '{script}': {why}"
    assert found.facts["program"] is None


@pytest.mark.parametrize("first", ["#!/bin/sh\n", "#!/bin/sh", "#! /bin/sh -e\n", "#!\t/usr/bin/env sh\n"])
def test_a_script_whose_interpreter_is_there(tmp_path: Path, first: str) -> None:
    script = tmp_path / "train"
    script.write_text(first)
    script.chmod(0o755)
    assert looked([str(script)])[0].state == "ok"
    assert subprocess.run([script], check=False).returncode == 0, "the kernel says the same"


def test_all_that_is_refused_is_said_at_once(tmp_path: Path) -> None:
    found = looked(["trian"], deadline="2001-01-01", notice_file=str(tmp_path / "none" / "notice"))
    assert [each.found.split()[0] for each in found] == ["--deadline", "--notice-file", "command"]
