"""Old checkpoints go, and what is left of a save that failed. A notice waits for none of it.

The store is asked on a thread of the writer's: the thread that saves is free at once when the effort is called off, also
where the store hangs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from ...providers.clock import Clock
from ...providers.errors import CheckpointError, SpotguardError, StoreError
from ..checkpoint.attempts import attempt_starts
from ..checkpoint.format.keys import CheckpointName, checkpoint_prefix
from ..checkpoint.marker import is_complete
from ..checkpoint.retention import Keep, Pruning, plan_pruning
from .cancel_scope import Abandoned, CancelScope
from .plan.write_plan import WritePlanCache
from .upload.buffers import B
from .upload.uploader import Uploader

log = logging.getLogger("spotguard")

#: Objects that are removed between two looks at whether a notice has come.
_AT_ONCE = 32


class Cleanup:
    """Of one run in one store. Used by the saving thread, which has its writer do the asking."""

    def __init__(self, run_id: str, uploads: Uploader[B], plans: WritePlanCache) -> None:
        self._store = uploads.store
        self._run_id = run_id
        self._uploads = uploads
        self._plans = plans
        #: The attempts that a newer one has overtaken.
        self._overtaken: set[int] = set()

    def overtaken(self, attempt: int) -> bool:
        """Whether a newer attempt was seen to have begun: two processes train this run."""
        return attempt in self._overtaken

    def see_referred(self, scope: CancelScope) -> None:
        """Have the next save refer to nothing that is gone: of several ranks only the one that prunes sees what is damaged. One
        listing of this rank's own objects.

        Raises:
            Abandoned, StoreError: as `ShardWriter.ask`.
        """
        for name, objects in self._plans.referred().items():
            prefix = checkpoint_prefix(self._run_id, name)
            own = prefix + min(objects).partition("/")[0]
            there: set[str] = set()

            def look(
                left: float | None, own: str = own, prefix: str = prefix, there: set[str] = there
            ) -> None:
                there.update(info.key.removeprefix(prefix) for info in self._store.list(own, timeout=left))

            self._uploads.ask(look, scope, again=False)
            if not objects <= there:
                log.error("objects of checkpoint %s that nobody trains are gone: they are written anew", name)
                self._plans.forget()
                return

    def prune(self, keep: Keep, attempt: int, scope: CancelScope) -> None:
        """Have no more checkpoints than that, and what else must stay; a few objects at a time."""
        found: list[Pruning] = []

        def look(left: float | None) -> None:
            found.append(
                plan_pruning(self._store, self._run_id, keep=keep.newest, every=keep.every, attempt=attempt)
            )

        try:
            scope.check()
            self._uploads.ask(look, scope, again=False)
            if (newest := found[0].fenced_by) and not self.overtaken(attempt):
                self._overtaken.add(attempt)
                log.error(
                    "attempt %d of run %s has begun while this one, attempt %d, still trains: end one of the two. This one "
                    "makes no more background checkpoints; a notice and guard.save() still save",
                    newest,
                    self._run_id,
                    attempt,
                )
            if damaged := [*found[0].damaged.items()]:
                # Most likely what it refers to was deleted by somebody else, and all that come would refer to it too.
                self._plans.forget()
                name, why = damaged[0]
                log.error(
                    "step %d cannot be restored, the next checkpoint is written in full: %s; see that nothing else "
                    "deletes objects below %s",
                    name.step,
                    why,
                    self._store.url,
                )
            for keys in found[0].steps():
                for start in range(0, len(keys), _AT_ONCE):
                    self._delete(keys[start : start + _AT_ONCE], scope)
        except Abandoned:
            log.debug("a notice came before old checkpoints were removed; the next save goes on with it")
        except (StoreError, CheckpointError) as error:
            log.warning("old checkpoints could not be removed, they stay: %s", error)

    def discard(self, name: CheckpointName, scope: CancelScope) -> None:
        """Remove the objects of a save that will never have a manifest: they may be what fills the disk. Not when
        time is short; the next prune finds them too."""
        found: list[str] = []

        def look(left: float | None) -> None:
            prefix = checkpoint_prefix(self._run_id, name)
            found.extend(info.key for info in self._store.list(prefix, timeout=left))

        try:
            scope.check()
            self._uploads.ask(look, scope, again=False)
            self._delete(found, scope)
        except (Abandoned, StoreError, CheckpointError) as error:
            log.debug("the objects of %s stay for now: %s", name, error)

    def _delete(self, keys: list[str], scope: CancelScope) -> None:
        scope.check()
        self._uploads.ask(lambda left: self._store.delete(keys, timeout=left), scope, again=False)


# Small things that are asked of the store beside checkpoints, by connections that are open. On the saving thread.
#
# Each has a few seconds, and what comes of it decides nothing: a save is never late for one.


#: Seconds that reading when earlier attempts began may take, all of it: a notice would wait for that.
_HISTORY = 2.0
#: And a look at a checkpoint: the agent waits for what comes of it, before its reserve.
_GLANCE = 1.0


class SmallRequests:
    """Of one run, by a writer's threads."""

    def __init__(self, uploads: Uploader[B], run_id: str, clock: Clock) -> None:
        self._uploads = uploads
        self._run_id = run_id
        self._clock = clock

    def starts(self) -> list[float]:
        """When the attempts of this run began, the last few: wall seconds; none where the store takes its time."""
        found: list[float] = []
        store = self._uploads.store

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
        store = self._uploads.store

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
        store = self._uploads.store
        self._ask(lambda left: store.put(key, data, timeout=left), seconds)

    def _ask(self, what: Callable[[float | None], object], seconds: float) -> None:
        scope = CancelScope(self._clock, self._clock.monotonic() + seconds)
        try:
            self._uploads.ask(what, scope, again=False)
        except SpotguardError:
            raise
        except Exception as error:  # an SDK's own, which its store did not foresee: no commit is lost for it
            raise StoreError(f"{type(error).__name__}: {error}") from error
