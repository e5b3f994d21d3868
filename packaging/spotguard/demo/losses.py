"""What a training script says of itself: one JSON line for each step, read while it is being written."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(slots=True)
class Losses:
    """The losses in a file so far."""

    path: Path
    #: Completed steps at which the process began; None until it says so.
    started: int | None = None
    by_step: dict[int, float] = field(default_factory=dict)
    held_out: dict[int, float] = field(default_factory=dict)
    _read: int = 0

    @property
    def step(self) -> int:
        """The newest completed step."""
        return max(self.by_step, default=self.started or 0)

    @property
    def loss(self) -> float | None:
        return self.by_step.get(self.step)

    def refresh(self) -> None:
        """Read what was added since the last time. A line without its end waits for the next."""
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(self._read)
            whole, end, _ = file.read().rpartition(b"\n")
        self._read += len(whole) + len(end)
        for line in whole.splitlines():
            self._take(json.loads(line))

    def _take(self, record: dict[str, Any]) -> None:
        step = record["step"]
        if record.get("event") == "start":
            self.started = step
            return
        self.by_step[step] = record["loss"]
        if "held_out" in record:
            self.held_out[step] = record["held_out"]
