"""Cloud Storage behind a bad network: each failure says whether asking again can help, and asking again does."""

from __future__ import annotations

import pytest

from spotguard.providers.errors import CorruptError, ThrottledError, UnavailableError
from spotguard.providers.stores.base import BlobStore
from spotguard.providers.stores.factory import open_store
from tests.fakes.certificate import Certificate
from tests.fixtures_servers import FaultsBefore
from tests.servers.faultplan import Fault
from tests.servers.faults import FaultProxy
from tests.servers.gcs import Gcs

DATA = bytes(range(256)) * 8192


@pytest.fixture
def bucket(gcs: Gcs) -> str:
    return gcs.fresh()


@pytest.fixture(params=["http", "https"])
def network(
    bucket: str,
    gcs: Gcs,
    faults_before: FaultsBefore,
    certificate: Certificate,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> FaultProxy:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate.ca))
    return faults_before(gcs, tls=certificate.server if request.param == "https" else None)


@pytest.fixture
def store(bucket: str, network: FaultProxy) -> BlobStore:
    return open_store(f"{bucket}/run")


def keys(store: BlobStore) -> list[str]:
    return [info.key for info in store.list("")]


@pytest.mark.parametrize(
    "fault",
    [
        Fault("answer", status=503),
        Fault("answer", status=429),
        Fault("answer", status=500),
        Fault("answer", status=408),
        Fault("reset"),
        Fault("reset", after=1_000_000),
        Fault("reset", "response"),
        Fault("truncate", "response", after=10),
        Fault("stall", after=1_000_000),
        Fault("stall", "response"),
    ],
    ids=lambda fault: f"{fault.kind}-{fault.where}-{fault.after}-{fault.status}",
)
def test_a_put_that_failed_can_be_put_again(store: BlobStore, network: FaultProxy, fault: Fault) -> None:
    """Whatever became of the first."""
    store.warm()
    network.inject(fault)
    with pytest.raises((UnavailableError, ThrottledError)):
        store.put("a", memoryview(DATA), timeout=1)
    assert network.faults_met(fault.kind) == 1
    network.heal()
    store.put("a", memoryview(DATA), timeout=100)
    assert store.get("a") == DATA
    assert keys(store) == ["a"]


def test_a_claim_whose_answer_was_lost_is_taken(store: BlobStore, network: FaultProxy) -> None:
    """By us: whoever asks again hears False."""
    network.inject(Fault("reset", "response", times=1))
    with pytest.raises(UnavailableError):
        store.put_if_absent("a", memoryview(b"ours"))
    assert store.put_if_absent("a", memoryview(b"theirs")) is False
    assert store.get("a") == b"ours"


def test_a_bit_that_flips_on_the_way_is_seen(store: BlobStore, network: FaultProxy) -> None:
    """By the service on the way in, by us on the way out of a whole object; of ranges the manifest knows the sum."""
    network.inject(Fault("corrupt", after=1_000_000, times=1))
    with pytest.raises(CorruptError):
        store.put("a", memoryview(DATA))
    assert keys(store) == []
    store.put("a", memoryview(DATA))
    network.inject(Fault("corrupt", "response", after=1_000_000, times=1))
    with pytest.raises(CorruptError):
        store.get("a")
    assert store.get("a") == DATA


@pytest.mark.parametrize(
    "fault", [Fault("truncate", "response", after=100), Fault("reset", "response", after=100)]
)
def test_a_read_that_breaks_off_is_no_short_object(
    store: BlobStore, network: FaultProxy, fault: Fault
) -> None:
    """It is asked again, and nothing older is taken for it."""
    store.put("a", memoryview(DATA))
    buffer = bytearray(500_000)
    network.inject(fault)
    for attempt in (
        lambda: store.read_into("a", 256, memoryview(buffer)),
        lambda: store.get("a"),
    ):
        with pytest.raises(UnavailableError):
            attempt()
    network.heal()
    store.read_into("a", 256, memoryview(buffer))
    assert bytes(buffer) == DATA[256:500_256]


def test_a_store_that_is_gone_comes_back(store: BlobStore, network: FaultProxy) -> None:
    """Every verb says that it is away, and the connection is made anew."""
    store.put("a", memoryview(DATA))
    network.vanish()
    for attempt in (
        store.warm,
        lambda: store.put("b", memoryview(DATA)),
        lambda: store.put_if_absent("b", memoryview(DATA)),
        lambda: store.get("a"),
        lambda: store.read_into("a", 0, memoryview(bytearray(1))),
        lambda: list(store.list("")),
        lambda: store.delete(["a"]),
    ):
        with pytest.raises(UnavailableError):
            attempt()
    network.come_back()
    assert keys(store) == ["a"]
