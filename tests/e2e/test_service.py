"""`spotguard agent` for a whole machine: several runs and bare processes, of several users, and one poller."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from spotguard.agent.ipc import control
from spotguard.providers.simulator.aws.service import AwsSimulator
from tests.e2e.harness import Machine
from tests.e2e.processes import Running, about, eventually

pytestmark = pytest.mark.wholepath

PROGRAMS = Path(__file__).parent / "programs"
NOTIFIED = str(PROGRAMS / "notified.py")
#: Users that no account is needed for.
ALICE, BOB, CAROL, GROUP = 61001, 61002, 61003, 61000


class Service:
    """The agent of a machine, and those that it watches for."""

    def __init__(self, machine: Machine, aws: AwsSimulator, socket: Path) -> None:
        self.machine = machine
        self.aws = aws
        self.socket = socket
        self.agent = machine.spotguard(
            *("agent", "--socket", str(socket), "--provider", "aws", "--metadata-endpoint", aws.endpoint)
        )
        self.agent.err.until("aws spot/instance-action: seeing")

    def run(self, run_id: str) -> Running:
        """A `spotguard run` that finds the service."""
        options = ["--run-id", run_id, "--provider", "aws", "--store", self.machine.store.as_uri()]
        relayed = str(PROGRAMS / "relayed.py")
        running = self.machine.start(
            *(sys.executable, relayed, str(self.socket), *options, "--", sys.executable, NOTIFIED),
            AWS_EC2_METADATA_SERVICE_ENDPOINT=self.aws.endpoint,
        )
        running.out.until("^ready")
        running.err.until("watches for this run")
        eventually(lambda: self.machine.sessions(run_id) == 1, "registered")
        return running

    def bare(self, *prefix: str) -> Running:
        """A registered process with no `run` over it."""
        command = [*prefix, sys.executable, NOTIFIED]
        before = len(control.status(self.socket)["sessions"])
        running = self.machine.start(*command, SPOTGUARD_SOCKET=str(self.socket))
        running.out.until("^ready")
        eventually(lambda: len(control.status(self.socket)["sessions"]) > before, "registered")
        return running

    @property
    def pollers(self) -> int:
        """Everybody who asks AWS for the key does so with a token of their own, which lives for hours."""
        asked = (seen for seen in self.aws.requests if seen.path.endswith("spot/instance-action"))
        return len({seen.headers["x-aws-ec2-metadata-token"] for seen in asked})


@pytest.fixture
def service(machine: Machine, aws: AwsSimulator) -> Service:
    return Service(machine, aws, machine.runtime / "service" / "agent.sock")


def test_one_service_polls_for_everybody(service: Service) -> None:
    """Two runs and a bare process are told of one notice, which was asked for by one poller; the runs end with
    75, the bare process ends as it likes, the service stays."""
    runs = [service.run("one"), service.run("two")]
    bare = service.bare()
    assert service.pollers == 1
    service.aws.preempt(120)
    for running in [*runs, bare]:
        running.out.until(f"^notice terminate {about(120)} ")
        running.say("return")
    for running in runs:
        assert running.ended() == 75
    assert service.pollers == 1
    assert service.machine.outcome("one")["why"] == ""
    assert service.machine.outcome("two")["why"] == ""
    # The service's own outcome is of the bare process: it ends no command.
    service.agent.err.until("aws spot/instance-action: COMMITTED")
    assert bare.running
    assert service.agent.running


def test_when_the_service_dies_the_runs_look_for_themselves(service: Service) -> None:
    """They say so, poll, and hear the notice that comes then; the bare process says that it is unguarded."""
    runs = [service.run("one"), service.run("two")]
    bare = service.bare()
    service.agent.kill()
    for running in runs:
        running.err.until("looking for notices here")
        running.err.until("aws spot/instance-action: seeing")
    bare.err.until("unguarded")
    assert service.pollers == 3
    service.aws.preempt(120)
    for running in runs:
        running.out.until("^notice terminate")
        running.say("return")
        assert running.ended() == 75


def test_a_service_that_comes_back_is_found_with_its_notice(service: Service) -> None:
    """Killed and started again while a notice stands: the bare process is connected anew, and told."""
    bare = service.bare()
    service.agent.kill()
    bare.err.until("unguarded")
    service.aws.preempt(120)
    Service(service.machine, service.aws, service.socket)
    bare.out.until("^notice terminate")


def become(uid: int, group: int = GROUP) -> list[str]:
    """The words that make a command another user's."""
    return ["setpriv", f"--reuid={uid}", f"--regid={group}", "--clear-groups"]


@pytest.fixture
def shared_folder() -> Iterator[Path]:
    """A folder for the socket that a group may enter, as /run/spotguard is."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("needs root and setpriv (util-linux), to be several users: run it as root")
    if subprocess.run([*become(ALICE), sys.executable, "-c", "import spotguard"], cwd="/").returncode:
        pytest.skip("other users cannot read this checkout: put it where they can, as below /opt")
    folder = Path(tempfile.mkdtemp(prefix="sg-shared-", dir="/tmp"))
    os.chown(folder, 0, GROUP)
    folder.chmod(0o750)
    yield folder
    shutil.rmtree(folder)


def test_users_of_one_service_do_not_see_each_other(
    shared_folder: Path, machine: Machine, aws: AwsSimulator
) -> None:
    """Each sees its own sessions in `status`, root sees all; a stranger cannot even connect; all are told."""
    service = Service(machine, aws, shared_folder / "agent.sock")

    def seen(uid: int, group: int = GROUP) -> tuple[int, list[int], str]:
        command = [*become(uid, group), sys.executable, "-m", "spotguard"]
        asked = machine.start(*command, "status", "--json", "--socket", str(service.socket))
        code = asked.ended()
        said = asked.out.to_the_end()
        uids = [s["uid"] for a in json.loads(said)["agents"] for s in a["sessions"]] if said else []
        return code, uids, asked.err.to_the_end()

    alice, bob = service.bare(*become(ALICE)), service.bare(*become(BOB))
    assert seen(ALICE)[:2] == (0, [ALICE])
    assert seen(BOB)[:2] == (0, [BOB])
    assert seen(CAROL)[:2] == (0, [])
    assert sorted(s["uid"] for s in control.status(service.socket)["sessions"]) == [ALICE, BOB]
    code, uids, said = seen(CAROL, group=CAROL)
    assert (code, uids) == (1, [])
    assert "Permission denied" in said

    drill = machine.start(
        *become(CAROL), sys.executable, "-m", "spotguard", "drill", "--socket", str(service.socket)
    )
    assert drill.ended() == 1
    assert "no training process is registered" in drill.err.to_the_end()
    aws.preempt(120)
    for running in (alice, bob):
        running.out.until("^notice terminate")
        running.send(signal.SIGTERM)
