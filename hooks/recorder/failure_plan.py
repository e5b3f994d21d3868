"""The plan of a simulated failure: written by `spotguard simulate failure`, read by the training process that it starts."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, get_args

#: Environment variable with the plan.
VARIABLE = "SPOTGUARD_SIMULATED_FAILURE"

FailurePlace = Literal["data", "forward", "backward", "optimizer"]
PLACES: tuple[FailurePlace, ...] = get_args(FailurePlace)


@dataclass(frozen=True, slots=True)
class FailurePlan:
    """The failure: its class, when and where it arises, and how often in all starts together."""

    kind: str
    #: Completed steps after which it is due.
    step: int
    rank: int
    place: FailurePlace
    times: int
    #: Directory for the marks of what has happened, which outlives the process.
    folder: str
    #: Seconds for which it lasts, if its class is one of `LASTING`.
    seconds: float = 30.0

    def encode(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def of(cls, text: str) -> FailurePlan:
        return cls(**json.loads(text))

    def time(self, number: int) -> Path:
        """The mark of one time, from the moment at which it begins. It holds the pid of the process."""
        return Path(self.folder, f"time-{number}")

    @property
    def reached(self) -> Path:
        """The mark that the step is reached: a loader's worker has no steps of its own."""
        return Path(self.folder, "reached")

    @property
    def kernel_log(self) -> Path:
        """The file in place of the kernel's log. A program cannot write lines of the kernel's own into that."""
        return Path(self.folder, "kernel-log")

    def rank_is(self, where: Literal["here", "elsewhere"]) -> Path:
        """The mark of a job whose rank is among the processes of this machine, or of one whose other ranks are."""
        return Path(self.folder, where)


#: The classes that can be provoked, with the place at which each arises by default.
KINDS: dict[str, FailurePlace] = {
    "cuda-memory": "forward",
    "host-memory": "forward",
    "loader-worker": "data",
    "data": "data",
    "nan": "data",
    "gpu": "forward",
    "disk-full": "data",
    "network": "data",
    "program": "forward",
    "killed": "forward",
    "stall": "forward",
    "stopped": "forward",
    "memory-kill": "forward",
    "gpu-lost": "forward",
    "gpu-memory-error": "forward",
}
#: Those with lines in the kernel's log.
IN_KERNEL_LOG = frozenset({"memory-kill", "gpu-lost", "gpu-memory-error"})
#: Those that last for some seconds.
LASTING = frozenset({"gpu-lost", "gpu-memory-error", "stopped"})
