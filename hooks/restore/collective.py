"""What all ranks do at once where there is no hurry: claim their attempt, and go on from one checkpoint.

The first rank picks, all use what it picked, and nobody goes on before everybody has said how it went: one rank with a
corrupt chunk sends all of them to the next older checkpoint.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
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
from ..checkpoint.ranking import EXTRAS_WORTH
from ..consensus.agree_on import PATIENCE, _as_said, _heard, _ours, of_all, of_the_first
from ..consensus.channel import Channel
from ..consensus.store import StoreSilent
from ..state.state import State
from .begin_anew import DamagedCheckpoints
from .manifest_cache import ManifestCache, own_folder
from .restore import LOOKS, Restored, candidates, fill, fit, let_go, none_left, refused_all, said_of

log = logging.getLogger("spotguard")

#: Seconds in which all ranks have read their part of a checkpoint: of a terabyte, over a slow link.
_READING = 7200.0
#: Seconds without a sign of life after which who reads is dead: two looks that far apart have seen none.
_SILENCE = 30.0

#: What the first rank says where it has to look again.
_AGAIN = "again"

#: Seconds for which who cannot begin looks for somebody to tell.
_LAST_WORD = 5.0


def cannot_begin(channel: Channel, error: Exception) -> None:
    """Say so where the others are to `see_the_same`, and leave."""
    with suppress(StoreSilent):  # nobody is there to hear it
        channel.gather(json.dumps(_as_said(_ours(error))).encode(), _LAST_WORD)
    channel.close()


def see_the_same(channel: Channel, said: Mapping[str, str]) -> None:
    """Raise UsageError where ranks were told different things; the error of one that `cannot_begin`."""
    everybody = of_all(channel, lambda: dict(said))
    for rank, theirs in enumerate(everybody):
        for name, value in theirs.items():
            if value != (first := everybody[0].get(name)):
                raise UsageError(
                    f"rank {rank} has {name} {value!r} and rank 0 {first!r}: say --{name} to `spotguard run`, the same on "
                    "all machines of the job"
                )


def restore_together(
    channel: Channel,
    store: BlobStore,
    run_id: str,
    state: State,
    *,
    step: int | None,
    must: bool,
    extras_worth: int = EXTRAS_WORTH,
    anew: bool = False,
) -> Restored:
    """As `restore.restore`, of all ranks at once: all of them raise where one does.

    Raises:
        StateError: it does not fit what some rank registered. Nothing was changed anywhere; or as `restore` says.
        CheckpointError: as `restore`.
        StoreError: as `restore`, of any rank; or not all ranks came.
    """
    failed, refused, damages = "", "", DamagedCheckpoints(store, run_id, allowed=anew)
    with _shelf(channel, store) as shelf:
        pick = _Pick(shelf, run_id, step, damages, extras_worth)
        while True:
            said = of_the_first(channel, pick.next)
            if said == _AGAIN:
                continue
            word, *stand_ins = said.split(" ")
            name = CheckpointName.parse(word)
            if name is None:
                if refused:
                    raise StateError(refused_all(refused))
                if (
                    step is None
                    and not must
                    and of_the_first(channel, lambda: int(damages.forgiven(state.poisoned)))
                ):
                    return Restored(0, None)
                return none_left(store, run_id, step, must, failed)
            pairs = (each.split("=") for each in stand_ins)
            trial = _Trial(channel, state, name, {int(rank): int(other) for rank, other in pairs})
            whole = _try(trial, store, shelf, run_id, pick.whole)
            if whole is not None:
                said_of(whole)
                return Restored(name.step, whole, stored=whole)
            failed = trial.failed
            shelf.forget(checkpoint_prefix(run_id, name))
            refused = trial.refused or refused
            if trial.gone:
                pick.look_again()
            elif not trial.refused:
                damages.add(name, failed)


@contextmanager
def _shelf(channel: Channel, store: BlobStore) -> Iterator[ManifestCache]:
    """Kept by the first rank of each machine, for those that are there too."""
    keeper = channel.machines.index(channel.machines[channel.rank])
    alone = channel.machines.count(channel.machines[channel.rank]) == 1
    with own_folder() if keeper == channel.rank and not alone else nullcontext("") as mine:
        folders = [each.decode() for each in channel.gather(mine.encode(), PATIENCE)]
        folder = Path(folders[keeper]) if folders[keeper] else None
        yield ManifestCache(store, keeps=keeper == channel.rank, folder=folder)


def _try(
    trial: _Trial, store: BlobStore, shelf: ManifestCache, run_id: str, picked: WholeCheckpoint | None
) -> WholeCheckpoint | None:
    """Load it on all ranks; None where it is damaged for one."""
    rank, state, name = trial.channel.rank, trial.state, trial.name

    def look() -> WholeCheckpoint:
        return replace(picked or _examine(shelf, run_id, name), stand_ins=trial.stand_ins)

    kept = trial.ask(lambda: look() if shelf.keeps else None, PATIENCE)
    if trial.failed:
        return None
    # Only now: what the others need lies on their machine's shelf.
    whole = trial.ask(lambda: kept or look(), PATIENCE)
    if whole is None:
        return None
    restoring = trial.ask(lambda: fit(whole, state, rank), PATIENCE)
    if restoring is None:
        return None

    def filled() -> WholeCheckpoint:
        trial.filled = True
        with trial.channel.beating():
            fill(store, whole, state, restoring, rank)
        return whole

    return trial.ask(filled, _READING, silence=_SILENCE)


class _Pick:
    """What the first rank would take next. What went away while it was read was pruned for something newer, perhaps: it looks
    again."""

    def __init__(
        self,
        store: ReadableStore,
        run_id: str,
        step: int | None,
        damages: DamagedCheckpoints,
        extras_worth: int,
    ) -> None:
        self._store, self._run_id, self._step = store, run_id, step
        self._damages, self._extras_worth = damages, extras_worth
        self._looks = 0
        self._tried: set[CheckpointName] = set()
        self._gone: list[CheckpointName] = []
        self._found: Iterator[WholeCheckpoint] | None = None
        self.whole: WholeCheckpoint | None = None

    def next(self) -> str:
        """A name, and who stands in for whom, as in "1=0"; nothing, where there is none; or `_AGAIN`."""
        if self._found is None:
            self._gone = []
            self._looks += 1
            self._found = candidates(
                self._store, self._run_id, self._step, self._gone, self._damages, self._extras_worth
            )
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
                f"checkpoints of run {self._run_id} go away as fast as they are read; what is there is not known"
            )
        return ""

    def look_again(self) -> None:
        """On all ranks, of which the first one acts by it."""
        self.whole = None
        if self._looks < LOOKS:
            self._found = None


_R = TypeVar("_R")


@dataclass(slots=True)
class _Trial:
    """One checkpoint, tried by all ranks, step by step."""

    channel: Channel
    state: State
    name: CheckpointName
    #: As of `WholeCheckpoint`, for all ranks.
    stand_ins: Mapping[int, int]
    #: Why it is not taken, by any of them.
    failed: str = ""
    #: Why an object of some rank refuses it; "" if none does.
    refused: str = ""
    #: It was there, and is not any more, for some rank.
    gone: bool = False
    #: What is in memory is no longer what was there before.
    filled: bool = False

    def ask(self, what: Callable[[], _R], patience: float, *, silence: float | None = None) -> _R | None:
        """Do it, and hear how it went for all. None: it is damaged for some. An error that is no damage is everybody's.

        Raises:
            StateError, StoreError, NewerFormatError: of any rank.
        """
        result: _R | None = None
        mine: dict[str, Any] = {}
        own: SpotguardError | None = None
        try:
            result = what()
        except SpotguardError as error:
            own, mine = error, _as_said(error)
            let_go(error)
        # Anybody's own code, or no memory: the others are not to wait for this rank.
        except Exception as error:  # noqa: BLE001
            own = _ours(error)
            mine = _as_said(own)
        if self.filled:  # until all have said that it went well, nobody trains on it
            self.state.poisoned = f"what became of {self.name} on the other ranks is not known"
        verdicts = self.channel.gather(json.dumps(mine).encode(), patience, silence=silence)
        for rank, raw in enumerate(verdicts):
            said = json.loads(raw)
            if "error" not in said:
                continue
            if not said["damage"]:
                if self.filled:
                    self.state.poisoned = f"rank {rank} could not restore {self.name}, and this one has"
                raise own if own is not None and not mine["damage"] else _heard(said, rank)
            self.failed = self.failed or f"rank {rank}: {said['why']}"
            if said["error"] == RefusedError.__name__:
                self.refused = self.refused or self.failed
            self.gone = self.gone or bool(said["gone"])
        if self.failed:
            if self.refused:
                log.error(
                    "checkpoint %s is refused, the next older one is tried: %s", self.name, self.refused
                )
            else:
                log.error("checkpoint %s is damaged, the next older one is taken: %s", self.name, self.failed)
            return None
        if self.filled:
            self.state.poisoned = ""
        return result


def _examine(store: ReadableStore, run_id: str, name: CheckpointName) -> WholeCheckpoint:
    folders = scan(store, run_id)
    folder = next((each for each in folders if each.name == name), None)
    if folder is None:
        raise NotFoundError(f"checkpoint {name} of run {run_id} is not in {store.url}")
    return examine(store, folder, folders)
