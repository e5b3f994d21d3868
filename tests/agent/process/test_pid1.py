"""As PID 1 of a container: a real PID namespace, with the guardian as its init."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fakes.report import TIMEOUT, Report

GUARDIAN = Path(__file__).parents[2] / "fakes/guardian.py"
UNSHARE = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "--kill-child"]


def permitted() -> bool:
    try:
        return (
            subprocess.run([*UNSHARE, "true"], capture_output=True, timeout=TIMEOUT, check=False).returncode
            == 0
        )
    except FileNotFoundError:
        return False


pytestmark = pytest.mark.skipif(
    not permitted(), reason="PID namespaces are not permitted here (unshare --pid)"
)

#: Leaves five orphans behind, each ending with another code, and waits until PID 1 has reaped them all.
ORPHANS = """
import os, sys
report = int(os.environ["REPORT"])
def orphan(code):
    read, write = os.pipe()
    if os.fork() == 0:
        if os.fork() == 0:
            os.close(read)
            while os.getppid() != 1: pass        # until it is one
            os.write(write, str(os.getpid()).encode())
            os._exit(code)
        os._exit(0)
    os.wait()
    os.close(write)
    return int(os.read(read, 100))
orphans = [orphan(code) for code in range(1, 6)]
while any(os.path.exists(f"/proc/{pid}") for pid in orphans): pass
os.write(report, f"{len(orphans)} reaped\\n".encode())
sys.exit(7)
"""


@pytest.fixture
def report() -> Iterator[Report]:
    made = Report()
    yield made
    made.close()


Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def start(report: Report) -> Iterator[Start]:
    started = []

    def run(*command: str, **env: str) -> subprocess.Popen[bytes]:
        words = [*UNSHARE, sys.executable, str(GUARDIAN), str(report.fd), *command]
        environment = {**os.environ, "REPORT": str(report.fd), **env}
        # A session of its own: the terminal of whoever runs the tests is not ours to give away.
        process = subprocess.Popen(words, env=environment, pass_fds=[report.fd], start_new_session=True)
        started.append(process)
        report.hand_over()
        return process

    yield run
    for process in started:
        process.kill()
        process.wait(TIMEOUT)


def init_of(unshare: subprocess.Popen[bytes]) -> int:
    """The namespace's PID 1, as it is called out here."""
    return int(Path(f"/proc/{unshare.pid}/task/{unshare.pid}/children").read_text().split()[0])


@pytest.mark.parametrize(("script", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -KILL $$", 137)])
def test_the_commands_code_is_ours(start: Start, report: Report, script: str, code: int) -> None:
    process = start("sh", "-c", script)
    assert report.until("guardian: started").endswith("as 1")
    assert process.wait(TIMEOUT) == code


def test_orphans_are_reaped_and_the_commands_status_is_kept(start: Start, report: Report) -> None:
    """No zombie stays while the command runs, and none of their codes is taken for its own."""
    process = start(sys.executable, "-c", ORPHANS)
    assert report.until("5 reaped")
    assert process.wait(TIMEOUT) == 7


def test_sigterm_reaches_the_command(start: Start, report: Report) -> None:
    """The kernel keeps from PID 1 what it has no handler for: `docker stop` must work."""
    process = start("bash", "-c", 'trap "exit 9" TERM; echo ready >&"$REPORT"; while :; do :; done')
    report.until("ready")
    os.kill(init_of(process), signal.SIGTERM)
    report.until("guardian: SIGTERM")
    assert process.wait(TIMEOUT) == 9


def test_a_signal_before_the_command_is_kept(start: Start, report: Report) -> None:
    """It came while we were starting; the command gets it all the same."""
    process = start("sleep", "1000", SIGNAL_FIRST=str(int(signal.SIGTERM)))
    report.until("guardian: ended -15")
    assert process.wait(TIMEOUT) == 143


def test_a_leftover_does_not_keep_the_container(start: Start, report: Report) -> None:
    """The command ended and left something running: the kernel ends it with us, and the code is the command's."""
    process = start("sh", "-c", "sleep 1000 & exit 3")
    report.until("guardian: ended 3")
    assert process.wait(TIMEOUT) == 3
    with pytest.raises(AssertionError, match="everybody is gone"):
        report.next()
