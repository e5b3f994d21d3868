"""The checkpoints of a run that somebody has found damaged: a prune, a verification, a restore, or another rank.

Nothing else records damage. What was made on a damaged checkpoint asks here each time that it is used: the newest committed
checkpoint, and the objects that the next save would refer to. So no thread has to drop them in time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable

from ...checkpoint.format.keys import CheckpointName

#: Takes a damaged checkpoint, the damage, the keys of its damaged objects, and whether another rank has told of it.
DamageHandler = Callable[[CheckpointName, str, Collection[str], bool], None]


class FoundDamage:
    """The damaged checkpoints of this run, as far as this rank knows. Any thread may use it.

    Args:
        found: called with all damage that is new here.
    """

    def __init__(self, found: DamageHandler = lambda name, why, objects, heard: None) -> None:
        self._found = found
        self._lock = threading.Lock()
        #: The damage by checkpoint, and the keys of its damaged objects. Replaced, never changed, because other threads read it
        #: meanwhile.
        self._damage: dict[CheckpointName, tuple[str, frozenset[str]]] = {}

    def add(
        self, name: CheckpointName, why: str, objects: Iterable[str] = (), *, heard: bool = False
    ) -> bool:
        """Note that a checkpoint cannot be restored. Return whether this is news.

        Args:
            name: the checkpoint.
            why: the damage.
            objects: the keys of its damaged objects, its own or an earlier checkpoint's. A key that ends with a slash is a
                directory, in which any object may be damaged. Without objects the damage is in the checkpoint's own manifests.
            heard: whether another rank has found it, and has told all ranks.
        """
        damaged = frozenset(objects)
        with self._lock:
            _, known = self._damage.get(name, ("", frozenset[str]()))
            if name in self._damage and damaged <= known:
                return False
            self._damage = {**self._damage, name: (why, known | damaged)}
        self._found(name, why, damaged, heard)
        return True

    def of(self, name: CheckpointName, refers: Collection[str]) -> str:
        """Return why a checkpoint is damaged, as far as anybody has found; "" if nobody has.

        Args:
            name: the checkpoint.
            refers: the keys of the earlier checkpoints' objects that it refers to.
        """
        for damaged, (why, objects) in self._damage.items():
            if damaged == name or any(_is_used(key, name, refers) for key in objects):
                return f"checkpoint {damaged} is damaged: {why}"
        return ""

    def since(self, oldest: CheckpointName) -> bool:
        """Return whether any checkpoint is damaged that this one or a later one has put.

        What has damaged it may go on, so the next save refers to no object of them, sound or not.
        """
        return any(oldest <= damaged for damaged in self._damage)


def _is_used(key: str, name: CheckpointName, refers: Collection[str]) -> bool:
    """Return whether a checkpoint uses a damaged object."""
    if f"/{name}/" in key or key in refers:
        return True
    return key.endswith("/") and any(each.startswith(key) for each in refers)
