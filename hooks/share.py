"""One rank's share of an emergency save that all ranks agreed on: what is written, and in which order, is decided.

Alone, a rank changes its plan as bytes leave (`emergency`). Together none may: a level counts only where all ranks have
put it. So where time is short they all put their weights first, and say so in a manifest of the lower level; then the
moments, under the next name. Whoever does not get that far looks whether the lower level has become whole.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from ..providers.errors import SpotguardError
from .checkpoints.draft import ALL, WEIGHTS, Draft, Written
from .checkpoints.effort import Effort
from .checkpoints.work import Progress
from .checkpoints.writer import Spoiled, Writer
from .format.keys import CheckpointName
from .format.leaf import Leaf
from .format.manifest import Level

log = logging.getLogger("spotguard")

#: Of the time that is left when the weights are in the store, what is kept to see that the others' are there too; and at
#: most, in seconds: it takes a few requests.
_KEPT, _KEPT_MOST = 0.25, 2.0


class Share:
    """One of them, on the saving thread.

    Args:
        begin: the name of the next checkpoint to be written.
        put: puts this rank's manifest of the lower level, and waits for nobody.
        commit: puts the manifest of a level, and sees it whole.
        look: asked after each object: nothing, or what has moved since the boundary.
        whole: the level of everything, and why it is not full: "partial-extras", where ranks are gone.
    """

    def __init__(
        self,
        writer: Writer,
        effort: Effort,
        *,
        weights_first: bool,
        begin: Callable[[], CheckpointName],
        put: Callable[[CheckpointName, Written], None],
        commit: Callable[[CheckpointName, Level, Written, Effort], None],
        look: Callable[[], str],
        progress: Progress | None = None,
        whole: tuple[Level, str] = ("full", ""),
    ) -> None:
        self._writer = writer
        self._effort = effort
        self._weights_first = weights_first
        self._begin = begin
        self._put = put
        self._commit = commit
        self._look = look
        self._progress = progress
        self._whole = whole

    def run(self, leaves: Sequence[Leaf], draft: Draft) -> tuple[CheckpointName, Level, str]:
        """Write and commit. Returns what is committed, and why it is not everything, where it is not.

        Raises:
            Abandoned: out of time, called off, or another rank's part is not there.
            StoreError: the store failed.
            Spoiled: the state moved.
        """
        if not self._weights_first:
            return self._full(leaves, draft, self._effort), *self._whole
        name = self._begin()
        self._writer.write(leaves, name, self._effort, self._progress, self._look, draft=draft, tiers=WEIGHTS)
        self._put(name, draft.written(name, WEIGHTS))
        log.info("the weights are in the store, the moments follow")
        try:
            return self._full(leaves, draft, self._effort.part(self._until())), *self._whole
        except SpotguardError as why:
            if self._effort.abandoned or isinstance(why, Spoiled):
                raise
            missed = str(why)
        self._commit(name, "weights", draft.written(name, WEIGHTS), self._effort)
        log.warning("step %d is committed without its moments: %s", name.step, missed)
        return name, "weights", f"time was short, and the weights went first; the moments: {missed}"

    def _full(self, leaves: Sequence[Leaf], draft: Draft, effort: Effort) -> CheckpointName:
        name = self._begin()
        self._writer.write(leaves, name, effort, self._progress, self._look, draft=draft, tiers=ALL)
        self._commit(name, "full", draft.written(name, ALL), effort)
        return name

    def _until(self) -> float:
        left = self._effort.left()
        if left is None:
            return self._effort.deadline
        return self._effort.deadline - min(_KEPT_MOST, left * _KEPT)
