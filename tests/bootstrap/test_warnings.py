"""What `spotguard bootstrap` only warns of: a machine would run, and cost work or money."""

from __future__ import annotations

import pytest

from spotguard.bootstrap import plan, warnings
from spotguard.cli import main
from spotguard.providers.clock import SystemClock
from tests.bootstrap.user_data import NEEDED, STORES, WHEEL, printed


@pytest.mark.parametrize(
    ("cloud", "words", "said"),
    [
        ("gcp", ["--store", "s3://ckpt"], "checkpoints leave gcp for S3"),
        ("aws", ["--store", "az://abc?account=acme"], "checkpoints leave aws for Azure Blob Storage"),
        ("aws", ["--store", "file:///mnt/x"], "checkpoints go to file:///mnt/x: on the machine's own disk"),
        ("aws", ["--deadline", "2h30m"], "--deadline 2h30m is counted from each start of the job"),
        ("aws", ["--webhook", "http://10.0.0.9:9093"], "--webhook is in user-data"),
        ("azure", ["--then", "poweroff"], "az vm deallocate"),
        ("azure", ["--then", "shutdown -h now"], "az vm deallocate"),
    ],
)
def test_an_unlikely_value_is_warned_of_and_printed(
    cloud: str, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Twice: for who prints it, and for who pastes it."""
    assert main.main(["bootstrap", cloud, "--store", STORES[cloud], *NEEDED, *words, "--", "x"]) == 0
    seen = capsys.readouterr()
    assert seen.err.startswith("spotguard: warning: ")
    assert said in seen.err
    assert said in seen.out.partition("write_files:")[0]


TARBALL = "https://codeload.github.com/acme/spotguard/tar.gz/refs/tags/v0.1.0"


@pytest.mark.parametrize(
    ("words", "version", "said"),
    [
        (["spotguard==0.1.0"], "0.2.0.dev0", ["which does not have this version (0.2.0.dev0)"]),
        (["spotguard==0.1.0"], "0.2.0", []),
        (["spotguard"], "0.2.0", ["--package spotguard[s3] is the newest version of the day"]),
        (["spotguard>=0.1"], "0.2.0", ["--package spotguard[s3]>=0.1 is the newest version of the day"]),
        (["spotguard", "--index", "https://pypi.example.org/simple"], "0.2.0.dev0", ["the newest version"]),
        (["spotguard==0.1.0", "--index", "https://pypi.example.org/simple"], "0.2.0.dev0", []),
        ([TARBALL], "0.2.0.dev0", [f"{TARBALL} ends as no wheel and no archive"]),
        ([WHEEL, "--with", f"x @ {TARBALL} ; os_name == 'posix'"], "0.2.0", [f"{TARBALL} ends as no"]),
        ([WHEEL, "--with", "https://example.org/x.zip; os_name == 'posix'"], "0.2.0", []),
        (["git+https://example.org/spotguard"], "0.2.0.dev0", []),
        (["/srv/spotguard"], "0.2.0.dev0", []),
    ],
)
def test_a_package_that_an_index_may_lack_is_warned_of(
    words: list[str], version: str, said: list[str]
) -> None:
    package, *more = words
    flags = dict(zip(more[::2], more[1::2], strict=True))
    wish = plan.MachineWish(
        package=package, index=flags.get("--index"), others=[flags["--with"]] if "--with" in flags else []
    )
    made = plan.make("aws", {"store": "s3://ckpt", "run-id": "r"}, ["x"], wish, SystemClock())
    found = warnings.doubts(made, version)
    assert len(found) == len(said)
    for one, words_of_it in zip(found, said, strict=True):
        assert words_of_it in one


def test_a_script_in_the_place_of_a_program_is_warned_of(capsys: pytest.CaptureFixture[str]) -> None:
    """It is looked for on the PATH. One that is named by its path may be a program."""
    words = ["bootstrap", "aws", "--store", "s3://ckpt", *NEEDED, "--"]
    assert main.main([*words, "train.py", "--epochs", "3"]) == 0
    seen = capsys.readouterr()
    assert "train.py would be looked for on the machine's PATH" in seen.err
    assert "-- python train.py" in seen.err
    printed(capsys, "aws", command=["./train.py"])


def test_a_program_with_blanks_in_its_own_name_may_be_a_command_in_quotes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert (
        main.main(["bootstrap", "aws", "--store", STORES["aws"], *NEEDED, "--", "/srv/job/train x.yaml"]) == 0
    )
    assert "'/srv/job/train x.yaml' is run as one program of that name" in capsys.readouterr().err
