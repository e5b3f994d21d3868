"""Removal of old checkpoints and of failed saves' objects, and the small requests of a run beside its checkpoints.

A notice waits for no removal. A thread of the writer makes the requests. So the saving thread is free at once when the
work is called off, even if the store hangs.

Each small request has a few seconds and uses an open connection. No save waits for one, and its result decides nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from ...providers.clock import Clock
from ...providers.errors import CheckpointError, SpotguardError, StoreError
from ...providers.stores.base import ObjectInfo
from ..checkpoint.attempts import attempt_starts
from ..checkpoint.catalog import WholeCheckpoint, examine, folders_of, scan
from ..checkpoint.format.keys import MARKER, SAVING, CheckpointName, checkpoint_prefix
from ..checkpoint.format.manifest import CommitMarker
from ..checkpoint.marker import put_saving, read_marker
from ..checkpoint.retention import CheckedCheckpoints, Keep, Pruning, deletions, plan_pruning
from ..ipc.threads import TaskHandle
from .cancel_scope import Abandoned, CancelScope
from .plan.damage import FoundDamage
from .upload.uploader import Uploader
from .upload.workers import B

log = logging.getLogger("spotguard")

#: Objects that one request removes. Before each request the saving thread checks whether a notice has come.
_AT_ONCE = 32


class Cleanup:
    """Removes old checkpoints of one run from one store. The saving thread uses it; the writer's threads ask the store."""

    def __init__(self, run_id: str, uploads: Uploader[B], damage: FoundDamage) -> None:
        self._store = uploads.store
        self._run_id = run_id
        self._uploads = uploads
        self._damage = damage
        self._checked = CheckedCheckpoints()
        #: The attempts that a newer attempt has overtaken.
        self._overtaken: set[int] = set()
        #: The attempts beside which an older one has committed.
        self._beside: set[int] = set()
        #: The checkpoint of an earlier attempt that this process has uploaded from this machine's disk.
        self.brought: CheckpointName | None = None

    def overtaken(self, attempt: int) -> bool:
        """Return whether a newer attempt has begun, as far as `prune` saw: two processes train this run."""
        return attempt in self._overtaken

    def prune(self, keep: Keep, attempt: int, scope: CancelScope) -> None:
        """Remove all checkpoints but those that `keep` names and those that must stay, a few objects at a time."""
        results: list[Pruning] = []

        def look(left: float | None) -> None:
            results.append(
                plan_pruning(
                    self._store,
                    self._run_id,
                    keep=keep.newest,
                    every=keep.every,
                    attempt=attempt,
                    known=self._checked,
                )
            )

        try:
            scope.check()
            self._uploads.ask(look, scope, again=False)
            if (newest := results[0].fenced_by) and not self.overtaken(attempt):
                self._overtaken.add(attempt)
                log.error(
                    "attempt %d of run %s has begun while this one, attempt %d, still trains: end one of "
                    "the two. This one makes no more background checkpoints; a notice and guard.save() "
                    "still save, and a restart prefers what the newer one has committed [SG510]",
                    newest,
                    self._run_id,
                    attempt,
                )
            other = results[0].beside
            if other not in (None, self.brought) and attempt not in self._beside:
                assert other is not None
                self._beside.add(attempt)
                log.error(
                    "attempt %d of run %s still trains: it has committed step %d since this one, attempt %d, began; end one of "
                    "the two [SG510]",
                    other.attempt,
                    self._run_id,
                    other.step,
                    attempt,
                )
            found = results[0].damaged.items()
            if news := [(name, e) for name, e in found if self._damage.add(name, str(e), e.objects)]:
                # Most likely somebody else deleted objects that it refers to. All later checkpoints would refer to them too.
                name, why = news[0]
                log.error(
                    "step %d cannot be restored, so spotguard writes the next checkpoint in full: %s; "
                    "make sure that nothing else deletes objects below %s",
                    name.step,
                    why,
                    self._store.url,
                )
            self._delete(results[0].steps(), scope)
        except Abandoned:
            log.debug("a notice came before old checkpoints were deleted; the next save continues with it")
        except (StoreError, CheckpointError) as error:
            log.warning("spotguard could not delete old checkpoints, and leaves them: %s", error)

    def discard(self, name: CheckpointName, scope: CancelScope) -> None:
        """Remove the objects of a save that has failed: they may be what fills the disk.

        Its manifest may have arrived although the store's answer did not. So the order is that of every removal: a death between
        two deletions leaves a partial checkpoint, and no damaged one.

        Do not call this when time is short. The next `prune` finds the objects too.
        """
        results: list[ObjectInfo] = []

        def look(left: float | None) -> None:
            prefix = checkpoint_prefix(self._run_id, name)
            results.extend(self._store.list(prefix, timeout=left))

        try:
            scope.check()
            self._uploads.ask(look, scope, again=False)
            self._delete(deletions(folders_of(self._run_id, results)), scope)
        except (Abandoned, StoreError, CheckpointError) as error:
            log.debug("the objects of %s stay for now: %s", name, error)

    def _delete(self, groups: Iterable[list[str]], scope: CancelScope) -> None:
        """Remove the keys, a few with each request; none of a group before all of the groups before it."""
        for keys in groups:
            for start in range(0, len(keys), _AT_ONCE):
                few = keys[start : start + _AT_ONCE]
                scope.check()
                self._uploads.ask(
                    lambda left, few=few: self._store.delete(few, timeout=left),  # type: ignore[misc]
                    scope,
                    again=False,
                )


# --- small requests ---

#: Seconds for reading the starts of all earlier attempts together: a notice would wait for them.
_HISTORY = 2.0
#: Seconds for checking whether a checkpoint is complete: the agent waits for the result, before its reserve.
_GLANCE = 1.0
#: Seconds for announcing an emergency save.
_ANNOUNCING = 5.0


class SmallRequests:
    """The small requests of one run. The saving thread calls them; the writer's threads make them."""

    def __init__(self, uploads: Uploader[B], run_id: str, clock: Clock) -> None:
        self._uploads = uploads
        self._run_id = run_id
        self._clock = clock
        #: The checkpoints that were announced since the last `retract`, each with its request.
        self._announced: list[tuple[CheckpointName, TaskHandle | None]] = []

    def starts(self) -> dict[int, float]:
        """Return when each of the last few attempts of this run began, in wall seconds; {} if the store does not answer in time."""
        results: dict[int, float] = {}
        store = self._uploads.store

        def look(left: float | None) -> None:
            results.update(attempt_starts(store, self._run_id, timeout=left))

        try:
            self._ask(look, _HISTORY)
        except (Abandoned, StoreError, CheckpointError) as error:
            log.debug("how often this run was preempted is not known: %s", error)
        return results

    def complete(self, name: CheckpointName) -> CommitMarker | WholeCheckpoint | None:
        """Return a checkpoint if it can be restored: a rank has marked it, or all that it names is there.

        None if the store does not answer in time.
        """
        results: list[CommitMarker | WholeCheckpoint] = []
        store = self._uploads.store

        def look(left: float | None) -> None:
            folders = scan(store, self._run_id, timeout=left)
            for folder in folders:
                if folder.name == name:
                    marker = MARKER in folder.files and read_marker(store, self._run_id, name, timeout=left)
                    results.append(marker or examine(store, folder, folders, timeout=left))

        try:
            self._ask(look, _GLANCE)
        except (Abandoned, StoreError, CheckpointError) as error:
            log.debug("whether %s is committed by now is not known: %s", name, error)
        return results[0] if results else None

    def announce(self, name: CheckpointName, left: float, heard: Callable[[StoreError], None]) -> None:
        """Tell a start that comes early that this checkpoint may be complete in `left` seconds.

        Neither the first object nor the manifest waits for the request, however slow the store is.

        Args:
            heard: called if the request fails transiently.
        """
        store, seconds = self._uploads.store, min(left, _ANNOUNCING)
        put = self._uploads.aside(lambda: put_saving(store, self._run_id, name, left, timeout=seconds), heard)
        self._announced.append((name, put))

    def retract(self, committed: CheckpointName | None) -> None:
        """Remove the announcements since the last call, except that of the committed checkpoint: nothing is worth a wait."""
        store, (announced, self._announced) = self._uploads.store, (self._announced, [])
        void = {
            checkpoint_prefix(self._run_id, name) + SAVING: put
            for name, put in announced
            if name != committed
        }

        def remove() -> None:
            for put in filter(None, void.values()):
                self._clock.wait(put.done, _ANNOUNCING)  # else it may arrive behind its removal
            store.delete([*void], timeout=_ANNOUNCING)

        if void:
            self._uploads.aside(remove)

    def put(self, key: str, data: memoryview, seconds: float) -> None:
        """Put an object beside the checkpoints, and try only once.

        Raises:
            Abandoned: the time is over. The object may have arrived or not.
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
        # An SDK's own error that its store did not foresee: it must not cost a commit.
        except Exception as error:
            raise StoreError(f"{type(error).__name__}: {error}") from error
