"""When what happened to the notice, counted from the instant it stood at the metadata endpoint."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

COMMITTED = "committed"


@dataclass(frozen=True, slots=True)
class Mark:
    what: str
    #: Seconds after the notice became visible.
    at: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """The way of one notice. What did not happen is not in it."""

    #: Seconds from the notice to the end of the machine.
    window: float
    marks: tuple[Mark, ...]
    #: Seconds that were left when machine 1 had ended by itself; None where it had to be killed.
    slack: float | None
    #: The committed step, the size of the checkpoint, and the agent's own line.
    step: int | None = None
    nbytes: int = 0
    line: str = ""

    @property
    def end(self) -> float:
        """When machine 1 had ended."""
        return self.marks[-1].at


def read_outcome(path: Path) -> dict[str, Any]:
    """What the agent wrote beside its socket; empty where it did not live to write it."""
    return json.loads(path.read_bytes()) if path.exists() else {}


def timeline(
    outcome: dict[str, Any],
    *,
    visible_wall: float,
    window: float,
    ended: float,
    killed: bool,
    pressed: float | None = None,
) -> Timeline:
    """The timeline of the notice.

    Args:
        outcome: the agent's record.
        visible_wall: Unix seconds at which the notice was put.
        window: seconds from then to the end of the machine.
        ended: when machine 1 had ended, in seconds after that.
        killed: whether it had to be killed.
        pressed: when everything on it was sent a SIGTERM, in seconds after that; None where nothing was.
    """
    marks = [Mark("the notice stands at the metadata endpoint", 0.0)]
    if "seen" in outcome:
        seen = max(0.0, datetime.fromisoformat(outcome["seen"]).timestamp() - visible_wall)
        marks.append(Mark("seen by the agent", seen))
        marks += [
            Mark(what, seen + outcome[key]) for key, what in _PHASES.items() if outcome.get(key) is not None
        ]
    if pressed is not None:
        marks.append(Mark("ACPI's power button: SIGTERM to everything", pressed))
    marks.append(
        Mark("switched off by the cloud" if killed else "machine 1 has exited (torch shuts down)", ended)
    )
    return Timeline(
        window=window,
        marks=tuple(sorted(marks, key=lambda mark: mark.at)),
        slack=None if killed else window - ended,
        step=outcome.get("step"),
        nbytes=outcome.get("bytes", 0),
        line=outcome.get("line", ""),
    )


#: Of the agent's record, in seconds after it saw the notice. (`told` counts from sending it on, which the agent does
#: with the same breath.)
_PHASES = {
    "delivered": "delivered to the training process",
    "gate": "the state stands still",
    "first_byte": "first byte to the store",
    "committed": COMMITTED,
}
