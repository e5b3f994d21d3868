"""`Guard`, the object that `register` returns: a training script restores, marks its steps and saves through it."""

from __future__ import annotations

import atexit
import logging
import os
import sys
from collections.abc import Iterable, Iterator
from itertools import count
from threading import current_thread
from typing import Any

from ...providers.clock import Clock
from ...providers.errors import CheckpointError, StateError, UsageError
from ...providers.stores.base import BlobStore
from ..arguments import completed_steps, without_our_frames
from ..checkpoint.format.keys import check_run_id
from ..commit.cancel_scope import Abandoned
from ..consensus.channel import Channel
from ..control.ending import sigterm
from ..control.ending.error_save import no_worker_error
from ..control.ending.sigterm import Preempted
from ..control.gate_rule import Shut
from ..ipc import protocol
from ..ipc.notice import BY_HAND, PreemptionNotice
from ..save.request import SavedCheckpoint
from .background import BackgroundCheckpoints
from .call_place import IN_A_HANDLER, IN_ANOTHER_THREAD, StepsLoop, beside_training
from .load import load
from .parts import GuardCallbacks, GuardParts
from .position import position, registration
from .view import Followers, GuardView

log = logging.getLogger("spotguard")

#: Boundaries after which the state has its final shape and the guard plans a save. Optimizers make their state at the first.
_SETTLED = 5
#: Seconds that an ending process waits for a background checkpoint that is still uploading.
_LAST_UPLOAD = 60.0


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
        closed: whether `close` was called. A forked child, which is not guarded, finds it true too.
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
    ) -> None:
        callbacks = GuardCallbacks(
            self._registration, self._position, self._counted, self._preemption_ended, self.leave
        )
        parts = self._parts = GuardParts(store, run_id, state, clock, channel, callbacks)
        #: The parts that the boundary passes, and those that several methods use.
        self._gate, self._state = parts.gate, parts.state
        self._losses, self._metrics = parts.losses, parts.metrics
        self._schedule, self._history, self._clock = parts.schedule, parts.history, clock
        self._run_id, self._rank, self._world = run_id, parts.rank, parts.world
        self._channel, self._coordinator, self._agent = channel, parts.coordinator, parts.agent
        self._restored_at, self._skip_steps = 0.0, 0
        self._followers = Followers()
        self._restored = self.closed = self._forked = False
        #: A forked child, which has not reported yet that it trains on.
        self._unguarded = False
        self._loop = StepsLoop()
        #: The thread of the last boundary.
        self._trainer = current_thread()
        #: The values that the log has named as missing from a save by hand.
        self._left_out: set[str] = set()
        try:
            parts.admit()
            self._saver, self._checkpointer, self._report = parts.saver, parts.checkpointer, parts.report
            self._background = BackgroundCheckpoints(parts)
            parts.begin()
        except BaseException:
            self._undo()  # a guard that failed must neither answer the agent nor stop the optimizer
            raise
        parts.progress.prepare()
        self._agent.built()
        parts.shutdown.begin()
        parts.errors.begin()
        sigterm.in_child(self._forget)
        atexit.register(self.close)

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
        self._only_here("restore")
        step = None if step is None else completed_steps(step)
        run_id = self._run_id if run_id is None else check_run_id(run_id)
        self._state.allow_missing(missing)
        # Called off before the gate is passed: a save that waits for the boundary of this very step keeps the gate shut.
        self._saver.call_off("guard.restore() was called")
        self._gate.stand()  # parks if a notice stands already: a machine that is being taken back begins nothing
        self._saver.loading = self._parts.coordinator is not None  # the other ranks may be further
        try:
            done = load(
                self._parts,
                step=step,
                run_id=run_id,
                again=self._restored,
                trained=self._restored and (self._state.trained or bool(self._begun())),
            )
            self._skip_steps = (
                0 if run_id != self._run_id else max(0, self._parts.startup.skip_until - done.step)
            )
            # Set before the saver is ready: this rank must not vote for a step of the training that it has just left.
            self._gate.arrive(done.step)
            self._restored = self._saver.ready = True
        finally:  # also after a Ctrl-C, or a save by hand would wait for this load without end
            self._saver.loading = False
        self._state.restored()
        self._trainer = current_thread()
        self._restored_at, self._loop = self._clock.monotonic(), StepsLoop()
        self._parts.progress.begin()
        self._followers.restored(done.step)
        self._unsettled = _SETTLED
        self._schedule.restored(self._clock.monotonic())
        self._agent.tell_position()
        self._parts.startup_messages.restored(
            run_id, done.step, guarded=self._agent.guarded, skip=self._skip_steps
        )
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
        if self._state.poisoned:
            raise StateError(f"{self._state.poisoned}; call guard.restore() again, or restart the process")
        if not self._restored:
            raise UsageError(
                "guard.step() was called before guard.restore(): call done = guard.restore() once, "
                "before the loop [SG405]"
            )
        gate, state = self._gate, self._state
        if gate.inert:
            self._say_unguarded()
            return
        if gate.place.completed == self._loop.step:
            self._loop.marked_by_hand()
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
        if self._unsettled:
            self._unsettled -= 1
            if not self._unsettled:
                self._saver.rehearse()
        state.turn.mark()
        self._trainer = current_thread()  # not its number, which a later thread may have again
        if self._rank:
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
        if not self._restored or self._state.poisoned:
            done = self.restore()
        elif not (self._gate.inert or self._at_first_turn()) and (begun := self._begun()):
            raise UsageError(
                f"guard.steps() was called in the middle of the turn behind step {done}, because {begun}: call guard.step() "
                "before break where a loop leaves behind a step's work, or guard.restore() to go back [SG405]"
            )
        if total is not None and done >= total:
            self._parts.startup_messages.finished(self._run_id, done, total)
        self._loop = loop = StepsLoop(sys._getframe().f_back)
        try:
            for step in count(done) if total is None else range(done, total):
                loop.begin_turn(step)
                yield step
                if not self._gate.inert:
                    loop.go_on(self._gate.place.completed)
                self.step()
        finally:  # also if the loop is left early; a loop that something still holds may end in the midst of the next one
            loop.step = -1
            if self._loop is loop:
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
        if not self._restored:
            raise UsageError(
                "guard.save() was called before guard.restore(): call done = guard.restore() once, "
                "before the loop"
            )
        self._only_here("save")
        if self.in_step:
            raise UsageError(
                "guard.save() was called in the middle of a step: call it right after guard.step(), or "
                "first in the body of a loop over guard.steps() [SG405]"
            )
        if self._state.monitor.trained_unseen:  # without a torch optimizer, the gate saw no step
            raise UsageError(
                f"guard.save() would save trained weights as step {self._gate.place.completed}, because guard.step() was not "
                "called since guard.restore(): call guard.step() after each step of the training [SG405]"
            )
        beside = beside_training(self._trainer)
        if beside or (not self.loop_owned and (begun := self._begun())):
            self._keep_to_boundary(beside or f"in the middle of a turn, because {begun}")
            standing = True
        else:
            # Between two boundaries of a framework's loop only the copies of the last one are exact. There are none if saves wait
            # for the boundary.
            standing = self.loop_owned and not self._state.boundary_only
        if beside == IN_ANOTHER_THREAD:  # training goes on meanwhile, and parks where the saver stops it
            try:
                return self._saver.manual()
            except Abandoned as why:
                raise CheckpointError(f"guard.save() {beside} gives way: {why}") from why
        while True:
            self._gate.take_again((lambda: None) if standing else self._state.take_again)
            try:
                return self._saver.manual()
            except Abandoned as why:
                log.debug("guard.save() waits: %s", why)
            finally:
                self._gate.stand()  # a notice ends in Preempted here, or lets training go on
            if (saved := self._saver.made_meanwhile()) is not None:
                return saved

    def _begun(self) -> str:
        """Return why the turn behind the last boundary has begun; "" if it has not."""
        return "an optimizer has stepped" if self.in_step else self._state.begun()

    def _at_first_turn(self) -> bool:
        """Return whether training is still to begin: what a script tries out behind `restore` belongs to no turn.

        It may look at a batch, warm up, or find a learning rate and put the weights back.
        """
        return self._loop.turn < 0 and not self._state.trained

    def _keep_to_boundary(self, where: str) -> None:
        """Name the values that a save of the last boundary leaves out.

        Args:
            where: the place of the call.

        Raises:
            UsageError: there is no copy of that boundary.
        """
        beside = where in (IN_ANOTHER_THREAD, IN_A_HANDLER)
        why = self._state.boundary_only or ("" if where == IN_ANOTHER_THREAD else self._state.inconsistency())
        if self._channel is not None and beside:
            why = "ranks save one step together"
        if why:
            raise UsageError(
                f"guard.save() was called {where}, where step {self._gate.place.completed} cannot be saved ({why}): call it "
                "right after guard.step(), in the thread that calls that [SG405]"
            )
        moved = self._state.turn.moved(ask=not beside)
        if moved.keys() - self._left_out:
            self._left_out |= moved.keys()
            log.warning(
                "guard.save() was called %s, so it saves step %d as of its guard.step(), without what has changed since: %s; to "
                "save that too, call it right after guard.step() [SG405]",
                where,
                self._gate.place.completed,
                ", ".join(moved.values()),
            )

    def _only_here(self, method: str) -> None:
        if self.closed and not self._forked:
            raise UsageError(
                f"guard.{method}() was called after guard.close(): a closed guard neither saves nor restores"
            )
        if self._gate.inert:
            raise UsageError(
                f"guard.{method}() was called in a forked child: only the process that called register() "
                "saves and restores [SG413]"
            )

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
    def view(self) -> GuardView:
        """This guard for threads beside training, such as those of `spotguard.integrations`."""
        return GuardView(
            self._rank,
            self._run_id,
            self._checkpointer.attempt,
            self._parts.store,
            self._clock,
            lambda: self._saver.saving,
            lambda: self._gate.place.completed,
            self._followers.add,
        )

    def preempt(self, seconds: float) -> None:
        """Give this guard a notice by hand, as `spotguard.testing.preempt` does: save, then raise `Preempted`.

        Returns at once, with the gate shut; the training thread raises later.

        Args:
            seconds: time until the deadline, in which the save must commit.
        """
        # Closed here, before the saver thread gets its turn: the ten small steps of a test would be over by then.
        self._gate.close(Shut.AT_BOUNDARY if self._state.boundary_only else Shut.BEFORE_CHANGE)
        until = (now := self._clock.monotonic()) + seconds
        if self._coordinator is not None:
            self._coordinator.notice(protocol.Preempt("by hand", seconds, 0.0, BY_HAND, "spotguard.testing"))
            return
        self._saver.emergency(
            PreemptionNotice(["by hand"], until, until, "spotguard.testing", BY_HAND, by_hand=True, seen=now)
        )

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
        self._gate.leave(lambda: Preempted(code))

    # --- what the parts call, on threads of their own ---

    def _registration(self) -> protocol.Register:
        return registration(self._parts)

    def _position(self) -> protocol.Position:
        return position(self._parts, self._restored_at if self._restored else None)

    def _counted(self, saved: SavedCheckpoint) -> None:
        self._followers.committed(saved)
        self._background.saved(saved)

    def _preemption_ended(self, preemption: PreemptionNotice, committed: bool) -> None:
        if committed and self._checkpointer.last is not None:
            self._followers.committed(self._checkpointer.last, preemption)
        self._parts.shutdown.preemption_ended(preemption, committed)

    # --- fork and close ---

    def _forget(self) -> None:
        """Drop everything in a forked child, which is not the guarded process."""
        self._forked = self._unguarded = not self.closed
        self._gate.inert = self.closed = True
        atexit.unregister(self.close)
        self._parts.forget(self._say_unguarded)

    def _say_unguarded(self) -> None:
        """Report, once, that a forked child trains on."""
        if self._unguarded:
            self._unguarded = False
            log.warning(
                "process %d was forked from the one that called register(), and trains on unguarded: nothing of it is saved, and "
                "no notice reaches it; call register() in the process that trains [SG413]",
                os.getpid(),
            )

    def close(self) -> None:
        """Wait for the save that is under way, then leave the agent and the other ranks.

        The interpreter calls it at exit. After it nothing is saved any more. A second call does nothing.
        """
        if self.closed:
            return
        why = "interrupted" if isinstance(self._parts.errors.ending, KeyboardInterrupt) else "ended"
        try:
            self._parts.errors.end()
            with no_worker_error():  # a launcher ends the loader's workers, too
                self._parts.shutdown.at_exit()
                self.closed = True
                self._saver.close(_LAST_UPLOAD, lambda: self._record_end(why))
        finally:  # even after a Ctrl-C meanwhile
            self._undo()

    def _record_end(self, why: str) -> None:
        """Record that the script has ended by itself. A notice and an error have records of their own."""
        if self._saver.ready and not (self._parts.errors.met or self._saver.has_notice or sigterm.held()):
            self._report.record_end(why)

    def _undo(self) -> None:
        self.closed = True
        atexit.unregister(self.close)
        self._parts.close()
