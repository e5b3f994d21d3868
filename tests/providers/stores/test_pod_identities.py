"""What gives a pod its identity on each managed Kubernetes, as its webhook or agent leaves it in the pod: the SDKs' chains take it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs

import pytest

from spotguard.providers.stores.base import Identified
from spotguard.providers.stores.factory import open_store
from tests.fakes.answering import Answer, AnsweringServer, Asked
from tests.fakes.certificate import Certificate
from tests.providers.stores.azure.opened import CREATED, azure
from tests.servers.moto import Moto


@pytest.fixture
def token(tmp_path: Path) -> Path:
    """The service account's token, as the kubelet projects it."""
    (tmp_path / "token").write_text("eyJ.of-the.account")
    return tmp_path / "token"


def test_eks_irsa(moto: Moto, token: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The role in the account's annotation, by STS."""
    pytest.importorskip("boto3")
    url = moto.fresh()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", moto.endpoint)
    monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/train")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(token))
    store = open_store(f"{url}/runs")
    store.put("a", memoryview(b"x"), timeout=100)
    assert isinstance(store, Identified)
    found = store.credentials()
    assert found is not None
    assert (found.kind, found.renewed) == ("a workload's identity (web identity token)", True)
    assert found.left is not None
    assert 0 < found.left <= 3600


def test_eks_pod_identity(moto: Moto, token: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The node's agent gives the role to whoever shows the account's token."""
    pytest.importorskip("boto3")
    url = moto.fresh()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    role = {"AccessKeyId": "A", "SecretAccessKey": "S", "Token": "T", "Expiration": "2100-01-01T00:00:00Z"}
    with AnsweringServer(lambda asked: Answer(body=json.dumps(role).encode())) as agent:
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{agent.url}/v1/credentials")
        monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(token))
        store = open_store(f"{url}/runs")
        store.put("a", memoryview(b"x"), timeout=100)
    assert [asked.headers["authorization"] for asked in agent.asked] == [token.read_text()]
    assert isinstance(store, Identified)
    found = store.credentials()
    assert found is not None
    assert (found.kind, found.renewed) == ("the container's role", True)


def test_aks_workload_identity(
    token: Path, certificate: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entra takes the account's token for one of its own."""
    pytest.importorskip("azure.identity")
    monkeypatch.delenv("AZURE_STORAGE_CONNECTION_STRING")
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate.ca))
    with (
        _entra(certificate) as entra,
        azure(lambda asked: CREATED, certificate.server) as blobs,
    ):
        monkeypatch.setenv("AZURE_AUTHORITY_HOST", entra.url)
        monkeypatch.setenv("AZURE_TENANT_ID", "tenant")
        monkeypatch.setenv("AZURE_CLIENT_ID", "client")
        monkeypatch.setenv("AZURE_FEDERATED_TOKEN_FILE", str(token))
        store = open_store(f"az://container?endpoint={blobs.url}&ca={certificate.ca}")
        store.put("a", memoryview(b"x"), timeout=100)
    (asked,) = entra.asked
    assert asked.path == "/tenant/oauth2/v2.0/token"
    said = parse_qs(asked.body.decode())
    assert (said["client_id"], said["client_assertion"]) == (["client"], [token.read_text()])
    assert blobs.asked[-1].headers["authorization"] == "Bearer of-entra"


@contextmanager
def _entra(certificate: Certificate) -> Iterator[AnsweringServer]:
    def answer(asked: Asked) -> Answer:
        said = {"access_token": "of-entra", "expires_in": 3600, "token_type": "Bearer"}
        return Answer(200, {"Content-Type": "application/json"}, json.dumps(said).encode())

    with AnsweringServer(answer, certificate.server) as server:
        yield server
