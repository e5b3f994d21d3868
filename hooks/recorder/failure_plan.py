"""The plan of a simulated failure: written by `spotguard simulate failure`, read by the training process that it starts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
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

    def encode(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def of(cls, env: Mapping[str, str]) -> FailurePlan:
        return cls(**json.loads(env[VARIABLE]))


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
}
