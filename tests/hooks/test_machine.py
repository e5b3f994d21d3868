"""By which names a machine is known to the job's others, and at which address they find it."""

from __future__ import annotations

import json

import pytest

from spotguard.hooks.machine import Machine, default_interface

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
    machine = Machine("id", ("host", "172.17.0.1", "10.0.0.5"))
    assert machine.address == "10.0.0.5"
    assert Machine.decode(machine.encode()) == machine
    assert Machine("id", ("host",)).address == ""


def test_a_token_of_another_version_is_a_name_for_itself() -> None:
    assert Machine.decode("other").id == "other"
    assert Machine.decode(json.dumps(["id", "host", 7])).names == ("host", "7")
