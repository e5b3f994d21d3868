"""What a training script holds: the `Guard` that `register` returns."""

from __future__ import annotations

import atexit
import logging
import math
import os
import sys
from collections.abc import Iterator
from typing import Any

from ..providers.clock import Clock
from ..providers.errors import StateError, UsageError
from ..providers.stores.base import BlobStore
from .arguments import completed_steps, for_one_process, kept, stage_folder, without_our_frames, yes
from .checkpoint.format.keys import check_run_id
from .checkpoint.local_stage import Stage
from .consensus.channel import Channel
from .control import sigterm
from .control.coordinator import Coordinator
from .control.gate import Gate
from .control.gate_rule import Shut
from .control.report import Report
from .control.saver import Saver
from .control.session import AgentMessages, AgentSession
from .control.shutdown import ProcessShutdown
from .control.sigterm import Preempted
from .ipc import protocol
from .ipc.notice import BY_HAND, PreemptionNotice
from .restore.collective import cannot_begin
from .restore.restore import Restored
from .restore.startup import Startup, StartupMessages
from .save.cancel_scope import Abandoned
from .save.checkpointer import Checkpointer
from .save.plan.partitioner import ALL_STAY
from .save.plan.schedule import CheckpointSchedule, lost_training, mean_between
from .save.request import SavedCheckpoint
from .state.state import State

log = logging.getLogger("spotguard")

#: Boundaries after which the state is what it will be (optimizers make theirs at the first) and a save is planned.
_SETTLED = 5
#: Seconds that a process that ends waits for a background checkpoint under way.
_LAST_UPLOAD = 60.0


class Guard:
    """The training loop's hold on spotguard.

    One thread trains, and calls `restore`, `step` and `save`; the others are spotguard's own.
    """

    def __init__(
        self,
        store: BlobStore,
        run_id: str,
        state: dict[str, Any],
        clock: Clock,
        channel: Channel | None = None,
    ) -> None:
        self._clock = clock
        #: To the other ranks; None in a job of one process.
        self._channel = channel
        self._rank, self._world = (0, 1) if channel is None else (channel.rank, channel.world)
        self._agent = AgentSession(self._hello, self._position, self._hear, self._lost, self._welcomed)
        self._ranks = None if channel is None else Coordinator(channel, clock, self._agent.send)
        self._run_id = run_id
        self._store = store
        self._first_words = StartupMessages(self._rank == 0, store.url)
        self._gate = Gate(together=channel is not None)
        try:
            # Before the state, which hooks the optimizers: what it refuses leaves nothing behind.
            self._cadence = CheckpointSchedule(os.environ.get("SPOTGUARD_EVERY", "auto"), clock.monotonic())
            self._state = State(
                state,
                self._gate.before_change,
                clock,
                after_change=self._gate.after_change,
                rank=self._rank,
                world=self._world,
            )
        except Exception as error:
            if channel is not None:
                cannot_begin(channel, error)
            raise
        self._restored_at = 0.0
        self._restored = self.closed = self._forked = self._looked_back = False
        try:
            self._build()
        except BaseException:
            self._undo()  # nothing of a guard that failed answers the agent, or gates the optimizer
            raise
        self._agent.built()
        self._farewell.begin()
        sigterm.in_child(self._forget)
        atexit.register(self.close)

    def _build(self) -> None:
        self._nbytes = self._state.expected_bytes()
        run_id, clock, keep = self._run_id, self._clock, kept("SPOTGUARD_KEEP")
        self._beginning = Startup(self._store, run_id, clock, self._channel)
        self._beginning.meet(self._state)
        # Agent and rights before the claim: the attempt of one who is refused would fence the one that is not.
        self._beginning.admit(lambda: self._agent.connect(os.environ.get("SPOTGUARD_SOCKET", "")))
        alone = self._channel is None
        folder = for_one_process("SPOTGUARD_STAGE", stage_folder(), alone)
        self._stage = self._beginning.stage = None if folder is None else Stage(folder, run_id, self._nbytes)
        attempt = self._beginning.claim()
        lossy = bool(for_one_process("SPOTGUARD_LOSSY_MOMENTS", yes("SPOTGUARD_LOSSY_MOMENTS"), alone))
        self._checkpointer = Checkpointer(
            self._store,
            run_id,
            attempt,
            clock=clock,
            keep=keep,
            rank=self._rank,
            world=self._world,
            incarnation="" if self._channel is None else self._channel.incarnation,
            lossy=lossy,
            stage=self._stage,
        )
        self._checkpointer.nbytes = self._nbytes
        self._report = Report(
            self._checkpointer.errands.put,
            run_id,
            attempt,
            clock,
            self._agent.send,
            self._alarm_told,
            self._alarm_ended,
            rank=self._rank,
            keeps=lambda: self._ranks is None or self._ranks.speaks,
        )
        self._saver = Saver(
            gate=self._gate,
            state=self._state,
            checkpointer=self._checkpointer,
            clock=clock,
            listener=self._report,
            released=sigterm.redeliver,
            saved=self._counted,
            assembly=self._ranks,
        )
        self._words = AgentMessages(self._saver, self._cadence, self._report, clock, self.leave, self._ranks)
        self._farewell = ProcessShutdown(self._saver, self._agent, self._ranks, self.leave)
        self._saver.start()
        if self._ranks is not None:
            self._ranks.channel.look = self._gate.look
            self._ranks.begin(self._saver, self._checkpointer, self._state, self._report)
        self._state.monitor.begin()

    def _counted(self, saved: SavedCheckpoint) -> None:
        """On the saving thread. The first one beside training also finds out how often this run was preempted."""
        cost = lost_training(saved.blocked, saved.seconds) if saved.blocked else None
        if saved.blocked and not (self._looked_back or self._saver.alarmed or self._rank):
            self._looked_back = True
            self._cadence.preempted_every(
                mean_between(self._checkpointer.errands.starts(), self._clock.time())
            )
        self._cadence.saved(saved.at, saved.seconds, cost)

    # --- the training thread ---

    @without_our_frames
    def restore(self, *, step: int | None = None, run_id: str | None = None) -> int:
        """Load the newest whole checkpoint into the registered objects, in place.

        Called again, it goes back: what is saved from then on counts as newer than everything before.

        Args:
            step: go back to this step's checkpoint instead of the newest.
            run_id: start from another run's checkpoint; this run's own checkpoints stay its own. A restart that says
                it again begins there again: `guard.restore() or guard.restore(run_id="base")` does not.

        Returns:
            Completed steps: 0 when there is no checkpoint.

        Raises:
            StateError: the checkpoint does not fit what is registered. Nothing was changed; or, where the message
                says so, an object refused its state half-way: `step` then refuses until a restore succeeds.
            UsageError: `step` is no number of steps, or `run_id` no run's name.
            CheckpointError: the chosen step or run is not there, or every checkpoint is damaged.
            StoreError: the store refuses, or was away for a minute: what it holds is not known.
        """
        self._only_here("restore")
        step = None if step is None else completed_steps(step)
        run_id = self._run_id if run_id is None else check_run_id(run_id)
        # Before the gate: one that waits for the boundary of this very step keeps it shut.
        self._saver.call_off("training goes back")
        self._gate.stand()  # a machine that is already being taken back begins nothing
        done = self._go_back(step, run_id)
        # Before it is ready: the others are not offered a step of the way it has left.
        self._gate.arrive(done.step)
        self._restored = self._saver.ready = True
        self._state.monitor.restored()
        self._restored_at = self._clock.monotonic()
        self._unsettled = _SETTLED
        self._cadence.restored(self._clock.monotonic())
        self._agent.tell_position()
        self._first_words.restored(run_id, done.step, guarded=self._agent.guarded)
        if done.staged is not None:
            self._saver.bring(done.staged)
        self._gate.stand()
        return done.step

    def _go_back(self, step: int | None, run_id: str) -> Restored:
        if self._ranks is not None:
            self._saver.ready = False  # what it has is not what it will have: it offers nothing
        done = None
        try:
            self._gate.begin_boundary()
            if self._restored:
                self._checkpointer.begin_attempt(self._beginning.claim())
            done = self._beginning.load(self._state, step=step, run_id=run_id)
            self._state.at_boundary()
        except BaseException:
            unchanged = done is None and not self._state.poisoned
            self._gate.abort_boundary(unchanged=unchanged)
            self._saver.ready = unchanged and self._restored  # what it has is as good as it was
            raise
        self._checkpointer.restored(done.stored)
        return done

    def step(self) -> None:
        """The boundary: everything that belongs to this step is done. Once per completed optimizer step.

        Raises:
            Preempted: the machine is going, and the state is committed.
            UsageError: `restore` was not called before.
        """
        if self._state.poisoned:
            raise StateError(f"{self._state.poisoned}; call guard.restore() again, or start anew")
        if not self._restored:
            raise UsageError(
                "guard.step() before guard.restore(): call done = guard.restore() once, before the loop"
            )
        gate, state = self._gate, self._state
        if gate.inert:
            return
        state.monitor.boundary()
        try:
            gate.pass_boundary(state.at_boundary, late=state.boundary_only != "")
            if state.audit.wanted == gate.place.completed:
                state.audit.take(lambda: self._saver.alarmed)
        except BaseException:
            if state.audit.wanted == gate.place.completed:
                state.audit.give_up()  # Ctrl-C right behind the boundary: who saves waits for it without end
            raise
        if self._unsettled:
            self._unsettled -= 1
            if not self._unsettled:
                self._saver.rehearse()
        # The first rank's clock is everybody's.
        if self._rank == 0 and self._clock.monotonic() >= self._cadence.due:
            taken = self._saver.background() if self._ranks is None else self._ranks.background("it is time")
            self._cadence.begun(self._clock.monotonic(), taken=taken)

    def steps(self, total: int) -> Iterator[int]:
        """`for step in guard.steps(total)`: restore, then count, with a boundary after each step."""
        if (done := self.restore()) >= total:
            self._first_words.finished(self._run_id, done, total)
        for step in range(done, total):
            yield step
            self.step()

    @without_our_frames
    def save(self) -> SavedCheckpoint:
        """Save now and wait for the commit. Call it at a boundary, right after `guard.step()`.

        Raises:
            UsageError: called in the middle of a step, or before `restore`.
            StoreError: the store failed; the last committed checkpoint is untouched.
            CheckpointError: another thread changed the state while it was read; or, of several ranks, one is dead, has no
                state yet, or does not come. Nothing is saved.
            Preempted: a notice came meanwhile, and its own save is committed.
        """
        if not self._restored:
            raise UsageError(
                "guard.save() before guard.restore(): call done = guard.restore() once, before the loop"
            )
        self._only_here("save")
        if self._gate.place.dirty:
            raise UsageError(
                "guard.save() in the middle of a step: call it right after guard.step(), or in a loop over "
                "guard.steps() first thing in a turn"
            )
        while True:
            self._gate.take_again(self._state.take_again)
            try:
                return self._saver.manual()
            except Abandoned as why:
                log.info("guard.save() waits: %s", why)
            finally:
                self._gate.stand()  # a notice ends in Preempted here, or lets us go on
            if (saved := self._saver.made_meanwhile()) is not None:
                return saved

    def _only_here(self, method: str) -> None:
        if self.closed and not self._forked:
            raise UsageError(f"guard.{method}() after guard.close(): nothing is saved any more")
        if self._gate.inert:
            raise UsageError(
                f"guard.{method}() in a forked child: only the process that called register() saves and restores"
            )

    # --- what the agent is told, and hears ---

    def _hear(self, word: protocol.Message) -> None:
        self._words.hear(word)

    def _lost(self) -> None:
        self._saver.lost()

    def _welcomed(self, calls: bool) -> None:
        if self._ranks is not None:
            self._ranks.welcomed(calls)

    def _hello(self) -> protocol.Register:
        return protocol.Register(
            pid=os.getpid(),
            run_id=self._run_id,
            name=os.path.basename(sys.argv[0] or "python"),
            store=self._store.url,
            rank=self._rank,
            world=self._world,
            nbytes=self._nbytes,
            checkpoints=True,
        )

    def _position(self) -> protocol.Position:
        last, cost = self._checkpointer.last, self._checkpointer.cost(ALL_STAY)
        return protocol.Position(
            step=self._gate.place.completed if self._restored else -1,
            checkpoint_step=-1 if last is None else last.step,
            checkpoint_age=0.0 if last is None else self._clock.monotonic() - last.at,
            checkpoint_level="full" if last is None else last.level,
            mode="boundary" if self._state.boundary_only else "window",
            detail=self._state.boundary_only,
            save_seconds=-1.0 if cost.seconds is None else cost.seconds,
            rate=cost.rate or 0.0,
            interval=0.0 if math.isinf(self._cadence.interval) else self._cadence.interval,
            restored_age=self._clock.monotonic() - self._restored_at if self._restored else -1.0,
            **self._state.monitor.position(),
        )

    def _alarm_told(self, alarm: PreemptionNotice) -> None:
        self._farewell.alarm_told(alarm)

    def _alarm_ended(self, alarm: PreemptionNotice, committed: bool) -> None:
        self._farewell.alarm_ended(alarm, committed)

    def preempt(self, seconds: float) -> None:
        """A notice by hand: save within `seconds`, then `Preempted`. Behind `spotguard.testing.preempt`."""
        # Here, not when the saving thread gets its turn: a test's ten small steps would be over by then.
        self._gate.close(Shut.AT_BOUNDARY if self._state.boundary_only else Shut.BEFORE_CHANGE)
        now = self._clock.monotonic()
        if self._ranks is not None:
            self._ranks.notice(protocol.Preempt("by hand", seconds, 0.0, BY_HAND, "spotguard.testing"))
            return
        self._saver.emergency(
            PreemptionNotice(
                ["by hand"], now + seconds, now + seconds, "spotguard.testing", BY_HAND, by_hand=True
            )
        )

    def leave(self, code: int) -> None:
        """Have the training thread raise `Preempted` where it is parked, or at its next boundary."""
        self._gate.leave(lambda: Preempted(code))

    # --- its own affairs ---

    def _forget(self) -> None:
        """In a forked child: it is not the process that is guarded."""
        self._gate.inert = self.closed = self._forked = True
        self._state.monitor.close()
        self._state.audit.forget()
        atexit.unregister(self.close)
        if self._channel is not None:
            self._channel.forget()
        self._agent.forget()

    def close(self) -> None:
        """Wait for what is being saved, say goodbye. Runs by itself when the interpreter exits."""
        if self.closed:
            return
        self._farewell.at_exit()
        self.closed = True
        self._saver.close(_LAST_UPLOAD)
        self._undo()

    def _undo(self) -> None:
        self.closed = True
        self._agent.end()
        self._gate.retire()
        self._state.close()
        if self._ranks is not None:
            self._ranks.close()
        self._agent.close()
