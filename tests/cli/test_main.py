"""The command line: each wrong use is one line and the right code, and nothing is loaded that is not asked for."""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from spotguard.cli import main
from spotguard.cli.commands.guard import run as run_command
from tests.cases import cases
from tests.docs import generated
from tests.fakes.report import TIMEOUT
from tests.tiers import few_fast


def spotguard(*words: str, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    """The command as a user starts it; in a session of its own, so that it has no terminal to give away."""
    return subprocess.run(
        [sys.executable, "-m", "spotguard", *words],
        cwd=cwd,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        start_new_session=True,
        check=False,
    )


def refused(capsys: pytest.CaptureFixture[str], *words: str, code: int = 2) -> str:
    """The one line with which `words` are refused."""
    assert main.main(words) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("spotguard: error: ")
    assert err.count("\n") == 1
    assert "Traceback" not in err
    return err


@pytest.mark.parametrize("command", main.COMMANDS)
def test_every_command_explains_itself(capsys: pytest.CaptureFixture[str], command: str) -> None:
    """What it is, its flags, and examples to copy."""
    with pytest.raises(SystemExit) as left:
        main.main([command, "--help"])
    assert left.value.code == 0
    out = capsys.readouterr().out
    assert out.startswith(f"usage: spotguard {command}")
    assert out.count(f"\n  spotguard {command}") + out.count(f"until spotguard {command}") >= 1
    assert "None" not in out


def test_the_list_of_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main.main(["--help"])
    out = capsys.readouterr().out
    assert all(f"\n  {command} " in out for command in main.COMMANDS)


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main.main(["--version"])
    assert capsys.readouterr().out.startswith("spotguard 0.")


@cases(
    "words, said",
    [
        (["rnu"], "unknown command 'rnu': did you mean run?"),
        (["xyzzy"], "expected one of run, agent"),
        (["--vresion"], "unknown flag '--vresion': did you mean --version?"),
        (["run"], "the command is missing: use spotguard run [options] -- COMMAND"),
        (["run", "--keep", "3"], "the command is missing"),
        (["run", "--"], "the command is missing"),
        (["run", "--stroe", "file:///x", "true"], "unknown flag '--stroe': did you mean --store?"),
        (["run", "--wind", "30", "true"], "unknown flag '--wind': did you mean --window?"),
        (["run", "--keep", "0", "true"], "--keep '0': expected a whole number from 1 up"),
        (["run", "--keep"], "argument --keep: expected one argument"),
        (["run", "--outlive=yes", "true"], "argument --outlive: ignored explicit argument 'yes'"),
        (["run", "--provider", "ibm", "true"], "expected auto, aws, azure, gcp or none"),
        (
            ["run", "--store", "s3://b/p?regoin=x", "true"],
            "--store: store 's3://b/p' has the option 'regoin'; S3 knows region",
        ),
        (["run", "--store", "ftp://b/p", "true"], "unknown; use s3://bucket/prefix"),
        (["run", "--store", "s3:/b/p", "true"], "write it as s3://b/p"),
        (["run", "--shard", "x", "true"], "unknown flag '--shard'"),
        (
            ["run", "--epochs", "3", "--", "python", "train.py"],
            "unknown flag '--epochs': flags of the command go behind it, as in -- python train.py --epochs 3",
        ),
        (
            ["ls", "--store", "s3://b/p"],
            "unknown flag '--store': the store is a word of its own, as in spotguard ls s3://bucket/prefix",
        ),
        (["run", "--config", "/no/such.toml", "true"], "--config '/no/such.toml': expected a file"),
        (["agent", "--keep", "3"], "unknown flag '--keep'"),
        (["agent", "now"], "unknown word 'now': see spotguard agent --help"),
        # What is meant by a bare word, or by another tool's flag.
        (["agent", "aws"], "unknown word 'aws': did you mean --provider aws?"),
        (["doctor", "aws"], "unknown word 'aws': did you mean --provider aws?"),
        (["doctor", "--json", "gcp", "--window", "30"], "unknown word 'gcp': did you mean --provider gcp?"),
        (
            ["doctor", "s3://b/x?region=r"],
            "unknown word 's3://b/x?region=r': did you mean --store s3://b/x?region=r?",
        ),
        (["doctor", "--cloud", "aws"], "unknown flag '--cloud': did you mean --provider?"),
        (["status", "aws"], "unknown word 'aws': see spotguard status --help"),
        (["drill", "--window", "0"], "--window '0': expected seconds above 0"),
        (["run", "--window", "1e11", "true"], "expected seconds from 0 up to 604800 (a week)"),
        (["drill", "--window", "1e11"], "expected seconds from 0 up to 604800 (a week)"),
        (["drill", "--run-id", "a b"], "--run-id 'a b': expected"),
        (["drill", "--socket", ""], "--socket '': expected a path, as in /run/"),
        *(
            (
                [name, "--socket", "/", *command],
                "--socket '/': expected a path with a name at its end, as in /",
            )
            for name, *command in (["run", "true"], ["agent"], ["doctor"], ["status"], ["drill"])
        ),
        (["status", "--socket", "//"], "--socket '//': expected a path with a name at its end"),
        (["status", "--wach"], "did you mean --watch?"),
        (["simulate"], "which cloud? Expected aws, gcp or azure, as in spotguard simulate aws"),
        (["simulate", "aws", "--preempt-afer", "3"], "did you mean --preempt-after?"),
        # The flags of a cloud are not those of a failure.
        (
            ["simulate", "failure", "data", "--bogus", "--", "true"],
            "unknown flag '--bogus': see spotguard simulate failure --help",
        ),
        (["simulate", "aws", "now"], "unknown word 'now': see spotguard simulate aws --help"),
        (["simulate", "aws", "--", "python"], "takes no command: start it at another prompt"),
        (
            ["simulate", "failure", "data"],
            "expected a class and a command, as in spotguard simulate failure data",
        ),
        (
            ["simulate", "failure", "flood", "--", "true"],
            "spotguard simulate failure 'flood': expected cuda-memory, ",
        ),
        (
            ["simulate", "failure", "data", "--at-step", "-1", "--", "true"],
            "expected a whole number from 0 up",
        ),
        (["simulate", "failure", "data", "--times", "0", "--", "true"], "expected a whole number from 1 up"),
        (
            ["simulate", "failure", "data", "--in", "forward", "--", "true"],
            "data arises in data only; leave --in out",
        ),
        (
            ["simulate", "failure", "data", "--for", "5", "--", "true"],
            "--for '5': data has no duration; leave --for out",
        ),
        (
            ["simulate", "failure", "stopped", "--for", "long", "--", "true"],
            "--for 'long': expected seconds from 0 up",
        ),
        (
            # The command needs no `--`, as that of `run`; one that it has itself is its own.
            ["simulate", "failure", "data", "--for", "5", "spotguard", "run", "--", "true"],
            "--for '5': data has no duration; leave --for out",
        ),
        (
            ["simulate", "failure", "stall", "--in", "sleep", "--", "true"],
            "expected data, forward, backward or optimizer",
        ),
        (["ls", "s3//bucket/x"], "'s3//bucket/x'"),
        (["inspect", "--step", "one"], "--step 'one': expected a whole number"),
        (["verify", "gs:///p"], "names no bucket; write it as gs://bucket/prefix"),
        (["prune"], "--keep is missing"),
        (["prune", "--keep", "0"], "the last good one always stays"),
    ],
)
def test_wrong_words(capsys: pytest.CaptureFixture[str], words: list[str], said: str) -> None:
    assert said in refused(capsys, *words)


@pytest.mark.parametrize(
    ("words", "warned"),
    few_fast(
        [
            (["--provider", "aws", "--metadata-endpoint", "http://127.0.0.1:9"], True),
            (["--provider", "aws", "--metadata-endpoint", "http://127.0.0.1:9", "--store"], False),
            (["--provider", "none"], False),
        ],
        2,
    ),
)
def test_a_disk_that_goes_with_a_clouds_machine_is_said(
    words: list[str], warned: bool, tmp_path: Path
) -> None:
    """Nobody chose it: it is the default. Who names a folder means it."""
    store = [tmp_path.as_uri()] * (words[-1] == "--store")
    done = spotguard("run", *words, *store, "--run-id", "r", "--", "true", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    said = "a disk of THIS machine: when aws preempts it, they are lost with it. Pass a store that outlives it: --store s3://"
    assert (said in done.stderr) is warned


def test_a_store_without_an_account_is_refused_before_anything_runs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The training process would say so too: at the end of a traceback."""
    monkeypatch.delenv("AZURE_STORAGE_CONNECTION_STRING", raising=False)
    said = refused(capsys, "run", "--store", "az://container", "touch", str(tmp_path / "ran"))
    assert (
        "--store: store 'az://container' names no storage account; write az://container/prefix?account=NAME"
        in said
    )
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("command", [["run", "true"], ["doctor"]])
def test_a_bucket_that_the_cloud_cannot_have_is_refused_before_anything_is_asked(
    command: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """By S3 and Cloud Storage themselves: a server of one's own has names of its own."""
    words = [command[0], "--store", "{}", *command[1:]]
    monkeypatch.setenv("HOME", str(tmp_path))
    for url, bucket, variables in (
        ("s3://192.168.5.4?region=eu-west-1", "192.168.5.4", ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3")),
        ("gs://My_Bucket", "My_Bucket", ("STORAGE_EMULATOR_HOST",)),
    ):
        for name in variables:
            monkeypatch.delenv(name)
        said = refused(capsys, *(word.format(url) for word in words))
        assert f"--store: store '{url}': {bucket!r} is no name that" in said


def test_a_file_in_the_place_of_the_usual_folder_is_refused_before_anything_runs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "spotguard-checkpoints").touch()
    said = refused(capsys, "run", "touch", "ran")
    assert "the default: store 'file://" in said
    assert "spotguard-checkpoints is a file: name a directory, or another store" in said
    assert not (tmp_path / "ran").exists()


def test_no_word_at_all(capsys: pytest.CaptureFixture[str]) -> None:
    """The help, and the code of a mistake."""
    assert main.main([]) == 2
    assert "commands:" in capsys.readouterr().err


def test_a_bad_variable_is_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPOTGUARD_WINDOW", "2x")
    assert "SPOTGUARD_WINDOW '2x': expected seconds" in refused(capsys, "run", "true")
    monkeypatch.delenv("SPOTGUARD_WINDOW")
    monkeypatch.setenv("SPOTGUARD_STORE", "s3://b/p#x")
    assert "SPOTGUARD_STORE: store 's3://b/p#x'" in refused(capsys, "run", "true")


@pytest.mark.parametrize(
    ("words", "ours", "command"),
    [
        (["--", "python", "x.py"], [], ["python", "x.py"]),
        (["python", "x.py", "--keep", "9"], [], ["python", "x.py", "--keep", "9"]),
        (["--keep", "3", "python", "x.py"], ["--keep", "3"], ["python", "x.py"]),
        (["--keep=3", "--outlive", "python"], ["--keep=3", "--outlive"], ["python"]),
        (["--no-outlive", "--", "--odd"], ["--no-outlive"], ["--odd"]),
        (["--config", "a.toml", "--", "a", "--", "b"], ["--config", "a.toml"], ["a", "--", "b"]),
        (["--window", "-5", "true"], ["--window", "-5"], ["true"]),
        (["--unknown", "value"], ["--unknown"], ["value"]),
        (["--keep"], ["--keep"], []),
        ([], [], []),
    ],
)
def test_the_command_begins_behind_the_options_of_run(
    words: list[str], ours: list[str], command: list[str]
) -> None:
    """The command's own flags are never ours."""
    from spotguard.cli.commands.guard.run import split

    assert split(words) == (ours, command)


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        (["no-such-program"], 127, "command not found: 'no-such-program'"),
        (["./train.py"], 126, "use python ./train.py"),
        (["sh", "-c", "exit 5"], 5, ""),
        (["sh", "-c", "kill -KILL $$"], 128 + signal.SIGKILL, ""),
    ],
)
def test_run_answers_with_the_commands_code(tmp_path: Path, command: list[str], code: int, said: str) -> None:
    """Or with the shell's own, where there was no command; and leaves no socket behind."""
    (tmp_path / "train.py").write_text("print()")
    done = spotguard("run", "--socket", str(tmp_path / "s.sock"), *command, cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    if said:
        assert said in done.stderr
        assert done.stderr.splitlines()[-1].startswith("spotguard: error: ")
    assert not (tmp_path / "s.sock").exists()
    assert "Traceback" not in done.stderr


def test_a_run_inside_a_run_is_another_run(tmp_path: Path) -> None:
    """It asks for no socket that the outer one holds."""
    inner = [sys.executable, "-m", "spotguard", "run", "--", "sh", "-c", "echo $SPOTGUARD_RUN_ID; exit 5"]
    done = spotguard("run", "--run-id", "outer", "--", *inner, cwd=tmp_path)
    assert done.returncode == 5, done.stderr
    assert done.stdout.strip() not in ("", "outer")


def test_a_misspelt_variable_is_said(tmp_path: Path) -> None:
    """In one line; the command runs."""
    done = spotguard("run", "true", cwd=tmp_path, SPOTGUARD_STROE="file:///x")
    assert done.returncode == 0
    (line,) = [line for line in done.stderr.splitlines() if "STROE" in line]
    assert line.endswith("SPOTGUARD_STROE: did you mean SPOTGUARD_STORE? [SG701]")


def test_status_of_killed_agents_alone(tmp_path: Path) -> None:
    """Their sockets are left behind, and guard nothing."""
    (tmp_path / "spotguard").mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "spotguard" / "a.sock"))
    done = spotguard("status", XDG_RUNTIME_DIR=str(tmp_path))
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith("nothing is guarded here")


def test_run_holds_nothing_large(tmp_path: Path) -> None:
    """The agent lives as long as the training: no torch, no store's SDK, no tables, in it."""
    probe = "import sys; print(*sorted(m.partition('.')[0] for m in sys.modules), sep='\\n')"
    program = (
        f"import sys\nfrom spotguard.cli.main import main\ncode = main(sys.argv[1:])\n{probe}\nsys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "run", "true"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        start_new_session=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.split())
    assert "spotguard" in loaded
    unwanted = {"torch", "numpy", "rich", "boto3", "google", "azure", "safetensors", "tomllib", "difflib"}
    assert loaded & unwanted == set()


def test_the_names_are_those_of_a_bare_register(tmp_path: Path) -> None:
    """A job that was trained without `run` is resumed under it, and the other way round."""
    (tmp_path / "train.py").write_text(
        "import os, sys\n"
        "from spotguard.hooks.arguments.names import default_run_id, default_store\n"
        "here = os.getcwd()\n"
        "said = os.environ['SPOTGUARD_RUN_ID'], os.environ['SPOTGUARD_STORE']\n"
        "assert said == (default_run_id(sys.orig_argv, here, os.environ), default_store(here)), said\n"
    )
    done = spotguard("run", "--", sys.executable, "train.py", "--lr", "0.1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_a_folder_that_is_gone_is_no_bug(tmp_path: Path) -> None:
    """One line, and where to go."""
    gone = tmp_path / "gone"
    gone.mkdir()
    shell = 'rmdir "$1" && exec "$0" -m spotguard run true'
    done = subprocess.run(
        ["sh", "-c", shell, sys.executable, str(gone)],
        cwd=gone,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == "spotguard: error: the working directory is gone: change to another one (cd)\n"


def test_debug_shows_where_an_error_came_from(tmp_path: Path) -> None:
    done = spotguard("run", "--keep", "0", "true", cwd=tmp_path, SPOTGUARD_DEBUG="1")
    assert done.returncode == 1
    assert "Traceback" in done.stderr


def _helps(width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.setenv("COLUMNS", str(width))
    found = {}
    for command in ("", *main.COMMANDS):
        with pytest.raises(SystemExit):
            main.main([*filter(None, [command]), "--help"])
        found[command] = capsys.readouterr().out
    return found


@pytest.mark.parametrize("width", [60, 120])
def test_help_follows_the_terminals_width(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for the examples, which are copied, and a usage that a command writes itself."""
    for command, text in _helps(width, capsys, monkeypatch).items():
        above = text.partition("\nexamples:\n")[0]
        wide = [line for line in above.splitlines() if len(line) > width and not line.startswith("usage:")]
        assert wide == [], command


def test_the_options_of_run_are_in_groups(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = _helps(80, capsys, monkeypatch)["run"]
    titles = [line for line in text.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert titles == [
        "options:",
        "Notice:",
        "Checkpoints:",
        "Restart:",
        "Alerts:",
        "Socket and output:",
        "examples:",
    ]


def test_an_options_help_is_one_short_phrase() -> None:
    """Verb first, at most 70 characters."""
    for name, parser in generated.parsers():
        for action in parser._actions:
            text = action.help or ""
            if text in (argparse.SUPPRESS, "") or action.dest == "help":
                continue
            assert len(text) <= 70, (name, text)
            assert text[0].islower() or text.startswith("Azure"), (name, text)


def test_a_missing_sdk_is_said_before_the_command_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The agent needs none, and the training process would say so once a rank, after it has loaded torch."""
    assert not run_command._is_installed("no_such_package.inside")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run_command, "_is_installed", lambda package: package != "boto3")
    for store, wanted in (("s3://bucket/x", 1), ("gs://bucket/x", 0), (str(tmp_path), 0)):
        caplog.clear()
        run_command._warn_of_a_missing_sdk(run_command.options_for({"store": store}, ["true"]))
        said = [line for line in caplog.messages if "which is not installed here" in line]
        assert len(said) == wanted
        assert all(line.startswith("store s3://bucket/x needs boto3") and "[SG307]" in line for line in said)
