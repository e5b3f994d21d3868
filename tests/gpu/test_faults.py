"""Faults of a real GPU, seen from outside: what is committed, which class is named, and how training continues."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from tests.e2e.harness import Machine
from tests.e2e.processes import Running

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.torch,
    pytest.mark.wholepath,
    pytest.mark.slow,
    pytest.mark.timeout(200),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]

PROGRAM = str(Path(__file__).parent / "programs" / "faults.py")


def run(machine: Machine, how: str, options: str = "--every off") -> Running:
    return machine.run(options, sys.executable, PROGRAM, how)


def finished(machine: Machine, begin: int, expected: str) -> None:
    """The next life begins at that step, and its weights are those of an undisturbed run."""
    again = run(machine, "none")
    assert again.out.until(r"^step (\d+)$")[1] == str(begin)
    assert again.out.until("^sum (.*)$")[1] == expected
    assert again.ended() == 0


@pytest.fixture
def undisturbed(tmp_path: Path) -> str:
    """The sum of an undisturbed run's weights."""
    (tmp_path / "plain").mkdir()
    plain = Machine(tmp_path / "plain")
    try:
        running = run(plain, "none")
        found: str = running.out.until("^sum (.*)$")[1]
        assert running.ended() == 0
    finally:
        plain.close()
    return found


def test_a_gpu_without_memory_is_named_and_the_last_step_is_committed(
    machine: Machine, undisturbed: str
) -> None:
    failed = run(machine, "memory")
    assert failed.ended() == 1
    failed.err.until("ERROR: training failed: .*the GPU is out of memory")
    assert [step for _, step, _ in machine.committed()] == [6]
    finished(machine, 6, undisturbed)


def test_a_gpu_that_stopped_at_an_assertion_is_named_and_nothing_of_it_is_committed(machine: Machine) -> None:
    """Its memory cannot be read any more, so nothing partial may stand in the store either."""
    failed = run(machine, "assert")
    assert failed.ended() != 0
    failed.err.until("ERROR: training failed: .*the GPU or its driver reports an error")
    assert machine.committed() == []
    assert [*machine.store.glob("job/checkpoints/*/*")] == []
    finished_from_the_begin = run(machine, "none")
    assert finished_from_the_begin.out.until(r"^step (\d+)$")[1] == "0"


def test_a_kernel_that_hangs_is_a_stall_and_the_standing_state_is_committed(
    machine: Machine, undisturbed: str
) -> None:
    """The copies go by streams of their own, so they do not wait for the kernel."""
    hung = run(machine, "hang", "--every off --stall-first 3")
    hung.out.until("^hangs$")
    hung.err.until("WARNING: training stands still: rank 0 .* at faults.py")
    hung.err.until("no progress of the run for .* COMMITTED .* nothing is ended")
    assert [step for _, step, _ in machine.committed()] == [6]
    machine.power_off()
    finished(machine, 6, undisturbed)


def test_a_notice_in_a_kernel_that_hangs_commits_the_last_step(machine: Machine, undisturbed: str) -> None:
    hung = run(machine, "hang", "--every off --window 20")
    hung.out.until("^hangs$")
    hung.send(signal.SIGTERM)
    assert hung.ended() == 75
    assert [step for _, step, _ in machine.committed()] == [6]
    finished(machine, 6, undisturbed)


def test_a_kernel_that_hangs_behind_the_host_costs_no_step_before_its_own(
    machine: Machine, undisturbed: str
) -> None:
    """The host has passed its step, and with it what the generators, the statistics and Adam's counts were."""
    hung = run(machine, "ahead", "--every off --stall-first 3")
    hung.out.until("^hangs$")
    hung.err.until("no progress of the run for .* COMMITTED .* nothing is ended")
    assert [step for _, step, _ in machine.committed()] == [6]
    machine.power_off()
    finished(machine, 6, undisturbed)


def test_a_kernel_that_hangs_two_steps_behind_the_host_leaves_nothing_partial(machine: Machine) -> None:
    """No boundary's state is whole in memory."""
    hung = run(machine, "far", "--every off --stall-first 3")
    hung.out.until("^hangs$")
    hung.err.until("NOT COMMITTED .*a device stands in a step before the last guard.step")
    assert [*machine.store.glob("job/checkpoints/*/*")] == []
