"""What `spotguard bootstrap` refuses: on the machine nobody is there to read it. What it only warns of is in test_bootstrap_doubts.py."""

from __future__ import annotations

import re
import shlex
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from spotguard.bootstrap import options
from spotguard.cli import main
from spotguard.providers.errors import UsageError
from tests.bootstrap.user_data import NEEDED, STORES, noise, printed, refused, script_of, values_of
from tests.cases import cases
from tests.fakes.clock import ManualClock


@cases(
    "words, said",
    [
        (["aws", "--store", "s3://ckpt", "--run-id", "r"], "the command is missing"),
        (["aws", "--run-id", "r", "--", "x"], "--store is missing"),
        (["aws", "--store", "s3://ckpt", "--", "x"], "--run-id is missing"),
        (["aws", "--store", "s3://ckpt", "--run-id", "r", "--", "x"], "--package is missing"),
        (
            ["aws", "--store", "s3://ckpt", *NEEDED, "torchrun", "x.py", "--epochs", "3"],
            "unknown word 'torchrun': the command follows --",
        ),
        (["ibm", "--store", "s3://ckpt", *NEEDED, "--", "x"], "'ibm'"),
        (["aws", "--policy"], "--policy: of which store?"),
        (["aws", "--policy", "--store", "gs://ckpt"], "expected s3://"),
        (["aws", "--policy", "--store", "s3://ckpt*/x"], "names no bucket"),
        (["aws", "--policy", "--store", "s3://ckpt?/x"], "has the option '/x'"),
        (["aws", "--policy", "--store", "s3://ckpt/x*"], "has the prefix 'x*'"),
        (["aws", "--policy", "--store", "s3://ckpt?kms-key-id=*"], "kms-key-id='*' is not a KMS key"),
        (
            ["aws", "--store", "s3://192.168.5.4?region=eu-west-1", *NEEDED, "--", "x"],
            "is no name that S3 gives a bucket",
        ),
        (
            ["gcp", "--store", "gs://192.168.5.4", *NEEDED, "--", "x"],
            "is no name that Google Cloud Storage gives",
        ),
        (["aws", "--policy", "--store", "s3://b"], "is no name that S3 gives a bucket"),
        (
            ["azure", "--policy", "--store", "az://Container"],
            "--store: store 'az://Container': 'Container' is no container",
        ),
        (["azure", "--policy", "--store", "az://abc?account=My-Acme"], "is no storage account's name"),
        (
            ["azure", "--store", "az://container?account=My-Acme", *NEEDED, "--", "x"],
            "is no storage account's name",
        ),
        (["azure", "--store", "az://container", *NEEDED, "--", "x"], "az://container/prefix?account=NAME"),
        (["azure", "--store", "az://Container?account=acme", *NEEDED, "--", "x"], "is no container's name"),
    ],
)
def test_a_missing_or_unknown_value_is_refused(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in refused(capsys, *words)


@cases(
    "words, said",
    [
        (["--store", "ftp://b"], "--store"),
        (["--store", "ckpt"], "--store 'ckpt': expected a store's URL, as in s3://bucket/prefix"),
        (["--store", "/mnt/x"], "--store '/mnt/x': expected a store's URL, as in s3://bucket/prefix"),
        (["--metrics-port", "80"], "--metrics-port '80': a port below 1024 is not for a user such as train"),
        (
            ["--python", "/usr/bin/python3.9"],
            "--python '/usr/bin/python3.9': spotguard needs Python 3.11 to 3.14",
        ),
        (["--store", "s3://ckpt/a\nruncmd: [x]"], "--store"),
        (
            ["--store", "s3://ckpt?region=eu west"],
            "region='eu west' is no region's name, as in region=eu-west-1",
        ),
        (["--store", "s3://ckpt?region=eu%20west"], "region='eu west' is no region's name"),
        (["--run-id", "a/b"], "--run-id"),
        (["--user", "Ann B"], "--user 'Ann B'"),
        (["--user", ""], "--user ''"),
        (["--user", "spotguard"], "the agent's own"),
        (["--python", "/usr/bin/python2.7"], "--python '/usr/bin/python2.7': spotguard needs Python 3.11"),
        (["--python", "/usr/bin/python2"], "--python '/usr/bin/python2': spotguard needs Python 3.11"),
        (["--python", "python3"], "--python 'python3'"),
        (["--python", ""], "--python ''"),
        (["--directory", "job"], "--directory 'job'"),
        (["--directory", ""], "--directory ''"),
        (["--directory", "/a\nUser=root"], "--directory holds"),
        (["--window", "soon"], "--window"),
        (["--deadline", "2020-01-01T00:00Z"], "--deadline '2020-01-01T00:00Z': expected a time to come"),
        (["--deadline", "3600"], "--deadline '3600': expected a time to come"),
        (["--deadline", "2999-01-01T00:00Z"], "a time within ten years"),
        (["--deadline", "2020-01-01T00:00"], "in its own zone, which may not be yours: add the zone"),
        (["--deadline", "soon"], "--deadline 'soon': expected a time with its zone, as in 2035-06-30T18:00Z"),
        (["--deadline", "1790123100000"], "Unix time is in seconds, not milliseconds"),
        (["--deadline", "2999-01-01"], "in its own zone, which may not be yours: add the zone"),
        (["--stage", "rel"], "--stage 'rel': expected a path on the machine"),
        (["--socket", "run.sock"], "--socket 'run.sock'"),
        (["--notice-file", "notice"], "--notice-file 'notice'"),
        (["--config", "f"], "--config"),
        (["--exit-code", "76"], "--exit-code: leave it out"),
        (["--provider", "gcp"], "--provider 'gcp': the machine is one of aws"),
        (["--package", ""], "--package ''"),
        (["--package", "./dist/x.whl"], "--package './dist/x.whl'"),
        (["--with", "./mine"], "--with './mine'"),
        (["--index", ""], "--index ''"),
        (["--prepare", ""], "--prepare ''"),
        (["--prepare", "a\rb"], "--prepare holds '\\r'"),
        (["--then", " "], "--then ' '"),
        (["--then", "poweroff", "--restart", "always"], "--then never comes with --restart always"),
        (["--startup-script"], "--startup-script is Google's"),
        (["--prepare", noise(20_000)], "and aws takes 16384"),
    ],
)
def test_values_that_cannot_work_are_refused_before_the_machine(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in refused(capsys, "aws", "--store", STORES["aws"], *NEEDED, *words, "--", "x")


@pytest.mark.parametrize("char", ["\x1b", "\u2028"])
def test_characters_that_do_not_survive_user_data_are_refused(
    char: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(capsys, "aws", "--store", STORES["aws"], *NEEDED, "--", "echo", f"a{char}b")
    assert f"the command holds {char!r}" in said


@pytest.mark.parametrize(("cloud", "limit"), [("aws", 16 * 1024), ("azure", 65535), ("gcp", 256 * 1024)])
def test_each_cloud_has_a_limit_and_what_fits_is_printed(
    cloud: str, limit: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """What counts is what is printed, and not how long it was before gzip."""
    assert len(printed(capsys, cloud, "--prepare", "x" * limit).encode()) < limit
    some = printed(capsys, cloud, "--prepare", noise(limit // 4))
    assert limit // 4 < len(some.encode()) <= limit
    words = [cloud, "--store", STORES[cloud], *NEEDED, "--prepare", noise(limit), "--", "torchrun", "x.py"]
    assert f" bytes, and {cloud} takes {limit}" in refused(capsys, *words)


def test_the_last_byte_that_fits_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """A startup script is counted as it is: nothing unpacks it."""
    words, limit = ["gcp", "--startup-script", "--store", STORES["gcp"], *NEEDED], 256 * 1024
    empty = len(printed(capsys, "gcp", "--startup-script", "--prepare", "true").encode())
    full = printed(capsys, "gcp", "--startup-script", "--prepare", "true" + "x" * (limit - empty))
    assert len(full.encode()) == limit
    words += ["--prepare", "true" + "x" * (limit - empty + 1), "--", "torchrun", "train.py"]
    assert f"{limit + 1} bytes, and gcp takes {limit}" in refused(capsys, *words)


# --- what is no program ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (["torchrun train.py --epochs 3"], "one word with blanks in it"),
        (["cd /data && torchrun train.py"], "one word with blanks in it"),
        (["/usr/bin/python train.py"], "one word with blanks in it"),
        (["/opt/my venv/bin/python train.py"], "one word with blanks in it"),
        (["./train.sh 3"], "one word with blanks in it"),
        (["/srv/job/train --epochs 3"], "one word with blanks in it"),
        (["/srv/job/train /data/x.yaml"], "one word with blanks in it"),
        (["/srv/job/prepare; /srv/job/train"], "one word with blanks in it"),
        (["/srv/job/train "], "one word with blanks in it"),
        (["spotguard", "run", "--", "torchrun", "train.py"], "under `spotguard run` by itself"),
        (["/opt/venv/bin/spotguard", "run", "torchrun"], "under `spotguard run` by itself"),
    ],
)
def test_a_command_that_would_not_be_found_or_be_guarded_twice_is_refused(
    command: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(capsys, "aws", "--store", "s3://ckpt", *NEEDED, "--", *command)
    assert why in said
    assert "-- torchrun train.py" in said


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (["OMP_NUM_THREADS=4", "torchrun", "train.py"], "OMP_NUM_THREADS=…, which only a shell understands"),
        (["_A1=x y", "torchrun"], "_A1=…, which only a shell understands"),
        (["OMP_NUM_THREADS=4 torchrun train.py"], "'OMP_NUM_THREADS=…', one word with blanks in it"),
        (["cd", "/data"], "the command begins with 'cd', which is a shell builtin and no program"),
        (["source", "venv/bin/activate"], "the command begins with 'source', which is a shell builtin"),
        ([".", "env.sh"], "the command begins with '.', which is a shell builtin"),
        (["exec", "torchrun", "train.py"], "the command begins with 'exec', which is a shell builtin"),
        (["", "train.py"], "the command is missing"),
    ],
)
def test_syntax_that_only_a_shell_understands_is_refused(
    command: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """127 on every machine. What a name is given is not repeated: it may be a secret that nothing shows to be one."""
    said = refused(capsys, "aws", "--store", "s3://ckpt", *NEEDED, "--", *command)
    assert why in said
    assert "=4" not in said
    assert "x y" not in said
    if "only a shell takes" in said:
        name = command[0].partition("=")[0]
        assert f"/etc/spotguard/runs/gpt-7b.env, or say … -- env {name}=… COMMAND" in said


@pytest.mark.parametrize(
    "program", ["/opt/my tools/train.sh", "./my tools/train", "/mnt/Shared - Old/bin/train"]
)
def test_a_program_in_a_folder_with_blanks_in_its_name_is_one(
    program: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    script = script_of(printed(capsys, "aws", command=[program, "--x"]))
    assert values_of(script, tmp_path)["command"] == shlex.join([program, "--x"])


def test_a_variable_behind_env_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    printed(capsys, "aws", command=["env", "OMP_NUM_THREADS=4", "torchrun", "train.py", "lr=0.1"])


# --- what nobody expands --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [
        ["torchrun", "train.py", "--hf-token", "$HF_TOKEN"],
        ["x", "--out=/data/${HF_TOKEN}/a"],
        ["x", "${HF_TOKEN:-none}"],
        ["env", "A=$HF_TOKEN", "x"],
        ["bash", "job.sh", "-c", "$HF_TOKEN"],
        ["python", "train.py", "-c", "$HF_TOKEN"],
        ["sh", "-c", 'exec x "$@"', "sh", "$HF_TOKEN"],
    ],
)
def test_a_variable_that_no_shell_reads_is_refused(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The program would get the nine characters `$HF_TOKEN`."""
    said = refused(capsys, "aws", "--store", "s3://ckpt", *NEEDED, "--", *command)
    assert re.search(r"the command holds '\$\{?HF_TOKEN\b[^']*', and no shell reads it", said)
    assert "sh -c 'exec COMMAND'" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--run-id", "$RUN"], "--run-id holds '$RUN', which nobody expands: write what it stands for"),
        (["--store", "s3://${BUCKET}/x"], "--store holds '${BUCKET}', which nobody expands"),
        (["--directory", "/home/$USER"], "--directory holds '$USER', which nobody expands"),
        (["--stage", "/mnt/$(hostname)"], "--stage holds '$(', which nobody expands"),
        (["--python", "$HOME/python"], "--python holds '$HOME', which nobody expands"),
        (["--vm-name", "$HOSTNAME"], "--vm-name holds '$HOSTNAME', which nobody expands"),
        (
            ["--index", "https://me:$PW@pypi.example/simple"],
            "--index holds '$PW', and pip expands ${NAME} only",
        ),
        (
            ["--with", "x @ https://${Pw}@h.example/x.whl"],
            "--with holds '${Pw}', and pip expands ${NAME} only",
        ),
    ],
)
def test_a_variable_in_an_option_is_refused_where_nothing_reads_it(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in refused(capsys, "aws", "--store", "s3://ckpt", *NEEDED, *words, "--", "x")


@pytest.mark.parametrize(
    ("words", "command"),
    [
        ([], ["sh", "-c", 'exec x --hf-token "$HF_TOKEN"']),
        ([], ["nice", "/bin/bash", "-euo", "pipefail", "-c", "x $(nproc)"]),
        ([], ["torchrun", "--no-python", "bash", "-lc", 'exec python train.py "$HF_TOKEN"']),
        ([], ["awk", "{print $1}", "us$", "$", "5$"]),
        ([], ["x", "dir=${now:%Y}", "${oc.env:HF_TOKEN}", "${model.name}", "name=run-${seed}"]),
        (["--prepare", "echo $A", "--then", "echo ${B}", "--on-notice", "echo $(id)"], ["x"]),
        (["--index", "https://me:${PW_2}@pypi.example/simple"], ["x"]),
    ],
)
def test_variables_of_a_shell_or_of_pip_are_left_to_it(
    words: list[str], command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """OmegaConf's `${…}` has dots, colons or small letters."""
    printed(capsys, "aws", *words, command=command)


# --- what is taken ---------------------------------------------------------------------------------------------


def test_a_deadline_that_is_one_on_every_machine_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    ahead = datetime.now(UTC) + timedelta(days=9)
    for said in (
        ahead.isoformat(timespec="minutes"),
        ahead.strftime("%Y-%m-%d %H:%MZ"),
        str(int(ahead.timestamp())),
    ):
        assert f'deadline = "{said}"' in script_of(printed(capsys, "aws", "--deadline", said))


@pytest.mark.parametrize("said", ["soon", "2035-01-01T00:00", "9999999999999999999"])
def test_an_example_of_a_refused_deadline_is_no_refused_one(said: str) -> None:
    clock = ManualClock()
    with pytest.raises(UsageError) as caught:
        options.read({"deadline": said}, "train", clock)
    for example in re.findall(r"20[0-9]{2}-\S+?(?=[,\s])", str(caught.value).partition(": ")[2]):
        options.read({"deadline": example}, "train", clock)


def test_a_store_that_speaks_like_s3_may_be_anywhere(capsys: pytest.CaptureFixture[str]) -> None:
    """And its buckets may be called as S3's are not."""
    printed(capsys, "gcp", "--store", "s3://My_Bucket?endpoint=https://minio.example:9000")


def test_a_root_user_may_listen_on_any_port(capsys: pytest.CaptureFixture[str]) -> None:
    printed(capsys, "aws", "--user", "root", "--metrics-port", "80")


@pytest.mark.parametrize("python", ["/usr/bin/python3", "/usr/bin/python3.11", "/opt/pytorch/bin/python3.14"])
def test_a_python_that_may_do_is_taken(python: str, capsys: pytest.CaptureFixture[str]) -> None:
    printed(capsys, "aws", "--python", python)


def test_how_a_machine_is_not_paid_for_on_is_said_as_its_cloud_has_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Switched off from inside, Azure's is paid for."""
    for cloud in ("aws", "gcp"):
        assert "print this with --then poweroff." in printed(capsys, cloud)
    said = printed(capsys, "azure")
    assert "--then poweroff" not in said
    assert "print this with a --then that deallocates it" in said


def test_at_a_terminal_it_is_said_that_a_file_is_wanted(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has to be read first has left the screen."""
    words = ["bootstrap", "aws", "--store", "s3://ckpt", *NEEDED, "--", "x"]
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert main.main(words) == 0
    assert "for a file (>user-data)" in capsys.readouterr().err
