"""What the service itself decides: keys, permissions, batches, checksums."""

from __future__ import annotations

import datetime
import threading

import pytest

pytest.importorskip("azure.storage.blob")

from azure.storage.blob import ContainerSasPermissions, generate_container_sas

from spotguard.providers.errors import DeniedError, NotFoundError
from spotguard.providers.stores.base import BlobStore
from spotguard.providers.stores.factory import open_store
from tests.servers.azurite import ACCOUNT, KEY, Azurite

X = memoryview(b"x")


def by_sas(azurite: Azurite, monkeypatch: pytest.MonkeyPatch, permissions: str) -> BlobStore:
    """A store in a new container, with these permissions for it and no others."""
    url = azurite.fresh()
    sas = generate_container_sas(
        ACCOUNT,
        url.removeprefix("az://"),
        account_key=KEY,
        permission=ContainerSasPermissions.from_string(permissions),
        expiry=datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1),
    )
    monkeypatch.delenv("AZURE_STORAGE_CONNECTION_STRING")
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", sas)
    return open_store(f"{url}/run?endpoint={azurite.endpoint}/{ACCOUNT}")


def test_many_are_deleted_with_few_requests(azurite: Azurite) -> None:
    """More than one batch of 256, most of them gone already; and no more than those."""
    store = open_store(azurite.fresh())
    names = [f"run/{number:04}" for number in range(300)]
    for name in (*names[::9], "run/stays"):
        store.put(name, X)
    store.delete([*names[:100], "run/never", *names[100:], "run/0001"])
    assert [info.key for info in store.list("")] == ["run/stays"]


def test_a_sas_of_the_container_is_enough(azurite: Azurite, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read, add, create, write, delete and list: the permissions that the docs name."""
    store = by_sas(azurite, monkeypatch, "racwdl")
    store.warm(timeout=100)
    store.put("a", X)
    store.put("b", X)
    assert store.put_if_absent("a", X) is False
    buffer = bytearray(1)
    store.read_into("a", 0, memoryview(buffer))
    assert store.get("a") == buffer == b"x"
    store.delete(["a", "none"])
    assert [info.key for info in store.list("")] == ["b"]


def test_a_request_beyond_the_sas_is_denied(azurite: Azurite, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what to do, and without the SAS; what it allows goes on, and nothing else happened."""
    store = by_sas(azurite, monkeypatch, "cwl")
    store.warm(timeout=100)
    store.put("a", X)
    for attempt in (lambda: store.get("a"), lambda: store.delete(["a"])):
        with pytest.raises(DeniedError, match="racwdl") as raised:
            attempt()
        assert "sig=" not in str(raised.value)
    assert [info.key for info in store.list("")] == ["a"]


def test_a_wrong_key_is_denied(azurite: Azurite, monkeypatch: pytest.MonkeyPatch) -> None:
    url = azurite.fresh()
    wrong = azurite.environ["AZURE_STORAGE_CONNECTION_STRING"].replace(KEY, "d3Jvbmc=")
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", wrong)
    store = open_store(url)
    for attempt in (
        store.warm,
        lambda: store.put("a", X),
        lambda: store.list(""),
        lambda: store.delete(["a"]),
    ):
        with pytest.raises(DeniedError) as raised:
            attempt()
        assert "d3Jvbmc" not in str(raised.value)


def test_a_container_that_is_not_there_is_not_made(azurite: Azurite) -> None:
    store = open_store("az://container-of-nobody/run")
    for attempt in (
        lambda: store.put("a", X),
        lambda: store.put_if_absent("a", X),
        lambda: store.get("a"),
        lambda: store.list(""),
        lambda: store.delete(["a"]),
    ):
        with pytest.raises(NotFoundError, match="no such container"):
            attempt()


def test_threads_delete_at_once(azurite: Azurite) -> None:
    store, failed = open_store(azurite.fresh()), []

    def work(mine: int) -> None:
        try:
            names = [f"{mine}/{number}" for number in range(10)]
            for name in names:
                store.put(name, X)
            store.delete(names)
        except Exception as error:  # noqa: BLE001 - the test's own thread asserts that there was none
            failed.append(error)

    threads = [threading.Thread(target=work, args=(mine,), name=f"worker-{mine}") for mine in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert not failed
    assert list(store.list("")) == []
