"""As whom a store is asked: what ends before tomorrow and cannot be renewed is a warning."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from spotguard.doctor.checks import credentials as identity
from spotguard.doctor.finding import Finding
from spotguard.providers.stores.base import Credentials
from spotguard.providers.stores.factory import open_store
from spotguard.providers.stores.file import FileStore
from tests.fakes.store import FakeStore


class Known(FakeStore):
    """A store that says as whom it asks."""

    def __init__(self, said: Credentials | None) -> None:
        super().__init__()
        self._said = said

    def credentials(self) -> Credentials | None:
        return self._said

    def renew_credentials(self, *, timeout: float | None = None) -> None:
        """The chain has no others."""


def looked(left: float | None, *, renewed: bool = False, temporary: bool = False) -> Finding:
    return identity.look(Known(Credentials("a SAS", left, renewed, temporary)))


def test_a_folder_needs_none(tmp_path: Path) -> None:
    found = identity.look(FileStore(tmp_path))
    assert (found.state, found.found) == ("ok", "a directory needs none")


def test_an_emulator_is_asked_as_nobody() -> None:
    assert identity.look(Known(None)).state == "ok"


def test_renewed_credentials_are_well_however_soon_they_end() -> None:
    found = looked(600.0, renewed=True)
    assert (found.state, found.found) == ("ok", "a SAS, for 10 min; renewed ahead of their end")


@pytest.mark.parametrize(("left", "state"), [(23 * 3600.0, "warning"), (25 * 3600.0, "ok"), (-60.0, "fails")])
def test_credentials_that_are_not_renewed_must_last_for_the_day(left: float, state: str) -> None:
    found = looked(left, temporary=True)
    assert found.state == state
    assert ("cannot renew" in found.advice) is (state != "ok")


def test_a_key_has_no_end() -> None:
    assert looked(None).state == "ok"


def test_credentials_with_an_unknown_end_are_a_warning() -> None:
    found = looked(None, temporary=True)
    assert (found.state, "not known" in found.found) == ("warning", True)
    assert found.advice


# --- what each cloud's store says ---


def s3(monkeypatch: pytest.MonkeyPatch, **env: str) -> Credentials:
    pytest.importorskip("boto3")
    from spotguard.providers.stores.s3.store import S3Store

    for name in ("AWS_SESSION_TOKEN", "AWS_CREDENTIAL_EXPIRATION"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "s", **env}.items():
        monkeypatch.setenv(name, value)
    store = open_store("s3://bucket/prefix?endpoint=http://127.0.0.1:9")
    assert isinstance(store, S3Store)
    store._session.client()  # the chain is asked; nothing is sent
    found = store.credentials()
    assert found is not None
    return found


def test_keys_and_what_ends_are_told_apart_for_s3(monkeypatch: pytest.MonkeyPatch) -> None:
    assert s3(monkeypatch) == Credentials("variables of the environment", None, renewed=False)
    assert s3(monkeypatch, AWS_SESSION_TOKEN="t").temporary is True


def test_when_what_a_variable_holds_ends_is_said_for_s3(monkeypatch: pytest.MonkeyPatch) -> None:
    """It stays as it is for as long as the process lives."""
    ends = (datetime.now(UTC) + timedelta(hours=2)).isoformat()
    found = s3(monkeypatch, AWS_SESSION_TOKEN="t", AWS_CREDENTIAL_EXPIRATION=ends)
    assert found.left == pytest.approx(7200, abs=60)
    assert found.renewed is False


@pytest.mark.parametrize(
    ("env", "kind", "left"),
    [
        ({"AZURE_STORAGE_KEY": "a2V5"}, "a key of the account", None),
        ({"AZURE_STORAGE_SAS_TOKEN": "?sv=1&se={ends}&sig=x"}, "a SAS", 7200),
        ({"AZURE_STORAGE_SAS_TOKEN": "?sv=1&si=policy&sig=x"}, "a SAS", None),
        (
            {
                "AZURE_STORAGE_CONNECTION_STRING": "BlobEndpoint=http://127.0.0.1:9/n;SharedAccessSignature=se={ends}&sig=x"
            },
            "a SAS",
            7200,
        ),
    ],
)
def test_azure_tells_keys_from_what_ends(
    env: dict[str, str], kind: str, left: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("azure.storage.blob")
    from spotguard.providers.stores.azure.store import AzureBlobStore

    monkeypatch.delenv("AZURE_STORAGE_CONNECTION_STRING")
    ends = (datetime.now(UTC) + timedelta(hours=2)).strftime("%Y-%m-%dT%H:%M:%SZ")
    for name, value in env.items():
        monkeypatch.setenv(name, value.format(ends=ends))
    store = open_store("az://container/prefix?account=name")
    assert isinstance(store, AzureBlobStore)
    found = store.credentials()
    assert found is not None
    assert (found.kind, found.renewed) == (kind, False)
    assert found.left == (None if left is None else pytest.approx(left, abs=60))
    assert found.temporary is (kind == "a SAS")
