"""From an URL to its store, and what is said of an URL that is none."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

import pytest

from spotguard.providers.errors import UsageError
from spotguard.providers.stores.factory import open_store
from spotguard.providers.stores.url import check_url, inside, locate
from tests.cases import cases


@pytest.mark.parametrize("text", ["file://{}", "file://localhost{}"])
def test_a_folder_opens(tmp_path: Path, text: str) -> None:
    """Three slashes, or the one host that every machine is."""
    url = text.format(tmp_path / "store")
    store = open_store(url)
    assert store.url == url
    store.put("run/a", memoryview(b"x"))
    assert (tmp_path / "store/run/a").read_bytes() == b"x"


def test_a_path_with_blanks_is_quoted(tmp_path: Path) -> None:
    """As any URL: %20 is a blank."""
    open_store(f"file://{tmp_path}/my%20store").put("run/a", memoryview(b"x"))
    assert (tmp_path / "my store/run/a").exists()


@pytest.mark.parametrize(
    ("url", "bucket", "prefix", "options"),
    [
        ("s3://bucket/some/prefix/", "bucket", "some/prefix/", {}),
        ("S3://bucket", "bucket", "", {}),
        ("gs://my.bucket_1/a?user-project=p&ca=%2Fetc%2Fca.pem", "my.bucket_1", "a/", {"user-project": "p", "ca": "/etc/ca.pem"}),
        ("az://container/prefix?account=name", "container", "prefix/", {"account": "name"}),
    ],
)  # fmt: skip
def test_a_place_in_a_cloud_is_read(url: str, bucket: str, prefix: str, options: dict[str, str]) -> None:
    """Bucket, prefix, and what the query says."""
    location = locate(url)
    assert (location.bucket, location.prefix, location.options) == (bucket, prefix, options)
    assert location.key("run/a") == f"{prefix}run/a"


@pytest.mark.parametrize(
    ("url", "inner"),
    [
        ("file:///mnt/a/", "file:///mnt/a/run/x"),
        ("s3://bucket?region=eu-west-1", "s3://bucket/run/x?region=eu-west-1"),
    ],
)
def test_the_path_inside_a_store_comes_before_the_options(url: str, inner: str) -> None:
    """An URL that a log shows is one that a command takes."""
    assert inside(url, "run/x") == inner


def test_a_missing_sdk_is_said_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a traceback: what to install."""
    monkeypatch.setitem(sys.modules, "boto3", None)
    monkeypatch.delitem(sys.modules, "spotguard.providers.stores.s3.store", raising=False)
    monkeypatch.delitem(sys.modules, "spotguard.providers.stores.s3.credentials", raising=False)
    with pytest.raises(
        UsageError, match=r"needs boto3, .*: pip install 'boto3>=1\.36' \(spotguard's extra s3\)"
    ):
        open_store("s3://bucket/prefix")


@cases(
    "url, said",
    [
        ("/mnt/checkpoints", "write it as file:///mnt/checkpoints"),
        ("my checkpoints", "write it as file:///"),
        ("", "write it as file:///mnt/checkpoints"),
        ("ftp://host/path", "scheme 'ftp', which is unknown; use s3://bucket/prefix"),
        ("file://mnt/checkpoints", "three slashes: file:///mnt/checkpoints"),
        ("file:///", "names no directory"),
        ("file://", "names no directory"),
        ("file:///a?b", "written %3F or %23"),
        ("file:///a%00b", "names no directory"),
        ("file:/mnt/x", "is not a URL; write it as file:///mnt/x"),
        ("s3:/bucket/run", "is not a URL; write it as s3://bucket/run"),
        ("gs:bucket", "is not a URL; write it as gs://bucket"),
        ("az:", "is not a URL; write it as az://container/prefix"),
        ("file://[::1/x", "is not a URL"),
        ("s3:///prefix", "names no bucket; write it as s3://bucket/prefix"),
        ("az://", "names no container; write it as az://container/prefix"),
        ("az://$web?account=acme", "'$web' is one of Azure's own containers, which are not taken"),
        ("az://$root/x", "'$root' is one of Azure's own containers, which are not taken"),
        ("az://$WEB", "names no container; write it as az://container/prefix"),
        ("s3://$web", "names no bucket; write it as s3://bucket/prefix"),
        ("s3://bucket/a b", "has the prefix 'a b'"),
        ("s3://bucket/../x", "has the prefix '../x'"),
        ("s3://bucket/a#b", "has a '#'"),
        ("s3://bucket?region=", "option 'region' needs one value"),
        ("s3://bucket?region=a&region=b", "option 'region' needs one value"),
    ],
)
def test_an_invalid_store_url_is_refused_with_the_remedy(url: str, said: str) -> None:
    """One line, with the value and what to write instead."""
    with pytest.raises(UsageError) as caught:
        check_url(url)
    assert said in str(caught.value)
    assert repr(url) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("gs://user@bucket/a", "'gs://…@bucket/a' names no bucket"),
        ("s3://AKIA:SECRET@bucket/a", "'s3://…@bucket/a' names no bucket"),
        ("s3://AKIA:SEC/RET@bucket/a@b", "names no bucket"),
        ("ftp://AKIA:SECRET@bucket/a", "'ftp://…@bucket/a' has scheme 'ftp'"),
        ("file://AKIA:SECRET@host/a", "names a host, 'host'"),
        ("s3://bucket?regoin=SECRET", "'s3://bucket' has the option 'regoin'; S3 knows region, endpoint"),
        ("s3://bucket/a b?endpoint=http://AKIA:SECRET@host", "has the prefix 'a b'"),
        ("s3://bucket?endpoint=http://AKIA:SECRET@127.0.0.1:9/", "'s3://bucket': its endpoint names a user"),
        (
            "az://bucket/a?endpoint=http%3A%2F%2FAKIA%3ASECRET%40host",
            "'az://bucket/a': its endpoint names a user",
        ),
        (
            "az://container?endpoint=https%3A//x.example/%3Fsig=SECRET",
            "endpoint='https://x.example/' is no endpoint",
        ),
        ("gs://bucket?endpoint=AKIA:SECRET@host", "its endpoint names a user; leave that out"),
    ],
)
def test_possible_keys_are_not_repeated(url: str, said: str) -> None:
    """Keys are put where they do not belong, and an error goes into logs."""
    with pytest.raises(UsageError) as caught:
        check_url(url)
    assert said in str(caught.value)
    assert not re.search("AKIA|SEC|RET", str(caught.value))


@cases(
    "said",
    [
        "foo",
        "foo:9000",
        "ftp://h",
        "http://",
        "http://h:port",
        "http://h:0",
        "http://[::1",
        "http://h/?a=b",
        "http://h x",
    ],
)
@cases("scheme", ["s3", "az"])
def test_an_endpoint_that_is_none_is_refused_with_how_to_write_it(scheme: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_url(f"{scheme}://bucket/prefix?endpoint={quote(said)}")
    assert f"endpoint={said.partition('?')[0]!r} is no endpoint; write it as https://" in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "s3://bucket?endpoint=http://127.0.0.1:9",
        "s3://bucket?endpoint=https://minio.example:9000/",
        "s3://bucket?endpoint=http://[::1]:9000",
        "az://container?endpoint=http://127.0.0.1:10000/account",
        "gs://bucket?endpoint=127.0.0.1:9023",  # as STORAGE_EMULATOR_HOST has it
        "gs://bucket?endpoint=localhost:9023",
    ],
)
def test_an_endpoint_that_is_one_is_taken(url: str) -> None:
    check_url(url)


def test_no_sdk_is_imported_for_a_folder() -> None:
    """Nor is anything else that costs a start its time."""
    program = (
        "import sys\nfrom spotguard.providers.stores.factory import open_store\nopen_store('file:///x')\n"
        "print(*{name.partition('.')[0] for name in sys.modules} & {'boto3', 'google', 'azure', 'requests', 'torch'})"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
