"""Which account, and as whom: what is said where, and what is refused before anything is sent."""

from __future__ import annotations

import base64

import pytest

pytest.importorskip("azure.storage.blob")

from spotguard.providers.clock import SystemClock
from spotguard.providers.errors import UsageError
from spotguard.providers.stores.azure.account import described, open_container
from spotguard.providers.stores.url import locate

KEY = base64.b64encode(b"a key of this test").decode()
SECRET = "c2VjcmV0"


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CONNECTION_STRING", "ACCOUNT", "KEY", "SAS_TOKEN"):
        monkeypatch.delenv(f"AZURE_STORAGE_{name}", raising=False)


def opened(options: str = "") -> tuple[str, str]:
    """The container's URL without its query, and the kind of credential."""
    client, token = open_container(locate(f"az://container/prefix{options}"), SystemClock())
    kind = "token" if token else "SAS" if "sig=" in client.url else type(client.credential).__name__
    return client.url.partition("?")[0], kind


CLOUD = "https://name.blob.core.windows.net"


def test_a_connection_string_says_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Account, key and place; what else is set is not looked at."""
    monkeypatch.setenv("AZURE_STORAGE_KEY", SECRET)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT", "another")
    monkeypatch.setenv(
        "AZURE_STORAGE_CONNECTION_STRING",
        f"AccountName=name;AccountKey={KEY};EndpointSuffix=core.windows.net",
    )
    assert opened() == (f"{CLOUD}/container", "SharedKeyCredentialPolicy")
    assert opened("?endpoint=http://127.0.0.1:1/name") == (
        "http://127.0.0.1:1/name/container",
        "SharedKeyCredentialPolicy",
    )


def test_a_connection_string_may_hold_a_sas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "AZURE_STORAGE_CONNECTION_STRING", f"BlobEndpoint={CLOUD}/;SharedAccessSignature=sv=1&sig={SECRET}"
    )
    assert opened() == (f"{CLOUD}/container", "SAS")


def test_a_key_goes_before_a_sas_and_both_before_the_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT", "name")
    pytest.importorskip("azure.identity")
    assert opened() == (f"{CLOUD}/container", "token")
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", f"?sv=1&sig={SECRET}")
    assert opened() == (f"{CLOUD}/container", "AzureSasCredential")
    monkeypatch.setenv("AZURE_STORAGE_KEY", KEY)
    assert opened() == (f"{CLOUD}/container", "SharedKeyCredentialPolicy")


EMPTY = dict.fromkeys(("CONNECTION_STRING", "ACCOUNT", "KEY", "SAS_TOKEN"), "")


@pytest.mark.parametrize(
    ("environ", "credential", "kind"),
    [
        ({}, "token", "the machine's or the workload's identity"),
        ({"SAS_TOKEN": f"sv=1&sig={SECRET}"}, "AzureSasCredential", "a SAS"),
        ({"KEY": KEY}, "SharedKeyCredentialPolicy", "a key of the account"),
        (
            {"CONNECTION_STRING": f"BlobEndpoint={CLOUD}/;SharedAccessSignature=sv=1&sig={SECRET}"},
            "SAS",
            "a SAS",
        ),
    ],
    ids=["identity", "SAS", "key", "connection"],
)
def test_an_empty_variable_is_not_set(
    environ: dict[str, str], credential: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compose's `${VAR:-}` gives the container one of each."""
    pytest.importorskip("azure.identity")
    for name, value in (EMPTY | environ).items():
        monkeypatch.setenv(f"AZURE_STORAGE_{name}", value)
    assert opened("?account=name") == (f"{CLOUD}/container", credential)
    _, token = open_container(locate("az://container?account=name"), SystemClock())
    assert described(token, SystemClock()).kind == kind


def test_the_url_goes_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT", "another")
    monkeypatch.setenv("AZURE_STORAGE_KEY", KEY)
    assert opened("?account=name")[0] == f"{CLOUD}/container"
    assert (
        opened("?endpoint=https://name.blob.core.chinacloudapi.cn")[0]
        == "https://name.blob.core.chinacloudapi.cn/container"
    )


@pytest.mark.parametrize(
    ("environ", "url", "said"),
    [
        ({}, "az://container", "names no storage account; write az://container/prefix?account=NAME"),
        (EMPTY, "az://container", "names no storage account; write az://container/prefix?account=NAME"),
        ({}, "az://container?account=Not-A-Name", "is no storage account's name"),
        ({}, "az://ab?account=name", "is no container's name"),
        ({}, "az://Container?account=name", "is no container's name"),
        ({}, "az://con--tainer?account=name", "is no container's name"),
        ({}, "az://container?endpoint=http://127.0.0.1:1/name", "HTTPS"),
        ({"KEY": SECRET}, "az://container?endpoint=https://storage.example", "account name"),
        ({"CONNECTION_STRING": SECRET}, "az://container", "correct the variables"),
        ({"CONNECTION_STRING": f"AccountKey={SECRET}"}, "az://container", "correct the variables"),
        (
            {"CONNECTION_STRING": f"AccountName=theirs;AccountKey={SECRET}"},
            "az://container?account=name",
            "is for 'theirs'",
        ),
    ],
    ids=range(11),
)
def test_an_impossible_account_is_refused_at_once(
    environ: dict[str, str], url: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one line, with the way out, and without a secret."""
    for name, value in environ.items():
        monkeypatch.setenv(f"AZURE_STORAGE_{name}", value)
    with pytest.raises(UsageError) as raised:
        open_container(locate(url), SystemClock())
    message = str(raised.value)
    assert said in message
    assert url in message
    assert "\n" not in message
    assert SECRET not in message
