"""Small things that are asked of the store beside checkpoints, by connections that are open. On the saving thread.

Each has a few seconds, and what comes of it decides nothing: a save is never late for one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from ..providers.clock import Clock
from ..providers.errors import CheckpointError, SpotguardError, StoreError
from .checkpoints.commit import attempt_starts, is_complete
from .checkpoints.effort import Abandoned, Effort
from .checkpoints.writer import Writer
from .format.keys import CheckpointName

log = logging.getLogger("spotguard")

#: Seconds that reading when earlier attempts began may take, all of it: a notice would wait for that.
_HISTORY = 2.0
#: And a look at a checkpoint: the agent waits for what comes of it, before its reserve.
_GLANCE = 1.0


class Errands:
    """Of one run, by a writer's threads."""

    def __init__(self, writer: Writer, run_id: str, clock: Clock) -> None:
        self._writer = writer
        self._run_id = run_id
        self._clock = clock

    def starts(self) -> list[float]:
        """When the attempts of this run began, the last few: wall seconds; none where the store takes its time."""
        found: list[float] = []
        store = self._writer.store

        def look(left: float | None) -> None:
            found.extend(attempt_starts(store, self._run_id, timeout=left))

        try:
            self._ask(look, _HISTORY)
        except (Abandoned, StoreError, CheckpointError) as error:
            log.debug("how often this run was preempted is not known: %s", error)
        return found

    def complete(self, name: CheckpointName, world: int) -> bool:
        """Whether the manifests of all ranks of this checkpoint are there; not, where the store takes its time."""
        found = []
        store = self._writer.store

        def look(left: float | None) -> None:
            found.append(is_complete(store, self._run_id, name, world, timeout=left))

        try:
            self._ask(look, _GLANCE)
        except (Abandoned, StoreError, CheckpointError) as error:
            log.debug("whether %s is committed by now is not known: %s", name, error)
        return any(found)

    def put(self, key: str, data: memoryview, seconds: float) -> None:
        """Put something beside the checkpoints, once.

        Raises:
            Abandoned: the time is over; whether it is there after all, nobody knows.
            StoreError: the store failed.
        """
        store = self._writer.store
        self._ask(lambda left: store.put(key, data, timeout=left), seconds)

    def _ask(self, what: Callable[[float | None], object], seconds: float) -> None:
        effort = Effort(self._clock, self._clock.monotonic() + seconds)
        try:
            self._writer.ask(what, effort, again=False)
        except SpotguardError:
            raise
        except Exception as error:  # an SDK's own, which its store did not foresee: no commit is lost for it
            raise StoreError(f"{type(error).__name__}: {error}") from error
