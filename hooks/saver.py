"""The thread that saves. One save at a time, in one order: a notice before everything else.

A save is: make the state stand still (the gate), see that it did (the witnesses), stream it to the store, see
that it still does, commit. A background save copies the state to host memory first and opens the gate again
before it uploads; an emergency save streams it from where it lies and keeps the gate shut.
"""

from __future__ import annotations

import logging
import math
import queue
import threading
from collections.abc import Callable
from dataclasses import replace

from ..providers.clock import Clock
from ..providers.errors import CheckpointError, SpotguardError, UsageError
from .alarm import Alarm
from .checkpointer import Checkpointer, Saved
from .checkpoints.catalog import Whole
from .checkpoints.effort import Abandoned, Effort
from .gate import Gate, Shut
from .hearer import Listener
from .job import Job
from .state.device import own_streams
from .state.registered import State

log = logging.getLogger("spotguard")

#: Seconds after a deadline at which a machine that is still alive, with nobody to say so, goes on training.
_OUTLIVED = 5.0
#: Seconds for which who goes back waits for a save that is called off: it ends at once, unless a disk or a device hangs.
_WINDING_DOWN = 10.0
#: Seconds between two looks at whether a background save that was let finish is still worth more than a new one.
_LOOK = 0.25


class Saver:
    """Owns the thread "spotguard-saver", the only one that reads state and writes checkpoints."""

    def __init__(
        self,
        *,
        gate: Gate,
        state: State,
        checkpointer: Checkpointer,
        clock: Clock,
        listener: Listener,
        released: Callable[[], None] = lambda: None,
        saved: Callable[[Saved], None] = lambda saved: None,
    ) -> None:
        self._gate = gate
        self._state = state
        self._checkpointer = checkpointer
        self._clock = clock
        self._listener = listener
        #: Called when a notice is void, or outlived, and training goes on.
        self._released = released
        #: Called with each checkpoint that no notice asked for.
        self._saved = saved
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()  # guards the seven below
        self._running: Job | None = None
        #: The emergency save that is waiting or running, unless it was called off.
        self._urgent: Job | None = None
        #: An emergency save has ended and the agent is being told: a SIGTERM still waits.
        self._concluding = False
        #: When the plan of a promoted save was looked at last.
        self._looked_at = -math.inf
        self._ending = False
        self._alarm: Alarm | None = None
        #: What is saved beside training, and what is planned: waiting its turn, or under way.
        self._beside: list[Job] = []
        #: Training has begun: there is a state worth saving.
        self.ready = False
        self._thread = threading.Thread(target=self._run, name="spotguard-saver", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self, timeout: float) -> None:
        """Let what is running come to its end, then join the thread. Training is over: a step in its middle
        will have no boundary any more.

        Args:
            timeout: seconds for a background save; an emergency has its own deadline.
        """
        with self._lock:
            self._ending = True
            if self._urgent is not None:
                timeout = max(timeout, self._urgent.effort.left() or 0.0)
        self._gate.wake()  # who waits for a boundary waits in vain
        self._jobs.put(None)
        self._thread.join(timeout)

    # --- asked for, from other threads ---

    @property
    def alarmed(self) -> bool:
        """Whether a notice holds this process, saved or not."""
        return self._alarm is not None

    @property
    def saving(self) -> bool:
        """Whether an emergency save is under way."""
        return self._urgent is not None or self._concluding

    def emergency(self, alarm: Alarm) -> None:
        """A notice: whatever else is being saved gives way. A deadline that is known only moves earlier."""
        with self._lock:
            if (known := self._alarm) is not None:
                known.join(alarm)
                alarm = known
            self._alarm = alarm
            if self._urgent is not None:
                self._urgent.effort.tighten(alarm.save_by)
                if self._running is not None and self._running.promoted:
                    self._give_way(self._running, alarm)
                return
            if self._running is not None:
                self._give_way(self._running, alarm)
            if not self.ready:
                self._gate.close()  # who has not begun parks, and never trains
            last = self._checkpointer.last
            self._urgent = Job(
                "emergency", self._effort(alarm.save_by), alarm, before="" if last is None else last.url
            )
            self._jobs.put(self._urgent)

    def _give_way(self, job: Job, alarm: Alarm) -> None:
        """Call off what is under way, unless it is a background save whose rest is worth more than a new one."""
        step = self._gate.place.completed
        if job.kind == "background" and (why := self._checkpointer.promotes(step, alarm.save_by)):
            job.promoted = why
            job.effort.tighten(alarm.save_by)
            if (
                self._checkpointer.uploading == step
            ):  # it is this notice's save: training does not go beyond it
                self._gate.close(Shut.AT_BOUNDARY if self._state.boundary_only else Shut.BEFORE_CHANGE)
        else:
            job.promoted = ""
            job.effort.abandon("a notice came")

    def _look_again(self, job: Job) -> None:
        """As its bytes leave: whether a promoted save is still worth more than a new one."""
        with self._lock:
            now = self._clock.monotonic()
            if self._alarm is not None and self._running is job and now - self._looked_at >= _LOOK:
                self._looked_at = now
                self._give_way(job, self._alarm)

    def release(self, id: str, why: str) -> None:
        """The notice is void, or the drill is over: training goes on."""
        with self._lock:
            if self._alarm is None or id not in self._alarm.ids:
                return
            self._alarm.ids.remove(id)
            if self._alarm.ids:
                return
            alarm, self._alarm = self._alarm, None
            if self._urgent is not None:
                self._urgent.effort.abandon(
                    why
                )  # before the gate opens: what is read from here on is never kept
                self._urgent = None
            self._gate.open()
        log.info("training goes on: %s", why)
        if alarm.drill and self.ready:
            self.rehearse()  # what its save taught is made ready for the next notice, and not by it
        self._released()

    def lost(self) -> None:
        """The agent is gone. A notice stands all the same; a drill was the agent's alone, and nobody will end it."""
        alarm = self._alarm
        for id in list(alarm.ids) if alarm is not None and alarm.drill else []:
            self.release(id, "the agent that played this drill is gone")

    def background(self) -> bool:
        """Begin a background save at this boundary. Returns at once; False where one is under way, or a notice is."""
        with self._lock:
            if self._alarm is not None or any(job.is_checkpoint for job in self._beside):
                return False
        self._put_beside(Job("background", self._effort(None)))
        return True

    def bring(self, staged: Whole) -> None:
        """Take to the store what was restored from this machine's disk and is not there. Returns at once."""
        self._put_beside(Job("background", self._effort(None), staged=staged))

    def rehearse(self) -> None:
        """Plan a save of this state, so that at a notice only bytes move. Returns at once."""
        self._put_beside(Job("background", self._effort(None), rehearsal=True))

    def _put_beside(self, job: Job) -> None:
        with self._lock:
            self._beside.append(job)
        self._jobs.put(job)

    def call_off(self, why: str) -> None:
        """Training leaves this way: what is saved or planned beside it is of no more use. Returns when that has ended.
        Not where a notice is: what it let finish is its own, and who trains is parked."""
        with self._lock:
            if self._alarm is not None:
                return
            for job in self._beside:
                job.effort.abandon(why)
            running = self._running
        if running is None or not running.effort.abandoned:
            return
        if running.is_checkpoint:
            log.info("the checkpoint that is being saved beside training is called off: %s", why)
        if not running.done.wait(_WINDING_DOWN):
            log.warning("%s, and a save that was called off does not end: it is left behind", why)

    def manual(self) -> Saved:
        """Save now and wait. The caller is the training thread, at a boundary, so the state stands still.

        Raises:
            Abandoned: a notice came; the caller parks at the gate, and tries again if it opens.
        """
        job = Job("manual", self._effort(None))
        try:
            with self._lock:
                if self._ending:
                    raise UsageError("guard.save() after guard.close(): nothing is saved any more")
                urgent = self._urgent
                if urgent is None:
                    self._jobs.put(job)
            if urgent is not None:
                urgent.done.wait()
                raise Abandoned("a notice came")
            job.done.wait()
        except BaseException:
            # Ctrl-C, also right behind the put: the state is the caller's again, and what is read of it is not kept
            job.effort.abandon("guard.save() was interrupted")
            raise
        if job.error is not None:
            raise job.error
        assert job.saved is not None
        return job.saved

    def _effort(self, deadline: float | None) -> Effort:
        return Effort(self._clock, deadline, self._gate.wake)

    # --- the thread ---

    def _run(self) -> None:
        try:
            own_streams(self._state.fence.devices)
            self._checkpointer.warm()
        except (RuntimeError, MemoryError) as error:
            log.warning("the buffers for a save cannot be had now, it will try again: %s", error)
        while True:
            try:
                job = self._jobs.get(timeout=self._patience())
            except queue.Empty:
                self._outlive()
                continue
            if job is None:
                self._checkpointer.close()
                return
            with self._lock:
                self._running = job
                if job.alarm is None and self._alarm is not None and not job.promoted:
                    job.effort.abandon("a notice came")  # while it waited its turn
            try:
                self._do(job)
            except SpotguardError as error:
                job.error = error
                last = self._checkpointer.last
                if job.alarm is not None and last is not None and (job.saved or last.url != job.before):
                    # Weights alone, of this very step; or what was let finish: nothing newer was to be had.
                    had = last.why or "a background checkpoint was let finish"
                    job.saved = replace(last, why=f"{had}; after it: {error}")
                elif job.promoted:
                    with self._lock:
                        if self._urgent is not None:
                            self._urgent.after = f"; before that: {job.promoted}: {error}"
            except Exception as error:  # a bug of ours must not leave training parked for ever
                log.exception("spotguard failed inside; please report this")
                job.error = CheckpointError(f"{type(error).__name__}: {error}")
            finally:
                with self._lock:
                    self._running = None
                    if self._urgent is job:
                        self._urgent, self._concluding = None, True
                    self._beside = [each for each in self._beside if each is not job]
                try:
                    self._conclude(job)
                finally:
                    self._concluding = False
                    job.done.set()

    def _patience(self) -> float | None:
        alarm = self._alarm
        return None if alarm is None else max(0.0, alarm.deadline + _OUTLIVED - self._clock.monotonic())

    def _outlive(self) -> None:
        """The deadline went by, nobody told us to leave, and we are still here: a false alarm."""
        alarm = self._alarm
        for id in list(alarm.ids) if alarm is not None else []:
            self.release(id, "the deadline passed and nobody ended this process")

    def _do(self, job: Job) -> None:
        if not self.ready:
            raise CheckpointError(
                "training has not begun yet: there is nothing that is not in the store already"
            )
        if job.alarm is not None:
            self._listener.progress(job.alarm, "begun", -1, 0, 0)
        if job.staged is not None:
            job.effort.check()
            job.saved = self._checkpointer.bring(job.staged, job.effort)
            return
        boundary_only = bool(self._state.boundary_only)
        while True:
            job.effort.check()
            step = self._stand_still(job, boundary_only)
            if job.rehearsal:
                self._checkpointer.rehearse(self._state)
                return
            if job.alarm is not None and (last := self._checkpointer.last) is not None and last.step == step:
                job.saved = last  # this very step is committed: nothing is newer than it
                if last.level == "full":
                    return
            if self._state.boundary_only and not boundary_only:
                boundary_only = True  # since we asked: the last boundary's copies may be older than its step
                continue
            reason = "" if boundary_only else self._state.broken()
            if not reason:
                job.saved = self._save(job, step) or job.saved
                reason = self._checkpointer.spoiled
            if not reason:
                return
            if job.kind == "manual":
                raise CheckpointError(f"step {step} is not saved: {reason}, by another thread")
            log.warning(
                "step %d was not saved as it stood: %s. It is saved at the next guard.step() instead; "
                "keep what belongs to a step before its guard.step()",
                step,
                reason,
            )
            boundary_only = True

    def _stand_still(self, job: Job, boundary_only: bool) -> int:
        """Shut the gate and wait until the state stands; its step."""
        # By hand, the training thread stands at its boundary and waits for us, unless a signal calls it away.
        at_boundary = boundary_only and job.kind != "manual"
        self._gate.close(Shut.AT_BOUNDARY if at_boundary else Shut.BEFORE_CHANGE)
        step = self._gate.wait_steady(job.effort.left, lambda: job.effort.abandoned or self._ending)
        if step is None and job.effort.left() == 0:
            raise Abandoned("out of time: no guard.step() was reached in the window")
        job.effort.check()
        if step is None:
            raise Abandoned("training ended before its next guard.step()")
        self._state.fence.wait(job.effort.pause)
        if at_boundary:
            self._state.look_again()
        if job.alarm is not None:
            self._listener.progress(job.alarm, "gate", step, 0, 0)
        return step

    def _save(self, job: Job, step: int) -> Saved | None:
        def progress(phase: str, done: int, total: int) -> None:
            alarm = self._alarm if job.promoted else job.alarm
            if alarm is not None:
                self._listener.progress(alarm, phase, step, done, total)
                if job.promoted:
                    self._look_again(job)

        # Only a background save lets training go on before it is written.
        opened = self._gate.open if job.kind == "background" else None
        return self._checkpointer.save(self._state, step, job.kind, job.effort, progress, opened)

    def _conclude(self, job: Job) -> None:
        alarm = job.alarm
        if alarm is None:
            given_up = isinstance(job.error, Abandoned)
            hurried = job.promoted and self._alarm is None  # by a notice that is void: it ran out of its time
            if self._alarm is None:
                self._gate.open()
            if job.saved is not None:
                self._saved(job.saved)
                self._listener.checkpointed(job.saved)
            elif job.kind == "background" and job.error is not None and (hurried or not given_up):
                what = "a save could not be planned" if job.rehearsal else "background checkpoint failed"
                log.warning("%s, training goes on: %s", what, job.error)
            return
        if self._alarm is not alarm:  # it was withdrawn while we were at it; another one has a job of its own
            if self._alarm is None:
                self._gate.open()
            if job.saved is not None:
                self._listener.checkpointed(job.saved)
        elif job.saved is not None:
            log.info("step %d is committed: %s", job.saved.step, job.saved.url)
            self._listener.committed(alarm, job.saved)
        else:
            last = self._checkpointer.last
            self._listener.failed(alarm, f"{job.error}{job.after}", -1 if last is None else last.step)
