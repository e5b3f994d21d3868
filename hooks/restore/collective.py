"""The restore of a job of several ranks: all ranks load one checkpoint, or all of them raise.

The first rank picks a checkpoint and all ranks try it. No rank goes on before every rank has reported its result: one rank
with a corrupt chunk sends all of them to the next older checkpoint.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from ...providers.errors import (
    NotFoundError,
    RefusedError,
    SpotguardError,
    StateError,
    StoreError,
    UsageError,
)
from ...providers.stores.base import BlobStore
from ..checkpoint.catalog import ReadableStore, WholeCheckpoint, examine, scan
from ..checkpoint.format.keys import CheckpointName, checkpoint_prefix
from ..consensus.channel import Channel
from ..consensus.collective_results import (
    PATIENCE,
    as_our_error,
    as_verdict,
    error_of,
    result_of_first_rank,
    results_of_all_ranks,
)
from ..consensus.stores.connection import StoreSilent
from ..state.state import State
from .begin_anew import DamagedCheckpoints, ReportDamage, unreported
from .manifest_cache import ManifestCache, own_folder
from .restore import (
    LOOKS,
    NEWEST,
    CheckpointChoice,
    Restored,
    candidates,
    fill,
    fit,
    let_go,
    none_left,
    refused_all,
    said_of,
)

log = logging.getLogger("spotguard")

#: Seconds in which all ranks must read their parts of a checkpoint: enough for a terabyte over a slow link.
_READING = 7200.0
#: Seconds without a beat after which a reading rank counts as dead: two checks that far apart have seen no beat.
_SILENCE = 30.0

#: Sent by the first rank instead of a name if it has to list the checkpoints again.
_AGAIN = "again"

#: Seconds for which a rank that cannot begin tries to tell the others.
_LAST_WORD = 5.0


def cannot_begin(channel: Channel, error: Exception) -> None:
    """Send the error to the other ranks, which raise it in `see_the_same`, and close the channel."""
    with suppress(StoreSilent):  # the job's store does not answer, so the error reaches no rank
        channel.meetings.gather(json.dumps(as_verdict(as_our_error(error))).encode(), _LAST_WORD)
    channel.close()


def see_the_same(channel: Channel, options: Mapping[str, str]) -> None:
    """Compare the options of all ranks.

    Args:
        options: values by the name of their option.

    Raises:
        UsageError: two ranks have different values.
        SpotguardError: the error of a rank that called `cannot_begin`.
    """
    of_ranks = results_of_all_ranks(channel, lambda: dict(options))
    for rank, theirs in enumerate(of_ranks):
        for name, value in theirs.items():
            if value != (first := of_ranks[0].get(name)):
                raise UsageError(
                    f"rank {rank} has {name} {value!r}, but rank 0 has {first!r}: pass the same --{name} "
                    "to `spotguard run` on all machines of the job [SG415]"
                )


def restore_together(
    channel: Channel,
    store: BlobStore,
    run_id: str,
    state: State,
    choice: CheckpointChoice = NEWEST,
    *,
    must: bool,
    anew: bool = False,
    report: ReportDamage = unreported,
) -> Restored:
    """Load one checkpoint on all ranks at once, by the rules of `restore.restore`. If one rank raises, all of them do.

    Raises:
        StateError: the checkpoint does not fit the registered state of some rank, and no rank changed anything. Or an object's
            own code refused each checkpoint, as in `restore`.
        CheckpointError: as in `restore`.
        StoreError: as in `restore`, on any rank; or not all ranks came.
    """
    failed, refused = "", ""
    damages = DamagedCheckpoints(store, run_id, allowed=anew, report=report)
    with _shelf(channel, store) as shelf:
        pick = _Pick(shelf, run_id, choice, damages)
        while True:
            # With `--begin-anew` the first rank verifies every byte of each checkpoint before the next one.
            picked = result_of_first_rank(channel, pick.next, _READING, silence=_SILENCE)
            if picked == _AGAIN:
                continue
            first, *stand_ins = picked.split(" ")
            name = CheckpointName.parse(first)
            if name is None:
                if refused:
                    raise StateError(refused_all(refused))
                if (
                    choice.step is None
                    and not must
                    and result_of_first_rank(channel, lambda: int(damages.forgiven(state.poisoned)))
                ):
                    return Restored(0, None)
                return none_left(store, run_id, choice.step, must, failed)
            pairs = (each.split("=") for each in stand_ins)
            trial = _Trial(channel, state, name, {int(rank): int(other) for rank, other in pairs})
            whole = _try(trial, store, shelf, run_id, pick.whole)
            if whole is not None:
                said_of(whole, store.url)
                return Restored(name.step, whole, stored=whole)
            failed = trial.failed
            shelf.forget(checkpoint_prefix(run_id, name))
            refused = trial.refused or refused
            if trial.gone:
                pick.look_again()
            elif not trial.refused:
                damages.add(name, failed, trial.objects)


@contextmanager
def _shelf(channel: Channel, store: BlobStore) -> Iterator[ManifestCache]:
    """Yield this rank's manifest cache. The first rank of each machine fills it, for the machine's other ranks."""
    keeper = channel.machines.index(channel.machines[channel.rank])
    alone = channel.machines.count(channel.machines[channel.rank]) == 1
    with own_folder() if keeper == channel.rank and not alone else nullcontext("") as own:
        folders = [each.decode() for each in channel.meetings.gather(own.encode(), PATIENCE)]
        folder = Path(folders[keeper]) if folders[keeper] else None
        yield ManifestCache(store, keeps=keeper == channel.rank, folder=folder)


def _try(
    trial: _Trial, store: BlobStore, shelf: ManifestCache, run_id: str, picked: WholeCheckpoint | None
) -> WholeCheckpoint | None:
    """Load the trial's checkpoint on all ranks and return it, or None if it is damaged or refused on one of them."""
    rank, state, name = trial.channel.rank, trial.state, trial.name

    def look() -> WholeCheckpoint:
        return replace(picked or _examine(shelf, run_id, name), stand_ins=trial.stand_ins)

    kept = trial.ask(lambda: look() if shelf.keeps else None, PATIENCE)
    if trial.failed:
        return None
    # The other ranks of a machine read the manifests second, so that they find them in its cache.
    whole = trial.ask(lambda: kept or look(), PATIENCE)
    if whole is None:
        return None
    restoring = trial.ask(lambda: fit(whole, state, rank), PATIENCE)
    if restoring is None:
        return None

    def filled() -> WholeCheckpoint:
        trial.filled = True
        with trial.channel.meetings.beating():
            fill(store, whole, state, restoring, rank)
        return whole

    return trial.ask(filled, _READING, silence=_SILENCE)


class _Pick:
    """The first rank's choice of the next checkpoint to try.

    If a checkpoint goes away during the read, a newer one may have replaced it, so the first rank lists them again.
    """

    def __init__(
        self,
        store: ReadableStore,
        run_id: str,
        choice: CheckpointChoice,
        damages: DamagedCheckpoints,
    ) -> None:
        self._store, self._run_id, self._choice, self._damages = store, run_id, choice, damages
        self._looks = 0
        self._tried: set[CheckpointName] = set()
        self._gone: list[CheckpointName] = []
        self._found: Iterator[WholeCheckpoint] | None = None
        self.whole: WholeCheckpoint | None = None

    def next(self) -> str:
        """Return the name of the next checkpoint and its stand-ins, as in "1=0" (rank 0 stands in for rank 1).

        The result is "" if no checkpoint is left, or `_AGAIN`.
        """
        if self._found is None:
            self._gone = []
            self._looks += 1
            self._found = candidates(self._store, self._run_id, self._choice, self._gone, self._damages)
        for whole in self._found:
            if whole.name not in self._tried:
                self._tried.add(whole.name)
                self.whole = whole
                return " ".join([str(whole.name), *(f"{a}={b}" for a, b in whole.stand_ins.items())])
        if self._gone and self._looks < LOOKS:
            self._found = None
            return _AGAIN
        if self._gone:
            raise StoreError(
                f"the checkpoints of run {self._run_id} disappear as fast as spotguard reads them, so it "
                "is not known which exist"
            )
        return ""

    def look_again(self) -> None:
        """Have `next` list the checkpoints again. All ranks call this, but only the first rank's call has an effect."""
        self.whole = None
        if self._looks < LOOKS:
            self._found = None


_R = TypeVar("_R")


@dataclass(slots=True)
class _Trial:
    """One checkpoint that all ranks try, step by step."""

    channel: Channel
    state: State
    name: CheckpointName
    #: `WholeCheckpoint.stand_ins`, for all ranks.
    stand_ins: Mapping[int, int]
    #: Why the first rank that failed cannot load it; "" if every rank can so far.
    failed: str = ""
    #: Why an object of some rank refuses it; "" if none does.
    refused: str = ""
    #: Keys of the objects that some rank has found damaged.
    objects: set[str] = field(default_factory=set)
    #: Whether it went away on some rank during the read.
    gone: bool = False
    #: Whether this rank has begun to overwrite its memory.
    filled: bool = False

    def ask(self, what: Callable[[], _R], patience: float, *, silence: float | None = None) -> _R | None:
        """Call `what` on this rank, then exchange the results with all ranks.

        Args:
            what: this rank's part.
            patience: seconds until all results must be there.
            silence: seconds without a beat after which a rank counts as dead; None: ranks send no beats here.

        Returns:
            The result of `what`, or None if the checkpoint is damaged or refused on some rank.

        Raises:
            StateError, StoreError, UnsupportedFormatError: some rank's error that is no damage; every rank raises it.
        """
        result: _R | None = None
        mine: dict[str, Any] = {}
        own: SpotguardError | None = None
        try:
            result = what()
        except SpotguardError as error:
            own, mine = error, as_verdict(error)
            let_go(error)
        # A user's own code failed, or memory ran out. This rank reports it, so that the others do not wait.
        except Exception as error:  # noqa: BLE001
            own = as_our_error(error)
            mine = as_verdict(own)
        if self.filled:  # this rank must not train on it before all ranks have reported success
            self.state.poisoned = f"whether the other ranks restored {self.name} is not known"
        verdicts = self.channel.meetings.gather(json.dumps(mine).encode(), patience, silence=silence)
        for rank, raw in enumerate(verdicts):
            verdict = json.loads(raw)
            if "error" not in verdict:
                continue
            if not verdict["damage"]:
                if self.filled:
                    self.state.poisoned = (
                        f"rank {rank} could not restore {self.name}, but this rank has restored it"
                    )
                raise own if own is not None and not mine["damage"] else error_of(verdict, rank)
            self.failed = self.failed or f"rank {rank}: {verdict['why']}"
            if verdict["error"] == RefusedError.__name__:
                self.refused = self.refused or self.failed
            self.objects.update(verdict["objects"].split())
            self.gone = self.gone or bool(verdict["gone"])
        if self.failed:
            if self.refused:
                log.error("checkpoint %s is refused, trying the next older one: %s", self.name, self.refused)
            else:
                log.error(
                    "checkpoint %s is damaged, trying the next older one: %s [SG604]", self.name, self.failed
                )
            return None
        if self.filled:
            self.state.poisoned = ""
        return result


def _examine(store: ReadableStore, run_id: str, name: CheckpointName) -> WholeCheckpoint:
    folders = scan(store, run_id)
    folder = next((each for each in folders if each.name == name), None)
    if folder is None:
        raise NotFoundError(f"checkpoint {name} of run {run_id} is not in {store.url}")
    return examine(store, folder, folders, indexed=True)
