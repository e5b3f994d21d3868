"""What whole-path tests share: a machine that is cleaned up, and training without spotguard to compare with."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.harness import Machine
from tests.e2e.processes import TIMEOUT
from tests.e2e.trainee import PROGRAM, Trainee


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each test here minutes: a machine that does ten other things starts its processes slowly."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(400))


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """A machine of its own for each test."""
    made = Machine(tmp_path)
    yield made
    made.close()


@pytest.fixture(scope="session")
def plain_digests(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The digest of the training state after each step of a run that never heard of spotguard; one run for all workers."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed on this Python: pip install torch")
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    said = folder / "plain-training"
    with said.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not said.exists():
            said.with_suffix(".new").write_text(_plain_training())
            said.with_suffix(".new").rename(said)
    lines = said.read_text().splitlines()
    return [line.split()[-1] for line in lines if line.startswith(("restored", "step"))]


def _plain_training() -> str:
    return subprocess.run(
        [sys.executable, str(PROGRAM), "--plain", "--steps", "1000"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
        timeout=2 * TIMEOUT,
    ).stdout


@pytest.fixture
def trainee(machine: Machine, plain_digests: list[str]) -> Trainee:
    """The training script on this machine, and what it must come to."""
    return Trainee(machine, plain_digests)
