"""What remains of one call of the ranks for the next: objects in the store, and checkpoints that may be complete."""

from __future__ import annotations

from collections.abc import Callable

from ...checkpoint.format.keys import CheckpointName
from ..plan.write_plan import WritePlan, WriteProgress
from ..request import SaveContext


class AgreedSaves:
    """The saves of one state that calls of the ranks have asked for: their objects, and the checkpoints that may be complete."""

    def __init__(self) -> None:
        #: The identity of the state, and its progress in the store.
        self._last: tuple[tuple[int, int], WriteProgress] | None = None
        #: Checkpoints whose part this rank has put, and whose commit it has not seen. Each entry has the identity of the
        #: state, the checkpoint's name, and the function that records the checkpoint as committed.
        self._unseen: list[tuple[tuple[int, int], CheckpointName, Callable[[], object]]] = []

    def forget(self) -> None:
        """Forget all: another state counts from now on."""
        self._last, self._unseen = None, []

    def progress(self, save: SaveContext, write_plan: WritePlan) -> WriteProgress:
        """Return the progress of this very state from an earlier call of the ranks; without such a call, a new progress.

        A second call comes when a second machine goes, and the ranks share the writing in another way. Objects in the
        store stay valid. This holds even if this rank has seen the earlier checkpoint complete: other ranks may not have.
        """
        roles, before = save.agreed.roles, self._last
        if before is not None and before[0] == save.identity and before[1].write_plan is write_plan:
            write_progress = before[1].with_roles(roles)
        else:
            write_progress = WriteProgress(write_plan, roles=roles)
            # The other ranks may still commit the checkpoints of this state.
            self._unseen = [each for each in self._unseen if each[0] == save.identity]
        self._last = save.identity, write_progress
        return write_progress

    def put(self, save: SaveContext, name: CheckpointName, record: Callable[[], object]) -> None:
        """Note that this rank puts its part of a checkpoint now, if the ranks have agreed on one.

        Args:
            record: records the checkpoint as committed.
        """
        if save.agreed.epoch:
            self._unseen.append((save.identity, name, record))

    def seen(self) -> None:
        """Note that this rank has seen the commit."""
        self._unseen = []

    def look_back(self, complete: Callable[[CheckpointName], bool]) -> None:
        """Record the newest checkpoint that the other ranks have committed, if there is one."""
        there = (record for _, name, record in reversed(self._unseen) if complete(name))
        next(there, lambda: None)()
