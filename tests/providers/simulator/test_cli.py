"""`simulate aws` as a person meets it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest
import requests

from spotguard.providers.simulator import cli

MODULE = [sys.executable, "-m", "spotguard.providers.simulator.cli"]


@contextmanager
def running(*words: str) -> Iterator[tuple[subprocess.Popen[str], IO[str]]]:
    """The command as a process, killed should the test leave it."""
    with subprocess.Popen([*MODULE, *words], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout
        finally:
            process.kill()


def line_with(lines: IO[str], text: str) -> str:
    """The next line that holds this."""
    for line in lines:
        if text in line:
            return line
    raise AssertionError(f"no line with {text!r}")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_prints_where_it_is_and_the_line_to_copy_and_ends_cleanly(number: signal.Signals) -> None:
    """Ctrl-C is how it is meant to end: code 0, and a last line."""
    with running("aws", "--preempt-after", "0", "--window", "45") as (process, lines):
        endpoint = line_with(lines, "endpoint: ").split()[1]
        copied = f"spotguard run --provider aws --metadata-endpoint {endpoint} -- python train.py\n"
        assert line_with(lines, "try it: ").endswith(copied)
        assert "notice: terminate at " in line_with(lines, ", 45 s from now")
        headers = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
        token = requests.put(f"{endpoint}/latest/api/token", headers=headers, timeout=100).text
        answer = requests.get(
            f"{endpoint}/latest/meta-data/spot/instance-action",
            headers={"X-aws-ec2-metadata-token": token},
            timeout=100,
        )
        assert answer.json()["action"] == "terminate"
        line_with(lines, "the notice is read for the first time")
        os.kill(process.pid, number)
        assert "ended; 2 requests were answered" in line_with(lines, "ended")
        assert process.wait() == 0


def test_flags_and_script_are_one_sequence(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Each thing at its time, up to the deadline and the end that was asked for."""
    script = tmp_path / "script"
    script.write_text("0.02 rebalance\n0.06 expire-tokens\n")
    words = ["--preempt-after=0.04", "--window=0.01", "--action=stop", "--fault=503", f"--script={script}"]
    assert cli.main(["aws", "--for=1", *words]) == 0
    told = [line.partition(" s  ")[2] for line in capsys.readouterr().out.splitlines()[2:]]
    whole = " / ".join(told)
    order = ["fault: 503", "rebalance", "notice: stop", "the deadline", "all tokens", "ended; 0 requests"]
    positions = [whole.index(words) for words in order if words != "the deadline"]
    assert positions == sorted(positions)
    assert told.count("the deadline: a real instance is gone now") == 1


def test_every_warning_has_a_flag(capsys: pytest.CaptureFixture[str]) -> None:
    """What stands from the start comes first."""
    words = ["--termination-time=garbage", "--maintenance-after=0.02", "--maintenance=system-reboot"]
    words += ["--not-before=90", "--scale-in-after=0.04"]
    assert cli.main(["aws", "--for=0.1", *words]) == 0
    told = [line.partition(" s  ")[2] for line in capsys.readouterr().out.splitlines()[2:]]
    assert told[:-1] == [
        "termination-time: garbage",
        "autoscaling: InService",
        "scheduled: system-reboot in 90 s",
        "autoscaling: Terminated",
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["ibm"], "invalid choice: 'ibm' (choose from"),
        ([], "which cloud? Expected aws, gcp or azure, as in spotguard simulate aws"),
        (["aws", "--window", "soon"], "argument --window: 'soon' is not a time: expected seconds"),
        (["aws", "--port", "99999"], "argument --port: '99999' is not a port: expected 0 to 65535"),
        (["aws", "--action", "reboot"], "argument --action: invalid choice: 'reboot'"),
        (["aws", "--fault", "404"], "argument --fault: invalid choice: '404'"),
        (["aws", "--host", "0.0.0.0"], "--host '0.0.0.0': a simulator listens on loopback only"),
        (["aws", "--script", "/nowhere/script"], "--script /nowhere/script: No such file or directory"),
    ],
)
def test_a_usage_error_is_refused_before_anything_listens(
    capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    """Code 2; a cloud that has no simulator yet is not pretended."""
    try:
        code = cli.main(words)
    except SystemExit as error:  # argparse's own way
        code = int(error.code or 0)
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert message in err.splitlines()[-1]


def test_signal_handlers_are_given_back() -> None:
    """A caller's own Ctrl-C works again after it."""
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    assert cli.main(["aws", "--for=0"]) == 0
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
