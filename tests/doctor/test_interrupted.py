"""Ctrl-C in the middle of it, from outside: the store is as it was."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from spotguard.providers.stores.opening import open_store
from tests.fixtures_servers import FaultsBefore
from tests.servers.faultplan import Fault
from tests.servers.moto import Moto

#: An object of a save, and no probe.
LARGE = 1_000_000


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["Ctrl-C", "SIGTERM"]
)
def test_interrupted_while_it_measures_it_leaves_nothing(
    number: int, code: int, moto: Moto, faults_before: FaultsBefore, tmp_path: Path
) -> None:
    """Some objects are there by then, and others on their way."""
    url, plain = f"{moto.fresh()}/prefix", moto.endpoint
    proxy = faults_before(moto)
    proxy.inject(
        Fault(
            "stall",
            after=LARGE,
            times=3,
            matching=lambda asked: asked.method == "PUT" and int(asked.headers["content-length"]) > LARGE,
        )
    )
    words = [sys.executable, "-m", "spotguard", "doctor", "--provider", "none", "--store", url]
    quiet, heard = subprocess.DEVNULL, subprocess.PIPE
    with subprocess.Popen(words, cwd=tmp_path, stdout=quiet, stderr=heard, start_new_session=True) as running:
        assert proxy.wait_for_stalled(3)
        os.kill(running.pid, number)
        assert running.stderr is not None
        assert running.stderr.readline() == b"spotguard: removing what was put into the store\n"
        os.kill(running.pid, number)  # nobody waits with one finger
        proxy.go_on()
        assert running.wait(60) in (code, -number)
    assert list(open_store(f"{url}?endpoint={plain}").list("")) == []
