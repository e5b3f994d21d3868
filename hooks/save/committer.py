"""The commit of one rank's written state: a last check of the state, then the manifest, then the marker."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from ...providers.clock import Clock
from ...providers.errors import CheckpointError, SpotguardError
from ...providers.stores.base import BlobStore
from ..checkpoint.attempts import claim_step
from ..checkpoint.format.keys import CheckpointName
from ..checkpoint.format.manifest import Level, RankManifest, lacks, named, reason_of, suspicion
from ..checkpoint.history import AttemptHistory
from ..commit.cancel_scope import CancelScope
from ..commit.own_manifest import OwnManifest, publish, queue_manifest, queue_own_marker
from ..commit.plan.write_plan import ALL, WEIGHTS, WrittenState
from ..commit.publish import IncompleteError, Published, publish_together
from ..commit.upload.save_queue import Put, QueueEntry, SaveQueue
from ..commit.upload.transfer import StateChanged
from ..commit.upload.workers import B
from ..state.sharding.fingerprint import drifted
from .request import SaveContext
from .shard_writer import ShardWriter

log = logging.getLogger("spotguard")

#: Tensors that a warning names.
_NAMED = 5
#: Seconds for the lower level's manifest beside moments that fit. The moments take at least as long, so nothing waits for it.
_BESIDE = 2.0


class Committer:
    """Commits the saves of one rank of one process group. The saving thread uses it.

    Args:
        suspicion: returns why this rank's losses make the state of a step suspect, when its manifest is made; "" if they do not. The
            second argument is whether training stands still, so that losses may be read from devices.
    """

    def __init__(
        self,
        run_id: str,
        clock: Clock,
        *,
        rank: int,
        world: int,
        incarnation: str,
        history: AttemptHistory | None = None,
        suspicion: Callable[[int, bool], str] = lambda step, still: "",
    ) -> None:
        self._run_id = run_id
        self._clock = clock
        self._rank = rank
        self._world = world
        self._incarnation = incarnation
        self._history = history or AttemptHistory()
        self._suspicion = suspicion
        #: Whether this rank marked the last commit, so that the work after a commit (the pruning) is its own.
        self.marked = True
        #: The last commit, why some rank's losses make it suspect ("" if none do), and the values that its ranks have left out.
        self._last: tuple[CheckpointName | None, str, tuple[str, ...]] = None, "", ()

    def see(self, name: CheckpointName, suspect: str, left_out: tuple[str, ...]) -> None:
        """Note a commit, with what all its ranks say of it."""
        self._last = name, suspect, left_out

    def seen(self, name: CheckpointName, left_out: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
        """Return why a rank's losses make a checkpoint suspect, and the values that a rank has left out.

        Args:
            left_out: those of this rank, which alone is known if this was not the last commit.
        """
        last, suspect, of_all = self._last
        return (suspect, of_all) if name == last else (self._suspicion(name.step, False), left_out)

    def queue(
        self,
        queue: SaveQueue[B],
        save: SaveContext,
        name: CheckpointName,
        level: Level,
        writer: ShardWriter,
        *,
        beside: bool = False,
    ) -> OwnManifest:
        """Queue this rank's manifest of a level behind its objects. If it speaks for absent ranks, queue theirs too.

        When its turn comes, this checks that the state stood still. The present ranks hold everything that the absent ranks
        held, except what each of those had alone, which is lost. If an absent rank's losses made the last commit suspect, they
        make this one so, too. Without the absent ranks' manifests the checkpoint never counts, so this is where two sides of a cut
        network meet: the step is claimed first.

        Args:
            level: "full" for everything that the present ranks hold.
            beside: the manifest is that of a lower level beside moments that fit, and takes a few seconds at most.
        """
        tiers = WEIGHTS if level == "weights" else ALL
        absent = sorted(save.agreed.roles.absent) if save.agreed.speaks else []

        def make() -> RankManifest:
            written = queue.written(name, tiers)
            self._look(save, written, writer)
            return self._manifest(save, name, level, written)

        def empty(manifest: RankManifest, rank: int) -> RankManifest:
            why = reason_of(self._last[1], rank)
            return replace(
                manifest,
                rank=rank,
                objects=(),
                tensors=(),
                state={},
                digests={},
                history={},
                suspect=why,
                left_out=(),
            )

        return queue_manifest(
            queue,
            make,
            tiers,
            claim=partial(self._claim, save, queue.store) if absent else None,
            absent=empty,
            ranks=absent,
            limit=_BESIDE if beside else None,
            # The moments may arrive although it does not. If they do not, it is tried once more.
            tolerated=(SpotguardError,) if level == "weights" else (),
        )

    def mark(self, queue: SaveQueue[B], own: OwnManifest) -> QueueEntry:
        """Queue the marker of a lower level behind its manifest, in a job of one process."""
        return queue_own_marker(queue, own, self._clock, tolerated=(SpotguardError,))

    def commit(
        self,
        queue: SaveQueue[B],
        own: OwnManifest,
        save: SaveContext,
        writer: ShardWriter,
        scope: CancelScope | None = None,
    ) -> None:
        """Wait until the checkpoint of a queued manifest is complete, with all ranks' manifests, and is marked.

        Args:
            scope: a part of the queue's scope.

        Raises:
            StateChanged: the state moved.
        """
        self.marked = True
        scope = queue.scope if scope is None else scope
        if self._world == 1:
            seconds = publish(queue, own, scope, self._clock)
            self.see(own.manifest.checkpoint, suspicion([own.manifest]), own.manifest.left_out)
        else:
            published = self._together(queue, own, save, scope)
            seconds, self.marked = published.seconds, published.marked
            manifest = own.manifest
            self.see(manifest.checkpoint, published.suspect, published.left_out)
            say_what_drifted(manifest.checkpoint, published.digests)
            if manifest.missing and save.agreed.speaks:
                # The line that ends a notice reports it too.
                at = logging.DEBUG if save.kind == "emergency" else logging.WARNING
                level: Level = "weights" if own.tiers == WEIGHTS else "full"
                log.log(at, "step %d is committed without %s", manifest.step, lacks(level, manifest.missing))
        writer.uploads.link.committed(seconds)

    def _together(
        self, queue: SaveQueue[B], own: OwnManifest, save: SaveContext, scope: CancelScope
    ) -> Published:
        departing = save.agreed.roles.departing
        try:
            return publish_together(queue, own, scope, self._clock, self._hopeless(save))
        except IncompleteError as why:
            if self._rank not in departing or save.scope.abandoned or not departing.isdisjoint(why.missing):
                raise
            # This rank's machine goes and the missing ranks stay: the save has not failed yet.
            last = (
                f"{named(why.missing)}, which stay{'s' * (len(why.missing) == 1)},"
                if why.missing
                else "the ranks that stay"
            )
            raise IncompleteError(
                f"{why}. This rank's part is in the store, and {last} can commit step {save.step} without it",
                why.missing,
            ) from why

    def _look(self, save: SaveContext, written: WrittenState, writer: ShardWriter) -> None:
        if save.in_place:
            changed = writer.unchanged(save.collected.state_tensors, written, save.scope)
            edited = "" if save.agreed.parked else save.state.edited()
            if (
                why := save.state.inconsistency()
                or edited
                or (changed and f"{changed} was changed while spotguard read it")
            ):
                raise StateChanged(why)
        save.scope.check()

    def _claim(self, save: SaveContext, store: BlobStore, manifest: RankManifest) -> Put:
        """Return the request that claims the step of a save without some ranks. It fails if the other side saves this step."""

        def claim(left: float | None) -> None:
            if not claim_step(
                store,
                self._run_id,
                manifest.checkpoint,
                incarnation=self._incarnation,
                side=save.agreed.side,
                timeout=left,
                clock=self._clock,
            ):
                raise CheckpointError(
                    f"{save.agreed.why}; {named(sorted(save.agreed.roles.absent))} cannot be reached, and may live: "
                    f"ranks there save step {manifest.step}, so it is not saved here"
                )

        return claim

    def _hopeless(self, save: SaveContext) -> Callable[[int], str]:
        departing, until = save.agreed.roles.departing, save.agreed.departing_until

        def why(rank: int) -> str:
            if (failed := save.agreed.failed.get(rank)) is not None:
                return failed
            gone = rank in departing and self._clock.monotonic() > until
            return "its machine's deadline has passed" if gone else ""

        return why

    def _manifest(
        self, save: SaveContext, name: CheckpointName, level: Level, written: WrittenState
    ) -> RankManifest:
        level = save.agreed.extent[0] if level == "full" else level
        recorded: Level = "weights" if save.collected.lacks else level
        return RankManifest(
            run_id=self._run_id,
            step=name.step,
            attempt=name.attempt,
            save=name.save,
            rank=self._rank,
            world=self._world,
            objects=written.objects,
            tensors=written.tensors,
            state=save.collected.light_trees if level == "weights" else save.collected.trees,
            environment=save.state.environment,
            level=recorded,
            kind=save.kind,
            incarnation=self._incarnation,
            created=self._clock.time(),
            digests=save.digests,
            missing=tuple(sorted(save.agreed.roles.absent)),
            history=self._history.whole if save.agreed.speaks or not self._rank else {},
            suspect=self._suspicion(name.step, save.in_place),
            left_out=save.collected.left_out,
        )


def say_what_drifted(name: CheckpointName, digests: Sequence[Mapping[str, int]]) -> None:
    """Log which tensors differ between replicas. Only one replica wrote each tensor, and a restore gets that replica's bytes."""
    if names := drifted(digests):
        few = ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
        log.warning(
            "replicas have drifted apart by step %d: %s differ between ranks that should hold the same "
            "values; the checkpoint has one rank's copy of each. Look for a parameter that some rank "
            "changes alone, or whose gradients are not averaged [SG416]",
            name.step,
            few,
        )
