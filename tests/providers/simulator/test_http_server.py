"""The server below the simulators: it remembers, it stops, it listens to nobody but this machine."""

from __future__ import annotations

import socket
import threading

import pytest
import requests

from spotguard.providers.clock import SystemClock
from spotguard.providers.errors import UsageError
from spotguard.providers.simulator.aws.service import AwsSimulator
from spotguard.providers.simulator.http_server import LoopbackServer, Reply
from tests.fixtures_simulator import SimulateAws
from tests.providers.clouds.aws.curl import NOTICE, Client


def test_requests_are_remembered_and_can_be_waited_for(client: Client, instance: AwsSimulator) -> None:
    """With method, path, status and headers."""
    client.get(NOTICE)
    assert instance.wait_for(1, "GET", NOTICE, 404)
    assert not instance.wait_for(2, "GET", timeout=0.01)
    assert (instance.count(), instance.count("PUT"), instance.count(status=404)) == (2, 1, 1)
    assert "x-aws-ec2-metadata-token" in instance.requests[-1].headers


def test_stopping_ends_every_thread_and_every_connection(simulate_aws: SimulateAws) -> None:
    """Idle ones, and those that wait for a slow or an endless answer."""
    before = set(threading.enumerate())
    simulator = AwsSimulator(keep_alive=True)
    host, port = simulator.start().removeprefix("http://").split(":")
    with ExitStackOfSockets(host, int(port), 3) as (idle, hanging, slow):
        idle.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        simulator.wait_for(1)
        simulator.fault("hang", count=1)
        hanging.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        simulator.wait_for(2)
        simulator.fault("slow")
        slow.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        simulator.wait_for(3)
        simulator.stop()
        simulator.stop()
        assert [hanging.recv(1), slow.recv(1)] == [b"", b""]
    assert set(threading.enumerate()) == before
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)))


class ExitStackOfSockets:
    """So many connections, closed at the end."""

    def __init__(self, host: str, port: int, count: int) -> None:
        self.sockets = [socket.create_connection((host, port)) for _ in range(count)]

    def __enter__(self) -> list[socket.socket]:
        return self.sockets

    def __exit__(self, *error: object) -> None:
        for connection in self.sockets:
            connection.close()


def test_a_hundred_clients_at_once_are_served(simulate_aws: SimulateAws) -> None:
    """All nodes of a job may have one simulator."""
    instance = simulate_aws()
    token = Client(instance).token()
    statuses: list[int] = []

    def ask() -> None:
        statuses.append(Client(instance).get(NOTICE, token).status_code)

    threads = [threading.Thread(target=ask, name=f"client {number}") for number in range(100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert statuses == [404] * 100


@pytest.mark.parametrize(
    "data", [b"\x00\x01\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9\r\n\r\n", b"x" * 70_000]
)
def test_garbage_harms_nobody_else(instance: AwsSimulator, client: Client, data: bytes) -> None:
    """The connection is dropped."""
    host, port = instance.endpoint.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(4096):
            pass
    assert client.get("/latest/meta-data/instance-id").status_code == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "169.254.169.254", "localhost", "::", ""])
def test_only_loopback_is_listened_on(host: str) -> None:
    """A client believes what a metadata service says: nobody else is to hear this one."""
    with pytest.raises(UsageError, match=r"127\.0\.0\.1 or ::1"):
        AwsSimulator(host=host)


def test_a_port_that_is_taken_is_said_so(aws: AwsSimulator) -> None:
    """In one line, with the port."""
    port = int(aws.endpoint.rpartition(":")[2])
    with pytest.raises(UsageError, match=f"cannot listen on 127.0.0.1 port {port}: Address already in use"):
        AwsSimulator(port=port).start()


@pytest.mark.parametrize("body", [b"", b'{"StartRequests": []}', b"x" * 65536])
def test_a_posted_body_is_handed_on(body: bytes) -> None:
    """Whole, and the connection serves the next request."""
    server = LoopbackServer(lambda request: Reply(200, request.body), SystemClock())
    url = server.start()
    try:
        with requests.Session() as session:
            session.trust_env = False
            assert [session.post(url, body, timeout=100).content for _ in range(2)] == [body, body]
    finally:
        server.stop()


def test_a_server_of_another_service_needs_only_its_answers() -> None:
    """The base knows nothing of AWS: requests in, replies out, header names in lower case."""
    server = LoopbackServer(lambda request: Reply(200, request.headers["metadata"].encode()), SystemClock())
    url = server.start()
    try:
        assert requests.get(url, headers={"Metadata": "true"}, timeout=100).text == "true"
        assert [seen.status for seen in server.seen] == [200]
        server.forget()
        assert server.seen == ()
    finally:
        server.stop()


def test_a_socket_that_listens_already_is_served_and_closed() -> None:
    """For a test that has opened it where the simulator itself may not: its address is the endpoint's."""
    listening = socket.create_server(("127.0.0.2", 0))
    simulator = AwsSimulator()
    simulator.adopt(listening)
    with simulator:
        assert simulator.endpoint == f"http://127.0.0.2:{listening.getsockname()[1]}"
        assert requests.get(f"{simulator.endpoint}/latest/meta-data/", timeout=10).status_code == 401
    assert listening.fileno() == -1
