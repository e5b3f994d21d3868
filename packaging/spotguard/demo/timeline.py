"""The timeline of a notice, in seconds from the instant at which the metadata endpoint showed it."""

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
    """The events of one notice, from the endpoint to the machine's end. Events that did not happen are left out."""

    #: Seconds from the notice to the end of the machine.
    window: float
    marks: tuple[Mark, ...]
    #: Seconds left in the window when machine 1 ended by itself; None if it had to be killed.
    slack: float | None
    #: The committed step.
    step: int | None = None
    #: The checkpoint's size in bytes.
    nbytes: int = 0
    #: The agent's own line about the outcome.
    line: str = ""

    @property
    def end(self) -> float:
        """Seconds from the notice to the end of machine 1."""
        return self.marks[-1].at


def read_outcome(path: Path) -> dict[str, Any]:
    """Return the outcome that the agent wrote beside its socket; empty if the agent was killed before."""
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
    """Return the timeline of the notice.

    Args:
        outcome: the agent's record.
        visible_wall: Unix seconds at which the notice became visible.
        window: seconds from the notice to the end of the machine.
        ended: seconds from the notice to the end of machine 1.
        killed: whether machine 1 had to be killed.
        pressed: seconds from the notice to the SIGTERM for all processes on machine 1; None if there was none.
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


#: Fields of the agent's record, in seconds after the agent saw the notice, and their texts. (`told` counts from the delivery
#: to the training process, which the agent begins at once.)
_PHASES = {
    "delivered": "delivered to the training process",
    "gate": "the state stands still",
    "first_byte": "first byte to the store",
    "committed": COMMITTED,
}
