"""The writer's threads look after their connections while they have nothing to do, and a notice does not wait for that."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from spotguard.hooks.commit.upload.workers import UploadWorker, WorkerPool
from spotguard.hooks.state.device.host_buffer import HostBuffer
from spotguard.providers.errors import NotFoundError, StoreError
from spotguard.providers.stores.factory import open_store
from tests.e2e.processes import eventually
from tests.fakes.answering import Answer, AnsweringServer
from tests.fakes.watched_store import PATIENCE

pytestmark = pytest.mark.torch

#: As each cloud says that an object is not there; `{}` is where it listens.
MISSING = {
    "s3": Answer(404, {"Content-Type": "application/xml"}, b"<Error><Code>NoSuchKey</Code></Error>"),
    "gs": Answer(404, {"Content-Type": "application/json"}, b'{"error": {"code": 404, "message": "none"}}'),
    "az": Answer(404, {"x-ms-error-code": "BlobNotFound"}),
}
ENDPOINTS = {"s3": "AWS_ENDPOINT_URL_S3", "gs": "STORAGE_EMULATOR_HOST"}
SDKS = {"s3": "boto3", "gs": "google.cloud.storage", "az": "azure.storage.blob"}


@pytest.fixture(params=SDKS)
def server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[AnsweringServer]:
    """A store with nothing in it; `server.scheme` is whose."""
    scheme: str = request.param
    pytest.importorskip(SDKS[scheme])
    with AnsweringServer(lambda asked: MISSING[scheme]) as server:
        if scheme == "az":
            words = f"AccountName=account;AccountKey=c2VjcmV0;BlobEndpoint={server.url}/account"
            monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", words)
        else:
            monkeypatch.setenv(ENDPOINTS[scheme], server.url)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "SOMEBODY")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        yield server


def done_by(workers: list[UploadWorker[HostBuffer]], task: Callable[[], object]) -> None:
    """Each hand does it once."""

    def given(buffer: HostBuffer) -> None:
        task()

    ended = [threading.Event() for _ in workers]
    for worker, event in zip(workers, ended, strict=True):
        worker.give(given, event.set)
    assert all(event.wait(PATIENCE) for event in ended)


def test_connections_that_a_server_closed_are_open_again_before_they_are_needed(
    server: AnsweringServer, request: pytest.FixtureRequest
) -> None:
    """Each thread's own, within one round; what is asked then opens none."""
    store = open_store(f"{request.node.callspec.params['server']}://bucket/run")

    def warm() -> None:
        with suppress(StoreError):  # closed in the middle of an answer: the next round
            store.warm(timeout=PATIENCE)

    pool = WorkerPool(HostBuffer, warm, idle=0.02)
    workers = pool.ready(3, 1)
    try:
        eventually(lambda: len(server.connections) == 3, "a connection for each", PATIENCE)
        for connection in [*server.connections]:
            connection.shutdown(socket.SHUT_RDWR)

        # The server lets a connection go once it has seen its end. One that ended in the middle of an answer has no other until the
        # next round, although another thread may have had two by then.
        def renewed() -> bool:
            return (
                len(server.connections) >= 6 and sum(each.fileno() >= 0 for each in server.connections) == 3
            )

        eventually(renewed, "another for each", PATIENCE)
        eventually(lambda: all(worker.rests() for worker in workers), "a moment without a request", PATIENCE)
        opened = len(server.connections)

        def ask() -> None:
            with pytest.raises(NotFoundError):
                store.get("none")

        for _ in range(3):
            done_by(workers, ask)
        assert len(server.connections) == opened
    finally:
        pool.dismiss()


def test_a_look_at_a_connection_is_one_request(
    server: AnsweringServer, request: pytest.FixtureRequest
) -> None:
    """From the first on: docs/reference/stores.md says what they cost."""
    store = open_store(f"{request.node.callspec.params['server']}://bucket/run")
    for number in range(1, 7):
        store.warm(timeout=PATIENCE)
        assert len(server.asked) == number
        assert server.asked[-1].body == b""
    assert len(server.connections) == 1


class Network:
    """Warming that gets no answer until the test lets it."""

    def __init__(self) -> None:
        self.back = threading.Event()
        self.asked = threading.Semaphore(0)

    def warm(self) -> None:
        self.asked.release()
        assert self.back.wait(PATIENCE)


@pytest.fixture
def network() -> Iterator[Network]:
    made = Network()
    yield made
    made.back.set()


def test_a_save_with_a_deadline_waits_for_no_network_that_is_dead(network: Network) -> None:
    """Others take over, with the frames that are there, and do not ask first; those who waited end."""
    pool = WorkerPool(HostBuffer, network.warm)
    waiting = pool.ready(3, 1000)
    for _ in waiting:
        assert network.asked.acquire(timeout=PATIENCE)
    workers = pool.ready(2, 1000, left=30.0)
    assert [worker.buffer for worker in workers] == [worker.buffer for worker in waiting[:2]]
    done: list[str] = []
    done_by(workers, lambda: done.append(threading.current_thread().name))
    assert sorted(done) == ["spotguard-writer-0", "spotguard-writer-1"]
    assert not network.asked.acquire(blocking=False)
    network.back.set()
    for worker in waiting[:2]:
        assert worker._thread.join(PATIENCE)
    assert pool.workers == [*workers, waiting[2]]
    pool.dismiss()


def test_a_save_at_leisure_waits_for_its_connections(network: Network) -> None:
    """They are worth more than the moment."""
    pool = WorkerPool(HostBuffer, network.warm)
    waiting = pool.ready(2, 1000)
    assert pool.ready(2, 1000) == waiting
    network.back.set()
    done_by(waiting, lambda: None)
    pool.dismiss()
