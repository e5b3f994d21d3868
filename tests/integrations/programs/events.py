"""The events at which lives of a training end."""

from __future__ import annotations

from pathlib import Path


class Ends:
    """The events of one training, over all its lives. A life meets one, and none that an earlier life has met.

    Args:
        events: their names, as in `step:7`.
        met: a file that outlives the life: the names of those that were met.
    """

    def __init__(self, events: list[str], met: Path) -> None:
        self._events, self._met, self._given = events, met, False

    def meets(self, event: str) -> bool:
        """Whether this life ends here."""
        known = self._met.read_text().split() if self._met.exists() else []
        if self._given or event not in self._events or event in known:
            return False
        self._given = True
        with self._met.open("a") as met:
            met.write(f"{event}\n")
        return True
