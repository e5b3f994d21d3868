"""What `spotguard bootstrap` prints: user-data that cloud-init takes, a script that a shell takes, and what is refused.

That machines boot from it is shown in tests/e2e/test_booted.py.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from spotguard.agent.config import resolve
from spotguard.agent.process import torchrun
from spotguard.cli import main
from tests.bootstrap.user_data import AWKWARD, STORES, WHEEL, printed, script_of, values_of


@pytest.mark.parametrize("cloud", STORES)
def test_cloud_init_is_given_one_script_for_every_boot(
    cloud: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Valid YAML behind the line that names it, with room left in 16 KiB, and what it sets is what was said."""
    user_data = printed(capsys, cloud, "--user", "ubuntu", "--every", "60")
    assert user_data.startswith("#cloud-config\n")
    assert len(user_data.encode()) < 10 * 1024
    values = values_of(script_of(user_data), tmp_path)
    assert (values["run_id"], values["user"], values["command"]) == ("gpt-7b", "ubuntu", "torchrun train.py")
    extra = {"aws": "s3", "gcp": "gcs", "azure": "azure"}[cloud]
    assert values["packages"] == f"spotguard[{extra}] @ {WHEEL}"
    assert tomllib.loads(values["run_toml"]) == {
        "provider": cloud,
        "store": STORES[cloud],
        "run-id": "gpt-7b",
        "every": "60",
        "socket": "/run/spotguard-run-gpt-7b/run.sock",
    }
    assert tomllib.loads(values["agent_toml"]) == {"provider": cloud}


@pytest.mark.parametrize(("run", "agent"), [("9464", "9465"), ("65535", "65534")])
def test_run_and_agent_have_a_metrics_port_each(
    run: str, agent: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    values = values_of(script_of(printed(capsys, "aws", "--metrics-port", run)), tmp_path)
    assert [tomllib.loads(values[each])["metrics-port"] for each in ("run_toml", "agent_toml")] == [
        run,
        agent,
    ]


@pytest.mark.parametrize("cloud", STORES)
def test_the_script_in_user_data_can_be_read_and_is_always_the_same(
    cloud: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """By the line at the top, also behind keys of one's own; two prints of one plan are one template."""
    user_data = printed(capsys, cloud, command=AWKWARD)
    assert printed(capsys, cloud, command=AWKWARD) == user_data
    (tmp_path / "this-file").write_text(user_data + "packages: [git]\n")
    (way,) = re.findall(r"^# To read the script below: (.+)$", user_data, flags=re.MULTILINE)
    done = subprocess.run(["sh", "-c", way], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == script_of(user_data)


def test_both_files_are_ones_that_the_machine_can_read(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The agent is told of the service and of a window; the run asks the agent, so it is given no endpoint."""
    words = [
        "--metadata-endpoint",
        "http://127.0.0.1:9",
        "--window",
        "120",
        "--json-log",
        "--on-notice",
        'logger "x\\y"',
    ]
    values = values_of(script_of(printed(capsys, "aws", *words)), tmp_path)
    for name in ("agent", "run"):
        (tmp_path / f"{name}.toml").write_text(values[f"{name}_toml"])
    agent = resolve.resolve("agent", {"config": str(tmp_path / "agent.toml")}, {})
    run = resolve.resolve("run", {"config": str(tmp_path / "run.toml")}, {})
    assert (agent.metadata_endpoint, agent.window, agent.json_log) == ("http://127.0.0.1:9", 120.0, True)
    assert (run.metadata_endpoint, run.window, run.on_notice) == (None, 120.0, 'logger "x\\y"')


def test_systemd_is_as_patient_as_the_window(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A save is never killed to be tidy."""
    for words, seconds in ([[], "180"], [["--window", "600.5"], "661"]):
        assert values_of(script_of(printed(capsys, "aws", *words)), tmp_path)["patience"] == seconds


def test_an_endpoint_elsewhere_is_let_through_the_agents_fence(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Its unit speaks to this machine and its link only."""
    for words, address in ([[], ""], [["--metadata-endpoint", "http://10.0.0.5:1338"], "10.0.0.5"]):
        assert values_of(script_of(printed(capsys, "aws", *words)), tmp_path)["allow"] == address


def test_the_job_is_torchrun_to_who_guards_it(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """`spotguard run` looks at the words behind it: a script between them would hide the launcher from it."""
    script = script_of(printed(capsys, "aws", command=["torchrun", "--nnodes", "2:4", "train.py"]))
    assert torchrun.is_torchrun(shlex.split(values_of(script, tmp_path)["command"]))
    assert "exec %s/bin/spotguard run --config %s -- %s" in script


def test_no_word_is_misread_on_the_way(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Through YAML, the shell and the file of the command, to what the program is given."""
    prepare = "git clone 'https://example.org/x y'\necho \"$HOME\""
    values = values_of(script_of(printed(capsys, "aws", "--prepare", prepare, command=AWKWARD)), tmp_path)
    assert values["prepare"] == prepare
    says = f"set -- {values['command']}; for word; do printf '%s\\0' \"$word\"; done"
    done = subprocess.run(["sh", "-c", says], capture_output=True, text=True, check=True)
    assert done.stdout.split("\0")[:-1] == AWKWARD


@pytest.mark.parametrize("shell", ["sh", "bash", "dash"])
def test_every_shell_takes_the_script(shell: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    for words in ([], ["--startup-script"]):
        text = printed(capsys, "gcp", *words, command=AWKWARD)
        path = tmp_path / "script"
        path.write_text(text if words else script_of(text))
        assert path.read_text().startswith("#!/bin/sh\n")
        subprocess.run([shell, "-n", str(path)], check=True)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may")
def test_it_is_for_root(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "script"
    path.write_text(printed(capsys, "gcp", "--startup-script"))
    done = subprocess.run(["sh", str(path)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "spotguard setup: to be run as root\n")


@pytest.mark.parametrize(
    ("cloud", "flags"),
    [
        ("aws", ["HttpPutResponseHopLimit=2", "MarketType=spot", "--iam-instance-profile"]),
        (
            "gcp",
            ["--preemption-notice-duration=120s", "--scopes=cloud-platform", "print this with --window 120"],
        ),
        (
            "azure",
            ["--eviction-policy", "--assign-identity", "--terminate-notification-time", "--custom-data"],
        ),
    ],
)
def test_it_says_how_the_machine_is_to_be_created(
    cloud: str, flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """In comments at its top."""
    comments = printed(capsys, cloud).partition("write_files:")[0]
    assert all(line.startswith("#") for line in comments.splitlines())
    for flag in flags:
        assert flag in comments


def test_a_window_that_is_said_is_not_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert "print this with --window" not in printed(capsys, "gcp", "--window", "120")


def test_a_startup_script_is_told_of_where_it_goes_and_where_it_speaks(
    capsys: pytest.CaptureFixture[str],
) -> None:
    script = printed(capsys, "gcp", "--startup-script")
    assert "startup-script=this-file" in script
    assert "journalctl -u google-startup-scripts" in script
    assert "cloud-init" not in script.partition("run_id=")[0]
    assert "/var/log/cloud-init-output.log" in printed(capsys, "gcp")


def test_the_two_ways_to_create_a_machine_of_aws_are_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    """run-instances makes base64 of its user-data by itself; of a template's nobody does."""
    comments = printed(capsys, "aws").partition("write_files:")[0]
    by_hand, _, template = comments.partition("or by a launch template")
    assert "--user-data file://this-file" in by_hand
    assert "base64 -w0 this-file" in template
    written = template.partition("--launch-template-data\n")[2].partition("# and without")[0]
    shown = json.loads(written.replace("#", ""))
    assert shown["MetadataOptions"] == {"HttpTokens": "required"}


@pytest.mark.parametrize(
    ("words", "needs"),
    [
        ([], "The image needs torch (one for deep learning has it; --with torch installs it):"),
        (["--prepare", "git clone x"], "installs it) and git, for --prepare: a distribution's own has none."),
        (["--with", "torch>=2.6", "--prepare", "git clone x"], "The image needs git, for --prepare:"),
        (["--package", f"spotguard[torch] @ {WHEEL}"], ""),
    ],
)
def test_it_says_what_the_image_has_to_have(
    words: list[str], needs: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A distribution's own has neither torch nor git."""
    head = printed(capsys, "aws", *words).partition("write_files:")[0]
    assert needs in head
    assert ("The image needs" in head) is bool(needs)


def test_it_says_that_the_machine_stays_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert "the machine stays on and is paid for" in printed(capsys, "aws")
    said = printed(capsys, "aws", "--then", "poweroff")
    assert "the machine stays on" not in said
    assert "--instance-initiated-shutdown-behavior terminate" in said


def test_its_help_tells_of_the_machine_and_not_of_this_one(capsys: pytest.CaptureFixture[str]) -> None:
    """No variable of this environment, no file and no folder of this machine goes into it."""
    with pytest.raises(SystemExit):
        main.main(["bootstrap", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    for word in ("SPOTGUARD_<", "--config", "--exit-code", "reads DMI", "this folder", ", here", "$XDG"):
        assert word not in said
