"""The newest whole checkpoint back into the registered objects, or the next older one, never a mix."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from ..providers.errors import CheckpointError, CorruptError, NotFoundError, StateError
from ..providers.stores.store import BlobStore
from .checkpoints.catalog import Whole, scan, whole_checkpoints
from .checkpoints.meter import Meter
from .checkpoints.reader import read
from .format.codec import NewerFormatError
from .format.coverage import Coverage
from .format.keys import MARKER
from .state.environment import differences
from .state.registered import State

log = logging.getLogger("spotguard")


@dataclass(frozen=True, slots=True)
class Restored:
    """What a restore loaded. `whole` is None where there was nothing to load."""

    step: int
    whole: Whole | None


def restore(
    store: BlobStore, run_id: str, state: State, *, step: int | None = None, must: bool = False
) -> Restored:
    """Load the newest whole checkpoint of a run, or that of `step`.

    Args:
        must: a run without a checkpoint is an error, and no fresh start.

    Raises:
        NewerFormatError: the newest may be good, and this version cannot read it.
        StateError: it does not fit what is registered. Nothing was changed, unless it was an object's own
            `load_state_dict` (or `set_extra_state`) that refused: those come after the tensors, as in torch, since
            they may look at them. `state.poisoned` then says that nobody may train on the mix.
        CheckpointError: there is none where there must be one, or all that were tried are damaged.
        StoreError: the store failed. That is no damage: no older checkpoint is taken for it.
    """
    last: CheckpointError | None = None
    for whole in whole_checkpoints(store, run_id, step=step):
        try:
            _load(store, whole, state)
        except NewerFormatError:
            raise
        except (CheckpointError, CorruptError, NotFoundError) as error:
            # What was already copied in is overwritten by the older one, or nobody trains on it: it is poisoned.
            last = error if isinstance(error, CheckpointError) else CheckpointError(str(error))
            log.error("checkpoint %s is damaged, the next older one is taken: %s", whole.name, error)
            continue
        return Restored(whole.name.step, whole)
    if last is not None:
        raise CheckpointError(
            f"no checkpoint of run {run_id} in {store.url} can be restored; the oldest whole one fails so: {last}. "
            "Training was not started; choose another run id to begin anew"
        ) from last
    if step is not None or must:
        which = "" if step is None else f" of step {step}"
        raise CheckpointError(
            f"run {run_id} has no whole checkpoint{which} in {store.url}; "
            f"`spotguard ls {store.url}` shows which there are"
        )
    return Restored(0, None)


def newest_step(store: BlobStore, run_id: str) -> int | None:
    """The step of the newest checkpoint of a run, as far as a listing shows; None where there is none."""
    marked = (folder.name.step for folder in scan(store, run_id) if MARKER in folder.files)
    return next(marked, None)


def _load(store: BlobStore, whole: Whole, state: State) -> None:
    manifest = whole.manifests[0]
    restoring = state.targets(manifest.state, whole.tensors)
    state.poisoned = f"restoring {whole.name} ended in its middle: what is in memory is a mix of two states"
    with Meter(f"restoring step {whole.name.step}") as meter:
        nbytes = read(store, Coverage(whole.manifests, whole.tensors), restoring.into, progress=meter.show)
    try:
        warnings = state.put_back(restoring)
    except StateError as error:
        raise StateError(
            f"{error}. The tensors are the checkpoint's already; guard.step() refuses until a restore succeeds"
        ) from error
    state.poisoned = ""
    warnings += differences(manifest.environment)
    log.info("restored step %d from %s (%d bytes, verified)", whole.name.step, whole.name, nbytes)
    for warning in warnings:
        log.warning("%s", warning)
