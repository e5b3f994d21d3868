"""Whatever a server does, the client gives an answer or a failure, in bounded time."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress

import pytest
from responses import RequestsMock

from spotguard.providers.clock import SystemClock
from spotguard.providers.clouds.http import MAX_BODY, Failure, MetadataAnswer, MetadataClient, parse_endpoint
from spotguard.providers.errors import UsageError
from spotguard.providers.simulator.http_server import LoopbackServer, Reply
from tests.fakes.raw_server import RawServer
from tests.providers.clouds.canned import CANNED

GOOD = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def ask(url: str, *, timeout: float = 5.0, times: int = 1) -> MetadataAnswer | Failure:
    """The last of so many answers over one client."""
    client = MetadataClient(url, timeout=timeout)
    request = client.prepare("GET", "/key", {"X-One": "1"})
    try:
        for _ in range(times - 1):
            client.send(request)
        return client.send(request)
    finally:
        client.close()


def failure(url: str, *, timeout: float = 5.0) -> Failure:
    answer = ask(url, timeout=timeout)
    assert isinstance(answer, Failure), answer
    assert answer.detail.startswith(f"GET {url}/key: ")
    assert "\n" not in answer.detail
    return answer


def says(data: bytes) -> Callable[[socket.socket, int], None]:
    """Answers every request with these bytes, and leaves."""

    def serve(connection: socket.socket, number: int) -> None:
        connection.recv(4096)
        connection.sendall(data)

    return serve


def drips(head: bytes, drop: bytes) -> Callable[[socket.socket, int], None]:
    """Answers with `head` and then one drop after another, for ever, far more often than any timeout."""

    def serve(connection: socket.socket, number: int) -> None:
        connection.recv(4096)
        connection.sendall(head)
        pause = threading.Event()
        while not pause.wait(0.01):
            connection.sendall(drop)

    return serve


def test_an_answer_is_status_headers_and_body() -> None:
    """Header names compare without case; the request carries its headers and nothing of a browser's."""
    with RawServer(
        says(b"HTTP/1.1 404 Not Found\r\nServer: EC2ws\r\nContent-Length: 4\r\n\r\nnone")
    ) as server:
        answer = ask(server.url)
    assert isinstance(answer, MetadataAnswer)
    assert (answer.status, answer.body) == (404, b"none")
    assert answer.headers["SERVER"] == "EC2ws"


@pytest.mark.parametrize("status", [200, 302, 404, 503])
def test_a_canned_answer_is_what_comes_over_a_socket(status: int) -> None:
    """So that what is made of an answer can be tried without one."""
    with RawServer(says(b"HTTP/1.1 %d So\r\nServer: x\r\nContent-Length: 4\r\n\r\nnone" % status)) as server:
        came = ask(server.url)
    with RequestsMock() as canned:
        canned.get(f"{CANNED}/key", status=status, body=b"none", headers={"Server": "x"})
        given = ask(CANNED)
    assert isinstance(came, MetadataAnswer)
    assert isinstance(given, MetadataAnswer)
    assert (given.status, given.body) == (came.status, came.body) == (status, b"none")
    assert given.headers["SERVER"] == came.headers["SERVER"] == "x"


def test_one_connection_serves_every_request_while_the_server_keeps_it() -> None:
    """A poll a second must not be a connection a second."""

    def serve(connection: socket.socket, number: int) -> None:
        while connection.recv(4096):
            connection.sendall(GOOD)

    with RawServer(serve) as server:
        assert isinstance(ask(server.url, times=5), MetadataAnswer)
        assert server.connections == 1


def test_a_connection_closed_between_requests_is_made_anew() -> None:
    """The real service closes after each answer."""
    with RawServer(says(GOOD)) as server:
        assert isinstance(ask(server.url, times=3), MetadataAnswer)
        assert server.connections == 3


def test_a_connection_that_breaks_under_a_request_gets_a_second_try() -> None:
    """A server that drops a kept connection just as we write to it costs no look."""

    def serve(connection: socket.socket, number: int) -> None:
        connection.recv(4096)
        if number > 0:
            connection.sendall(GOOD)

    with RawServer(serve) as server:
        assert isinstance(ask(server.url), MetadataAnswer)
        assert server.connections == 2


def test_a_request_that_is_to_be_sent_once_is_sent_once() -> None:
    """Who counts requests, or sends what is not to be done twice, is told that another try may help."""

    def serve(connection: socket.socket, number: int) -> None:
        connection.recv(4096)

    with RawServer(serve) as server:
        client = MetadataClient(server.url, timeout=5.0)
        found = client.send(client.prepare("POST", "/key", {}, b"{}"), again=False)
        client.close()
        assert isinstance(found, Failure)
        assert (found.kind, found.dropped, server.connections) == ("unreachable", True, 1)


def test_a_posted_body_arrives() -> None:
    """With its length, and its type where one is given."""
    heard: list[bytes] = []

    def serve(connection: socket.socket, number: int) -> None:
        data = b""
        while not data.endswith(b"}"):
            data += connection.recv(4096)
        heard.append(data)
        connection.sendall(GOOD)

    with RawServer(serve) as server:
        client = MetadataClient(server.url, timeout=5.0)
        request = client.prepare("POST", "/key", {"Content-Type": "application/json"}, b'{"a": 1}')
        assert isinstance(client.send(request), MetadataAnswer)
        client.close()
    head, _, body = heard[0].partition(b"\r\n\r\n")
    assert body == b'{"a": 1}'
    assert b"Content-Length: 8" in head
    assert b"Content-Type: application/json" in head


@pytest.mark.parametrize("variable", ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"])
def test_no_proxy_is_asked_whatever_the_environment_says(
    monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    """The clouds refuse forwarded requests, and a proxy's own metadata is another machine's."""
    with RawServer(says(GOOD)) as server, RawServer(says(GOOD)) as proxy:
        monkeypatch.setenv(variable, proxy.url)
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        assert isinstance(ask(server.url), MetadataAnswer)
        assert proxy.connections == 0


def test_no_redirect_is_followed_nor_is_its_body_read() -> None:
    """A captive portal redirects; whoever follows it ends at a page that says 200. Its body never comes."""
    head = b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:9/login\r\nContent-Length: 1000000\r\n\r\n"
    with RawServer(drips(head, b"")) as server:
        found = failure(server.url)
        assert (found.kind, server.connections) == ("redirect", 1)
    assert "302" in found.detail
    assert "/login" in found.detail


def test_cookies_and_credentials_are_not_sent_back() -> None:
    """What one answer sets, the next request does not carry."""
    heard: list[bytes] = []

    def serve(connection: socket.socket, number: int) -> None:
        while request := connection.recv(4096):
            heard.append(request)
            connection.sendall(b"HTTP/1.1 200 OK\r\nSet-Cookie: a=b; Path=/\r\nContent-Length: 2\r\n\r\nok")

    with RawServer(serve) as server:
        ask(server.url, times=2)
    assert len(heard) == 2
    assert b"cookie" not in heard[1].lower()
    assert b"X-One: 1\r\n" in heard[1]


@pytest.mark.parametrize("size", [MAX_BODY, MAX_BODY + 1, 20 * 1024 * 1024])
def test_a_body_is_read_up_to_the_cap_and_no_further(size: int) -> None:
    """20 MB cost the agent no more than the cap."""
    server = LoopbackServer(lambda request: Reply(200, b"x" * size), SystemClock())
    url = server.start()
    try:
        answer = ask(url)
    finally:
        server.stop()
    if size <= MAX_BODY:
        assert isinstance(answer, MetadataAnswer)
        assert len(answer.body) == size
    else:
        assert isinstance(answer, Failure)
        assert answer.kind == "too-large"


def test_headers_are_read_up_to_a_cap_too() -> None:
    """http.client reads every answer with status 100 before the one that counts, each with up to 6 MB of headers."""
    sent = 0

    def endless(connection: socket.socket, number: int) -> None:
        nonlocal sent
        early = b"HTTP/1.1 100 Continue\r\n" + b"X: %s\r\n" % (b"y" * 60_000) * 90 + b"\r\n"
        connection.recv(4096)
        with suppress(OSError):
            for _ in range(20):
                connection.sendall(early)
                sent += len(early)

    with RawServer(endless) as server:
        assert failure(server.url).kind == "too-large"
    assert sent < 20 * 1024 * 1024


def test_a_client_may_accept_larger_bodies() -> None:
    """Azure lists the events of a whole scale set."""
    server = LoopbackServer(lambda request: Reply(200, b"x" * (MAX_BODY + 1)), SystemClock())
    client = MetadataClient(server.start(), max_body=2 * MAX_BODY)
    try:
        answer = client.send(client.prepare("GET", "/key", {}))
    finally:
        client.close()
        server.stop()
    assert isinstance(answer, MetadataAnswer)
    assert len(answer.body) == MAX_BODY + 1


@pytest.mark.parametrize(
    ("head", "drop"),
    [
        (b"", b""),
        (b"", b"H"),
        (b"HTTP/1.1 200 OK\r\n", b"X: y\r\n"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 60000\r\n\r\n", b"x"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
        (b"HTTP/1.1 200 OK\r\n\r\n", b"x"),
    ],
    ids=["silence", "status line", "headers", "body", "chunks", "body without length"],
)
def test_an_answer_that_trickles_ends_at_the_timeout(head: bytes, drop: bytes) -> None:
    """Each drop comes well within the timeout, all of them never: an ordinary read timeout waits for ever.

    (More than a hundred headers are refused before that: also an end.)
    """
    with RawServer(drips(head, drop)) as server:
        assert failure(server.url, timeout=0.3).kind in (
            "timeout",
            "garbage" if head.endswith(b"OK\r\n") else "",
        )


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\x01\x02 not a word of HTTP\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 5\r\n\r\nabcde",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nabc",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 200 + b"\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000 + b"\r\n\r\n",
    ],
    ids=["binary", "status", "two lengths", "chunk", "200 headers", "long header"],
)
def test_an_answer_that_is_no_http_is_garbage(data: bytes) -> None:
    """Said as such, and not as a network that is down."""
    with RawServer(says(data)) as server:
        assert failure(server.url).kind == "garbage"


def test_half_an_answer_is_none() -> None:
    """A body shorter than announced could be half a notice."""
    with RawServer(says(b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhalf")) as server:
        assert failure(server.url).kind == "unreachable"


@pytest.mark.parametrize(
    ("rest", "kind"),
    [
        (b"Content-Length: 50\r\n\r\nhalf", "unreachable"),
        (b"Content-Length: 99999\r\n\r\n" + b"x" * 99999, "too-large"),
        (b"Transfer-Encoding: chunked\r\n\r\nzz\r\nabc", "garbage"),
        (b"Transfer-Encoding: chunked\r\n\r\n5\r\nab", "garbage"),
        (b"Location: http://127.0.0.1:9/\r\n\r\n", "redirect"),
    ],
)
def test_an_answer_that_is_no_whole_one_keeps_its_status(rest: bytes, kind: str) -> None:
    """Failed looks are counted by it: half a 503 is a gateway's trouble, and no network's."""
    status = 302 if kind == "redirect" else 503
    with RawServer(says(b"HTTP/1.1 %d So\r\n%s" % (status, rest))) as server:
        found = failure(server.url)
    assert (found.kind, found.status) == (kind, status)


def test_a_body_that_trickles_keeps_its_status() -> None:
    head = b"HTTP/1.1 503 Busy\r\nContent-Length: 60000\r\n\r\n"
    with RawServer(drips(head, b"x")) as server:
        found = failure(server.url, timeout=0.3)
    assert (found.kind, found.status) == ("timeout", 503)


def test_a_request_without_an_answer_has_not_the_status_of_the_one_before() -> None:
    def serve(connection: socket.socket, number: int) -> None:
        connection.recv(4096)
        if number == 0:
            connection.sendall(b"HTTP/1.1 503 Busy\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno")

    with RawServer(serve) as server:
        found = ask(server.url, times=2)
    assert isinstance(found, Failure)
    assert found.status == 0


def test_a_reset_is_unreachable() -> None:
    """Twice, because of the second try."""

    def serve(connection: socket.socket, number: int) -> None:
        connection.recv(4096)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    with RawServer(serve) as server:
        assert failure(server.url).kind == "unreachable"
        assert server.connections == 2


def test_nobody_there_is_unreachable() -> None:
    """Refused at once, and not tried again."""
    found = failure("http://127.0.0.1:9")
    assert found == Failure("unreachable", "GET http://127.0.0.1:9/key: Connection refused")


@pytest.mark.parametrize(
    ("said", "endpoint"),
    [
        ("http://169.254.169.254", "http://169.254.169.254"),
        ("http://127.0.0.1:1338/", "http://127.0.0.1:1338"),
        ("http://127.0.0.1:80", "http://127.0.0.1"),
        ("http://[fd00:ec2::254]", "http://[fd00:ec2::254]"),
        ("http://[0:0:0:0:0:0:0:1]:1338", "http://[::1]:1338"),
    ],
)
def test_an_endpoint_has_one_form(said: str, endpoint: str) -> None:
    """IPv4 and IPv6, with and without a port."""
    assert parse_endpoint(said, "--metadata-endpoint") == endpoint


@pytest.mark.parametrize(
    "said",
    [
        "",
        "127.0.0.1:1338",
        "https://127.0.0.1",
        "http://localhost:1338",
        "http://metadata.google.internal",
        "http://127.0.0.1:99999",
        "http://127.0.0.1:x",
        "http://user@127.0.0.1",
        "http://127.0.0.1/latest",
        "http://127.0.0.1?a=b",
        "http://[::1",
        "http://",
    ],
)
def test_an_endpoint_that_is_none_is_refused_in_one_line(said: str) -> None:
    """The line names where it was said, what was said, and what was expected."""
    with pytest.raises(UsageError) as error:
        parse_endpoint(said, "--metadata-endpoint")
    assert str(error.value).startswith(f"--metadata-endpoint {said!r}: expected http:// and an IP address")
    assert "\n" not in str(error.value)
