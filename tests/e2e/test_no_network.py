"""`--provider auto`, the default, where the firmware names no cloud: nothing goes over the network."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from spotguard.providers.clouds.detect import detect
from tests.e2e.harness import Machine

pytestmark = pytest.mark.wholepath

PROGRAMS = Path(__file__).parent / "programs"
#: A guarded command that is registered, with every default: what a newcomer types.
WORDS = ("run", "--", sys.executable, str(PROGRAMS / "notified.py"))


@pytest.fixture(autouse=True)
def no_cloud() -> None:
    """On a cloud's machine `auto` rightly means that cloud."""
    if (cloud := detect().cloud) != "none":
        pytest.skip(f"this machine is {cloud}'s: run these tests on a machine of no cloud")


def watched(machine: Machine, *prefix: str) -> str:
    """A whole run: registered, asked for its status, preempted by SIGTERM. What was said on stderr."""
    running = machine.start(*prefix, *WORDS)
    running.out.until("^ready")
    asked = machine.spotguard("status")
    assert asked.ended() == 0
    assert "none is watched" in asked.out.to_the_end()
    run_pid = int(re.findall(r"\(pid (\d+)\)", asked.out.text)[0])
    subprocess.run(["kill", "-TERM", str(run_pid)], check=True)
    running.out.until("^notice signal")
    running.say("return")
    assert running.ended() == 75
    return running.err.to_the_end()


def test_auto_makes_no_socket_but_its_own(machine: Machine) -> None:
    """Every socket of the agent is a Unix socket, no name is looked up, and nothing is said about clouds."""
    said = watched(machine, sys.executable, str(PROGRAMS / "overheard.py"))
    families = set(re.findall(r"^audit: socket\.__new__ (\w+)$", said, re.MULTILINE))
    assert families == {"AF_UNIX"}
    assert "getaddrinfo" not in said
    ours = [line for line in said.splitlines() if not line.startswith("audit: ")]
    assert not [line for line in ours if re.search("aws|gcp|azure|cloud|metadata|blind", line, re.IGNORECASE)]


def test_auto_asks_the_kernel_for_no_network(machine: Machine) -> None:
    """The same as the kernel sees it: of all network calls, none names an address that is not a Unix socket's."""
    if (strace := shutil.which("strace")) is None:
        pytest.skip("strace is not installed: apt-get install strace")
    log = machine.folder / "calls"
    words = (strace, "-f", "-qq", "-e", "trace=network", "-o", str(log))
    if subprocess.run([*words, "true"], capture_output=True).returncode:
        pytest.skip("strace may not trace here: allow ptrace (in a container: --cap-add=SYS_PTRACE)")
    watched(machine, *words, sys.executable, "-m", "spotguard")
    calls = log.read_text().splitlines()
    assert [line for line in calls if "AF_UNIX" in line]
    assert [line for line in calls if "AF_INET" in line or "AF_NETLINK" in line] == []
