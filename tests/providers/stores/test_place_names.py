"""What a cloud cannot have called a bucket is refused before anybody asks for it; what another service may have is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from spotguard.providers.errors import UsageError
from spotguard.providers.stores.place_names import check_named

LONG = "a" * 63


@pytest.mark.parametrize(
    "url",
    [
        "s3://ab",
        "s3://MyBucket/x",
        "s3://my_bucket",
        f"s3://{LONG}a",
        "s3://my..bucket",
        "s3://bucket-",
        "s3://bucket.",
        "s3://192.168.5.4",
        "s3://MyBucket?region=eu-west-1",
        "s3://ab?region=us-east-1",
        "gs://ab",
        "gs://MyBucket",
        "gs://bucket_",
        f"gs://{LONG}a",
        f"gs://{LONG}a.com",
        "gs://a..com",
        "gs://192.168.5.4",
        "gs://goog-checkpoints",
    ],
)
def test_what_is_no_bucket_of_the_clouds_is_refused_with_its_rule(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_named("--store", url, {})
    assert str(caught.value).startswith(f"--store: store '{url}': ")
    name = url.partition("://")[2].partition("/")[0].partition("?")[0]
    service = "S3" if url.startswith("s3:") else "Google Cloud Storage"
    assert f"{name!r} is no name that {service} gives a bucket" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "s3://abc",
        f"s3://{LONG}",
        "s3://my.bucket-1/prefix",
        "s3://1.bucket",
        "s3://192.168.5.4.5",
        "s3://my-point-hrzrlukc5m36ft7okagglf3gmwluquse1b-s3alias",
        "s3://bucket--use1-az4--x-s3",
        "gs://my_bucket.example.com",
        f"gs://{LONG}.{LONG}.com",
        "gs://mygoog",
        "file:///x",
    ],
)
def test_what_may_be_a_bucket_is_taken(url: str) -> None:
    check_named("--store", url, {})


@pytest.mark.parametrize(
    ("url", "env"),
    [
        ("s3://My_Bucket?endpoint=https://minio.example:9000", {}),
        ("s3://b", {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}),
        ("s3://b", {"AWS_ENDPOINT_URL_S3": "http://127.0.0.1:9"}),
        ("gs://b?endpoint=http://127.0.0.1:9", {}),
        ("gs://b", {"STORAGE_EMULATOR_HOST": "127.0.0.1:9"}),
    ],
)
def test_another_service_may_call_it_as_it_likes(url: str, env: dict[str, str]) -> None:
    check_named("--store", url, env)


@pytest.mark.parametrize("variable", ["AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE", "HOME"])
def test_another_service_may_be_named_in_aws_own_files(variable: str, tmp_path: Path) -> None:
    (tmp_path / ".aws").mkdir()
    file = tmp_path / ".aws/config"
    env = {variable: str(tmp_path if variable == "HOME" else file)}
    with pytest.raises(UsageError):
        check_named("--store", "s3://b", env)
    file.write_text("[default]\nendpoint_url = http://127.0.0.1:9\n")
    check_named("--store", "s3://b", env)


@pytest.mark.parametrize("env", [{"AWS_REGION": "us-east-1"}, {"AWS_DEFAULT_REGION": "us-east-1"}])
def test_a_bucket_of_before_2018_may_still_be_there(env: dict[str, str]) -> None:
    """Then us-east-1 gave names of capitals and underscores, to 255 characters."""
    check_named("--store", "s3://My_Bucket..1?region=us-east-1", {})
    check_named("--store", "s3://My_Bucket", env)
    for never in ("s3://ab", "s3://192.168.5.4", "s3://My_Bucket?region=eu-west-1"):
        with pytest.raises(UsageError):
            check_named("--store", never, env)


@pytest.mark.parametrize(
    ("environ", "url", "said"),
    [
        ({}, "az://container", "says no storage account"),
        ({"ACCOUNT": "Not-A-Name"}, "az://container", "is no storage account's name"),
        ({"CONNECTION_STRING": "x"}, "az://Container", "is no container's name"),
        ({}, "az://ab?account=acme", "is no container's name"),
        ({}, "az://a--b?account=acme", "is no container's name"),
    ],
)
def test_a_store_without_an_account_is_refused_by_who_has_no_sdk(
    environ: dict[str, str], url: str, said: str
) -> None:
    """`spotguard run`, before training begins."""
    with pytest.raises(UsageError) as caught:
        check_named("--store", url, {f"AZURE_STORAGE_{name}": value for name, value in environ.items()})
    assert f"--store: store '{url}'" in str(caught.value)
    assert said in str(caught.value)


def test_an_account_may_be_said_in_three_places() -> None:
    for environ, url in (
        ({}, "az://container?account=name"),
        ({}, "az://container?endpoint=http://127.0.0.1:1/devstoreaccount1"),
        ({"AZURE_STORAGE_ACCOUNT": "name"}, "az://container"),
        ({"AZURE_STORAGE_CONNECTION_STRING": "x"}, "az://container"),
    ):
        check_named("--store", url, environ)
