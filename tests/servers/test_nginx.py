"""nginx before a store is heard only by who believes its authority, and passes signatures; alone it keeps files."""

from __future__ import annotations

import os

import boto3
import pytest
import requests
from azure.storage.blob import BlobServiceClient
from botocore.config import Config
from botocore.exceptions import SSLError
from google.cloud import storage

from tests.fixtures_servers import TlsBefore
from tests.servers.azurite import Azurite
from tests.servers.gcs import Gcs
from tests.servers.nginx import Nginx
from tests.servers.swift import Swift

DATA = bytes(range(256)) * 1000


def test_a_bucket_behind_tls(swift: Swift, tls_before: TlsBefore, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = swift.fresh().removeprefix("s3://")
    front = tls_before(swift)
    assert os.environ["AWS_ENDPOINT_URL_S3"] == front.endpoint
    s3 = boto3.Session().client("s3")
    s3.put_object(Bucket=bucket, Key="a/k", Body=DATA)
    assert s3.get_object(Bucket=bucket, Key="a/k")["Body"].read() == DATA
    s3.close()
    for name in front.certificates.environ:
        monkeypatch.delenv(name)
    stranger = boto3.Session().client("s3", config=Config(retries={"total_max_attempts": 1}))
    with pytest.raises(SSLError):
        stranger.list_objects_v2(Bucket=bucket)
    stranger.close()


def test_blobs_behind_tls(azurite: Azurite, tls_before: TlsBefore) -> None:
    container = azurite.fresh().removeprefix("az://")
    tls_before(azurite)
    with BlobServiceClient.from_connection_string(os.environ["AZURE_STORAGE_CONNECTION_STRING"]) as service:
        blob = service.get_blob_client(container, "a/k")
        blob.upload_blob(DATA)
        assert blob.download_blob().readall() == DATA


def test_cloud_storage_behind_tls(gcs: Gcs, tls_before: TlsBefore) -> None:
    bucket = gcs.fresh().removeprefix("gs://")
    tls_before(gcs)
    client = storage.Client()
    blob = client.bucket(bucket).blob("a/k c")
    blob.upload_from_string(DATA)
    assert blob.download_as_bytes() == DATA
    client.close()


def test_it_keeps_files(nginx: Nginx) -> None:
    for endpoint in (nginx.plain, nginx.endpoint):
        believed = str(nginx.certificates.ca)
        with requests.Session() as session:
            assert session.put(f"{endpoint}/a/k", data=DATA, verify=believed, timeout=10).ok
            assert session.get(f"{endpoint}/a/k", verify=believed, timeout=10).content == DATA
            assert session.delete(f"{endpoint}/a/k", verify=believed, timeout=10).status_code == 204
            assert session.get(f"{endpoint}/a/k", verify=believed, timeout=10).status_code == 404
