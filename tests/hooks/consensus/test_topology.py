"""By which names a machine is known to the job's others, and at which address they find it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from spotguard.hooks.consensus.topology import (
    MESH,
    Host,
    default_interface,
    machines_to_watch,
    neighbours,
    this_machine,
)

HEAD = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"


def route(interface: str, to: str, metric: int, mask: str) -> str:
    return f"{interface}\t{to}\t0100000A\t0003\t0\t0\t{metric}\t{mask}\t0\t0\t0\n"


BRIDGE = route("docker0", "000011AC", 0, "0000FFFF")
HALF = route("tun0", "00000000", 0, "00000080")  # 0.0.0.0/1, as a VPN has it
FIRST, SECOND = (
    route(name, "00000000", metric, "00000000") for name, metric in (("eth0", 100), ("eth1", 200))
)


@pytest.mark.parametrize(
    ("routes", "interface"),
    [
        (HEAD + FIRST + BRIDGE, "eth0"),
        (HEAD + SECOND + BRIDGE + FIRST, "eth0"),
        (HEAD + HALF + SECOND, "eth1"),
        (HEAD + BRIDGE, ""),
        (HEAD, ""),
        ("", ""),
    ],
)
def test_the_default_route_that_costs_least_says_which_interface(routes: str, interface: str) -> None:
    assert default_interface(routes) == interface


def test_others_find_it_at_its_last_address() -> None:
    machine = Host("id", ("host", "172.17.0.1", "10.0.0.5"))
    assert machine.address == "10.0.0.5"
    assert Host.decode(machine.encode()) == machine
    assert Host("id", ("host",)).address == ""


@pytest.mark.parametrize("count", [1, 2, MESH, MESH + 1, 1000])
def test_heartbeats_join_all_machines(count: int) -> None:
    """Each pair is of one mind, a machine has few to watch, and each is watched by somebody who is linked with all others."""
    theirs = [neighbours(index, count) for index in range(count)]
    assert all(index in theirs[other] for index in range(count) for other in theirs[index])
    assert all(len(each) == len(set(each)) <= MESH - 1 for each in theirs)
    reached, news = {0}, [0]
    while news:
        fresh = set(theirs[news.pop()]) - reached
        reached |= fresh
        news += fresh
    assert reached == set(range(count))


def test_the_first_rank_of_a_machine_names_the_others() -> None:
    tokens = [Host(f"id{number}", (f"node{number}", f"10.0.0.{number}")).encode() for number in (1, 2, 3)]
    machines = [token for token in tokens for _ in range(2)]
    places = ["4001 a", "4001 a", "4002 b", "", "", ""]
    assert machines_to_watch(machines, 0, places) == {
        "10.0.0.2 4002 b": "node2"
    }  # the third's agent answers none
    assert machines_to_watch(machines, 2, places) == {"10.0.0.1 4001 a": "node1"}
    assert machines_to_watch(machines, 1, places) == {}
    late = ["4001 a", "4001 a", "", "4002 b", "", ""]  # the agent answered the second's second rank only
    assert machines_to_watch(machines, 0, late) == {"10.0.0.2 4002 b": "node2"}
    twins = [Host(f"id{number}", ("localhost", f"10.0.0.{number}")).encode() for number in (1, 2, 3)]
    assert [*machines_to_watch(twins, 0, ["1 a", "2 b", "3 c"]).values()] == [
        "localhost 10.0.0.2",
        "localhost 10.0.0.3",
    ]
    alone = Host("id4", ("node4",)).encode()  # it has no address
    assert machines_to_watch([tokens[0], alone], 0, ["4001 a", "4004 d"]) == {}


def test_two_containers_of_one_kernel_are_two_machines(tmp_path: Path) -> None:
    """Their agents listen at one path, each in a folder of its own; with the node's network all else is equal."""
    agent = str(tmp_path / "job.sock")
    said = f"from spotguard.hooks.consensus.topology import this_machine; print(this_machine({agent!r}).encode())"
    words = [sys.executable, "-c", said]
    own = [
        "unshare",
        "--user",
        "--map-root-user",
        "--mount",
        "sh",
        "-c",
        'mount -t tmpfs tmpfs "$0" && exec "$@"',
    ]

    def of(*before: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*before, *words], capture_output=True, text=True, timeout=100)

    if (other := of(*own, str(tmp_path))).returncode:
        pytest.skip(f"no mount namespaces here: {other.stderr.strip()}")
    mine = this_machine(agent)
    assert of().stdout.strip() == mine.encode(), "a rank beside this one"
    assert Host.decode(other.stdout.strip()) != mine
    assert Host.decode(other.stdout.strip()).names == mine.names


def test_an_agent_that_starts_again_is_on_the_same_machine(tmp_path: Path) -> None:
    (tmp_path / "job.sock").touch()
    before = this_machine(str(tmp_path / "job.sock"))
    os.replace(tmp_path / "job.sock", tmp_path / "old")
    (tmp_path / "job.sock").touch()
    assert this_machine(str(tmp_path / "job.sock")) == before
    assert this_machine(str(tmp_path / "gone" / "job.sock")).id.endswith("/gone/job.sock")
