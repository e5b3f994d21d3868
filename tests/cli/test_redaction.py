"""A word that a command does not take: what it is told, and that nothing which may be a secret is said again."""

from __future__ import annotations

import pytest

from spotguard.cli import main
from tests.cases import cases

BOOTSTRAP = "the command follows --, as in … -- torchrun train.py"
HOOK = "hooks.slack.com/services/T000/B000/1SECRETSECRETSECRET"
NEEDED = ["--store", "s3://checkpoints/gpt", "--run-id", "gpt-7b"]


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main.main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("spotguard: error: ")
    assert err.count("\n") == 1
    return err.removeprefix("spotguard: error: ").rstrip("\n")


@cases(
    "words, said",
    [
        (["bootstrap", "aws", "WANDB_API_KEY=SECRET", "torchrun"], f"unknown word 'WANDB_API_KEY=…': {BOOTSTRAP}"),
        (["bootstrap", "WANDB_API_KEY=SECRET", "torchrun"], "unknown cloud 'WANDB_API_KEY=…': expected aws, gcp or azure"),
        (["agent", "A=B=SECRET"], "unknown word 'A=…': see spotguard agent --help"),
        (["WANDB_API_KEY=SECRET", "spotguard", "run"], "unknown command 'WANDB_API_KEY=…': "),
        (["bootstrap", "aws", "https://me:SECRET@h.example.org/x"], f"unknown word 'https://…@h.example.org/x': {BOOTSTRAP}"),
        (["bootstrap", "aws", "https://h.example.org/x?token=SECRET"], f"unknown word 'https://h.example.org/x?…': {BOOTSTRAP}"),
        (["bootstrap", "aws", "https://h.example.org/x#SECRET"], f"unknown word 'https://h.example.org/x#…': {BOOTSTRAP}"),
        (["bootstrap", "aws", "URL=https://me:SECRET@h/x"], f"unknown word 'URL=…': {BOOTSTRAP}"),
        (["agent", "me:SECRET@host:/x"], "unknown word '…@host:/x': see spotguard agent --help"),
        (["agent", "me:SEC=RET@host:/x"], "unknown word '…@host:/x': see spotguard agent --help"),
        (["agent", "//me:SECRET@h/x"], "unknown word '…@h/x': see spotguard agent --help"),
        (["agent", "me:SECRET@https://h/x"], "unknown word '…@https://h/x': see spotguard agent --help"),
        (["agent", "KEY=SEC@RET"], "unknown word 'KEY=…': see spotguard agent --help"),
        (["agent", "Authorization: Bearer SECRET"], "unknown word 'Authorization:…': see spotguard agent --help"),
        (["agent", "authorization:Bearer SEC@RET"], "unknown word 'authorization:…': see spotguard agent --help"),
        (["agent", f"https://{HOOK}"], "unknown word 'https://hooks.slack.com/…': see spotguard agent --help"),
        (["agent", f"https://me:SECRET@{HOOK}"], "unknown word 'https://…@hooks.slack.com/…': see spotguard agent --help"),
        (["agent", "hf_1SECRETSECRETSECRET"], "unknown word '…': see spotguard agent --help"),
        (["agent", "host:/x"], "unknown word 'host:/x': see spotguard agent --help"),
        (["agent", "@x"], "unknown word '@x': see spotguard agent --help"),
        (["agent", "https://h/x"], "unknown word 'https://h/x': see spotguard agent --help"),
        (["doctor", "https://me:SECRET@h/x"], "unknown word 'https://…@h/x': see spotguard doctor --help"),
        (["doctor", "s3://AKIA:SECRET@b/x"], "unknown word 's3://…@b/x': did you mean --store?"),
        (["doctor", "s3://AKIA:SEC?RET@b/x"], "unknown word 's3://…@b/x': did you mean --store?"),
        (["doctor", "s3://AKIA:SEC/RET@b/x"], "unknown word 's3://…@b/x': did you mean --store?"),
        (["doctor", "az://c1x?account=acme&sig=SECRET"], "unknown word 'az://c1x?…': did you mean --store?"),
        (["doctor", "az://c1x/a&sig=SECRET"], "unknown word 'az://c1x/a&…': did you mean --store?"),
        (["doctor", "az://c1x?account=acme"], "unknown word 'az://c1x?account=acme': did you mean --store az://c1x?account=acme?"),
        (["bootstrap", "aws", "s3://b2x/x"], "unknown word 's3://b2x/x': did you mean --store s3://b2x/x?"),
        (["doctor", "--api-key=SECRET"], "unknown flag '--api-key': see spotguard doctor --help"),
    ],
)  # fmt: skip
def test_possible_secrets_are_not_repeated(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It would be in a log, and in a terminal's history beside who looks on."""
    err = refused(capsys, *words)
    assert err.startswith(said)
    assert not [part for part in ("SEC", "RET", "AKIA") if part in err]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "which cloud? Expected aws, gcp or azure, as in spotguard bootstrap aws"),
        (["--policy"], "which cloud? Expected aws, gcp or azure, as in spotguard bootstrap aws"),
        ([*NEEDED, "--", "torchrun", "train.py"], "which cloud? Expected aws, gcp or azure, as in spotguard bootstrap aws"),
        (["azrue"], "unknown cloud 'azrue': did you mean azure?"),
        (["ibm"], "unknown cloud 'ibm': expected aws, gcp or azure, as in spotguard bootstrap aws"),
        (["gcp", "aws"], f"unknown word 'aws': {BOOTSTRAP}"),
        ([*NEEDED, "--cloud", "aws", "--", "x"], "unknown flag '--cloud': the cloud is the first word, as in spotguard bootstrap aws"),
        (["aws", "--cloud=aws"], "unknown flag '--cloud': the cloud is the first word, as in spotguard bootstrap aws"),
    ],
)  # fmt: skip
def test_bootstrap_says_where_the_cloud_stands(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--provider` is another question: whose notices are watched."""
    assert refused(capsys, "bootstrap", *words) == said


@pytest.mark.parametrize(
    "command", [["bootstrap", "azure", "--run-id", "gpt-7b", "--package", "/x/spotguard.whl"], ["run"]]
)
def test_a_container_of_azures_own_is_no_variable(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*command, "--store", "az://$web/x?account=acme", "--", "true"]
    assert "'$web' is one of Azure's own containers, which are not taken: name one of yours" in refused(
        capsys, *words
    )


@pytest.mark.parametrize("name", ["$webs", "$container"])
def test_a_variable_in_its_place_is_one(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, "bootstrap", "azure", "--store", f"az://{name}/x?account=acme", "--", "true")
    assert f"--store holds {name!r}, which nobody expands" in said


@pytest.mark.parametrize("words", [[*NEEDED, "aws"], ["aws", *NEEDED], ["--policy", "aws", *NEEDED]])
def test_bootstrap_takes_its_cloud_where_it_stands(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["bootstrap", *words, "--policy"]) == 0
    assert '"s3:PutObject"' in capsys.readouterr().out
