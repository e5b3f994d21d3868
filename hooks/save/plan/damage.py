"""The checkpoints of a run that somebody has found damaged: a prune, a verification, a restore, or another rank.

Nothing else records damage. What was made on a damaged checkpoint asks here each time that it is used: the newest committed
checkpoint, and the objects that the next save would refer to. So no thread has to drop them in time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from ...checkpoint.format.keys import CheckpointName


class FoundDamage:
    """The damaged checkpoints of this run, as far as this rank knows. Any thread may use it.

    Args:
        found: called with each checkpoint that is new here, with the reason, and with whether another rank has told of it.
    """

    def __init__(
        self, found: Callable[[CheckpointName, str, bool], None] = lambda name, why, heard: None
    ) -> None:
        self._found = found
        self._lock = threading.Lock()
        #: The reason by checkpoint. Replaced, never changed, because other threads read it meanwhile.
        self._why: dict[CheckpointName, str] = {}

    def add(self, name: CheckpointName, why: str, *, heard: bool = False) -> bool:
        """Note that a checkpoint cannot be restored. Return whether this is news.

        Args:
            name: the checkpoint.
            why: the damage.
            heard: whether another rank has found it, and has told all ranks.
        """
        with self._lock:
            if name in self._why:
                return False
            self._why = {**self._why, name: why}
        self._found(name, why, heard)
        return True

    def of(self, oldest: CheckpointName, name: CheckpointName) -> str:
        """Return why a checkpoint may be damaged; "" if nothing speaks for it.

        A save refers to an earlier object only by way of all saves in between. So a checkpoint shares objects with each one from
        the oldest that it refers to up to itself, and damage in any of them may lie in a shared object.

        Args:
            oldest: the oldest checkpoint whose objects it refers to; `name` if it has only objects of its own.
            name: the checkpoint.
        """
        for damaged, why in self._why.items():
            if oldest <= damaged <= name:
                return f"checkpoint {damaged} is damaged: {why}"
        return ""

    def since(self, oldest: CheckpointName) -> bool:
        """Return whether an object that this checkpoint has put may be damaged, as seen from the newest one."""
        return any(oldest <= damaged for damaged in self._why)
