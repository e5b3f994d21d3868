"""The label on a node, set at an API server over TLS: what it changes there, and what it says where it may not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from spotguard.agent.process.helpers.node_label import LABEL
from spotguard.alerts import node_label
from spotguard.alerts.node_label import set_label
from tests.fakes.api_server import ApiServer
from tests.fakes.certificate import Certificate

pytest.importorskip("cryptography")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ApiServer]:
    with ApiServer(tmp_path, "n7", "n8") as server:
        yield server


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_label, "_APART", 0.0)


def test_the_node_gets_one_label_and_keeps_everything_else(server: ApiServer) -> None:
    before = dict(server.nodes["n7"]["spec"])
    assert set_label("n7", "gpu", server.env, server.account) == ""
    assert server.labels("n7") == {"kubernetes.io/os": "linux", LABEL: "gpu"}
    assert server.nodes["n7"]["spec"] == before
    assert LABEL not in server.labels("n8")
    assert set_label("n7", "stall", server.env, server.account) == ""
    assert server.labels("n7")[LABEL] == "stall"


def test_a_refusal_by_rbac_names_the_role_that_is_missing_and_is_not_tried_again(server: ApiServer) -> None:
    server.permits = False
    why = set_label("n7", "gpu", server.env, server.account)
    assert 'cannot patch resource "nodes"' in why
    assert 'rules: [{apiGroups: [""], resources: [nodes], verbs: [patch]}]' in why
    assert "its token does not name its node" in why
    assert LABEL not in server.labels("n7")
    assert len(server.requests) == 1


def test_a_busy_server_is_asked_again_and_a_node_that_is_not_there_is_not(server: ApiServer) -> None:
    server.first = [503, 429]
    assert set_label("n7", "gpu", server.env, server.account) == ""
    assert (server.labels("n7")[LABEL], len(server.requests)) == ("gpu", 3)
    assert 'nodes "n9" not found' in set_label("n9", "gpu", server.env, server.account)
    assert len(server.requests) == 4


@pytest.mark.parametrize(
    ("node", "value", "why"),
    [
        ("../secrets", "gpu", "NODE_NAME='../secrets' is no node's name"),
        ("N7", "gpu", "is no node's name"),
        ("n7", "a b", "'a b' cannot be the value of a label"),
    ],
)
def test_a_name_that_would_be_another_request_is_none(
    node: str, value: str, why: str, server: ApiServer
) -> None:
    assert why in set_label(node, value, server.env, server.account)
    assert server.requests == []


def test_another_server_than_the_clusters_gets_no_token(server: ApiServer, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (server.account / "ca.crt").write_bytes(Certificate.made(other).ca.read_bytes())
    why = set_label("n7", "gpu", server.env, server.account)
    assert why == "the API server's certificate is not that of the cluster's CA"
    assert server.requests == []


def test_a_pod_without_a_token_is_told_how_to_get_one(server: ApiServer) -> None:
    (server.account / "token").unlink()
    why = set_label("n7", "gpu", server.env, server.account)
    assert "No such file or directory" in why
    assert "automountServiceAccountToken: true" in why
    assert server.requests == []


@pytest.mark.parametrize(
    "token", [b"secret-one\nsecret-two", b"secret \xff\xfe", "secret-\u00e9".encode(), b" \n"]
)
def test_a_token_that_is_none_is_named_and_not_shown(server: ApiServer, token: bytes) -> None:
    (server.account / "token").write_bytes(token)
    why = set_label("n7", "gpu", server.env, server.account)
    assert why == f"{server.account}/token holds no token: expected one word, as the kubelet writes it"
    assert server.requests == []


@pytest.mark.parametrize("text", ["", "no certificate"])
def test_an_authority_that_is_none_is_not_taken_for_a_missing_token(server: ApiServer, text: str) -> None:
    (server.account / "ca.crt").write_text(text)
    why = set_label("n7", "gpu", server.env, server.account)
    assert "ca.crt holds no certificates" in why
    assert "automountServiceAccountToken" not in why
    assert server.requests == []


@pytest.mark.parametrize("port", ["tcp://10.0.0.1:443", "99999", "-1", "\u0663"])
def test_a_port_that_is_none_is_named(server: ApiServer, port: str) -> None:
    """A Service named `kubernetes-service` makes the kubelet set it so."""
    why = set_label("n7", "gpu", {**server.env, "KUBERNETES_SERVICE_PORT": port}, server.account)
    assert why.startswith(f"KUBERNETES_SERVICE_PORT={port!r} is not a port")
    assert server.requests == []


def test_a_host_that_is_none_is_given_up(server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_label, "_TRIED_FOR", 0.0)
    why = set_label("n7", "gpu", {**server.env, "KUBERNETES_SERVICE_HOST": "a..b"}, server.account)
    assert why == "the API server's host is no name: check KUBERNETES_SERVICE_HOST"


def test_a_server_that_is_not_there_is_given_up(server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_label, "_TRIED_FOR", 0.0)
    env = {**server.env, "KUBERNETES_SERVICE_PORT": "1"}
    why = set_label("n7", "gpu", env, server.account)
    assert why == "the API server cannot be reached (ConnectionRefusedError)"
