"""The way to the metadata server: where it is, and whom to believe."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from responses import RequestsMock

from spotguard.providers.clouds.gcp.metadata import ENDPOINT, GcpMetadata, resolve_endpoint
from spotguard.providers.clouds.http import MetadataAnswer
from spotguard.providers.errors import UsageError
from spotguard.providers.health import Health
from spotguard.providers.simulator.gcp.service import GcpSimulator
from tests.providers.clouds.canned import CANNED, GCP

VARIABLE = "GCE_METADATA_HOST"


@pytest.mark.parametrize(
    ("explicit", "said", "endpoint"),
    [
        (None, None, ENDPOINT),
        (None, "", ENDPOINT),
        ("http://127.0.0.1:1338", "10.0.0.1", "http://127.0.0.1:1338"),
        (None, "127.0.0.1", "http://127.0.0.1"),
        (None, "127.0.0.1:1338", "http://127.0.0.1:1338"),
        (None, "http://127.0.0.1:1338", "http://127.0.0.1:1338"),
        (None, "[fd20:ce::254]", "http://[fd20:ce::254]"),
        (None, "metadata.google.internal", ENDPOINT),
        (None, "metadata.google.internal.:80", ENDPOINT),
        (None, "metadata:8080", f"{ENDPOINT}:8080"),
    ],
)
def test_the_endpoint_is_what_was_said_or_the_fixed_address(
    explicit: str | None, said: str | None, endpoint: str
) -> None:
    """The option beats the ecosystem's variable; the service's own names are its address, without any DNS."""
    assert resolve_endpoint(explicit, {} if said is None else {VARIABLE: said}) == endpoint


@pytest.mark.parametrize(
    "said", ["metadata.example", "https://127.0.0.1", "127.0.0.1/computeMetadata", "localhost:99999"]
)
def test_an_invalid_endpoint_is_refused_with_its_origin(said: str) -> None:
    with pytest.raises(UsageError, match=f"^{VARIABLE} .*expected http:// and an IP address"):
        resolve_endpoint(None, {VARIABLE: said})


@pytest.fixture
def metadata(gcp: GcpSimulator) -> Iterator[GcpMetadata]:
    metadata = GcpMetadata(gcp.endpoint, timeout=10)
    yield metadata
    metadata.close()


def test_the_header_is_sent_and_nothing_is_forwarded(
    gcp: GcpSimulator, metadata: GcpMetadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the environment says of proxies."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    answer = metadata.get("instance/preempted")
    assert isinstance(answer, MetadataAnswer)
    assert answer.body == b"FALSE"
    (seen,) = gcp.requests
    assert seen.headers["metadata-flavor"] == "Google"
    assert "x-forwarded-for" not in seen.headers


def test_one_connection_serves_all_keys_and_paths_are_not_kept_for_ever(
    gcp: GcpSimulator, metadata: GcpMetadata
) -> None:
    """Each ETag makes a new path."""
    for number in range(50):
        answer = metadata.get(f"instance/preempted?wait_for_change=true&last_etag={number}")
        assert isinstance(answer, MetadataAnswer)
    assert gcp.count(status=200) == 50
    assert len(metadata._reads) < 12


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (302, "wrong-server"),
        (400, "wrong-server"),
        (401, "wrong-server"),
        (403, "forbidden"),
        (429, "throttled"),
        (502, "server-error"),
    ],
)
def test_an_answer_without_the_signature_is_none(canned: RequestsMock, status: int, reason: str) -> None:
    """Whatever it is. A gateway's refusal is blindness; a stranger's word is a stranger's."""
    for key in ("instance/preempted", "instance/id"):
        canned.get(GCP + key, status=status, body=b"TRUE")
    with closing(GcpMetadata(CANNED)) as metadata:
        health = metadata.get("instance/preempted")
    assert isinstance(health, Health)
    assert health.reason == reason
    assert f": {status}" in health.detail
    assert health.advice


def test_a_stranger_is_shown_with_what_it_said(canned: RequestsMock) -> None:
    """As short as a line of a log must be."""
    headers = {"Server": "nginx", "Metadata-Flavor": "Vanilla"}
    canned.get(GCP + "instance/preempted", body=b"FALSE", headers=headers)
    with closing(GcpMetadata(CANNED)) as metadata:
        health = metadata.get("instance/preempted")
    assert isinstance(health, Health)
    assert health.detail.endswith("instance/preempted: 200 with Metadata-Flavor is 'Vanilla' from 'nginx'")
    assert "GCE_METADATA_HOST" in health.advice
