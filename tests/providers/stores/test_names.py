"""A name that no bucket or folder can have is refused before anybody asks for it; one that another service may have is not."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from spotguard.providers.errors import UsageError
from spotguard.providers.stores.factory import open_store
from spotguard.providers.stores.names import check_folder, check_named, folder_of
from tests.cases import cases

LONG = "a" * 63
#: What says to botocore where S3 is, and where its own files are.
AWS_OWN = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE")


@pytest.mark.parametrize(
    "url",
    [
        "s3://ab",
        "s3://192.168.5.4",
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
def test_an_invalid_bucket_name_is_refused_with_its_rule(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_named("--store", url, {"AWS_REGION": "eu-west-1"})
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
def test_a_valid_bucket_name_is_accepted(url: str) -> None:
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


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A user's home, and in it the folder of AWS's own files."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in AWS_OWN:
        monkeypatch.delenv(name, raising=False)
    (tmp_path / ".aws").mkdir()
    return tmp_path / ".aws"


def refused(url: str, *, here: bool = True) -> bool:
    try:
        check_named("--store", url, os.environ, here=here)
    except UsageError:
        return True
    return False


@pytest.mark.parametrize("variable", ["AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE", ""])
@pytest.mark.parametrize("way", ["{}", "~/.aws/config", "$HOME/.aws/config"])
def test_another_service_may_be_named_in_aws_own_files(
    variable: str, way: str, own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever botocore would find them."""
    if variable:
        monkeypatch.setenv(variable, way.format(own / "config"))
    assert refused("s3://b")
    (own / "config").write_text("[default]\nendpoint_url = http://127.0.0.1:9\n")
    assert not refused("s3://b")
    assert refused("s3://b", here=False), "it is a file of this machine"


def test_without_a_home_the_users_own_is_looked_at(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As botocore does: by the system's list of users."""
    (own / "config").write_text("[default]\nendpoint_url = http://127.0.0.1:9\n")
    monkeypatch.delenv("HOME")
    me = pwd.getpwuid(os.getuid())
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: pwd.struct_passwd((*me[:5], str(own.parent), me[6])))
    assert not refused("s3://b")


@pytest.mark.parametrize("file", ["~nobodyx/c", "~", "/dev/null", "/no/such/file", ""])
def test_files_that_are_not_there_say_nothing(file: str, own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And are no bug of ours."""
    monkeypatch.setenv("AWS_CONFIG_FILE", file)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", file)
    assert refused("s3://b")


@cases("name", ["My_Bucket", f"{LONG}a", "my..bucket", "bucket-", "a" * 222])
@cases(
    "env, query",
    [
        ({"AWS_REGION": "eu-west-1"}, ""),
        ({"AWS_DEFAULT_REGION": "eu-west-1"}, ""),
        ({}, "?region=eu-west-1"),
    ],
)
def test_a_bucket_of_before_2018_is_taken_whatever_the_region(
    env: dict[str, str], query: str, name: str
) -> None:
    """It lies in us-east-1. The region may be the cluster's (EKS sets AWS_REGION): S3 says of a wrong one which one it is."""
    for here in (False, True):
        check_named("--store", f"s3://{name}/prefix{query}", env, here=here)


@pytest.mark.parametrize(
    ("environ", "url", "said"),
    [
        ({}, "az://container", "names no storage account"),
        ({"ACCOUNT": "", "CONNECTION_STRING": ""}, "az://container", "names no storage account"),
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


# --- folders ---


@pytest.mark.parametrize("below", ["", "/run/x"])
def test_a_file_is_no_folder(tmp_path: Path, below: str) -> None:
    """Nor can one lie in it."""
    file = tmp_path / "a file"
    file.touch()
    with pytest.raises(
        UsageError, match=f"--store: store .*a%20file{below}': {file} is a file: name a directory"
    ):
        check_folder("--store", file.as_uri() + below)


@pytest.mark.parametrize("below", ["", "/not/there/yet", "/link", "/dangling"])
def test_a_directory_that_exists_or_can_be_made_is_accepted(tmp_path: Path, below: str) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "dangling").symlink_to("mounted-later")
    check_folder("--store", tmp_path.as_uri() + below)
    assert {path.name for path in tmp_path.iterdir()} == {"real", "link", "dangling"}


def test_a_bucket_is_none_of_our_business() -> None:
    check_folder("--store", "s3://dev/null")


def test_a_name_that_is_no_text_is_the_same_folder_to_all(tmp_path: Path) -> None:
    """Names on Linux are bytes. Who takes a folder for another says of it what is not so, and saves elsewhere."""
    folder = tmp_path / os.fsdecode(b"caf\xe9 100%")
    url = folder.as_uri()
    assert url.endswith("caf%E9%20100%25")
    assert folder_of(url) == folder
    open_store(url).put("run/one", memoryview(b"x"))
    assert [os.fsencode(path.name) for path in tmp_path.iterdir()] == [b"caf\xe9 100%"]
    with pytest.raises(UsageError, match="one is a file"):
        check_folder("--store", f"{url}/run/one")


def test_a_name_beyond_ascii_may_stand_as_it_is() -> None:
    assert folder_of("file:///mnt/données") == folder_of("file:///mnt/donn%C3%A9es") == Path("/mnt/données")
