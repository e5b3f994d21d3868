"""The saver thread. It does one save at a time, a notice's save before every other.

A save has five steps: make the state stand still (the gate), check that it does (the change detectors), stream it to the store,
check again, commit. A background save first copies the state to host memory, and opens the gate before it uploads. An emergency
save streams the state from where it is, and keeps the gate shut.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from ...providers.clock import Clock
from ...providers.errors import CheckpointError, SpotguardError
from ...providers.text import TEXT, clip
from ..checkpoint.format.manifest import named
from ..commit.cancel_scope import Abandoned
from ..commit.publish import IncompleteError
from ..consensus.vote import it_stands
from ..save.checkpointer import Checkpointer
from ..save.request import UNCHECKED, SavedCheckpoint, SaveRequest, SaveSpec
from ..state.device.streams import ThreadStreams
from ..state.device_boundary import DeviceBoundary
from ..state.state import State
from .gate import Gate
from .quiesce import AlreadyComplete, JobCoordinator, Quiescence
from .report import Report
from .save_requests import SaveRequests

log = logging.getLogger("spotguard")

#: The reason of a save that has nothing to save yet.
NOT_BEGUN = "training has not begun yet: there is nothing new to save"
#: Seconds between two looks whether this rank has loaded its state.
_LOADING = 0.02
#: Seconds in which this rank reads its own call that training goes on.
_HEARD = 60.0
#: Seconds after a deadline at which training goes on by itself, if the machine is still alive.
_OUTLIVED = 5.0


class Saver(SaveRequests):
    """The owner of the thread "spotguard-saver", the only thread that reads state and writes checkpoints.

    Args:
        gate: parks the training thread.
        state: the state to save.
        checkpointer: writes the checkpoints.
        clock: the clock.
        listener: reports each save to the agent.
        released: called when a notice is void, or the process has outlived it, and training goes on.
        saved: called with each checkpoint that no notice asked for.
        coordinator: the other ranks; None for a job of one process.
    """

    def __init__(
        self,
        *,
        gate: Gate,
        state: State,
        checkpointer: Checkpointer,
        clock: Clock,
        listener: Report,
        released: Callable[[], None] = lambda: None,
        saved: Callable[[SavedCheckpoint], None] = lambda saved: None,
        coordinator: JobCoordinator | None = None,
    ) -> None:
        super().__init__(gate, state, checkpointer, clock, released, coordinator)
        self._listener = listener
        self._still = Quiescence(
            gate, state, listener, lambda: self._ending or self.no_more_steps, coordinator
        )
        self._saved = saved
        #: Why the newest background checkpoint failed; "" if none has, or a later one is committed.
        self.failing = ""
        self._last: Callable[[], None] = lambda: None
        self._streams = ThreadStreams()
        self._thread = threading.Thread(target=self._run, name="spotguard-saver", daemon=True)
        self._warmed = threading.Event()

    def start(self) -> None:
        """Start the thread. Return when the threads and buffers of a save are there: at exit no thread may start."""
        self._thread.start()
        self._warmed.wait()

    def close(self, timeout: float, last: Callable[[], None] = lambda: None) -> None:
        """Let the running save end, then join the thread. Training is over: an unfinished step will reach no boundary.

        Args:
            timeout: seconds for a background save; an emergency save has its own deadline.
            last: called on the thread after the last save, within the same time.
        """
        with self._lock:
            self._ending = True
            self._last = last
            if self._urgent is not None:
                timeout = max(timeout, self._urgent.scope.left() or 0.0)
        self._gate.wake()  # no boundary comes any more
        self._jobs.put(None)
        self._thread.join(timeout)
        self._hurry.end()

    # --- the thread ---

    def _run(self) -> None:
        try:
            self._streams.take(self._state.fence.devices)
            self._checkpointer.warm()
        except Exception as error:  # noqa: BLE001 - a save will report any such error again
            log.warning("spotguard could not allocate the buffers for a save, and will try again: %s", error)
        finally:
            self._warmed.set()
        while True:
            try:
                job = self._jobs.get(timeout=self._patience())
            except queue.Empty:
                self._do_this(self._outlive)
                continue
            if job is None and self._urgent is not None:
                # A call came while this process ends: the save for it has replaced the one before.
                self._jobs.put(None)
                continue
            if job is None:
                self._do_this(self._last)
                self._checkpointer.close()
                return
            self._do_this(partial(self._take, job) if isinstance(job, SaveRequest) else job)

    def _take(self, job: SaveRequest) -> None:
        """Do one request, and report its outcome in every case."""
        with self._lock:
            self._running = job
            if job.preemption is None and self._preemption is not None and not job.promoted:
                job.scope.abandon("a notice came")  # while the request waited its turn
        try:
            try:
                self._streams.take(self._state.fence.devices)
                self._do(job)
            except SpotguardError as error:
                self._ended(job, error)
        except Exception as error:  # a bug in spotguard must not leave training parked for ever
            log.exception("internal error; please report it [SG704]")
            job.error = CheckpointError(f"{type(error).__name__}: {error}")
            self._say_failed(job, str(job.error))
        finally:
            with self._lock:
                self._running = None
                self._end_urgent(job)
                self._beside = [each for each in self._beside if each is not job]
            try:
                self._conclude(job)
            finally:
                self._concluding = False
                job.done.set()

    def _ended(self, job: SaveRequest, error: SpotguardError) -> None:
        """Record the error of a save that failed, and any checkpoint that still answers the request."""
        if job.saved is not None and self._checkpointer.saved.damage_of(job.saved):
            job.saved = None  # it was this step's checkpoint when the save began, and was found damaged since
        if not isinstance(error, Abandoned):
            self._say_failed(job, str(error))
        job.error = self._by_hand_ended(job, error) if job.kind == "manual" else error
        if job.preemption is not None and job.saved is None and not job.superseded:
            self._checkpointer.look_back()
            job.saved = self.committed
            if job.saved is None and isinstance(error, IncompleteError) and self._coordinator is not None:
                job.superseded = self._coordinator.revote(job)
        last = self._checkpointer.last
        if job.saved is not None and isinstance(error, AlreadyComplete):
            job.saved = replace(job.saved, why=str(error))
        if job.saved is not None and job.saved.level == "full":
            log.debug("step %d is committed, nothing newer is saved: %s", job.saved.step, error)
        elif job.preemption is not None and last is not None and (job.saved or last.url != job.before):
            # Only weights, of this very step; or a promoted background checkpoint: nothing newer was available.
            had = last.why or "spotguard finished the background checkpoint under way"
            job.saved = replace(last, why=f"{had}; the save after it: {error}")
        elif job.promoted:
            with self._lock:
                if self._urgent is not None:
                    self._urgent.after = f"; before that: {job.promoted}: {error}"

    def _say_failed(self, job: SaveRequest, why: str) -> None:
        """Report a failed save to the other ranks. They would wait for this rank's part, in a background save for minutes."""
        if self._coordinator is not None and job.epoch and not (job.superseded or job.scope.abandoned):
            self._coordinator.failed(job, why)

    def _do_this(self, what: Callable[[], object]) -> None:
        try:
            what()
        except Exception:  # a bug in spotguard must not leave training without a saver thread
            log.exception("internal error; please report it [SG704]")

    def _patience(self) -> float | None:
        preemption = self._preemption
        return (
            None
            if preemption is None
            else max(0.0, preemption.deadline + _OUTLIVED - self._clock.monotonic())
        )

    def _outlive(self) -> None:
        """End a notice that was a false alarm: its deadline passed, and this process neither was told to leave nor ended."""
        preemption = self._preemption
        if preemption is not None and self._coordinator is not None:
            # This rank calls once, not over and over.
            preemption.deadline = self._clock.monotonic() + _HEARD
        self.void_all("the deadline has passed, and this process still runs")

    def _do(self, job: SaveRequest) -> None:
        # All ranks have loaded, but not in the same instant: the first one may save by hand right behind its restore. Only such a
        # save waits. A notice is answered at once, since what is loaded is in the store. A background save may have been called
        # for at the step that all ranks leave by this load: a vote behind the load would be for a save that the others gave up.
        while self.loading and job.kind == "manual" and not self._ending:
            job.scope.pause(_LOADING)
        if not self.ready:
            self._still.refuse(job)
            raise CheckpointError(self._state.monitor.unmarked or NOT_BEGUN)
        if job.preemption is not None:
            self._listener.progress(job.preemption, "begun", -1, 0, 0)
        if job.staged is not None:
            job.scope.check()
            job.saved = self._checkpointer.bring(job.staged, job.scope)
            return
        boundary_only = bool(self._state.boundary_only) or job.at_boundary
        held = True
        self._has_it(job)
        if boundary_only and self._coordinator is None and job.preemption is not None:
            self._gate.close()
            if (saved := self.committed) is not None and saved.level == "full":
                job.saved = saved  # the next guard.step() may be far away: training may be over
                return
        while True:
            job.scope.check()
            agreed = self._still.stand(job, boundary_only, held=held)
            step, boundary_only = agreed.step, boundary_only or agreed.parked
            state = agreed.held_by_devices or self._state
            if agreed.roles.absent:
                self._see_what_stands(job, agreed)
            if job.rehearsal:
                self._checkpointer.rehearse(self._state)
                return
            if (
                job.preemption is not None
                and (last := self._checkpointer.last) is not None
                and last.step == step
            ):
                job.saved = last  # this very step is committed: nothing is newer
                # In a job of several ranks, a rank that has not seen the commit saves again, and would wait in vain for this
                # rank's part.
                if last.level == "full" and self._coordinator is None:
                    return
            reason = ""
            if self._state.boundary_only and not boundary_only:
                # True since this loop last read it: the last boundary's copies may be older than its step.
                if self._coordinator is None:
                    boundary_only = True
                    continue
                reason = self._state.boundary_only
            elif not boundary_only:
                reason = state.inconsistency() or state.edited()
            if not reason:
                job.saved = self._save(job, agreed, state) or job.saved
                reason = self._checkpointer.spoiled
            if not reason:
                return
            if self._coordinator is not None:
                self._coordinator.again(job, reason)
                if job.kind == "manual":
                    raise CheckpointError(f"step {step} is not saved: {reason}, by another thread")
                job.superseded = True
                raise Abandoned(
                    f"step {step} is not saved: {reason}; all ranks save at their next guard.step()"
                )
            if job.kind == "manual":
                raise CheckpointError(f"step {step} is not saved: {reason}, by another thread")
            if agreed.held_by_devices is not None:
                log.debug("step %d is not saved: %s", step, reason)
                held = False  # they come to the host's boundary now
                continue
            if reason == UNCHECKED:  # the script is not to blame
                log.warning(
                    "step %d is not saved: %s. spotguard saves at the next guard.step() instead", step, reason
                )
                boundary_only = True
                continue
            log.warning(
                "the state changed while spotguard saved step %d: %s. spotguard saves at the next "
                "guard.step() instead; make every change of a step before its guard.step() [SG408]",
                step,
                reason,
            )
            boundary_only = True

    def _see_what_stands(self, job: SaveRequest, agreed: SaveSpec) -> None:
        """Check whether the store already has a complete checkpoint of this step.

        Ranks that are gone may have written their part before they went. Then no remaining rank has seen the checkpoint complete.

        Raises:
            AlreadyComplete: a full checkpoint of this step, or of a later one, is complete.
        """
        self._checkpointer.look_back()
        last = self._checkpointer.last
        if last is None or last.level != "full" or last.step < agreed.step:
            return
        absent = sorted(agreed.roles.absent)
        why = it_stands(f"no answer in time from {named(absent)}", last.step)
        # A rank that checked before the checkpoint was complete saves, and would wait for this rank's part.
        if self._coordinator is not None:
            self._coordinator.failed(job, why)
        raise AlreadyComplete(why)

    def _by_hand_ended(self, job: SaveRequest, error: SpotguardError) -> SpotguardError:
        """Return the error for the caller of `manual`: `Abandoned` if another try will end, by a notice or another call."""
        if job.after:
            return CheckpointError(job.after)
        called_off = job.scope.abandoned or self._preemption is not None or self._ending
        if not isinstance(error, Abandoned) or called_off:
            return error
        if self._coordinator is not None and not self._coordinator.counts(job.epoch):
            return error
        return CheckpointError(f"not saved: {error}")

    def _has_it(self, job: SaveRequest) -> None:
        """Take the checkpoint of the step at which this rank stands, if it is committed.

        The other ranks' answers do not matter here: those ranks may be gone.
        """
        if self._coordinator is not None and job.preemption is not None:
            job.saved = self.committed

    def _save(
        self, job: SaveRequest, agreed: SaveSpec, state: State | DeviceBoundary
    ) -> SavedCheckpoint | None:
        step = agreed.step

        def progress(phase: str, done: int, total: int) -> None:
            preemption = self._preemption if job.promoted else job.preemption
            if preemption is not None:
                self._listener.progress(preemption, phase, step, done, total)
                if job.promoted:
                    self._look_again(job)

        def let_go() -> None:
            job.holds = False  # if a notice becomes void from now on, its release opens the gate
            self._gate.open()

        # Only a background save lets training go on before it is written.
        opened = let_go if job.kind == "background" else None
        # A stall's save comes as a drill's, too. Its training stands still, so nothing is lost behind it.
        notice = job.preemption
        drill = notice is not None and notice.drill and not notice.stall
        return self._checkpointer.save(state, agreed, job.kind, job.scope, progress, opened, drill=drill)

    def _conclude(self, job: SaveRequest) -> None:
        preemption = job.preemption
        damage = "" if job.saved is None else self._checkpointer.saved.damage_of(job.saved)
        if preemption is not None and damage:  # found since: the agent must not count on it
            job.saved, job.error = None, CheckpointError(damage)
        if job.saved is not None:
            self.failing = ""
        if job.superseded and job.saved is None:
            with self._lock:
                self._open()
            return
        if preemption is None:
            given_up = isinstance(job.error, Abandoned)
            # A notice that is void now promoted the save, which then ran out of that notice's time.
            hurried = job.promoted and self._preemption is None
            with self._lock:
                self._open()
            if job.saved is not None and not damage:
                self._saved(job.saved)
                self._listener.checkpointed(job.saved)
            elif job.kind == "background" and job.error is not None and (hurried or not given_up):
                what = "a save could not be planned" if job.rehearsal else "background checkpoint failed"
                if not job.rehearsal:
                    self.failing = clip(str(job.error), TEXT)
                log.warning("%s, training continues: %s", what, job.error)
            return
        # The notice was withdrawn during the save. Another notice, or a later call of the ranks, has a request of its own.
        if self._preemption is not preemption or job.superseded:
            with self._lock:
                self._open()
            if job.saved is not None:
                self._listener.checkpointed(job.saved)
        elif job.saved is not None:
            self._listener.committed(preemption, job.saved)
        else:
            last = self._checkpointer.last
            self._listener.failed(
                preemption,
                f"{job.error}{job.after}",
                -1 if last is None else last.step,
                lost=self.ready or self._state.monitor.unmarked != "",
            )
