"""The newest whole checkpoint back into the registered objects, or the next older one, never a mix."""

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
    CheckpointGone,
    PartialCheckpoint,
    ReadableStore,
    WholeCheckpoint,
    passed_over,
    scan,
    whole_checkpoints,
)
from ..checkpoint.format.codec import NewerFormatError
from ..checkpoint.format.coverage import Coverage
from ..checkpoint.format.header_check import check_headers, check_names
from ..checkpoint.format.keys import MARKER, CheckpointName
from ..checkpoint.format.manifest import LEVELS, lacks
from ..checkpoint.local_stage import Stage, StagedCheckpoint, newest_first
from ..checkpoint.ranking import EXTRAS_WORTH, worth_it
from ..state.collected import differences
from ..state.parts.values import said
from ..state.restore_plan import RestorePlan
from ..state.state import State
from .begin_anew import DamagedCheckpoints
from .progress import ReadProgress
from .reader import read

log = logging.getLogger("spotguard")

#: Listings, where what was listed goes away while it is read: a run that is pruned as often is read too slowly.
LOOKS = 5


@dataclass(frozen=True, slots=True)
class Restored:
    """What a restore loaded. `whole` is None where there was nothing to load."""

    step: int
    whole: WholeCheckpoint | None
    #: The newest in the store that is not newer: `whole` itself, where it lies there.
    stored: WholeCheckpoint | None = None
    #: `whole`, where it was loaded from this machine's disk and does not lie in the store.
    staged: WholeCheckpoint | None = None


def restore(
    store: BlobStore,
    run_id: str,
    state: State,
    *,
    step: int | None = None,
    must: bool = False,
    stage: Stage | None = None,
    extras_worth: int = EXTRAS_WORTH,
    anew: bool = False,
) -> Restored:
    """Load the newest whole checkpoint of a run, or that of `step`.

    Args:
        must: a run without a checkpoint is an error, and no fresh start.
        stage: where this run has staged its own, on this machine.
        extras_worth: as of `worth_it`.
        anew: `--begin-anew` was passed.

    Raises:
        NewerFormatError: the newest may be good, and this version cannot read it.
        StateError: it does not fit what is registered, and nothing was changed. Or an object's own `load_state_dict` (or
            `set_extra_state`) refused each checkpoint: those come after the tensors, as in torch, since they may look
            at them. `state.poisoned` then says that nobody may train on the mix.
        CheckpointError: there is none where there must be one, or all that were tried are damaged.
        StoreError: the store failed. That is no damage: no older checkpoint is taken for it.
    """
    failed, damages = "", DamagedCheckpoints(store, run_id, allowed=anew)
    refused: RefusedError | None = None
    tried: set[tuple[type[WholeCheckpoint], CheckpointName]] = set()
    for look in range(1, LOOKS + 1):
        gone: list[CheckpointName] = []
        for whole in _in_order(_near_and_far(store, run_id, step, stage, gone, damages), step, extras_worth):
            if gone and look < LOOKS:
                break  # pruned for a newer one, perhaps: what is older may be gone as well
            if (key := (type(whole), whole.name)) in tried:
                continue
            tried.add(key)
            let_go(refused)
            near = stage is not None and isinstance(whole, StagedCheckpoint)
            try:
                _load(stage.files if stage is not None and near else store, whole, state)
            except NewerFormatError:
                raise
            except RefusedError as error:
                refused = error
                log.error("checkpoint %s is refused, the next older one is tried: %s", whole.name, error)
                continue
            except (CheckpointError, StoreError) as error:
                if isinstance(error, StoreError) and not (
                    near or isinstance(error, (CorruptError, NotFoundError))
                ):
                    raise
                # What was already copied in is overwritten by the next, or nobody trains on it: it is poisoned.
                failed = str(error)
                let_go(error)
                if isinstance(error, NotFoundError) and not near:
                    gone.append(whole.name)
                    log.warning("checkpoint %s went away while it was read: %s", whole.name, failed)
                else:
                    damages.add(whole.name, failed)
                    log.error("checkpoint %s is damaged, the next older one is taken: %s", whole.name, failed)
                continue
            said_of(whole)
            return _found(store, whole, near)
        if not gone:
            break
        failed = failed or f"checkpoint {gone[0]} went away while it was read"
    if refused is not None:
        raise StateError(refused_all(str(refused))) from refused.__cause__
    if step is None and not must and damages.forgiven(state.poisoned):
        return Restored(0, None)
    return none_left(store, run_id, step, must, failed)


def none_left(store: BlobStore, run_id: str, step: int | None, must: bool, failed: str) -> Restored:
    """Nothing can be loaded: a fresh start, where that is right.

    Args:
        failed: what was wrong with the last one tried; "" where none was there.

    Raises:
        CheckpointError: it is not.
    """
    if failed:
        raise CheckpointError(
            f"no checkpoint of run {run_id} in {store.url} can be restored; the oldest whole one fails so: {failed}. "
            "Training was not started; choose another run id to begin anew"
        )
    if step is not None or must:
        which = "" if step is None else f" of step {step}"
        raise CheckpointError(
            f"run {run_id} has no whole checkpoint{which} in {store.url}; "
            f"`spotguard ls {store.url}` shows which there are"
        )
    return Restored(0, None)


def refused_all(why: str) -> str:
    """The message if an object refused a checkpoint and no older one was taken."""
    return (
        f"{why}. No older checkpoint could be restored; if the right objects are registered, choose another run id. "
        "The tensors are the checkpoint's already; guard.step() refuses until a restore succeeds"
    )


def said_of(whole: WholeCheckpoint) -> None:
    """Warn of what is not in it."""
    if whole.missing:
        log.warning(
            "step %d is restored without %s: random numbers, loaders and dicts that were theirs alone. They had died, and the "
            "others saved the rest",
            whole.name.step,
            lacks("full", whole.missing),
        )
    if whole.level == "weights":
        log.warning(
            "step %d is restored without the optimizer's moments, which were not saved with it: they "
            "begin anew, and the loss may rise for some hundred steps",
            whole.name.step,
        )


def _found(store: BlobStore, whole: WholeCheckpoint, near: bool) -> Restored:
    if not near:
        return Restored(whole.name.step, whole, stored=whole)
    # What is newer there was tried, and is damaged.
    stored = next((each for each in _all(store, whole.run_id) if each.name <= whole.name), None)
    if stored is not None and stored.name == whole.name:
        return Restored(whole.name.step, whole, stored=stored)
    if stored is not None and stored.name.step == whole.name.step:
        stored = None  # of another attempt: this very step is not what lies there
    return Restored(whole.name.step, whole, stored=stored, staged=whole)


def candidates(
    store: ReadableStore,
    run_id: str,
    step: int | None,
    gone: list[CheckpointName],
    damages: DamagedCheckpoints,
    extras_worth: int = EXTRAS_WORTH,
) -> Iterator[WholeCheckpoint]:
    """What to try, in this order.

    Args:
        gone: is told of what went away before it could be examined.
        damages: is told of what turned out damaged then.
    """
    found = _all(store, run_id, step, gone, damages)
    return _in_order(found if step is not None else damages.sound(found), step, extras_worth)


def _near_and_far(
    store: BlobStore,
    run_id: str,
    step: int | None,
    stage: Stage | None,
    gone: list[CheckpointName],
    damages: DamagedCheckpoints,
) -> Iterator[WholeCheckpoint]:
    """All, with what lies on this machine's disk."""
    found = _all(store, run_id, step, gone, damages)
    found = found if step is not None else damages.sound(found)
    return found if stage is None else newest_first(stage.wholes(store, step=step), found)


def _in_order(
    found: Iterator[WholeCheckpoint], step: int | None, extras_worth: int
) -> Iterator[WholeCheckpoint]:
    return found if step is not None else worth_it(found, extras_worth)


def _all(
    store: ReadableStore,
    run_id: str,
    step: int | None = None,
    gone: list[CheckpointName] | None = None,
    damages: DamagedCheckpoints | None = None,
) -> Iterator[WholeCheckpoint]:
    """Of each level, newest first."""

    def skipped(name: CheckpointName, error: CheckpointError) -> None:
        if isinstance(error, CheckpointGone) and gone is not None:
            gone.append(name)
        if damages is not None and not isinstance(error, PartialCheckpoint):
            damages.add(name, str(error))
        passed_over(run_id, name, error)

    return whole_checkpoints(store, run_id, step=step, levels=LEVELS, skipped=skipped)


def let_go(error: BaseException | None) -> None:
    """Drop the frames of an error and of what it came from: they hold the memory that was to be filled, for a model's
    moments as much again as the model twice, and the next checkpoint wants its own."""
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


def say_what_stays_behind(store: BlobStore, own: str, other: str) -> int:
    """Warn where a run begins from another one though it has steps of its own. Returns the newest of these, 0 for none."""
    marked = (folder.name.step for folder in scan(store, own) if MARKER in folder.files)
    if (step := next(marked, None)) is not None:
        log.warning(
            "run %s is restored, and run %s goes not on from its own step %d: guard.restore() does that",
            other,
            own,
            step,
        )
    return step or 0


def _load(store: BlobStore, whole: WholeCheckpoint, state: State) -> None:
    fill(store, whole, state, fit(whole, state))


def fit(whole: WholeCheckpoint, state: State, rank: int = 0) -> RestorePlan:
    """See that it fits what is registered; nothing is changed.

    A checkpoint that contradicts itself is damaged. One that contradicts only what is registered does not fit.

    Raises:
        StateError: it does not.
        CheckpointError: it is not as this version writes it.
    """
    check_names(whole.manifests[rank % len(whole.manifests)])
    states = [manifest.state for manifest in whole.manifests]
    try:
        return state.targets(states, whole.tensors, whole.stand_ins)
    except StateError:
        for manifest in whole.manifests:
            check_headers(manifest)  # what was changed later fits nobody, either
        raise
    except SpotguardError:
        raise
    except Exception as error:  # bytes that decode to what no code here expects
        raise CheckpointError(f"its state cannot be decoded: {said(error)}") from error


def fill(
    store: BlobStore, whole: WholeCheckpoint, state: State, restoring: RestorePlan, rank: int = 0
) -> None:
    """Read it, verified, and hand every object its state.

    Raises:
        RefusedError: an object's own code refuses.
        CheckpointError: it is damaged.
        StoreError: the store failed.
    """
    state.poisoned = f"restoring {whole.name} ended in its middle: what is in memory is a mix of two states"
    with ReadProgress(f"restoring step {whole.name.step}") as meter:
        nbytes = read(store, Coverage(whole.manifests, whole.tensors), restoring.into, progress=meter.show)
    try:
        warnings = state.put_back(restoring)
    except Exception as error:  # anybody's own code, given what may be anything
        raise RefusedError(str(error) if isinstance(error, StateError) else said(error)) from error
    state.poisoned = ""
    warnings += differences(whole.manifests[rank % len(whole.manifests)].environment)
    log.info("restored step %d from %s (%d bytes, verified)", whole.name.step, whole.name, nbytes)
    for warning in warnings:
        log.warning("%s", warning)
