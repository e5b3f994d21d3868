"""What the suite relies on Azurite for."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from azure.core.exceptions import HttpResponseError, ResourceExistsError, ResourceNotFoundError
from azure.storage.blob import BlobServiceClient, ContainerClient, ContentSettings

from tests.servers.azurite import Azurite

RIVALS = 8


@pytest.fixture
def container(azurite: Azurite) -> Iterator[ContainerClient]:
    with BlobServiceClient.from_connection_string(os.environ["AZURE_STORAGE_CONNECTION_STRING"]) as service:
        yield service.get_container_client(azurite.fresh().removeprefix("az://"))


def test_a_wrong_md5_is_refused_and_nothing_is_stored(container: ContainerClient) -> None:
    right, wrong = (bytearray(hashlib.md5(data).digest()) for data in (b"data", b"other"))
    blob = container.get_blob_client("blob")
    with pytest.raises(HttpResponseError) as refused:
        blob.upload_blob(b"data", headers={"Content-MD5": _base64(wrong)})
    assert refused.value.status_code == 400  # with InvalidOperation, where the service says Md5Mismatch
    assert not blob.exists()
    blob.upload_blob(
        b"data", headers={"Content-MD5": _base64(right)}, content_settings=ContentSettings(content_md5=right)
    )
    assert blob.get_blob_properties().content_settings.content_md5 == right


def _base64(data: bytearray) -> str:
    return base64.b64encode(data).decode()


def test_one_of_many_rivals_for_a_blob_wins(container: ContainerClient) -> None:
    for race in range(3):
        start = Barrier(RIVALS)

        def claim(rival: int, race: int = race, start: Barrier = start) -> bool:
            start.wait(30)
            try:
                container.upload_blob(f"attempt-{race}", b"%d" % rival, overwrite=False)
            except ResourceExistsError:
                return False
            return True

        with ThreadPoolExecutor(RIVALS) as pool:
            won = list(pool.map(claim, range(RIVALS)))
        assert won.count(True) == 1
        assert container.download_blob(f"attempt-{race}").readall() == b"%d" % won.index(True)


def test_a_missing_blob_cannot_be_read_or_deleted(container: ContainerClient) -> None:
    with pytest.raises(ResourceNotFoundError):
        container.download_blob("none")
    with pytest.raises(ResourceNotFoundError):
        container.delete_blob("none")
