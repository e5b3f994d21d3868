"""Requests to the saver thread. Any thread makes them; only `manual` and `call_off` block their caller.

A notice goes before everything else. If a job's ranks make two calls, the later call counts. All ranks read the calls in the
same order, so all abandon the same save and begin the same next save.
"""

from __future__ import annotations

import logging
import math
import queue
import threading
from collections.abc import Callable

from ...providers.clock import Clock
from ...providers.errors import UsageError
from ..checkpoint.catalog import WholeCheckpoint
from ..commit.cancel_scope import Abandoned, CancelScope
from ..ipc.interpreter_lock import Hurry
from ..ipc.notice import PreemptionNotice
from ..ipc.protocol import PEER
from ..ipc.threads import TaskHandle
from ..save.checkpointer import Checkpointer
from ..save.request import SavedCheckpoint, SaveRequest
from ..state.state import State
from .gate import Gate
from .gate_rule import Shut
from .manual_saves import ManualSaves
from .quiesce import JobCoordinator

log = logging.getLogger("spotguard")

#: Seconds to wait for the end of a save that was called off. It ends at once, unless a disk or a device hangs.
_WINDING_DOWN = 10.0
#: Seconds between two checks whether a promoted background save is still worth more than a new save.
_LOOK = 0.25


class SaveRequests:
    """The queue of save requests, and the notice that holds this process. `Saver` carries the requests out.

    Args:
        gate: parks the training thread.
        state: the state to save.
        checkpointer: writes the checkpoints.
        clock: the clock.
        released: called when a notice is void, or the process has outlived it, and training goes on.
        coordinator: the other ranks; None for a job of one process. With other ranks, each save begins with a call that all of
            them read, and has that call's number (epoch).
    """

    def __init__(
        self,
        gate: Gate,
        state: State,
        checkpointer: Checkpointer,
        clock: Clock,
        released: Callable[[], None],
        coordinator: JobCoordinator | None = None,
    ) -> None:
        self._gate = gate
        self._state = state
        self._checkpointer = checkpointer
        self._clock = clock
        self._released = released
        self._coordinator = coordinator
        self._jobs: queue.SimpleQueue[SaveRequest | Callable[[], object] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()  # guards what follows
        self._running: SaveRequest | None = None
        #: The emergency save that waits or runs, unless it was called off.
        self._urgent: SaveRequest | None = None
        #: An emergency save has ended, and this process reports it to the agent: a SIGTERM still waits.
        self._concluding = False
        #: The ranks' call whose emergency save has ended last in this process.
        self.ended = 0
        #: Monotonic seconds of the last check of a promoted save.
        self._looked_at = -math.inf
        self._ending = False
        #: An error ends training: an unfinished step will reach no boundary.
        self.no_more_steps = False
        self._preemption: PreemptionNotice | None = None
        self._hurry = Hurry()
        #: The ids of the notices that the log has, as `_is_new` compares them.
        self._learned: set[str] = set()
        #: Saves and rehearsals beside training, waiting or under way.
        self._beside: list[SaveRequest] = []
        self.manual_saves = ManualSaves(
            lambda: SaveRequest("manual", self._scope(None)), self._lock, clock, coordinator
        )
        #: Training has begun: there is a state worth saving. While it is loaded, there will be one in a moment.
        self.ready = self.loading = False

    @property
    def preemption(self) -> PreemptionNotice | None:
        """The notice that holds this process, whether its save is done or not."""
        return self._preemption

    @property
    def has_notice(self) -> bool:
        """Whether a notice holds this process."""
        return self._preemption is not None

    @property
    def saving(self) -> bool:
        """Whether an emergency save is under way."""
        return self._urgent is not None or self._concluding

    @property
    def committed(self) -> SavedCheckpoint | None:
        """The checkpoint of the exact step at which training stands; None if that step is not in the store."""
        place, last = self._gate.place, self._checkpointer.last
        return None if last is None or place.dirty or last.step != place.completed else last

    def emergency(
        self,
        preemption: PreemptionNotice,
        epoch: int = 0,
        *,
        at_boundary: bool = False,
        departing: frozenset[int] = frozenset(),
    ) -> None:
        """Save for a notice. Every other save gives way. A known deadline only moves earlier.

        Args:
            preemption: the notice.
            epoch: the number of the ranks' call. In a job of several ranks, a notice without a call only moves deadlines: the
                save begins with the call.
            at_boundary: save at a parked boundary only.
            departing: ranks whose machine goes.
        """
        if new := self._is_new(preemption):
            self._log_notice(preemption)
        with self._lock:
            if (known := self._preemption) is not None:
                known.join(preemption)
                preemption = known
            if new:
                preemption.outcome = ""  # its own save is still to come
            self._preemption = preemption
            self._hurry.begin()
            # The call for a save by hand is void; a training thread that waits for that save parks at the gate.
            self.manual_saves.give_up(Abandoned("a notice came"))
            if (urgent := self._urgent) is not None:
                urgent.scope.tighten(preemption.save_by)
                if epoch <= urgent.epoch:
                    if self._running is not None and self._running.promoted:
                        self._give_way(self._running, preemption)
                    return
                urgent.superseded = True
                urgent.scope.abandon("a later call of the ranks replaces it")
            if self._coordinator is not None and not epoch:
                if known is None:
                    # A process that has not begun training parks, and never trains. The other ranks' call is on its way.
                    self._gate.close()
                # Wake the saver thread: if the call does not come, that thread must notice when the notice is outlived.
                self.in_turn(lambda: None)
                return
            if self._running is not None:
                self._give_way(self._running, preemption)
            if not self.ready:
                self._gate.close()  # a process that has not begun training parks, and never trains
            last = self._checkpointer.last
            scope, before = self._scope(preemption.save_by), "" if last is None else last.url
            self._urgent = SaveRequest(
                "emergency",
                scope,
                preemption,
                epoch=epoch,
                departing=departing,
                at_boundary=at_boundary,
                stall=preemption.stall,
                before=before,
            )
            self._jobs.put(self._urgent)

    def _end_urgent(self, job: SaveRequest) -> None:
        """End the emergency save that has run. The caller has the lock.

        A stall's save gives up long before its deadline. In a job of one process, a notice that came since has only joined it,
        and must have a save of its own. In a job of several ranks, the notice's call has one.
        """
        if self._urgent is not job:
            return
        preemption = job.preemption
        given_up = job.saved is None and isinstance(job.error, Abandoned)
        joined = job.stall and preemption is not None and not preemption.stall
        if preemption is not None and joined and given_up and self._coordinator is None:
            job.superseded = True
            scope = self._scope(preemption.save_by)
            self._urgent = SaveRequest("emergency", scope, preemption, before=job.before)
            self._jobs.put(self._urgent)
        else:
            self._urgent, self._concluding, self.ended = None, True, job.epoch
            if preemption is not None:
                # Before the report: a notice that comes from here on has a save of its own, and no word of this one.
                preemption.answered = frozenset(preemption.ids)

    def _is_new(self, preemption: PreemptionNotice) -> bool:
        """Return whether this rank learns of the notice now. Several threads may bring it one notice: a call, and the agent."""
        # The agent puts "peer " before the id that a call has: another machine may have a notice of the same id.
        ids = {id.removeprefix("peer ") if preemption.kind == PEER else id for id in preemption.ids}
        with self._lock:
            new = not ids <= self._learned
            self._learned |= ids
        return new

    def _log_notice(self, preemption: PreemptionNotice) -> None:
        log.info(
            "%s from %s: %.1f s left, %s",
            "notice on another machine" if preemption.kind == PEER else f"{preemption.kind} notice",
            preemption.source,
            preemption.deadline - self._clock.monotonic(),
            f"saving at step {self._gate.place.completed}" if self.ready else "training has not begun",
        )

    def in_turn(self, what: Callable[[], object]) -> None:
        """Queue a call for the saver thread. Returns at once."""
        self._jobs.put(what)

    def again(self, epoch: int, departing: frozenset[int], *, at_boundary: bool) -> None:
        """Save once more with all ranks for the notice that holds this process.

        Args:
            epoch: as for `emergency`.
            departing: as for `emergency`.
            at_boundary: save at a parked boundary only: a rank's state moved while it was read.
        """
        if (preemption := self._preemption) is not None:
            self.emergency(preemption, epoch, at_boundary=at_boundary, departing=departing)

    def fail_by_hand(self, why: str) -> None:
        """Fail the save by hand: a rank's state moved while it was read.

        Training stands still, so no boundary comes at which the ranks could save once more.
        """
        with self._lock:
            job = self._running
        if job is not None and job.kind == "manual":
            job.after = f"not saved: {why}"
            job.scope.abandon(why)

    def unheard(self, why: str) -> None:
        """Abandon the save that the ranks began before a notice: the other ranks could not be called for that notice."""
        with self._lock:
            if self._running is not None and self._running.preemption is None:
                self._running.scope.abandon(f"a notice came, and {why}")

    def _give_way(self, job: SaveRequest, preemption: PreemptionNotice) -> None:
        """Call off the running save, unless it is a background save whose rest is worth more than a new save."""
        step = self._gate.place.completed
        # In a job of several ranks, no rank knows the upload progress of the others.
        why = "" if self._coordinator is not None else self._checkpointer.promotes(step, preemption.save_by)
        if job.kind == "background" and why:
            job.promoted = why
            job.scope.tighten(preemption.save_by)
            # The promoted save is of this very step, so it is this notice's save: training does not go beyond the step.
            if self._checkpointer.uploading == step:
                self._gate.close(Shut.AT_BOUNDARY if self._state.boundary_only else Shut.BEFORE_CHANGE)
        else:
            job.promoted = ""
            job.scope.abandon("a notice came")

    def _look_again(self, job: SaveRequest) -> None:
        """Check again, while a promoted save uploads, whether it is still worth more than a new save."""
        with self._lock:
            now = self._clock.monotonic()
            if self._preemption is not None and self._running is job and now - self._looked_at >= _LOOK:
                self._looked_at = now
                self._give_way(job, self._preemption)

    def release(self, id: str, why: str) -> None:
        """Let training go on: the notice is void, or the drill is over."""
        with self._lock:
            self._learned.discard(id.removeprefix("peer "))
            if self._preemption is None or id not in self._preemption.ids:
                return
            self._preemption.ids.remove(id)
            if self._preemption.ids:
                return
            preemption, self._preemption = self._preemption, None
            if self._urgent is not None:
                # Before the gate opens: nothing that the saver reads from here on is kept.
                self._urgent.scope.abandon(why)
                self._urgent = None
            self._open()
        self._hurry.end()
        if preemption.outcome:
            log.debug("training continues: %s", why)
        else:
            log.info("nothing is saved, and training continues: %s", why)
        if preemption.drill and self.ready:
            self.rehearse()  # plan again now with what the drill's save taught, rather than at the next notice
        self._released()

    def void_all(self, why: str) -> None:
        """End every notice that holds this process; no other process will."""
        preemption = self._preemption
        for id in list(preemption.ids) if preemption is not None else []:
            self._void(id, why)

    def end_drills(self) -> None:
        """End a drill whose agent is gone, because no other process will. A notice still stands."""
        if self._preemption is not None and self._preemption.drill:
            self.void_all("the agent that ran this drill is gone")

    def _void(self, id: str, why: str) -> None:
        """End a notice. In a job of several ranks, call all ranks; training goes on when this rank reads the call."""
        if self._coordinator is None:
            self.release(id, why)
        else:
            self._coordinator.over(id, why)

    def background(self, epoch: int = 0, *, at_boundary: bool = False) -> bool:
        """Begin a background save at this boundary. Returns before anything is copied.

        Args:
            epoch: the number of the ranks' call. Every save for an earlier call ends: all ranks read this call.
            at_boundary: save at a parked boundary only.

        Returns:
            Whether the save begins: False if a background save is under way, or a notice is active.
        """
        # Several ranks choose a boundary that none of them has reached. A single rank takes this one, and the gate holds
        # training here until the state is copied.
        holds = not (epoch or at_boundary or self._state.boundary_only)
        job = SaveRequest("background", self._scope(None), epoch=epoch, at_boundary=at_boundary, holds=holds)
        with self._lock:
            if self._preemption is not None or ((self._has_beside() or self._overtaken) and not epoch):
                return False
            self._supersede_beside()
            self._beside.append(job)
        if holds:
            try:
                self._gate.close()
                self._state.audit.take(lambda: self.has_notice)
            except BaseException:  # Ctrl-C: nothing else would open the gate
                with self._lock:
                    self._beside.remove(job)
                    self._open()
                raise
        self._jobs.put(job)
        return True

    def _open(self) -> None:
        """Let training go on, unless a notice or a waiting save holds it. The caller has the lock."""
        if self._preemption is None and not any(job.holds for job in self._beside):
            self._gate.open()

    def _supersede_beside(self) -> None:
        """Abandon the saves of earlier calls, as every other rank does: all ranks have read the later call."""
        for job in self._beside:
            if job.is_checkpoint and job.epoch:
                job.superseded = True
                job.scope.abandon("a later call of the ranks replaces it")

    @property
    def idle(self) -> bool:
        """Whether a background checkpoint may be requested: no notice holds this process, and no checkpoint is under way."""
        with self._lock:
            return self._preemption is None and not self._has_beside() and not self._overtaken

    @property
    def _overtaken(self) -> bool:
        return self._checkpointer.cleanup.overtaken(self._checkpointer.attempt)

    def _has_beside(self) -> bool:
        return any(job.is_checkpoint for job in self._beside)

    def by_hand(self, step: int, epoch: int) -> None:
        """Save with the first rank, which is in `guard.save()` at this step."""
        with self._lock:
            if self._preemption is not None:
                return  # the gate parks a training thread that waits for this save
            self._supersede_beside()
            job = self.manual_saves.called(step, epoch)
        self._jobs.put(job)

    def bring(self, staged: WholeCheckpoint) -> None:
        """Upload a checkpoint that was restored from this machine's disk and is not in the store. Returns at once."""
        self._put_beside(SaveRequest("background", self._scope(None), staged=staged))

    def rehearse(self) -> None:
        """Plan a save of this state, so that at a notice only bytes move. Returns at once."""
        self._put_beside(SaveRequest("background", self._scope(None), rehearsal=True))

    def _put_beside(self, job: SaveRequest) -> None:
        with self._lock:
            self._beside.append(job)
        self._jobs.put(job)

    def call_off(self, why: str) -> None:
        """Call off the saves and rehearsals beside training, which are of no more use; return when they have ended.

        While a notice is active, do nothing: a save that the notice promoted belongs to it, and training is parked.
        """
        with self._lock:
            self.manual_saves.forget_calls()
            if self._preemption is not None:
                return
            for job in self._beside:
                job.scope.abandon(why)
            running = self._running
        if running is None or not running.scope.abandoned:
            return
        if running.is_checkpoint:
            log.info("spotguard cancels the background checkpoint under way: %s", why)
        if not running.done.wait(_WINDING_DOWN):
            log.warning("%s, but a cancelled save does not end: spotguard leaves it behind", why)

    def manual(self) -> SavedCheckpoint:
        """Save now and wait. The caller is the training thread, at a boundary, so the state stands still.

        Raises:
            Abandoned: a notice came, or the ranks save anew; the caller parks at the gate, and tries again if it opens.
            CheckpointError: the ranks cannot save, or not all of them come.
            UsageError: the guard is closed.
        """
        job = SaveRequest("manual", self._scope(None))
        try:
            with self._lock:
                if self._ending:
                    raise UsageError(
                        "guard.save() was called after guard.close(): a closed guard saves nothing"
                    )
                urgent = self._urgent
                if urgent is None and self._coordinator is not None and self._preemption is not None:
                    raise Abandoned("a notice came")  # a call would be void; the gate has the answer
                if urgent is None and self._coordinator is not None:
                    job = self.manual_saves.asked(self._gate.place.completed)
                elif urgent is None:
                    self._jobs.put(job)
            if urgent is not None:
                urgent.done.wait()
                raise Abandoned("a notice came")
            self.manual_saves.wait(job, self._gate.place.completed)
        except BaseException:
            # Ctrl-C, also right after the request was queued: the caller may change the state again, so the save is discarded.
            job.scope.abandon("guard.save() was interrupted")
            with self._lock:
                self.manual_saves.drop(job)
            if self._coordinator is not None and job.epoch and not job.done.is_set():
                self._coordinator.failed(
                    job, "guard.save() was interrupted"
                )  # they would wait for this rank's part
            raise
        if job.error is not None:
            raise job.error
        assert job.saved is not None
        return job.saved

    def made_meanwhile(self) -> SavedCheckpoint | None:
        """Return the full checkpoint of this exact step, if it is complete although a notice interrupted `manual`; else None.

        Only for a job of several ranks. Rank 0 may have the checkpoint already and go on. A rank that saved again would wait for
        a call that never comes.
        """
        if self._coordinator is None:
            return None
        look = TaskHandle(self._checkpointer.look_back)
        self.in_turn(look.run)  # after the save that was called off
        self._clock.wait(look.done, _WINDING_DOWN)
        saved = self.committed
        return saved if saved is not None and saved.level == "full" else None

    def _scope(self, deadline: float | None) -> CancelScope:
        return CancelScope(self._clock, deadline, self._gate.wake)
