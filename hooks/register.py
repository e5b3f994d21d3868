"""`register`, the entry point of a training script: it makes the one `Guard` of this process.

Arguments that the script leaves out come from the environment, which `spotguard run` sets, and from the command itself.
"""

from __future__ import annotations

import os
import weakref
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..providers.clock import SystemClock
from ..providers.errors import UsageError
from ..providers.optional_deps import how_to_install
from ..providers.stores.factory import open_store
from .arguments.settings import Settings, agent_socket, launched_world, launcher_serves_store, plan_path
from .arguments.speaker import name_the_speaker, without_our_frames

if TYPE_CHECKING:
    from ..providers.clock import Clock
    from .consensus.channel import Channel
    from .guard import Guard
    from .recorder.guard import GuardRecorder
    from .recorder.plan import LifePlan

#: Weak: an open guard is held by `atexit`, and a closed one must not hold the state.
_current: weakref.ref[Guard] | None = None


@without_our_frames
def register(
    store: str | os.PathLike[str] | None = None, /, *, run_id: str | None = None, **state: Any
) -> Guard:
    """Register the training state and guard this process.

    Call it once in each process, with everything that a resumed run needs.
    In a job of several ranks every rank calls it.

    Args:
        store: place of the checkpoints: "s3://bucket/prefix", "gs://bucket/prefix", "az://container/prefix", "file:///path",
            or a path. Default: SPOTGUARD_STORE, which `spotguard run` exports, else the directory `spotguard-checkpoints`
            in the working directory.
        run_id: name of the run, the same at every restart. Default: SPOTGUARD_RUN_ID, else the script's name and
            a hash of its command and working directory; in a Slurm job its job id stands between the two.
        **state: the parts of the training state, by name: modules, optimizers, schedulers, other objects with
            `state_dict` and `load_state_dict`, tensors, dicts of plain values. RNG states are always included.

    Returns:
        The guard of this process. Loop over its `steps`, or call its `restore` once before the loop.

    Raises:
        UsageError: an argument, or the environment variable that replaces it, cannot be used; or a guard is open already.
        StateError: a value cannot be saved; the message names it.
        StoreError: the store cannot be used. `register` raises it so that a job that could never save fails at once.

    Example:
        >>> guard = spotguard.register(model=model, optimizer=optimizer)
        >>> for step in guard.steps(400_000):
        ...     train_one_step(step)
        >>> guard.save()
    """
    global _current
    name_the_speaker()
    try:  # imported here so that a script without torch gets an install hint instead of a failed import
        from .consensus.process_group import join
        from .consensus.topology import this_machine
        from .guard import Guard
        from .restore.collective import cannot_begin
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "numpy"):
            raise
        raise UsageError(
            f"register() saves the state of PyTorch training, but {error.name} is not installed: "
            f"{how_to_install('torch')} [SG414]"
        ) from None
    if _current is not None and (open_one := _current()) is not None and not open_one.closed:
        raise UsageError(
            "register() was called before in this process; register everything in one call [SG404]"
        )
    if not state:
        raise UsageError(
            "register() got nothing to save: pass the state by name, as in register(model=model, "
            "optimizer=optimizer)"
        )
    if isinstance(given := state.get("store"), str):
        raise UsageError(
            f"store={given!r} would be saved as a value: pass the store first and without a name, as in "
            f"register({given!r}, model=model)"
        )
    clock = SystemClock()

    def met() -> Channel | None:
        machine = this_machine(agent_socket()).encode()
        return join(machine, clock, launched_world(), served=launcher_serves_store())

    try:
        plan = _plan()
        settings = Settings.of(*((store, run_id) if plan is None else (plan.store, plan.run_id)))
        opened = open_store(settings.store)
    except Exception as error:
        if (channel := met()) is not None:  # the other ranks would wait for this one, and name a wrong reason
            cannot_begin(channel, error)
        raise
    if (channel := met()) is not None:
        name_the_speaker(channel.rank)
    if plan is None:
        guard = Guard(opened, settings.run_id, state, clock, channel, settings)
    else:
        # The script may have set both. A stage outlives the run, and the recorder itself requests background checkpoints.
        settings = replace(settings, stage=Path(plan.stage) if plan.stage else None, every="off")
        from .recorder.guard import RecordedGuard

        guard = RecordedGuard(
            _recorder(plan, state, clock),
            plan,
            opened,
            settings.run_id,
            state,
            clock,
            channel,
            settings,
            said=(None if store is None else os.fspath(store), run_id),
        )
    _current = weakref.ref(guard)
    if settings.simulated:
        from .recorder import simulated_failure

        world = 1 if channel is None else channel.world
        simulated_failure.begin(settings.simulated, guard.view.rank, world, guard.view.completed)
    return guard


def _recorder(plan: LifePlan, state: dict[str, Any], clock: Clock) -> GuardRecorder:
    """Return the recorder that the plan asks for."""
    if plan.measures:
        from .recorder.measurement import RunMeasurement

        return RunMeasurement(plan, state, clock)
    from .recorder.recorder import RunRecorder

    return RunRecorder(plan, state, clock)


def _plan() -> LifePlan | None:
    """Return the plan that `spotguard prove` or `spotguard doctor --trial` has for this process, or None outside of both.

    The plan's store and run id replace the script's.
    """
    if not (path := plan_path()):
        return None
    from .recorder.plan import LifePlan

    return LifePlan.read(Path(path))
