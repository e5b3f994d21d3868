"""The restore of one process: load the newest complete checkpoint into the registered objects, or the next older one.

It never leaves a mix of two checkpoints for training.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass

from ...providers.errors import (
    CheckpointError,
    CorruptError,
    NotFoundError,
    RefusedError,
    SpotguardError,
    StateError,
    StoreError,
)
from ...providers.stores.base import BlobStore
from ..checkpoint.catalog import (
    CheckpointFolder,
    CheckpointGone,
    PartialCheckpoint,
    ReadableStore,
    WholeCheckpoint,
    passed_over,
    scan,
    whole_checkpoints,
)
from ..checkpoint.format.codec import UnsupportedFormatError
from ..checkpoint.format.coverage import Coverage
from ..checkpoint.format.keys import MARKER, CheckpointName
from ..checkpoint.format.manifest import LEVELS, lacks
from ..checkpoint.format.safetensors_header import check_headers
from ..checkpoint.format.values.state_check import StateCheck
from ..checkpoint.local_stage import Stage, StagedCheckpoint, newest_first
from ..checkpoint.ranking import EXTRAS_WORTH, worth_it
from ..state.collected import differences
from ..state.parts.values import error_text
from ..state.restore_plan import RestorePlan
from ..state.state import State
from .begin_anew import DamagedCheckpoints, ReportDamage, unreported
from .progress import ReadProgress
from .reads.resharding import read
from .saves_in_flight import SavesInFlight

log = logging.getLogger("spotguard")

#: Listings that a restore makes if listed checkpoints go away during the read. If they still do, it reads slower than the
#: run is pruned.
LOOKS = 5


@dataclass(frozen=True, slots=True)
class Restored:
    """The result of a restore."""

    step: int
    #: The checkpoint that was loaded; None if there was none to load.
    whole: WholeCheckpoint | None
    #: The newest checkpoint in the store that is not newer than `whole`: `whole` itself if the store has it.
    stored: WholeCheckpoint | None = None
    #: `whole` again if it was loaded from this machine's disk and the store does not have it.
    staged: WholeCheckpoint | None = None


@dataclass(frozen=True, slots=True)
class CheckpointChoice:
    """Which checkpoints a restore tries, and in which order.

    Attributes:
        step: completed steps of the checkpoint to load; None for the newest. The others count only without it.
        extras_worth: steps that a dead rank's extras are worth, as in `worth_it`.
        in_flight: the saves to wait for, before the newest checkpoint is chosen.
        good_first: whether a checkpoint that is suspect is loaded only if there is no other.
    """

    step: int | None = None
    extras_worth: int = EXTRAS_WORTH
    in_flight: SavesInFlight | None = None
    good_first: bool = False

    def wait(self, folders: list[CheckpointFolder]) -> bool:
        """Wait for the saves in flight. Return whether there was one, so that the checkpoints have to be listed again."""
        return self.step is None and self.in_flight is not None and self.in_flight.wait(folders)

    def order(self, newest_first: Iterator[WholeCheckpoint]) -> Iterator[WholeCheckpoint]:
        """Return complete checkpoints, newest first, in the order to try them in."""
        if self.step is not None:
            return newest_first
        found = worth_it(newest_first, self.extras_worth)
        return _good_first(found) if self.good_first else found


#: The newest checkpoint.
NEWEST = CheckpointChoice()


def restore(
    store: BlobStore,
    run_id: str,
    state: State,
    choice: CheckpointChoice = NEWEST,
    *,
    must: bool = False,
    stage: Stage | None = None,
    anew: bool = False,
    report: ReportDamage = unreported,
) -> Restored:
    """Load the first good one of the chosen checkpoints of a run.

    Args:
        store: the store with the run's checkpoints.
        run_id: name of the run.
        state: the registered state to fill.
        choice: which checkpoints to try.
        must: whether a run without a checkpoint is an error instead of a fresh start.
        stage: this run's stage on this machine, if it has one.
        anew: whether `--begin-anew` was passed.
        report: called with each damaged checkpoint, and the damage.

    Raises:
        UnsupportedFormatError: this version cannot read the newest checkpoint, which may be good.
        StateError: the checkpoint does not fit the registered state, and nothing was changed. Or an object's own
            `load_state_dict` (or `set_extra_state`) refused each checkpoint. They run after the tensors are filled, as in
            torch, since they may look at them. `state.poisoned` then keeps training from the mix.
        CheckpointError: `step` or `must` asks for a checkpoint and there is none, or every checkpoint is damaged.
        StoreError: the store failed. This is no damage, so no older checkpoint is taken instead.
    """
    failed, damages = "", DamagedCheckpoints(store, run_id, allowed=anew, report=report)
    refused: RefusedError | None = None
    tried: set[tuple[type[WholeCheckpoint], CheckpointName]] = set()
    for look in range(1, LOOKS + 1):
        gone: list[CheckpointName] = []
        for whole in choice.order(_near_and_far(store, run_id, choice, stage, gone, damages)):
            if gone and look < LOOKS:
                break  # perhaps pruned for a newer one, so older ones may be gone as well: list again
            if (key := (type(whole), whole.name)) in tried:
                continue
            tried.add(key)
            let_go(refused)
            near = stage is not None and isinstance(whole, StagedCheckpoint)
            try:
                _load(stage.files if stage is not None and near else store, whole, state)
            except UnsupportedFormatError:
                raise
            except RefusedError as error:
                refused = error
                log.error("checkpoint %s is refused, trying the next older one: %s", whole.name, error)
                continue
            except (CheckpointError, StoreError) as error:
                if isinstance(error, StoreError) and not (
                    near or isinstance(error, (CorruptError, NotFoundError))
                ):
                    raise
                # The next checkpoint overwrites the bytes that are already filled in. If there is none, `state` stays poisoned.
                failed = str(error)
                let_go(error)
                if isinstance(error, NotFoundError) and not near:
                    gone.append(whole.name)
                    log.warning("checkpoint %s disappeared while spotguard read it: %s", whole.name, failed)
                else:
                    if near:  # the copy on this machine's disk: the store's may be sound
                        damages.found[whole.name] = failed
                    else:
                        damages.add(whole.name, failed, error.objects)
                    log.error(
                        "checkpoint %s is damaged, trying the next older one: %s [SG604]", whole.name, failed
                    )
                continue
            said_of(whole, store.url)
            return _found(store, whole, near)
        if not gone:
            break
        failed = failed or f"checkpoint {gone[0]} disappeared while spotguard read it"
    if refused is not None:
        raise StateError(refused_all(str(refused))) from refused.__cause__
    if choice.step is None and not must and damages.forgiven(state.poisoned):
        return Restored(0, None)
    return none_left(store, run_id, choice.step, must, failed)


def none_left(store: BlobStore, run_id: str, step: int | None, must: bool, failed: str) -> Restored:
    """Return the result of a fresh start, if no checkpoint can be loaded and a fresh start is right.

    Args:
        failed: why the last checkpoint could not be loaded; "" if there was none.

    Raises:
        CheckpointError: a fresh start is wrong: checkpoints are there, or `step` or `must` asks for one.
    """
    if failed:
        raise CheckpointError(
            f"spotguard can restore no checkpoint of run {run_id} in {store.url}; the oldest complete one "
            f"fails with: {failed}. Training was not started; choose another run id to begin at step 0 [SG601]"
        )
    if step is not None or must:
        which = "" if step is None else f" of step {step}"
        raise CheckpointError(
            f"run {run_id} has no complete checkpoint{which} in {store.url}; `spotguard ls {store.url}` "
            "lists its checkpoints [SG605]"
        )
    return Restored(0, None)


def refused_all(why: str) -> str:
    """Return the message for an object that refused a checkpoint, if no older checkpoint was taken."""
    return (
        f"{why}. No older checkpoint could be restored; if the right objects are registered, choose "
        "another run id. The tensors already hold the values of the checkpoint; guard.step() refuses "
        "until a restore succeeds"
    )


def said_of(whole: WholeCheckpoint, url: str) -> None:
    """Warn of the parts that a loaded checkpoint lacks, and of a suspicion."""
    if whole.suspect:
        log.warning(
            "step %d is restored although it is suspect: %s. If its losses stay bad, go back to a checkpoint that is not: "
            "`spotguard ls %s --run-id %s` lists them, guard.restore(step=…) loads one [SG421]",
            whole.name.step,
            whole.suspect,
            url,
            whole.run_id,
        )
    if whole.left_out:
        log.warning(
            "step %d is restored without %s, which no save could hold: each keeps the value that it has here; check that training "
            "does not depend on it [SG608]",
            whole.name.step,
            ", ".join(whole.left_out),
        )
    if whole.missing:
        log.warning(
            "step %d is restored without %s: their own random numbers, loaders and dicts. Those ranks "
            "had died, and the other ranks saved the rest [SG607]",
            whole.name.step,
            lacks("full", whole.missing),
        )
    if whole.level == "weights":
        log.warning(
            "step %d is restored without the optimizer's moments, which were not saved with it: they "
            "start fresh, and the loss may rise for some hundred steps [SG607]",
            whole.name.step,
        )


def _found(store: BlobStore, whole: WholeCheckpoint, near: bool) -> Restored:
    if not near:
        return Restored(whole.name.step, whole, stored=whole)
    # The store's newer checkpoints were tried, and are damaged.
    stored = next((each for each in _all(store, whole.run_id) if each.name <= whole.name), None)
    if stored is not None and stored.name == whole.name:
        return Restored(whole.name.step, whole, stored=stored)
    if stored is not None and stored.name.step == whole.name.step:
        stored = None  # another attempt saved that step: it is not the state that was loaded
    return Restored(whole.name.step, whole, stored=stored, staged=whole)


def candidates(
    store: ReadableStore,
    run_id: str,
    choice: CheckpointChoice,
    gone: list[CheckpointName],
    damages: DamagedCheckpoints,
) -> Iterator[WholeCheckpoint]:
    """Yield the checkpoints to try, in order.

    Args:
        choice: which checkpoints to try.
        gone: receives the names that went away before they could be examined.
        damages: receives the checkpoints that the examination finds damaged.
    """
    found = _all(store, run_id, choice, gone, damages)
    return choice.order(found if choice.step is not None else damages.sound(found))


def _near_and_far(
    store: BlobStore,
    run_id: str,
    choice: CheckpointChoice,
    stage: Stage | None,
    gone: list[CheckpointName],
    damages: DamagedCheckpoints,
) -> Iterator[WholeCheckpoint]:
    """Yield the checkpoints of the store and of this machine's stage, newest first."""
    found = _all(store, run_id, choice, gone, damages)
    found = found if choice.step is not None else damages.sound(found)
    return found if stage is None else newest_first(stage.wholes(store, step=choice.step), found)


def _good_first(found: Iterator[WholeCheckpoint]) -> Iterator[WholeCheckpoint]:
    suspect = []
    for whole in found:
        if whole.suspect:
            suspect.append(whole)
        else:
            yield whole
    yield from suspect


def _all(
    store: ReadableStore,
    run_id: str,
    choice: CheckpointChoice = NEWEST,
    gone: list[CheckpointName] | None = None,
    damages: DamagedCheckpoints | None = None,
) -> Iterator[WholeCheckpoint]:
    """Yield the complete checkpoints of every level, newest first."""

    def skipped(name: CheckpointName, error: CheckpointError) -> None:
        if isinstance(error, CheckpointGone) and gone is not None:
            gone.append(name)
        if damages is not None and not isinstance(error, PartialCheckpoint):
            damages.add(name, str(error), error.objects)
        passed_over(run_id, name, error)

    return whole_checkpoints(
        store, run_id, step=choice.step, levels=LEVELS, indexed=True, skipped=skipped, waited=choice.wait
    )


def let_go(error: BaseException | None) -> None:
    """Drop the frames of an error and of its causes, to free the memory that a failed restore was filling.

    For a model's moments that memory is twice the model's size, and the next checkpoint needs its own.
    """
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


def say_what_stays_behind(store: BlobStore, own: str, other: str) -> int:
    """Warn if a run begins from another run although it has steps of its own; return the newest of these, or 0."""
    marked = (folder.name.step for folder in scan(store, own) if MARKER in folder.files)
    if (step := next(marked, None)) is not None:
        log.warning(
            "restoring run %s: the own checkpoint of run %s at step %d is ignored; guard.restore() "
            "without run_id restores it",
            other,
            own,
            step,
        )
    return step or 0


def _load(store: BlobStore, whole: WholeCheckpoint, state: State) -> None:
    fill(store, whole, state, fit(whole, state))


def fit(whole: WholeCheckpoint, state: State, rank: int = 0) -> RestorePlan:
    """Return the plan that restores a checkpoint into the registered state. Nothing is changed.

    A checkpoint that contradicts itself is damaged. One that contradicts only the registered state does not fit.

    Raises:
        StateError: the checkpoint does not fit.
        CheckpointError: the checkpoint is not one that this version writes.
    """
    StateCheck(whole.manifests).check(whole.manifests[rank % len(whole.manifests)])
    states = [manifest.state for manifest in whole.manifests]
    try:
        return state.targets(states, whole.tensors, whole.stand_ins)
    except StateError:
        for manifest in whole.manifests:
            check_headers(manifest)  # a checkpoint that was changed later does not fit either, and is damaged
        raise
    except SpotguardError:
        raise
    except Exception as error:  # damaged bytes may decode to any value
        raise CheckpointError(f"its state cannot be decoded: {error_text(error)}") from error


def fill(
    store: BlobStore, whole: WholeCheckpoint, state: State, restoring: RestorePlan, rank: int = 0
) -> None:
    """Read and verify the checkpoint's bytes into the tensors, then pass every object its state.

    Raises:
        RefusedError: an object's own code refuses its state.
        CheckpointError: the checkpoint is damaged.
        StoreError: the store failed.
    """
    state.poisoned = f"restoring {whole.name} ended halfway: the memory holds a mix of two states"
    with ReadProgress(f"restoring step {whole.name.step}") as meter:
        nbytes = read(store, Coverage(whole.manifests, whole.tensors), restoring.into, progress=meter.show)
    try:
        warnings = state.put_back(restoring)
    except Exception as error:  # a user's own code may raise anything
        raise RefusedError(str(error) if isinstance(error, StateError) else error_text(error)) from error
    state.poisoned = ""
    warnings += differences(whole.manifests[rank % len(whole.manifests)].environment)
    log.debug("restored step %d from %s (%d bytes, verified)", whole.name.step, whole.name, nbytes)
    for warning in warnings:
        log.warning("%s", warning)
