"""`Guard`, the object that `register` returns: a training script restores, marks its steps and saves through it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from itertools import count
from typing import Any

from ...providers.clock import Clock
from ...providers.stores.base import BlobStore
from ..arguments.settings import Settings
from ..arguments.speaker import without_our_frames
from ..consensus.channel import Channel
from ..control.ending.sigterm import leaving
from ..ipc import protocol
from ..ipc.notice import PreemptionNotice
from ..save.request import SavedCheckpoint
from .background import BackgroundCheckpoints
from .by_hand import preempt, save
from .call_place import CallPlace, StepsLoop
from .lifetime import GuardLifetime
from .parts import GuardCallbacks, GuardParts
from .position import position, registration
from .restore import restore
from .view import Followers, GuardView, view_of

#: Boundaries after which the state has its final shape and the guard plans a save. Optimizers make their state at the first.
_SETTLED = 5


class Guard:
    """The link between a training loop and spotguard; `register` makes it.

    Call `restore`, `step`, `steps` and `save` on the one thread that trains. All other threads of the guard are spotguard's own.

    Example:
        The loop with `steps`, which restores and marks each boundary:

        >>> guard = spotguard.register(model=model, optimizer=optimizer)
        >>> for step in guard.steps(total):
        ...     train_one_step(step)
        >>> guard.save()

        The same loop with `restore` and `step`:

        >>> for step in range(guard.restore(), total):
        ...     train_one_step(step)
        ...     guard.step()
        >>> guard.save()

    Attributes:
        loop_owned: whether a framework's code runs the loop, and an adapter marks its boundaries. `save` then saves the last
            boundary, as a notice does, wherever in the framework's step it is called.
    """

    loop_owned = False

    def __init__(
        self,
        store: BlobStore,
        run_id: str,
        state: dict[str, Any],
        clock: Clock,
        channel: Channel | None = None,
        settings: Settings | None = None,
    ) -> None:
        callbacks = GuardCallbacks(
            lambda: registration(parts), self._position, self._counted, self._preemption_ended, self.leave
        )
        parts = self._parts = GuardParts(
            store, run_id, state, clock, channel, callbacks, settings or Settings.of(run_id=run_id)
        )
        #: The parts that the boundary passes, and those that several methods use.
        self._gate, self._state = parts.gate, parts.state
        self._losses, self._metrics = parts.losses, parts.metrics
        self._schedule, self._history, self._clock = parts.schedule, parts.history, clock
        self._channel, self._coordinator, self._agent = channel, parts.coordinator, parts.agent
        self._restored_at: float | None = None
        self._skip_steps, self._followers = 0, Followers()
        self._lifetime, self._place = GuardLifetime(parts, self.close), CallPlace(parts)
        try:
            parts.admit()
            self._saver, self._checkpointer, self._report = parts.saver, parts.checkpointer, parts.report
            self._background = BackgroundCheckpoints(parts)
            parts.begin()
        except BaseException:
            self._lifetime.undo()  # a guard that failed must neither answer the agent nor stop the optimizer
            raise
        self._lifetime.begin()

    # --- the training thread ---

    @without_our_frames
    def restore(
        self, *, step: int | None = None, run_id: str | None = None, missing: Iterable[str] = ()
    ) -> int:
        """Load the newest complete checkpoint into the registered objects, in place.

        Call it before the loop, also on the first start. You can call it again to go back to an earlier state.
        Every save after that counts as newer than all earlier ones, whatever its step.

        Args:
            step: completed steps of the checkpoint to load. Default: the newest checkpoint.
            run_id: name of the run whose checkpoint is loaded. Default: this run. The other run's checkpoints are not
                changed. A restart with the same argument loads the other run again; to resume this run first, call
                `guard.restore() or guard.restore(run_id="base")`.
            missing: registered names that the checkpoint may lack, for state that the script registers since later, such as
                `missing=("ema",)`. What the checkpoint lacks keeps its present value, with a warning.

        Returns:
            Completed steps: 0 if there is no checkpoint.

        Raises:
            StateError: the checkpoint does not fit the registered state. Nothing was changed, unless the message says that
                an object refused its state half-way: `step` then refuses until a restore succeeds.
            UsageError: `step` is not a number of steps, `run_id` is not a valid run name, or `missing` names nothing
                registered. Also after `close`, and in a forked child. Or this process has trained since its last restore, and the
                run has no checkpoint to go back to.
            CheckpointError: the store has no checkpoint of the given step or run, or every checkpoint is damaged.
            StoreError: the store refused, or did not answer for 60 s. It is then not known which checkpoints it has.
            Preempted: a notice came, and training must end.

        Example:
            >>> done = guard.restore()
            >>> for step in range(done, total):
            ...     train_one_step(step)
            ...     guard.step()
        """
        self._lifetime.check("restore")
        done, self._skip_steps = restore(self._parts, self._place, step, run_id, missing)
        self._restored_at = self._clock.monotonic()
        self._followers.restored(done.step)
        self._agent.tell_position()
        if done.staged is not None:
            self._saver.bring(done.staged)
        self._gate.stand()
        return done.step

    def step(self, *, loss: Any = None) -> None:
        """Mark the boundary: everything that belongs to this step is done.

        Call it once for each completed optimizer step, after the scheduler and any other change of the state.
        During a notice it may wait here until a save has read the state. `steps` calls it for you.
        After `close`, and in a forked child, it does nothing.

        Args:
            loss: the loss of this step, as `watch_loss` takes it.

        Raises:
            Preempted: the machine is going, and the state is committed. Do not catch it: it is a `SystemExit` with code 75.
            UsageError: `restore` was not called before, or `loss` is not one real number.
            StateError: a restore failed half-way, so the state in memory is a mix; or a registered object changed in a way
                that cannot be saved.

        Example:
            >>> optimizer.step()
            >>> scheduler.step()
            >>> guard.step(loss=loss)
        """
        self._place.step()
        gate, state = self._gate, self._state
        if gate.inert:
            self._lifetime.say_unguarded()
            return
        if gate.place.completed == self._place.loop.step:
            self._place.loop.marked_by_hand()
        if loss is not None:
            self._losses.take(gate.place.completed + 1, loss)
        else:
            self._losses.read()
        self._metrics.read()
        state.monitor.boundary()
        for loader in state.loaders:
            loader.at_boundary()
        try:
            gate.pass_boundary(state.at_boundary, late=state.copies_late())
            if state.audit.wanted == gate.place.completed:
                state.audit.take(lambda: self._saver.has_notice)
        except BaseException:
            if state.audit.wanted == gate.place.completed:
                state.audit.give_up()  # after Ctrl-C right behind the boundary the saver would wait for it without end
            raise
        if state.passed == _SETTLED:
            self._saver.rehearse()
        state.turn.mark(look=state.looks)
        if self._parts.rank:
            return
        # Only the first rank's clock decides, for all ranks.
        now = self._clock.monotonic()
        self._history.boundary(now)
        if now >= self._schedule.due:
            self._background.begin()

    def watch_loss(self, loss: Any) -> None:
        """Give the loss of the step that is under way, in a loop over `steps`. `step` takes it as `loss`.

        While losses are not finite, checkpoints are suspect: they do not count for `--keep`. Losses far above the usual ones are
        reported.
        Training is never stopped, changed or waited for: a tensor on an accelerator is read at a later boundary.

        Args:
            loss: a number, or a tensor of one element on any device.

        Raises:
            UsageError: it is not one real number.

        Example:
            >>> for step in guard.steps(400_000):
            ...     guard.watch_loss(train_one_step(step))
        """
        if not self._gate.inert:
            self._losses.take(self._gate.place.completed + 1, loss)

    def watch_metric(self, name: str, value: Any) -> None:
        """Give the newest value of a number of your own, such as a validation loss: alerts and dashboards see it.

        It becomes the metric `spotguard_metric` with this name, for each rank that gives it, until a restore.
        Training is never waited for: a tensor on an accelerator is read at a later boundary.

        Args:
            name: a small letter, then small letters, digits and `_`; at most 64 characters, and at most 16 names.
            value: a number, or a tensor of one element on any device.

        Raises:
            UsageError: the name cannot be used, it is the 17th, or the value is not one real number.

        Example:
            >>> guard.watch_metric("validation_loss", evaluate(model))
        """
        if not self._gate.inert:
            self._metrics.take(name, value, self._gate.place.completed)

    def steps(self, total: int | None = None) -> Iterator[int]:
        """Restore, then yield the number of each step that is still to do, and mark a boundary after it.

        If this process has restored before, it goes on at the step where training is; `restore` goes back.

        Args:
            total: optimizer steps of the whole run, including those that earlier attempts completed; None for a run without
                an end.

        Yields:
            Step numbers from the count of completed steps to `total - 1`; none if the checkpoint has `total` steps already.

        Raises:
            Preempted: the machine is going, and the state is committed.
            UsageError: the turn behind the last boundary has begun, or the script marked the turn of this loop itself and did not
                leave it.
            SpotguardError: any error of `restore` or `step`.

        Example:
            >>> for step in guard.steps(400_000):
            ...     train_one_step(step)
            >>> guard.save()
        """
        done = self._gate.place.completed
        if not self._place.restored or self._state.poisoned:
            done = self.restore()
        elif not self._gate.inert:
            self._place.check_loop()
        if total is not None and done >= total:
            self._parts.startup_messages.finished(self._parts.run_id, done, total)
        self._state.loop_begins(done, total, left=not self._place.loop.over)
        self._place.loop = loop = StepsLoop(sys._getframe().f_back)
        try:
            for step in count(done) if total is None else range(done, total):
                loop.begin_turn(step)
                yield step
                if not self._gate.inert:
                    loop.go_on(self._gate.place.completed)
                self._state.loop_goes_on(step + 1, total)
                self.step()
            else:
                loop.over = True
        finally:  # also if the loop is left early; a loop that something still holds may end in the midst of the next one
            loop.step = -1
            if self._place.loop is loop:
                self.end_training()

    def end_training(self) -> None:
        """Tell that no step follows for now: an upload, or a last evaluation, may take long, and is no stall before `--stall-first`.

        A loop over `steps` calls it at its end. Notices are answered as before, `save` may be called, and steps may follow.

        Example:
            >>> guard.end_training()
            >>> upload(model)
        """
        self._parts.progress.end()

    @without_our_frames
    def save(self) -> SavedCheckpoint:
        """Save now and wait for the commit. Call it at a boundary, right after `guard.step()`.

        It saves what is there now, such as a result of an evaluation that was noted since. Once the next turn has begun, in
        another thread than that of `guard.step()`, and in a signal's handler, it saves the last boundary, and the log names the
        values that have moved since. The turn begins when a registered loader delivers, a gradient changes, or a buffer moves.

        In a job of several ranks every rank calls it, at the same step. A guard of `spotguard.integrations` saves the last
        boundary, wherever it is called.

        Returns:
            The committed checkpoint. In a job of several ranks it may be the one that a notice made of this very step.

        Raises:
            UsageError: called between `optimizer.step()` and `guard.step()`, before `restore`, after `close`, or in a forked child.
                Or the last boundary is asked for, and there is no copy of it.
            StoreError: the store failed; the last committed checkpoint is untouched.
            CheckpointError: another thread changed the state while the saver read it. Or a rank of the job is dead, has no state
                yet, or does not come. Nothing is saved. Or the store has lost a part of the checkpoint meanwhile.
            Preempted: a notice came meanwhile, and its own save is committed.

        Example:
            >>> saved = guard.save()
            >>> print(f"step {saved.step}: {saved.nbytes} bytes in {saved.seconds:.1f} s, at {saved.url}")
        """
        self._place.check_restored("save")
        self._lifetime.check("save")
        beside, standing = self._place.check_save(self.loop_owned)
        return save(self._parts, beside, standing)

    @property
    def skip_steps(self) -> int:
        """The number of steps whose data the script is to leave out now, after `restore`: it made values wrong (`--recover nan=back`).

        Example:
            >>> done = guard.restore()
            >>> for batch in itertools.islice(loader, guard.skip_steps, None):
            ...     train(batch)
            ...     guard.step()
        """
        return self._skip_steps

    @property
    def in_step(self) -> bool:
        """Whether the optimizer has stepped since the last boundary."""
        return self._gate.place.dirty

    @property
    def closed(self) -> bool:
        """Whether `close` was called. A forked child, which is not guarded, finds it true too."""
        return self._lifetime.closed

    @property
    def view(self) -> GuardView:
        """This guard for threads beside training, such as those of `spotguard.integrations`."""
        return view_of(self._parts, self._followers)

    def preempt(self, seconds: float) -> None:
        """Give this guard a notice by hand, as `spotguard.testing.preempt` does: save, then raise `Preempted`.

        Returns at once, with the gate shut; the training thread raises later.

        Args:
            seconds: time until the deadline, in which the save must commit.
        """
        preempt(self._parts, seconds)

    def fail(self, error: Exception) -> None:
        """Save for an error that ends training, and name it. An error that nothing catches comes here by itself.

        Call it on the training thread where a tool catches the error and ends the process, as Hydra does; then raise the error
        again. Only the first error counts. During a preemption it does nothing, because the notice's save counts.

        Args:
            error: the error.

        Example:
            >>> try:
            ...     train(guard)
            ... except Exception as error:
            ...     guard.fail(error)
            ...     raise
        """
        self._parts.errors.handle(error)

    def leave(self, code: int) -> None:
        """Have the training thread raise `Preempted` where it is parked, or at its next boundary.

        Args:
            code: exit code of the process.
        """
        self._gate.leave(leaving(code))

    # --- what the parts call, on threads of their own ---

    def _position(self) -> protocol.Position:
        return position(self._parts, self._restored_at)

    def _counted(self, saved: SavedCheckpoint) -> None:
        self._followers.committed(saved)
        self._background.saved(saved)

    def _preemption_ended(self, preemption: PreemptionNotice, committed: bool) -> None:
        if committed and self._checkpointer.last is not None:
            self._followers.committed(self._checkpointer.last, preemption)
        self._parts.shutdown.preemption_ended(preemption, committed)

    # --- the end ---

    def close(self) -> None:
        """Wait for the save that is under way, then leave the agent and the other ranks.

        The interpreter calls it at exit. After it nothing is saved any more. A second call does nothing.
        """
        self._lifetime.close()
