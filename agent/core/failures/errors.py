"""The errors and deaths of training processes, and what a failed command is put down to.

The hook of a process tells its error (`hooks.ipc.diagnosis`). A process that dies without a word was killed: then the kernel's
counters and the exit code are the evidence. Pure, like all of `core`.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ....hooks.ipc.failure_classes import CLASSES, FailureClass
from ....hooks.ipc.protocol import TrainingFailed
from ....providers.text import NAME, TEXT, amount, clip
from ...events import CommandEnded
from ..session import Session

#: What a command's death by these signals says, if nothing else tells more.
_SIGNALS = {
    signal.SIGKILL: "it was killed with SIGKILL, and not by spotguard",
    signal.SIGSEGV: "it crashed in native code (SIGSEGV); python -X faulthandler shows where",
    signal.SIGABRT: "native code has aborted (SIGABRT); its last lines say why",
    signal.SIGBUS: "a memory access failed (SIGBUS), often because shared memory is full: docker --shm-size",
    signal.SIGILL: "it used an instruction that this processor lacks (SIGILL)",
}


@dataclass(frozen=True, slots=True)
class FailureCause:
    """The cause that a failed command is put down to.

    Attributes:
        kind: the class, a name in `CLASSES`; "killed" for a death by a signal.
        text: one line for a person.
        repeats: whether the start before failed by the same error at the same step, so that the next one would, too.
    """

    kind: str
    text: str
    repeats: bool = False

    @classmethod
    def kinds(cls) -> tuple[str, ...]:
        """Return all classes."""
        return (*CLASSES, "killed")


class FailureLog:
    """The errors and silent deaths of the training processes in one start of the command."""

    def __init__(self) -> None:
        self._errors: list[tuple[Session, TrainingFailed]] = []
        self._silent: list[Session] = []
        #: The fingerprint and the step of the error that ended the start before.
        self._before: tuple[str, int] | None = None
        #: The newest cause.
        self.last: FailureCause | None = None

    def begin(self) -> None:
        """Forget the processes of the start before."""
        self._errors, self._silent = [], []

    def told(self, session: Session, message: TrainingFailed) -> None:
        """A process reports the error that ends it."""
        self._errors.append((session, message))

    def died(self, session: Session) -> None:
        """A process is gone. It counts if it trained, has not said good-bye, and no process has told an error before: then a
        launcher ends the others.
        """
        if session.store and not session.left and not self._errors:
            self._silent.append(session)

    def conclude(self, command: CommandEnded) -> FailureCause | None:
        """Return what the failed command is put down to; None if nothing tells."""
        cause, first, before = self._cause(command), self._first(), self._before
        self._before = None
        if first is not None:
            _, error = first
            self._before = (error.fingerprint, error.step)
            if cause is not None and error.stays and self._before == before:
                cause = replace(cause, repeats=True)
        self.last = cause
        return cause

    def _first(self) -> tuple[Session, TrainingFailed] | None:
        """Return the error that came first, of those that follow from no other rank's."""
        own = (each for each in self._errors if not _class_of(each[1].kind).follows)
        return next(own, self._errors[0] if self._errors else None)

    def _cause(self, command: CommandEnded) -> FailureCause | None:
        first = self._first()
        kind = "" if first is None else first[1].kind
        if command.memory_kills and (first is None or kind == "loader-worker" or _class_of(kind).follows):
            return self._of_memory(command)
        if first is not None and not (self._silent and _class_of(kind).follows):
            session, error = first
            at = f" at {clip(error.where, TEXT)}" if error.where else ""
            said = f"{clip(error.error, NAME)}: {clip(error.message, TEXT)}".removesuffix(": ")
            return _cause(kind, f"{session.who} at step {error.step}", f"{_class_of(kind).says}{at} ({said})")
        who = _last_seen(self._silent)
        ended = -min(0, command.returncode)
        if ended in _SIGNALS:
            return FailureCause("killed", f"{who}: {_SIGNALS[signal.Signals(ended)]}")
        if self._silent:
            return FailureCause(
                "killed",
                f"{who}: its process died without a word, so a signal has ended it; what to do: see dmesg",
            )
        return None

    def _of_memory(self, command: CommandEnded) -> FailureCause:
        limit = f", whose limit is {amount(command.memory_limit)}" if command.memory_limit else ""
        number = command.memory_kills
        killed = f"the kernel killed {number} process{'' if number == 1 else 'es'} of this job{limit}"
        dead = self._silent or [session for session, _ in self._errors]
        who = _last_seen(dead)
        return _cause("host-memory", who, f"{_class_of('host-memory').says}: {killed}")


def _cause(kind: str, who: str, what: str) -> FailureCause:
    known = _class_of(kind)
    return FailureCause(known.name, f"{who}: {what}; what to do: {known.advice}")


def _class_of(kind: str) -> FailureClass:
    """Return the row of a class. A newer hook may know classes that this agent does not."""
    return CLASSES.get(kind, CLASSES["program"])


def _last_seen(dead: Sequence[Session]) -> str:
    """Return the first dead process, with what was last known of it."""
    if not dead:
        return "the command"
    session, at = dead[0], dead[0].position
    newest = f", with a checkpoint of step {at.checkpoint_step}" if at and at.checkpoint_step >= 0 else ""
    return f"{session.who}, last seen at step {session.step}{newest}" if session.step >= 0 else session.who
