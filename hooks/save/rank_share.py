"""One rank's share of an emergency save that all ranks agreed on: they have decided which tensors to write, in which order.

A single process changes its plan as bytes leave (`emergency_save`). Several ranks must not, because a level counts only if all ranks
have put it. So if time is short, all ranks put their weights first, and a manifest of the lower level. Then they put the
moments, under the next name. If time is not short but a cloud may break its promise, the moments go on beside that manifest. A
rank that cannot complete the full level checks whether the lower level is complete.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from ...providers.errors import SpotguardError
from ..checkpoint.format.keys import CheckpointName
from ..checkpoint.format.manifest import Level
from ..state.state_tensor import StateTensor
from .cancel_scope import Abandoned, CancelScope
from .plan.write_plan import ALL, WEIGHTS, WritePlan, WriteProgress, WrittenState
from .request import SaveContext, Weights
from .shard_writer import ShardWriter
from .upload.transfer import Progress
from .upload.uploader import StateChanged

log = logging.getLogger("spotguard")

#: Time that is reserved to check that the other ranks' weights are in the store too: a share of the time that remains when
#: this rank's weights are there, and a number of seconds at most. The check takes a few requests.
_KEPT, _KEPT_MOST = 0.25, 2.0


class RankShare:
    """One rank's share of one save. The saving thread uses it.

    Args:
        begin: returns the name of the next checkpoint to write.
        weights: whether and how the weights are committed before the moments.
        put: puts this rank's manifest of the lower level, and does not wait for other ranks.
        commit: puts the manifest of a level, and waits until the checkpoint is complete.
        look: called after each object. It returns "" or what has moved since the boundary.
        whole: the level of a save of everything, and why it is not full: "partial-extras" if ranks are gone.
    """

    def __init__(
        self,
        writer: ShardWriter,
        scope: CancelScope,
        *,
        weights: Weights,
        begin: Callable[[], CheckpointName],
        put: Callable[[CheckpointName, WrittenState], None],
        commit: Callable[[CheckpointName, Level, WrittenState, CancelScope], None],
        look: Callable[[], str],
        progress: Progress | None = None,
        whole: tuple[Level, str] = ("full", ""),
    ) -> None:
        self._writer = writer
        self._scope = scope
        self._weights = weights
        self._begin = begin
        self._put = put
        self._commit = commit
        self._look = look
        self._progress = progress
        self._whole = whole

    def run(
        self, state_tensors: Sequence[StateTensor], write_progress: WriteProgress
    ) -> tuple[CheckpointName, Level, str]:
        """Write and commit this rank's share.

        Returns:
            The name and level of the committed checkpoint, and why it is not full; "" if it is.

        Raises:
            Abandoned: the save is out of time, was called off, or another rank's part is missing.
            StoreError: the store failed.
            StateChanged: the state moved.
        """
        if self._weights == "with the rest":
            return self._full(state_tensors, write_progress, self._scope), *self._whole
        name = self._begin()
        if self._weights == "first":
            self._write_weights(state_tensors, write_progress, name)
            self._put(name, write_progress.written(name, WEIGHTS))
            log.debug("the weights are in the store, the moments follow")
        try:
            scope = self._scope.part(self._until())
            if self._weights == "early":
                self._put_beside(state_tensors, write_progress, name, scope)
            return self._full(state_tensors, write_progress, scope), *self._whole
        except SpotguardError as why:
            if self._scope.abandoned or isinstance(why, StateChanged):
                raise
            missed = str(why)
        self._write_weights(state_tensors, write_progress, name)
        self._commit(name, "weights", write_progress.written(name, WEIGHTS), self._scope)
        log.debug("step %d is committed without its moments: %s", name.step, missed)
        return name, "weights", f"time was short, so the weights were uploaded first; the moments: {missed}"

    def _write_weights(
        self, state_tensors: Sequence[StateTensor], write_progress: WriteProgress, name: CheckpointName
    ) -> None:
        self._writer.write(
            state_tensors,
            name,
            self._scope,
            self._progress,
            self._look,
            write_progress=write_progress,
            tiers=WEIGHTS,
        )

    def _put_beside(
        self,
        state_tensors: Sequence[StateTensor],
        write_progress: WriteProgress,
        name: CheckpointName,
        scope: CancelScope,
    ) -> None:
        """Put everything, and the lower level's manifest as soon as the weights are in the store.

        The manifest is put even if the moments are in the store then, because those of other ranks may not be. If the
        manifest fails, the rest goes on, except if the state has moved.
        """
        write_progress.weights_ahead = True
        handle = self._writer.start(
            state_tensors, name, scope, self._progress, self._look, write_progress=write_progress
        )
        over = handle.wait(lambda: write_progress.has(WEIGHTS))
        try:
            self._put(name, write_progress.written(name, WEIGHTS))
        except StateChanged as why:
            handle.call_off(Abandoned(str(why)))
            raise
        except SpotguardError as why:
            log.debug("the weights of step %d are not committed before its moments: %s", name.step, why)
        if not over:
            handle.wait()

    def _full(
        self, state_tensors: Sequence[StateTensor], write_progress: WriteProgress, scope: CancelScope
    ) -> CheckpointName:
        name = self._begin()
        self._writer.write(
            state_tensors, name, scope, self._progress, self._look, write_progress=write_progress, tiers=ALL
        )
        self._commit(name, "full", write_progress.written(name, ALL), scope)
        return name

    def _until(self) -> float:
        left = self._scope.left()
        if left is None:
            return self._scope.deadline
        return self._scope.deadline - min(_KEPT_MOST, left * _KEPT)


# --- what remains of one call for the next ---


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
        """Note that this rank puts its part of a checkpoint now.

        Args:
            record: records the checkpoint as committed.
        """
        self._unseen.append((save.identity, name, record))

    def seen(self) -> None:
        """Note that this rank has seen the commit."""
        self._unseen = []

    def look_back(self, complete: Callable[[CheckpointName], bool]) -> None:
        """Record the newest checkpoint that the other ranks have committed, if there is one."""
        there = (record for _, name, record in reversed(self._unseen) if complete(name))
        next(there, lambda: None)()
