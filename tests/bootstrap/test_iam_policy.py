"""What `spotguard bootstrap --policy` prints: what is needed, and no more."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path

import pytest

from spotguard.cli import main


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
    assert main.main(["bootstrap", cloud, "--store", store, "--policy"]) == 0
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
    assert main.main(["bootstrap", "aws", "--store", "s3://ckpt", "--policy"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["Statement"][0]["Resource"] == "arn:aws:s3:::ckpt/*"


def test_a_policy_of_azures_needs_no_account(capsys: pytest.CaptureFixture[str]) -> None:
    """It names a container; whose it is, is said where it is assigned. (The machine itself has to be told.)"""
    policies = []
    for store in ("az://ckpt/gpt", "az://ckpt/gpt?account=acme"):
        assert main.main(["bootstrap", "azure", "--store", store, "--policy"]) == 0
        policies.append(capsys.readouterr().out)
    assert policies[0] == policies[1]


def test_the_policies_are_those_of_the_page() -> None:
    """docs/reference/stores.md shows what is shipped."""
    page = (Path(__file__).parents[2] / "docs/reference/stores.md").read_text()
    shown = json.loads(page.partition("```json\n")[2].partition("```")[0])
    shipped = (resources.files("spotguard.bootstrap") / "iam-policies/aws.json").read_text()
    assert json.loads(shipped) == shown


@pytest.mark.parametrize(
    ("key", "resource", "alias"),
    [
        (
            "arn:aws:kms:eu-west-1:123456789012:key/0f-1",
            "arn:aws:kms:eu-west-1:123456789012:key/0f-1",
            None,
        ),
        ("0f-1", "arn:aws:kms:*:*:key/0f-1", None),
        ("alias/mine", "arn:aws:kms:*:*:key/*", "alias/mine"),
        (
            "arn:aws:kms:eu-west-1:123456789012:alias/mine",
            "arn:aws:kms:eu-west-1:123456789012:key/*",
            "alias/mine",
        ),
    ],
)
def test_a_store_with_a_key_of_its_own_needs_that_key(
    key: str, resource: str, alias: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """To encrypt and to decrypt. An alias is no resource of these two: it is a condition (AWS, "Using aliases in policies")."""
    assert main.main(["bootstrap", "aws", "--store", f"s3://ckpt/gpt?kms-key-id={key}", "--policy"]) == 0
    *_, said = json.loads(capsys.readouterr().out)["Statement"]
    assert (said["Action"], said["Resource"]) == (["kms:GenerateDataKey", "kms:Decrypt"], resource)
    wanted = {"ForAnyValue:StringEquals": {"kms:ResourceAliases": alias}} if alias else None
    assert said.get("Condition") == wanted


@pytest.mark.parametrize("options", ["", "?sse=aws:kms", "?sse=AES256", "?kms-key-id=alias/aws/s3"])
def test_no_key_is_given_where_none_is_needed(options: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["bootstrap", "aws", "--store", f"s3://ckpt/gpt{options}", "--policy"]) == 0
    assert "kms" not in capsys.readouterr().out


def test_a_prefix_is_as_the_store_reads_it(capsys: pytest.CaptureFixture[str]) -> None:
    """%40 in an URL is an @ in a key."""
    assert main.main(["bootstrap", "aws", "--store", "s3://ckpt/a%40b/", "--policy"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["Statement"][0]["Resource"] == "arn:aws:s3:::ckpt/a@b/*"
