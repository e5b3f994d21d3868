"""The load of a checkpoint into the registered state, from which training goes on."""

from __future__ import annotations

from ...providers.errors import UsageError
from ..restore.restore import Restored
from .parts import GuardParts


def load(parts: GuardParts, *, step: int | None, run_id: str, again: bool, trained: bool) -> Restored:
    """Load a checkpoint, and have every part that counts from it begin anew. The training thread calls it.

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
        found = parts.startup.load(state, step=step, run_id=run_id, report=parts.damage.add)
        if trained and found.whole is None:
            raise UsageError(
                f"guard.restore() found no checkpoint of run {run_id}, and training is at step {gate.place.completed}, so "
                "nothing brings the state of step 0 back: call guard.save() right after the first guard.restore(), to be able "
                "to go back there, or start the script again [SG405]"
            )
        done = found
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
