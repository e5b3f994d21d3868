"""The training script under test, seen from outside: what to type, and what its lines must say."""

from __future__ import annotations

import sys
from pathlib import Path

from spotguard.providers.simulator.aws.service import AwsSimulator
from tests.e2e.harness import Machine
from tests.e2e.processes import Running

PROGRAM = Path(__file__).parent / "programs" / "train.py"
LIVES = PROGRAM.with_name("lives.py")


class Trainee:
    """`programs/train.py` on one machine. `digests[n]` is the state after n steps of plain training."""

    def __init__(self, machine: Machine, digests: list[str]) -> None:
        self.machine = machine
        self.digests = digests

    def command(self, steps: int = 20, program: Path = PROGRAM) -> list[str]:
        return [sys.executable, str(program), "--steps", str(steps)]

    def guarded(
        self,
        options: str = "--every off",
        *,
        steps: int = 20,
        program: Path = PROGRAM,
        aws: AwsSimulator | None = None,
        **env: str,
    ) -> Running:
        return self.machine.run(options, *self.command(steps, program), aws=aws, **env)

    def begun(self, running: Running) -> int:
        """Wait until training stands at its first step, exactly as it was saved; which step that is."""
        said = running.out.until(r"^restored (\d+) (\w+)$")
        step = int(said[1])
        assert said[2] == self.digests[step], f"step {step} was not restored bit for bit"
        return step

    def newest(self) -> int:
        """The step of the newest whole checkpoint in the store; 0 where there is none."""
        found = self.machine.committed()
        return found[-1][1] if found else 0

    def stepped(self, running: Running, step: int) -> None:
        """Wait until that step is done, with the state that plain training has there."""
        said = running.out.until(rf"^step {step} (\w+)$")
        assert said[1] == self.digests[step], f"step {step} differs from plain training"

    def finished(self, running: Running, steps: int = 20) -> None:
        said = running.out.until(r"^done (\w+)$")
        assert said[1] == self.digests[steps], "the final state differs from an uninterrupted run"
