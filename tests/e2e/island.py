"""A machine whose network is its own: the clouds' addresses are there, and nothing else is.

What runs on it asks the true addresses, with every default, and cannot reach anybody: the kernel gives a new network
namespace no interface but loopback (network_namespaces(7)).
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.caller import servers_required
from tests.e2e.harness import Machine
from tests.e2e.processes import TIMEOUT

PROGRAM = Path(__file__).parent / "programs" / "island.py"

#: What the firmware of each cloud's machines says, in the one file that decides.
FIRMWARE = {
    "aws": ("sys_vendor", "Amazon EC2"),
    "gcp": ("product_name", "Google Compute Engine"),
    "azure": ("chassis_asset_tag", "7783-7084-3265-9085-8269-3286-77"),
}

#: By which the suite, and some users, say where a metadata service is: here nobody does.
_SAID = (
    "AWS_EC2_METADATA_SERVICE_ENDPOINT",
    "AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE",
    "GCE_METADATA_HOST",
    "GCE_METADATA_IP",
)


@cache
def _namespaces() -> tuple[tuple[str, ...], tuple[str, ...], str]:
    """The words of `unshare` and of `nsenter` that are allowed here, or why none are."""
    for program in ("unshare", "nsenter", "mount", "ip"):
        if shutil.which(program) is None:
            return (), (), f"{program} is not installed: apt-get install util-linux iproute2"
    ways: list[tuple[tuple[str, ...], tuple[str, ...]]] = [
        ((), ()),
        (("--user", "--map-root-user"), ("--user", "--preserve-credentials")),  # who is not root
    ]
    said = ""
    for making, entering in ways:
        words = ("unshare", *making, "--net", "--mount")
        mount = ("mount", "-t", "tmpfs", "tmpfs", "/sys/class")
        done = subprocess.run([*words, *mount], capture_output=True, text=True, timeout=TIMEOUT)
        if done.returncode == 0:
            return words, ("nsenter", *entering, "--net", "--mount"), ""
        said = said or done.stderr.strip()
    return (), (), f"no network namespaces here ({said}): allow them (in a container: --cap-add=SYS_ADMIN)"


def write_firmware(folder: Path, cloud: str) -> Path:
    """The files that a machine of that cloud has in /sys/class/dmi/id, in a folder of their own."""
    dmi = folder / "dmi"
    dmi.mkdir()
    name, said = FIRMWARE[cloud]
    (dmi / name).write_text(f"{said}\n")
    return dmi


def say_no_address(env: dict[str, str]) -> None:
    """Leave out of an environment where metadata services are: they are where they are by default."""
    for variable in _SAID:
        env.pop(variable, None)


class Island:
    """Makes `machine` one of `cloud`'s, by its firmware, with these addresses on it.

    Everything that `machine` starts from now on runs there.
    """

    def __init__(self, machine: Machine, cloud: str, *addresses: str) -> None:
        making, entering, problem = _namespaces()
        if problem and servers_required():
            pytest.fail(problem, pytrace=False)
        if problem:
            pytest.skip(problem)
        if any(":" in address for address in addresses) and not Path("/proc/net/if_inet6").exists():
            pytest.skip("this kernel has no IPv6")
        dmi = write_firmware(machine.folder, cloud)
        path = machine.runtime / "island"
        with socket.socket(socket.AF_UNIX) as door:
            door.bind(os.fspath(path))
            door.listen(1)
            door.settimeout(TIMEOUT)
            words = (*making, sys.executable, str(PROGRAM), str(path), str(dmi), *addresses)
            holder = machine.start(*words)
            holder.out.until("^listening$")
            connection, _ = door.accept()
        with connection:
            connection.settimeout(TIMEOUT)
            _, handles, _, _ = socket.recv_fds(connection, 1, len(addresses))
        #: Listening at port 80 of each address.
        self.listening = {
            address: socket.socket(fileno=handle) for address, handle in zip(addresses, handles, strict=True)
        }
        #: Who holds the network open.
        self.pid = holder.pid
        own, theirs = (os.stat(f"/proc/{pid}/ns/net").st_ino for pid in ("self", holder.pid))
        assert own != theirs, "what follows would ask the network of this machine"
        machine.enter(holder, *entering)
        say_no_address(machine.env)
