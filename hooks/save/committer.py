"""The commit of one rank's written state: a last check of the state, then the manifest, then the marker."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ...providers.clock import Clock
from ...providers.errors import CheckpointError
from ..checkpoint.attempts import claim_step
from ..checkpoint.format.keys import CheckpointName
from ..checkpoint.format.manifest import Level, RankManifest, lacks, named, reason_of, suspicion
from ..checkpoint.history import AttemptHistory
from ..state.sharding.fingerprint import drifted
from .commit.publish import IncompleteError, Published, publish, publish_together, put_own
from .plan.write_plan import WrittenState
from .request import SaveContext
from .shard_writer import ShardWriter
from .upload.uploader import StateChanged

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
        #: The manifest of a lower level that was put on the way to the full level.
        self._lower: RankManifest | None = None
        #: Why some rank's losses make the last commit suspect; "" if none do.
        self._last: tuple[CheckpointName | None, str] = None, ""

    def suspect(self, name: CheckpointName) -> str:
        """Return why some rank's losses make a checkpoint suspect; this rank's, if it was not the last commit."""
        last, why = self._last
        return why if name == last else self._suspicion(name.step, False)

    def commit(
        self,
        save: SaveContext,
        name: CheckpointName,
        level: Level,
        written: WrittenState,
        writer: ShardWriter,
    ) -> None:
        """Check that the state stood still, then put the manifest and the marker. With several ranks, wait for all manifests.

        Args:
            level: "full" for everything that the present ranks hold.

        Raises:
            StateChanged: the state moved.
        """
        self._look(save, written, writer)
        # A key is never written twice with different bytes. So this rank's manifest of the lower level stays as it is.
        lower = self._lower
        same = lower is not None and lower.checkpoint == name
        manifest = lower if lower is not None and same else self._manifest(save, name, level, written)
        self.marked = True
        if self._world == 1:
            seconds = publish(writer.uploads, manifest, save.scope, self._clock)
            self._last = name, suspicion([manifest])
        else:
            self._speak_for_the_absent(save, manifest, writer)
            published = self._together(save, manifest, writer)
            seconds, self.marked = published.seconds, published.marked
            self._last = name, suspicion([manifest]) if published.suspect is None else published.suspect
            say_what_drifted(name, published.digests)
            if manifest.missing and save.agreed.speaks:
                # The line that ends a notice reports it too.
                at = logging.DEBUG if save.kind == "emergency" else logging.WARNING
                log.log(at, "step %d is committed without %s", name.step, lacks(level, manifest.missing))
        writer.uploads.link.committed(seconds)

    def _together(self, save: SaveContext, manifest: RankManifest, writer: ShardWriter) -> Published:
        departing = save.agreed.roles.departing
        try:
            return publish_together(writer.uploads, manifest, save.scope, self._clock, self._hopeless(save))
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

    def put_own(
        self, save: SaveContext, name: CheckpointName, written: WrittenState, writer: ShardWriter
    ) -> None:
        """Put the lower level's manifest on the way to the full level.

        This does not check whether the other ranks' manifests are there. `RankShare` does that only if the full level fails.
        """
        self._look(save, written, writer)
        manifest = self._lower = self._manifest(save, name, "weights", written)
        if save.agreed.weights != "first":
            save = replace(save, scope=save.scope.part(self._clock.monotonic() + _BESIDE))
        self._speak_for_the_absent(save, manifest, writer)
        put_own(writer.uploads, manifest, save.scope)

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

    def _speak_for_the_absent(self, save: SaveContext, manifest: RankManifest, writer: ShardWriter) -> None:
        """Put empty manifests for the absent ranks, if this rank speaks for them.

        The present ranks hold everything that the absent ranks held, except what each of those had alone, which is lost. If an
        absent rank's losses made the last commit suspect, they make this one so, too.

        Without these manifests the checkpoint never counts. So this is where two sides of a cut network meet.

        Raises:
            CheckpointError: the other side saves this step.
        """
        if save.agreed.speaks and save.agreed.roles.absent:
            self._claim(save, manifest.checkpoint, writer)
        for rank in sorted(save.agreed.roles.absent) if save.agreed.speaks else ():
            why = reason_of(self._last[1], rank)
            empty = replace(
                manifest, rank=rank, objects=(), tensors=(), state={}, digests={}, history={}, suspect=why
            )
            put_own(writer.uploads, empty, save.scope)

    def _claim(self, save: SaveContext, name: CheckpointName, writer: ShardWriter) -> None:
        claimed = False

        def claim(left: float | None) -> None:
            nonlocal claimed
            claimed = claim_step(
                writer.uploads.store,
                self._run_id,
                name,
                incarnation=self._incarnation,
                side=save.agreed.side,
                timeout=left,
            )

        writer.uploads.ask(claim, save.scope)
        if not claimed:
            raise CheckpointError(
                f"{save.agreed.why}; {named(sorted(save.agreed.roles.absent))} cannot be reached, and may live: ranks there "
                f"save step {name.step}, so it is not saved here"
            )

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
