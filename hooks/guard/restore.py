"""A restore: the load of a checkpoint into the registered state, and a training that goes on from there."""

from __future__ import annotations

from collections.abc import Iterable

from ...providers.errors import UsageError
from ..arguments.settings import completed_steps
from ..checkpoint.format.keys import check_run_id
from ..checkpoint.format.manifest import collector_at_rest
from ..restore.restore import Restored
from .call_place import CallPlace
from .parts import GuardParts


def restore(
    parts: GuardParts, place: CallPlace, step: int | None, run_id: str | None, missing: Iterable[str]
) -> tuple[Restored, int]:
    """Load a checkpoint, and arrive there. The training thread calls it.

    Args:
        parts: the parts of the guard.
        place: the place of the training thread.
        step: completed steps of the checkpoint; None for the newest.
        run_id: the run that made it; None for this one.
        missing: registered names that it may lack.

    Returns:
        What was loaded, and the steps whose data the script is to leave out.

    Raises:
        UsageError, StateError, CheckpointError, StoreError, Preempted: as `Guard.restore` does.
    """
    gate, state, saver = parts.gate, parts.state, parts.saver
    step = None if step is None else completed_steps(step)
    run_id = parts.run_id if run_id is None else check_run_id(run_id)
    state.expect(missing, own=run_id == parts.run_id)
    # Called off before the gate is passed: a save that waits for the boundary of this very step keeps the gate shut.
    saver.call_off("guard.restore() was called")
    gate.stand()  # parks if a notice stands already: a machine that is being taken back begins nothing
    saver.loading = parts.coordinator is not None  # the other ranks may be further
    try:
        done = _load(parts, step, run_id, again=place.restored, trained=place.trained)
        # Set before the saver is ready: this rank must not vote for a step of the training that it has just left.
        gate.arrive(done.step)
        place.restored = saver.ready = True
    finally:  # also after a Ctrl-C, or a save by hand would wait for this load without end
        saver.loading = False
    state.restored()
    place.begin()
    parts.progress.begin()
    parts.schedule.restored(parts.clock.monotonic())
    skip = 0 if run_id != parts.run_id else max(0, parts.startup.skip_until - done.step)
    parts.startup_messages.restored(
        run_id,
        done.step,
        shown=parts.agent.shows_here,
        attempt=parts.checkpointer.attempt,
        skip=skip,
    )
    return done, skip


def _load(parts: GuardParts, step: int | None, run_id: str, *, again: bool, trained: bool) -> Restored:
    """Load a checkpoint, and have every part that counts from it begin anew.

    Args:
        step: completed steps of the checkpoint; None for the newest.
        run_id: the run that made it.
        again: whether this process has restored before. Then another attempt begins.
        trained: whether it has trained since. Then a run without a checkpoint has no state to go back to.

    Raises:
        UsageError: there is nothing to go back to. Nothing was changed.
        StateError, CheckpointError, StoreError: nothing was loaded. The state is unchanged, or `State.poisoned`.
    """
    gate, state, saver, history = parts.gate, parts.state, parts.saver, parts.history
    if parts.coordinator is not None:
        saver.ready = False  # its state is about to be replaced, so this rank offers no step
    done = None
    try:
        gate.begin_boundary()
        if again:
            attempt = parts.startup.claim()
            parts.report.record_end("left")
            parts.checkpointer.begin_attempt(attempt)
        with collector_at_rest():
            found = parts.startup.load(state, step=step, run_id=run_id, report=parts.damage.add)
        if trained and found.whole is None:
            raise UsageError(
                f"guard.restore() found no checkpoint of run {run_id}, and training is at step {gate.place.completed}, so "
                "nothing brings the state of step 0 back: call guard.save() right after the first guard.restore(), to be able "
                "to go back there, or start the script again [SG405]"
            )
        done = found
        with collector_at_rest():
            state.first_boundary()
    except BaseException:
        unchanged = done is None and not state.poisoned
        gate.abort_boundary(unchanged=unchanged)
        saver.ready = unchanged and again  # an unchanged state can be saved as before
        raise
    parts.checkpointer.restored(done.stored)
    manifests = () if done.whole is None else done.whole.manifests
    history.restored(
        manifests,
        step=done.step,
        own=run_id == parts.run_id,
        now=parts.clock.monotonic(),
        wall=parts.clock.time(),
        world=parts.world,
    )
    parts.phase_times.restored(history.earlier_phases)
    history.interval = parts.schedule.interval
    # A person who asks for a step knows that checkpoint. Otherwise each suspicion goes on at one rank: its own, if there are as
    # many ranks as before.
    known = () if step is not None else manifests
    own = (each.suspect for each in known if each.rank % parts.world == parts.rank and each.suspect)
    parts.losses.begin(done.step, next(own, ""))
    parts.metrics.begin()
    return done
