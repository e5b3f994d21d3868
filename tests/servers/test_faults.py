"""Each fault is what it says, to a client that only knows sockets and HTTP, and to the SDK of a real store."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import urlsplit

import boto3
import pytest
from botocore.config import Config

from tests.fakes.raw_server import RawServer
from tests.fixtures_servers import FaultsBefore
from tests.servers.faultplan import Fault
from tests.servers.faults import FaultProxy
from tests.servers.listening import Listening
from tests.servers.swift import Swift

BODY = bytes(range(256)) * 1000


class Store:
    """Keeps what is put, whole."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    owner: Store

    def do_PUT(self) -> None:
        length = int(self.headers["Content-Length"])
        if len(body := self.rfile.read(length)) == length:
            self.owner.objects[self.path] = body
            self._say(b"")

    def do_GET(self) -> None:
        self._say(self.owner.objects[self.path])

    def _say(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Host", self.headers["Host"])
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def proxy(store: Store) -> Iterator[FaultProxy]:
    listening = Listening(Handler, store)
    listening.start()
    with FaultProxy(listening.url, seed=7) as proxy:
        yield proxy
    listening.stop()


@pytest.fixture
def client(proxy: FaultProxy) -> Iterator[http.client.HTTPConnection]:
    connection = http.client.HTTPConnection(urlsplit(proxy.url).netloc, timeout=30)
    yield connection
    connection.close()


def put(client: http.client.HTTPConnection, path: str = "/k", body: bytes = BODY) -> int:
    client.request("PUT", path, body)
    response = client.getresponse()
    response.read()
    return response.status


def test_without_faults_it_is_not_there(
    proxy: FaultProxy, client: http.client.HTTPConnection, store: Store
) -> None:
    assert put(client) == 200
    client.request("GET", "/k")
    response = client.getresponse()
    assert response.read() == BODY
    assert response.headers["X-Host"] == urlsplit(proxy.url).netloc
    assert [asked.method for asked in proxy.seen] == ["PUT", "GET"]
    assert proxy.faults_met() == 0


def test_an_answer_in_the_stores_place_leaves_the_connection(
    proxy: FaultProxy, client: http.client.HTTPConnection, store: Store
) -> None:
    proxy.inject(Fault("answer", status=429, body=b"slow down", headers={"Retry-After": "3"}, times=1))
    client.request("PUT", "/k", BODY)
    response = client.getresponse()
    assert (response.status, response.read(), response.headers["Retry-After"]) == (429, b"slow down", "3")
    assert store.objects == {}
    assert put(client) == 200


def test_a_share_is_the_same_for_the_same_seed(proxy: FaultProxy, client: http.client.HTTPConnection) -> None:
    """Seed 7: which of 30 requests fail is settled before the first."""
    proxy.inject(Fault("answer", share=0.2, matching=lambda asked: asked.method == "PUT"))
    statuses = [put(client, body=b"x") for _ in range(30)]
    failed = [number for number, status in enumerate(statuses) if status == 503]
    assert failed == [1, 3, 6, 8, 10, 11, 14, 21, 24, 25, 28]
    assert proxy.faults_met("answer") == len(failed)


@pytest.mark.parametrize("after", [0, 1000, len(BODY)])
def test_a_reset_in_the_request_leaves_nothing(
    proxy: FaultProxy, client: http.client.HTTPConnection, store: Store, after: int
) -> None:
    proxy.inject(Fault("reset", after=after, times=1, matching=lambda asked: asked.path == "/k"))
    with pytest.raises(ConnectionError):
        put(client)
    client.close()
    assert put(client, "/other", b"1") == 200  # the store has met the end of the first by now, or never will
    if after < len(BODY):
        assert "/k" not in store.objects


def test_a_reset_before_the_answer_comes_after_the_act(
    proxy: FaultProxy, client: http.client.HTTPConnection, store: Store
) -> None:
    """The put that was done, and looks as if it was not."""
    proxy.inject(Fault("reset", "response", times=1))
    with pytest.raises(ConnectionError):
        put(client)
    assert store.objects == {"/k": BODY}


def test_a_reset_in_the_answer(proxy: FaultProxy, client: http.client.HTTPConnection) -> None:
    put(client)
    proxy.inject(Fault("reset", "response", after=100_000, times=1))
    client.request("GET", "/k")
    with pytest.raises(ConnectionError):
        client.getresponse().read()


def test_a_truncated_answer(proxy: FaultProxy, client: http.client.HTTPConnection) -> None:
    put(client)
    proxy.inject(Fault("truncate", "response", after=1000, times=1))
    client.request("GET", "/k")
    with pytest.raises(http.client.IncompleteRead) as met:
        client.getresponse().read()
    assert met.value.partial == BODY[:1000]


def test_one_bit_is_corrupted_either_way(
    proxy: FaultProxy, client: http.client.HTTPConnection, store: Store
) -> None:
    wrong = bytes([*BODY[:1000], BODY[1000] ^ 1, *BODY[1001:]])
    proxy.inject(Fault("corrupt", "request", after=1000, times=1))
    assert put(client) == 200
    assert store.objects["/k"] == wrong
    put(client)
    proxy.inject(Fault("corrupt", "response", after=1000, times=1))
    client.request("GET", "/k")
    assert client.getresponse().read() == wrong


@pytest.mark.parametrize("where", ["request", "response"])
def test_a_stalled_request_continues_when_told(
    proxy: FaultProxy, client: http.client.HTTPConnection, store: Store, where: Any
) -> None:
    proxy.inject(Fault("stall", where, after=0))
    statuses: list[int] = []
    putting = threading.Thread(target=lambda: statuses.append(put(client)))
    putting.start()
    assert proxy.wait_for_stalled()
    assert statuses == []
    assert ("/k" in store.objects) == (where == "response")
    proxy.heal()
    putting.join(30)
    assert statuses == [200]
    assert store.objects["/k"] == BODY


def test_it_vanishes_and_comes_back(proxy: FaultProxy, client: http.client.HTTPConnection) -> None:
    assert put(client) == 200
    proxy.vanish()
    with pytest.raises((ConnectionError, http.client.RemoteDisconnected)):
        put(client)
    for _ in range(3):
        client.close()
        with pytest.raises(ConnectionRefusedError):
            put(client)
    client.close()
    proxy.come_back()
    assert put(client) == 200


def test_it_ends_with_what_is_stalled(store: Store) -> None:
    listening = Listening(Handler, store)
    listening.start()
    with FaultProxy(listening.url) as proxy:
        proxy.inject(Fault("stall"))
        with socket.create_connection(("127.0.0.1", urlsplit(proxy.url).port or 0), 30) as connection:
            connection.sendall(b"PUT /k HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc")
            assert proxy.wait_for_stalled()
    listening.stop()
    assert "fault proxy" not in {thread.name for thread in threading.enumerate()}


def test_a_refusal_before_the_body_is_heard(swift: Swift, faults_before: FaultsBefore) -> None:
    """The SDK asks whether it may go on with a large body, and Swift says no."""
    proxy = faults_before(swift)
    s3 = boto3.Session().client("s3")
    bucket = swift.fresh().removeprefix("s3://")
    s3.put_object(Bucket=bucket, Key="k", Body=BODY * 10, IfNoneMatch="*")
    with pytest.raises(s3.exceptions.ClientError, match="PreconditionFailed"):
        s3.put_object(Bucket=bucket, Key="k", Body=BODY * 10, IfNoneMatch="*")
    assert len(proxy.seen) == 2
    s3.close()


def test_a_store_that_refuses_and_leaves_is_heard() -> None:
    """Without reading a body that is more than all buffers hold."""

    def refuse(connection: socket.socket, number: int) -> None:
        connection.recv(1000)
        connection.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno")

    with RawServer(refuse) as store, FaultProxy(store.url) as proxy:
        connection = http.client.HTTPConnection(urlsplit(proxy.url).netloc, timeout=30)
        assert put(connection, body=BODY * 100) == 403
        connection.close()


def test_a_signed_request_passes_and_the_sdk_tries_again(swift: Swift, faults_before: FaultsBefore) -> None:
    """Swift checks the signature, which is over Host, and the checksum of what came."""
    slow_down = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
    proxy = faults_before(swift)
    s3 = boto3.Session().client("s3", config=Config(retries={"mode": "standard", "max_attempts": 8}))
    bucket = swift.fresh().removeprefix("s3://")
    proxy.inject(Fault("answer", body=slow_down, times=1))
    proxy.inject(Fault("reset", after=100, times=1))
    proxy.inject(Fault("corrupt", after=5000, times=1))
    with pytest.raises(s3.exceptions.ClientError, match="XAmzContentSHA256Mismatch"):
        s3.put_object(Bucket=bucket, Key="k", Body=BODY, ChecksumAlgorithm="CRC32")
    assert [asked.fault for asked in proxy.seen] == ["answer", "reset", "corrupt"]
    s3.put_object(Bucket=bucket, Key="k", Body=BODY, ChecksumAlgorithm="CRC32")
    proxy.inject(Fault("truncate", "response", after=10, times=1))
    with pytest.raises(Exception, match=r"IncompleteRead|Connection broken"):
        s3.get_object(Bucket=bucket, Key="k")["Body"].read()
    assert s3.get_object(Bucket=bucket, Key="k")["Body"].read() == BODY
    s3.close()
