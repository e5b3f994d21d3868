"""What the tests of stores share: a certificate for loopback, and a name by which AWS knows us."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spotguard.providers.stores.base import BlobStore
from spotguard.providers.stores.factory import open_store
from tests.fakes.certificate import Certificate
from tests.providers.stores.azure.opened import ACCOUNT, KEY, Opened


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    pytest.importorskip("cryptography")
    return Certificate.made(tmp_path_factory.mktemp("certificate"))


@pytest.fixture
def somebody_to_aws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Credentials in the environment, none of the machine's own settings."""
    for name in ("AWS_CA_BUNDLE", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "SOMEBODY")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Opened:
    """A store whose account is at a server of the test."""

    def at(endpoint: str, options: str = "", words: str = f"AccountKey={KEY}") -> BlobStore:
        connection = f"AccountName={ACCOUNT};{words};BlobEndpoint={endpoint}/{ACCOUNT}"
        monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", connection)
        return open_store(f"az://container/prefix{options}")

    return at


#: Opens a store at an address, `ca` trusted or not.
Opening = Callable[[str, Path | None], BlobStore]


@pytest.fixture(params=["s3", "google", "azure"])
def opening(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Opening]:
    for each in ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.delenv(each, raising=False)
    if request.param == "s3":
        request.getfixturevalue("somebody_to_aws")
        yield lambda url, ca: open_store(f"s3://bucket/prefix?endpoint={url}{f'&ca={ca}' if ca else ''}")
    elif request.param == "google":
        pytest.importorskip("google.cloud.storage")
        # An emulator is sent no credentials.
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:9")
        yield lambda url, ca: open_store(f"gs://bucket/prefix?endpoint={url}{f'&ca={ca}' if ca else ''}")
    else:
        pytest.importorskip("azure.storage.blob")
        opened: Opened = request.getfixturevalue("opened")
        yield lambda url, ca: opened(url, f"?ca={ca}" if ca else "")
