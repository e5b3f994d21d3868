"""The save at an error that ends training: the state that stands is committed, and the error is diagnosed and recorded.

An error in forward, in a loader or in an evaluation leaves weights and moments as they were at the last boundary, and the process
still has them. So the next start need not go back to the last background checkpoint. The other ranks of the job save with this
one, as at a launcher's SIGTERM; they would learn of the error only when this process is gone.

An error between the optimizer's step and the boundary leaves half a step, which is saved by nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import signal
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from types import TracebackType

from ....providers.clock import Clock
from ...ipc import protocol
from ...ipc.failures.diagnosis import DiagnosedError, diagnose
from ...ipc.failures.progress import TrainingProgress
from ...ipc.notice import PreemptionNotice
from ...save.checkpointer import Checkpointer
from ...state.state import State
from ..gate import Gate
from ..ranks.coordinator import Coordinator
from ..report import Report
from ..save_requests import SaveRequests
from . import sigterm

log = logging.getLogger("spotguard")

#: Seconds for the save. The launcher does not know of the error yet; the other ranks' collectives wait for at least as long
#: (NCCL's time-out is 600 s by default).
PATIENCE = 300.0
#: Seconds between two looks at the save.
_LOOK = 0.05
#: Seconds in which the call to the ranks of the job comes back.
_CALLED = 10.0


class ErrorSave:
    """The hook for uncaught errors of the training thread, behind the hook that was there before.

    Args:
        gate: knows where training stands.
        state: the registered state.
        saver: takes the save request.
        checkpointer: knows the newest checkpoint.
        progress: knows the training thread.
        report: records the failure.
        clock: the clock.
        unanswered: returns whether a notice's save has not ended (`ProcessShutdown`).
        coordinator: calls the other ranks; None for a job of one process.
        earlier: returns the fingerprints and steps of the errors that ended the attempt before (`Startup.errors`).
    """

    def __init__(
        self,
        gate: Gate,
        state: State,
        saver: SaveRequests,
        checkpointer: Checkpointer,
        progress: TrainingProgress,
        report: Report,
        clock: Clock,
        unanswered: Callable[[], bool],
        coordinator: Coordinator | None = None,
        *,
        earlier: Callable[[], Collection[tuple[str, int]]] = tuple,
    ) -> None:
        self._earlier = earlier
        self._gate, self._state, self._saver = gate, state, saver
        self._checkpointer, self._progress, self._report = checkpointer, progress, report
        self._clock, self._unanswered, self._coordinator = clock, unanswered, coordinator
        self._previous: Callable[..., object] = sys.excepthook
        #: An error that ended training was handled.
        self.met = False
        #: Errors that were there when the guard was made.
        self._before = (sys.exc_info()[1], getattr(sys, "last_value", None))

    def begin(self) -> None:
        """Install the hook."""
        self._previous, sys.excepthook = sys.excepthook, self._hook

    def end(self) -> None:
        """Remove the hook, unless another one is in front of it. Handle an error that did not come to it.

        A script may close its guard in a `finally`, before its error comes to the hook. A library may have put its own hook in
        this one's place (rich's does not call the one before); Python keeps the error that ends a program in `sys.last_value`.
        """
        self.handle(self.ending)
        if sys.excepthook == self._hook:
            sys.excepthook = self._previous

    @property
    def ending(self) -> BaseException | None:
        """The error that ends the program now; None if it ends without one. At a prompt, the last one is of an earlier line."""
        error = sys.exc_info()[1] or (None if sigterm.at_prompt() else getattr(sys, "last_value", None))
        return None if any(error is each for each in self._before) else error

    def _hook(self, kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        with no_worker_error():
            self._previous(kind, error, traceback)  # first of all: the save may take minutes
            self.handle(error)

    def handle(self, error: BaseException | None) -> None:
        """Diagnose an error that ends training, save, and record both; once. The training thread calls it.

        An error during a preemption follows from it (a loader's workers got the SIGTERM too), and is none of its own. Neither is
        one that was there before: training may run in the `except` of another.
        """
        for again in (True, False):
            try:
                self._handle_alone(error)
                return
            except Exception:
                if again and not self.met:
                    continue  # another library's handler of a signal has raised before it was kept from that
                log.exception("internal error; please report it [SG704]")  # a bug must not hide the error
                return

    def _handle_alone(self, error: BaseException | None) -> None:
        """Do the same, while no other library handles a signal."""
        with no_worker_error(), sigterm.alone():
            held = self._saver.preemption
            preempted = sigterm.held() or (held is not None and not held.drill)
            if not isinstance(error, Exception) or any(error is each for each in self._before):
                return
            if self.met or preempted:
                return
            if self._gate.inert or not (self._progress.is_here or self._progress.begins_here):
                return
            self.met = True
            self._handle(error)

    def _handle(self, error: Exception) -> None:
        failure, step = diagnose(error), self._gate.place.completed
        repeats = (failure.fingerprint, step) in self._earlier()
        # Before the save, in which this process may be ended.
        message = failure.message_at(step)
        good = self._checkpointer.saved.good
        self._report.error(dataclasses.replace(message, repeats=repeats, good_step=good))
        if not self._saver.ready:
            return  # training has not begun, so there is nothing to say beside the traceback
        log.error("training failed at step %d: %s", step, failure.line())
        try:
            outcome = self._save(failure, step)
        except KeyboardInterrupt:
            self._saver.void_all("interrupted")
            outcome = f"step {step} is not saved: you interrupted the save"
        saved, last = self._saver.committed, self._checkpointer.last
        if saved is not None:
            outcome = f"step {saved.step} is committed: the next start resumes there"
        elif last is not None:
            outcome += f"; the next start resumes at step {last.step}"
        log.error("%s", outcome)
        if not self._report.shown():
            log.error("what to do: %s", failure.of.advice)
        self._report.record_error(
            {
                **dataclasses.asdict(failure),
                "confidence": failure.confidence,
                "says": failure.of.says,
                "advice": failure.of.advice,
                "step": step,
                "newest_checkpoint": None if last is None else last.step,
            }
        )

    def _save(self, failure: DiagnosedError, step: int) -> str:
        """Save if the state is worth it. Return what became of it, if it is not committed."""
        distrusted = "" if failure.of.commits and self._is_finite() else "its values may be wrong"
        if distrusted and self._coordinator is not None:
            self._coordinator.distrust(distrusted)  # the others may be a step ahead of what is committed
        saved = self._saver.committed
        if saved is not None and saved.level != "weights":  # a rank that was gone gives its extras no more
            return ""
        if self._saver.has_notice and not distrusted:
            # A stall's, or that for another rank's error: it needs this rank's part, and the job's store, which may live here.
            self._saver.no_more_steps = True
            self._gate.wake()  # that save may wait for the end of this step, which does not come
            self._wait(PATIENCE, lambda: self._saver.saving or self._unanswered())
            return f"step {step} is not saved, because {self._unsaved() or 'the save in progress has failed'}"
        if why := distrusted or self._unsaved():
            return f"step {step} is not saved, because {why}"
        log.error("step %d stands in memory and is saved now; Ctrl-C ends without it", step)
        self._saver.no_more_steps = True
        notice = protocol.Preempt(f"failure-{step}", PATIENCE, 0.0, protocol.FAILURE, failure.error)
        if self._coordinator is not None:
            self._coordinator.notice(notice)
            # The call to all ranks comes back to this one before its save begins.
            self._wait(_CALLED, lambda: not self._saver.saving and self._unanswered())
        else:
            self._saver.emergency(PreemptionNotice.received(notice, self._clock.monotonic()))
        self._wait(PATIENCE, lambda: self._saver.saving or self._unanswered())
        return f"step {step} is not saved"

    def _is_finite(self) -> bool:
        """Return whether the values may be trusted. A loss that is not finite is met after the step that made it so."""
        try:
            return self._state.is_finite()
        except RuntimeError as error:
            log.debug("the state cannot be read: %s", error)
            return False

    def _unsaved(self) -> str:
        """Return why the present state is not to be saved; "" if it is."""
        place = self._gate.place
        if self._coordinator is not None and self._coordinator.failed_ranks.distrusted:
            return self._coordinator.failed_ranks.distrusted
        if self._state.poisoned:
            return "a restore has failed half-way"
        if place.dirty:
            return "the error came between optimizer.step() and guard.step()"
        if not place.completed:
            return "nothing has been trained yet"
        return self._state.boundary_only and "its saves wait for guard.step()"

    def _wait(self, seconds: float, needed: Callable[[], bool]) -> None:
        until = self._clock.monotonic() + seconds
        never = threading.Event()
        while needed() and self._clock.monotonic() < until:
            self._clock.wait(never, _LOOK)


@contextlib.contextmanager
def no_worker_error() -> Iterator[None]:
    """Keep torch from raising the death of a loader's worker meanwhile.

    It raises it from its handler of SIGCHLD, at whatever line the main thread is then: often a moment after that thread has met
    the end of the worker's pipe, and so in the middle of what is done for that error (seen: two of ten kills).
    """
    with sigterm.handled_by(signal.SIGCHLD, signal.SIG_DFL):
        yield
