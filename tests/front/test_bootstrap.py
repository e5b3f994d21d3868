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
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from spotguard import cli
from spotguard.agent import config, launchers
from spotguard.bootstrap.user_data import PER_BOOT

yaml: Any = pytest.importorskip("yaml")

UNITS = resources.files("spotguard.bootstrap") / "systemd"
STORES = {"aws": "s3://ckpt/gpt", "gcp": "gs://ckpt/gpt", "azure": "az://ckpt/gpt?account=acme"}
#: A command as a shell could misread it.
AWKWARD = [
    "python",
    "-c",
    "a = 1 \nb",
    'it\'s "quoted" $HOME `id`',
    " \t",
    "\n \n",
    "#",
    "%i %s \\n",
    "é",
    "",
]


def printed(
    capsys: pytest.CaptureFixture[str], cloud: str, *words: str, command: list[str] | None = None
) -> str:
    given = ["bootstrap", cloud, "--store", STORES[cloud], "--run-id", "gpt-7b", *words, "--"]
    code = cli.main([*given, *(["torchrun", "train.py"] if command is None else command)])
    seen = capsys.readouterr()
    assert (code, seen.err) == (0, ""), seen.err
    return seen.out


def script_of(user_data: str) -> str:
    (file,) = yaml.safe_load(user_data)["write_files"]
    assert (file["path"], file["permissions"]) == (PER_BOOT, "0700")
    return str(file["content"])


def values_of(script: str, folder: Path) -> dict[str, str]:
    """What the script's head sets, as the shell of this machine understands it."""
    head = script.partition("# --- what follows")[0]
    names = re.findall(r"^([a-z_]+)=", head, flags=re.MULTILINE)
    says = "".join(f'printf "%s\\0" {name} "${name}"\n' for name in names)
    done = subprocess.run(["sh", "-c", head + says], capture_output=True, text=True, check=True, cwd=folder)
    words = done.stdout.split("\0")[:-1]
    return dict(zip(words[::2], words[1::2], strict=True))


@pytest.mark.parametrize("cloud", STORES)
def test_cloud_init_is_given_one_script_for_every_boot(
    cloud: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Valid YAML behind the line that names it, small enough for every cloud (16 KiB), and what it sets is what was said."""
    user_data = printed(capsys, cloud, "--user", "ubuntu", "--every", "60")
    assert user_data.startswith("#cloud-config\n")
    assert len(user_data.encode()) < 16 * 1024
    values = values_of(script_of(user_data), tmp_path)
    assert (values["run_id"], values["user"], values["command"]) == ("gpt-7b", "ubuntu", "torchrun train.py")
    extra = {"aws": "s3", "gcp": "gcs", "azure": "azure"}[cloud]
    assert re.fullmatch(rf"spotguard\[{extra}\]==[0-9a-z.]+", values["package"])
    assert tomllib.loads(values["run_toml"]) == {
        "provider": cloud,
        "store": STORES[cloud],
        "run-id": "gpt-7b",
        "every": "60",
        "socket": "/run/spotguard-run-gpt-7b/run.sock",
    }
    assert tomllib.loads(values["agent_toml"]) == {"provider": cloud}


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
    agent = config.resolve("agent", {"config": str(tmp_path / "agent.toml")}, {})
    run = config.resolve("run", {"config": str(tmp_path / "run.toml")}, {})
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
    assert launchers.is_torchrun(shlex.split(values_of(script, tmp_path)["command"]))
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
    assert "print this with" not in printed(capsys, "gcp", "--window", "120")
    assert "startup-script=this-file" in printed(capsys, "gcp", "--startup-script")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["aws", "--store", "s3://b", "--run-id", "r"], "the command is missing"),
        (["aws", "--run-id", "r", "--", "x"], "--store is missing"),
        (["aws", "--store", "s3://b", "--", "x"], "--run-id is missing"),
        (["aws", "--store", "ftp://b", "--run-id", "r", "--", "x"], "--store"),
        (["aws", "--store", "s3://b", "--run-id", "a/b", "--", "x"], "--run-id"),
        (["ibm", "--store", "s3://b", "--run-id", "r", "--", "x"], "'ibm'"),
        (["aws", "--store", "s3://b", "--run-id", "r", "--user", "Ann B", "--", "x"], "--user 'Ann B'"),
        (["aws", "--store", "s3://b", "--run-id", "r", "--user", "spotguard", "--", "x"], "the agent's own"),
        (
            ["aws", "--store", "s3://b", "--run-id", "r", "--python", "python3", "--", "x"],
            "--python 'python3'",
        ),
        (["aws", "--store", "s3://b", "--run-id", "r", "--directory", "job", "--", "x"], "--directory 'job'"),
        (["aws", "--store", "s3://b", "--run-id", "r", "--window", "soon", "--", "x"], "--window"),
        (["aws", "--store", "s3://b", "--run-id", "r", "--config", "f", "--", "x"], "--config"),
        (["aws", "--store", "s3://b", "--run-id", "r", "--exit-code", "76", "--", "x"], "--exit-code: by 75"),
        (["aws", "--store", "s3://b/a\nruncmd: [x]", "--run-id", "r", "--", "x"], "--store"),
        (
            ["aws", "--store", "s3://b", "--run-id", "r", "--directory", "/a\nUser=root", "--", "x"],
            "--directory holds",
        ),
        (["aws", "--store", "s3://b", "--run-id", "r", "--", "echo", "a\x1bb"], "the command holds '\\x1b'"),
        (
            ["aws", "--store", "s3://b", "--run-id", "r", "--", "echo", "a\u2028b"],
            "the command holds '\\u2028'",
        ),
        (
            ["aws", "--store", "s3://b", "--run-id", "r", "--prepare", "a\rb", "--", "x"],
            "--prepare holds '\\r'",
        ),
        (["aws", "--policy"], "--policy: of which store?"),
        (["aws", "--policy", "--store", "gs://b"], "expected s3://"),
    ],
)
def test_what_cannot_be_meant_is_refused_here(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """On the machine nobody is there to read an error. Nothing is printed that could be pasted."""
    assert cli.main(["bootstrap", *words]) == 2
    seen = capsys.readouterr()
    assert seen.out == ""
    assert said in seen.err


@pytest.mark.parametrize(
    ("words", "command", "name"),
    [
        ([], ["env", "AWS_ACCESS_KEY_ID=AKIA" + "X" * 16, "x"], "an AWS access key"),
        ([], ["env", "AWS_SECRET_ACCESS_KEY=abc", "x"], "an AWS secret key"),
        (
            ["--prepare", "export X='DefaultEndpointsProtocol=https;AccountKey=abc'"],
            ["x"],
            "the key of an Azure",
        ),
        (["--package", "https://acme.example/x.whl?sv=1&sig=" + "a" * 30], ["x"], "an Azure SAS"),
        (["--index", "https://me:secret@pypi.example/simple"], ["x"], "a password in a URL"),
        (
            ["--prepare", "git clone https://ghp_0123456789abcdef@github.com/a/b"],
            ["x"],
            "a password in a URL",
        ),
        (["--prepare", "pip download hf_0123456789abcdef0"], ["x"], "a token"),
        ([], ["env", "WANDB_API_KEY=0123", "x"], "a secret by its name"),
        (["--prepare", "export HF_TOKEN='0123'"], ["x"], "a secret by its name"),
        (["--prepare", "echo '-----BEGIN RSA PRIVATE KEY-----'"], ["x"], "a private key"),
        (["--on-notice", "curl https://me:secret@example.org"], ["x"], "a password in a URL"),
    ],
)
def test_nothing_secret_goes_into_user_data(
    words: list[str], command: list[str], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is not printed either: not even in the error."""
    said = ["bootstrap", "aws", "--store", "s3://b", "--run-id", "r", *words, "--", *command]
    assert cli.main(said) == 2
    seen = capsys.readouterr()
    assert seen.out == ""
    assert name in seen.err
    assert "/etc/spotguard/runs/r.env" in seen.err
    assert not re.search(r"secret@|AKIAX|abc|aaaa|0123", seen.err)


def test_what_is_no_secret_is_not_taken_for_one(capsys: pytest.CaptureFixture[str]) -> None:
    """A name, a variable that is passed on, a user who is no secret."""
    prepare = "git clone https://git@github.com/a/b . && HF_TOKEN=$HF_TOKEN python fetch.py --tokenizer=gpt2"
    printed(
        capsys,
        "aws",
        "--prepare",
        prepare,
        command=["python", "train.py", "--max_tokens=5", "--api-key-file=k"],
    )


# --- policies -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cloud", "store", "needs"),
    [
        ("aws", "s3://ckpt/gpt/7b", ["s3:DeleteObject", "s3:GetObject", "s3:ListBucket", "s3:PutObject"]),
        (
            "gcp",
            "gs://ckpt",
            [
                "storage.objects.create",
                "storage.objects.delete",
                "storage.objects.get",
                "storage.objects.list",
            ],
        ),
        ("azure", "az://ckpt/gpt?account=acme", ["blobs/delete", "blobs/read", "blobs/write"]),
    ],
)
def test_the_policy_holds_what_is_needed_and_no_more(
    cloud: str, store: str, needs: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["bootstrap", cloud, "--store", store, "--policy"]) == 0
    said = json.loads(capsys.readouterr().out)
    if cloud == "aws":
        given = {one["Resource"]: one["Action"] for one in said["Statement"]}
        assert set(given) == {"arn:aws:s3:::ckpt/gpt/7b/*", "arn:aws:s3:::ckpt"}
        actions = [*given["arn:aws:s3:::ckpt/gpt/7b/*"], given["arn:aws:s3:::ckpt"]]
    elif cloud == "gcp":
        actions = said["includedPermissions"]
    else:
        assert said["Actions"] == []
        actions = ["/".join(action.split("/")[-2:]) for action in said["DataActions"]]
    assert sorted(actions) == needs


def test_a_whole_bucket_is_a_policys_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bootstrap", "aws", "--store", "s3://ckpt", "--policy"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["Statement"][0]["Resource"] == "arn:aws:s3:::ckpt/*"


def test_the_policies_are_those_of_the_page() -> None:
    """docs/stores.md shows what is shipped."""
    page = (Path(__file__).parents[2] / "docs/stores.md").read_text()
    shown = json.loads(page.partition("```json\n")[2].partition("```")[0])
    shipped = (resources.files("spotguard.bootstrap") / "policies/aws.json").read_text()
    assert json.loads(shipped) == shown


# --- units ----------------------------------------------------------------------------------------------------


@pytest.fixture
def units(tmp_path: Path) -> Path:
    """The units as they are shipped, but for a program that is here."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed: apt-get install systemd")
    for name in ("spotguard-agent.service", "spotguard-run@.service"):
        text = UNITS.joinpath(name).read_text()
        (tmp_path / name).write_text(
            re.sub("^ExecStart=.*$", "ExecStart=/bin/true", text, flags=re.MULTILINE)
        )
    return tmp_path


def test_systemd_understands_every_line(units: Path) -> None:
    """An unknown key is a warning and no failure (seen), so nothing may be said at all."""
    names = ["spotguard-agent.service", "spotguard-run@gpt.service"]
    (units / names[1]).symlink_to("spotguard-run@.service")
    done = subprocess.run(
        ["systemd-analyze", "verify", *(f"./{name}" for name in names)],
        cwd=units,
        capture_output=True,
        text=True,
        env={**os.environ, "SYSTEMD_LOG_LEVEL": "warning"},
        check=False,
    )
    ours = [line for line in done.stderr.splitlines() if "spotguard" in line]
    assert (done.returncode, ours) == (0, [])


def test_the_agent_is_shut_in(units: Path) -> None:
    """`systemd-analyze security` says 3.0 at the most, of 10."""
    words = ["systemd-analyze", "security", "--offline=true", "--threshold=30", "./spotguard-agent.service"]
    done = subprocess.run(words, cwd=units, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_a_job_outlives_the_beginning_of_a_shutdown() -> None:
    """What is started later is stopped earlier; SIGTERM goes to the guard alone; no window is longer than its patience."""
    said = UNITS.joinpath("spotguard-run@.service").read_text()
    after = " ".join(re.findall(r"^After=(.*)$", said, flags=re.MULTILINE)).split()
    assert {"network-online.target", "remote-fs.target", "spotguard-agent.service"} <= set(after)
    assert {"waagent.service", "walinuxagent.service", "nvidia-fabricmanager.service"} <= set(after)
    assert "\nKillMode=mixed\n" in said
    assert int(re.findall(r"^TimeoutStopSec=(\d+)$", said, flags=re.MULTILINE)[0]) > 120 + 30
    assert "\nRestartForceExitStatus=75\n" in said
