"""The endpoint answers whoever scrapes it, and nobody who connects to it can hold up anything."""

from __future__ import annotations

import re
import socket
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import pytest

pytest.importorskip("prometheus_client")

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.parser import text_string_to_metric_families

from spotguard.agent.telemetry.metrics import assembly
from spotguard.agent.telemetry.metrics import http as endpoints
from spotguard.agent.telemetry.metrics.http import MOST, Endpoint
from spotguard.providers.clock import SystemClock
from spotguard.providers.errors import UsageError
from tests.e2e.processes import eventually
from tests.fakes.patient import options
from tests.fakes.talk import TIMEOUT


def measured(port: int = 0) -> Endpoint:
    """Return the endpoint of an agent to which nothing has happened."""
    return assembly.opened(options(window="30"), port, "r", SystemClock(), service=False)[1]


class Calling:
    """A collector that calls a function at each scrape."""

    def __init__(self, call: Callable[[], None]) -> None:
        self.call = call

    def collect(self) -> Iterator[Metric]:
        self.call()
        yield Metric("called", "The function has returned.", "gauge")


def calling(call: Callable[[], None]) -> Endpoint:
    registry = CollectorRegistry()
    registry.register(Calling(call))
    return Endpoint(0, registry)


@pytest.fixture
def opened() -> Iterator[Callable[..., Endpoint]]:
    with ExitStack() as stack:

        def open(make: Callable[[], Endpoint] = measured) -> Endpoint:
            endpoint = make()
            stack.callback(endpoint.close)
            endpoint.start()
            return endpoint

        yield open


def scraped(url: str) -> str:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=TIMEOUT) as answer:
        text: str = answer.read().decode()
    return text


def connected(endpoint: Endpoint) -> socket.socket:
    port = int(endpoint.url.rpartition(":")[2].partition("/")[0])
    return socket.create_connection(("127.0.0.1", port), TIMEOUT)


def ours() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("spotguard-")]


def test_it_says_what_stands_at_the_moment(opened: Callable[..., Endpoint]) -> None:
    url = opened().url
    assert url.startswith("http://127.0.0.1:")
    text = scraped(url)
    assert re.search(r'^spotguard_agent_info{command="run",run_id="r",version=".+"} 1.0$', text, re.MULTILINE)
    assert "spotguard_window_seconds 30.0" in text
    assert "process_resident_memory_bytes" in text
    names = {family.name for family in text_string_to_metric_families(text)}
    assert not [name for name in names if name.startswith("python_") or name.endswith("_created")]


def test_a_request_for_some_names_gets_these_alone(opened: Callable[..., Endpoint]) -> None:
    text = scraped(f"{opened().url}?name[]=spotguard_sessions&name[]=spotguard_outcomes_total")
    samples = [line for line in text.splitlines() if not line.startswith("#")]
    assert "spotguard_sessions 0.0" in samples
    names = {line.partition("{")[0].partition(" ")[0] for line in samples}
    assert names == {"spotguard_sessions", "spotguard_outcomes_total"}


def test_there_is_nothing_else_at_it(opened: Callable[..., Endpoint]) -> None:
    with pytest.raises(urllib.error.HTTPError, match="404"):
        scraped(opened().url.replace("/metrics", "/secrets"))


def test_a_port_that_is_taken_is_named_with_the_way_out(opened: Callable[..., Endpoint]) -> None:
    endpoint = opened()
    port = int(endpoint.url.rpartition(":")[2].partition("/")[0])
    with pytest.raises(UsageError, match=rf"--metrics-port {port}: cannot listen .*; give another port"):
        measured(port)


def test_a_check_of_the_port_keeps_no_run_from_it() -> None:
    """A run that starts at that very moment has it."""
    with endpoints.bound(0) as asking:
        port = asking.getsockname()[1]
        with closing(measured(port)) as endpoint:
            endpoint.start()
            assert "spotguard_sessions 0.0" in scraped(endpoint.url)
            with pytest.raises(UsageError, match=r"cannot listen .*: Address already in use; give another"):
                assembly.check(port)
            with pytest.raises(OSError, match="in use"):
                asking.listen()
    assembly.check(port)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), TIMEOUT)


def test_without_prometheus_s_library_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(
        UsageError, match=r"pip install 'prometheus-client>=[0-9.]+' \(spotguard's extra metrics\)"
    ):
        measured()
    with pytest.raises(UsageError, match="is not installed"):
        assembly.check(0)


def test_clients_that_say_nothing_keep_no_scrape_out(opened: Callable[..., Endpoint]) -> None:
    """The oldest is hung up on, and no more are held than a few."""
    endpoint = opened()
    with ExitStack() as stack:
        silent = [stack.enter_context(connected(endpoint)) for _ in range(3 * MOST)]
        assert "spotguard_sessions 0.0" in scraped(endpoint.url)
        assert silent[0].recv(1) == b""
        eventually(lambda: ours().count("spotguard-scrape") <= MOST, "the others ended")


def test_a_client_that_trickles_is_hung_up_on(
    opened: Callable[..., Endpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever sends half a request has its time, and no more."""
    monkeypatch.setattr(endpoints._ScrapeHandler, "timeout", 0.05)
    with connected(opened()) as client:
        client.sendall(b"GET /metrics HTTP/1.1\r\nHost:")
        assert client.recv(1) == b""


def test_a_client_that_reads_nothing_holds_nobody_up(opened: Callable[..., Endpoint]) -> None:
    endpoint = opened()
    with connected(endpoint) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        client.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert "spotguard_sessions" in scraped(endpoint.url)


def test_a_scrape_that_fails_is_said_and_the_next_one_answered(
    opened: Callable[..., Endpoint], caplog: pytest.LogCaptureFixture
) -> None:
    fails = [True]

    def call() -> None:
        if fails.pop() if fails else False:
            raise RuntimeError("a bug")

    endpoint = opened(lambda: calling(call))
    with pytest.raises(OSError, match=r"closed|reset"):
        scraped(endpoint.url)
    assert "# TYPE called gauge" in scraped(endpoint.url)
    assert "could not be answered" in caplog.text


def test_a_scrape_that_hangs_inside_is_not_waited_for(opened: Callable[..., Endpoint]) -> None:
    inside, free = threading.Event(), threading.Event()

    def call() -> None:
        inside.set()
        free.wait(TIMEOUT)

    endpoint = opened(lambda: calling(call))
    with connected(endpoint) as client:
        client.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert inside.wait(TIMEOUT)
        endpoint.close()
        assert client.recv(1) == b""
        assert "spotguard-scrape" in ours(), "it still hangs, and the end has come all the same"
    free.set()
    eventually(lambda: "spotguard-scrape" not in ours(), "it ended")


def test_closed_nobody_listens_and_no_thread_stays(opened: Callable[..., Endpoint]) -> None:
    """Also in mid-answer."""
    endpoint = opened()
    with connected(endpoint) as client:
        eventually(lambda: "spotguard-scrape" in ours(), "it is answered")
        endpoint.close()
        assert client.recv(1) == b""
    eventually(lambda: not {"spotguard-scrape", "spotguard-metrics"} & set(ours()), "the threads ended")
    with pytest.raises(urllib.error.URLError):
        scraped(endpoint.url)
