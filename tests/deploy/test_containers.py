"""`spotguard deploy containers`: the files that an install has, printed."""

from __future__ import annotations

import subprocess
import sys

import pytest

import spotguard
from spotguard.cli.main import main
from spotguard.deploy.containers import FILES, FOR_EVERY_CLOUD, MANIFESTS, text


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_printed_with_nothing_left_to_fill_in(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [name] if name in FOR_EVERY_CLOUD else [name, "gcp"]
    assert main(["deploy", "containers", *words]) == 0
    printed = capsys.readouterr().out
    assert "@" not in printed
    assert spotguard.__version__ in printed or name in ("job", "indexed-job", "alone", "node-label")
    assert f"spotguard deploy containers {' '.join(words)}`" in " ".join(printed.split()), (
        "it says where it comes from"
    )


def test_an_image_is_the_one_that_was_said() -> None:
    assert (
        text("agent", "aws", "gcr.example/a/spotguard@sha256:0123").count(
            "image: gcr.example/a/spotguard@sha256:0123\n"
        )
        == 2
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["agent"], "agent: which cloud? Expected aws, gcp or azure"),
        (["agent", "aws", "--image", "a\nb"], r"--image 'a\nb': expected an image's name"),
        (["agent", "aws", "--imag", "a"], "unknown flag '--imag': did you mean --image?"),
        (["dockerfile", "aws"], "dockerfile is for every cloud: leave 'aws' out"),
        (["node-label", "gcp"], "node-label is for every cloud: leave 'gcp' out"),
        (["node-label", "--image", "x"], "--image: node-label holds no image of the agent: leave it out"),
        (["dockerfile", "--image", "x"], "--image: dockerfile holds no image of the agent: leave it out"),
        (["job", "aws", "--image", "x"], "--image: job holds no image of the agent: leave it out"),
        (["aws", "job"], "'aws': did you mean job aws?"),
        (["gcp", "indexed-job", "--image", "x"], "'gcp': did you mean indexed-job gcp?"),
        (["aws", "dockerfile"], "'aws': did you mean dockerfile?"),
        (
            ["aws"],
            "'aws': which file? Expected one of agent, job, indexed-job, alone, sidecar, as in agent aws",
        ),
        (["azure", "pod"], "'azure': which file? Expected one of agent, job"),
        (["job", "ibm"], "unknown cloud 'ibm': expected aws, gcp or azure, as in job aws"),
        (["job", "awz"], "unknown cloud 'awz': did you mean aws?"),
        (
            ["job", "--cloud", "aws"],
            "unknown flag '--cloud': the cloud is the last word, as in containers job aws",
        ),
    ],
)
def test_a_usage_error_of_deploy_containers_is_one_line(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["deploy", "containers", *words]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert said in printed.err
    assert printed.err.count("\n") == 1


def test_it_is_found_without_a_checkout() -> None:
    words = [sys.executable, "-m", "spotguard", "deploy", "containers", MANIFESTS[0], "azure"]
    done = subprocess.run(words, capture_output=True, text=True, cwd="/", timeout=100)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("# The agent on every spot node")


def test_the_dockerfile_has_no_shell_and_no_init_in_front() -> None:
    lines = text("dockerfile").splitlines()
    assert 'ENTRYPOINT ["spotguard"]' in lines
    assert not [line for line in lines if line.startswith(("STOPSIGNAL", "ADD", "HEALTHCHECK"))]


def test_the_dockerfile_takes_nothing_that_may_not_be_there() -> None:
    """A COPY of no file fails, as does one of what .dockerignore names."""
    lines = text("dockerfile").splitlines()
    assert not [line for line in lines if line.startswith(("COPY", "ADD"))]
    assert [line for line in lines if "--mount=type=bind,target=/context" in line]
