"""Where a training script comes in: `register`, which makes this process's one guard of what it was told.

What is not told comes from the environment, which `spotguard run` has set, and from the command itself.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ..providers.clock import SystemClock
from ..providers.errors import UsageError
from ..providers.optional_deps import how_to_install
from ..providers.stores.factory import open_store
from .arguments import without_our_frames

if TYPE_CHECKING:
    from .guard import Guard
    from .recorder.plan import LifePlan

_current: Guard | None = None


@without_our_frames
def register(store: str | None = None, /, *, run_id: str | None = None, **state: Any) -> Guard:
    """Guard this training process.

    Args:
        store: where checkpoints go: "s3://bucket/prefix", "gs://bucket/prefix", "az://container/prefix", or
            "file:///path". Default: SPOTGUARD_STORE, which `spotguard run` exports, else the folder
            `spotguard-checkpoints` here.
        run_id: the run's name, the same at every restart. Default: SPOTGUARD_RUN_ID, else the script's name and
            a hash of its command and folder.
        state: what makes up the training state, by name: modules, optimizers, schedulers, anything else with
            `state_dict` and `load_state_dict`, tensors, dicts of plain values. RNG states are always included.

    Raises:
        UsageError: an argument, or an environment variable in its place, cannot be used.
        StateError: a value cannot be saved; the message names it.
        StoreError: the store cannot be used. A job that could never save says so now.
    """
    global _current
    try:  # here, so that a script without torch is told what to install, and not where an import failed
        from .arguments import run_name, store_url
        from .consensus.process_group import join
        from .consensus.topology import this_machine
        from .guard import Guard
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "numpy"):
            raise
        raise UsageError(
            f"register() saves what PyTorch trains, and there is no {error.name} here: {how_to_install('torch')}"
        ) from None
    if _current is not None and not _current.closed:
        raise UsageError("register() was called before in this process; register everything in one call")
    if not state:
        raise UsageError("register() was given nothing to save: register(model=model, optimizer=optimizer)")
    if isinstance(said := state.get("store"), str):
        raise UsageError(
            f"store={said!r} would be a value to save: the store comes first and has no name, as in register({said!r}, "
            "model=model)"
        )
    plan = _plan()
    where = open_store(store_url(store) if plan is None else plan.store)
    run, clock = run_name(run_id if plan is None else plan.run_id), SystemClock()
    channel = join(this_machine(os.environ.get("SPOTGUARD_SOCKET", "")).encode(), clock)
    if plan is None:
        _current = Guard(where, run, state, clock, channel)
    else:
        from .recorder.recorder import RecordedGuard

        _current = RecordedGuard(plan, where, run, state, clock, channel, said=(store, run_id))
    return _current


def _plan() -> LifePlan | None:
    """What `spotguard prove` asks of this process; its store and run id hold then. None anywhere else."""
    if not os.environ.get("SPOTGUARD_PROVE"):
        return None
    from .recorder.plan import plan_of

    return plan_of()
