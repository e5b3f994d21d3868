"""The errors and deaths of training processes, and what a failed command is put down to.

The hook of a process tells its error (`hooks.ipc.failures.diagnosis`). A process that dies without a word was killed: then the
kernel's counters and the exit code are the evidence. Pure, like all of `core`.
"""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ....hooks.ipc.failure_classes import (
    CLASSES,
    CONFIDENCES,
    DEATHS,
    FailureClass,
    confidence_of,
    counts_of,
    larger_counts,
)
from ....hooks.ipc.protocol import Position, TrainingFailed
from ....providers.text import NAME, TEXT, amount, clip
from ...events import CommandEnded
from ..session import Session

#: The newest errors that are kept: two attempts of more ranks than a machine has. Any process may tell ever more.
_ERRORS = 256
_SILENCE = "its process vanished"
#: The meaning of a command's death by these signals, if nothing else tells more.
_SIGNALS = {
    signal.SIGKILL: f"it was killed with SIGKILL, and not by spotguard; what to do: {DEATHS['killed'].advice}",
    signal.SIGSEGV: "it crashed in native code (SIGSEGV); python -X faulthandler shows where",
    signal.SIGABRT: "native code has aborted (SIGABRT), as at a collective's time-out; its last lines say why",
    signal.SIGBUS: "a memory access failed (SIGBUS), often because shared memory is full: docker --shm-size",
    signal.SIGILL: "it used an instruction that this processor lacks (SIGILL)",
}


@dataclass(frozen=True, slots=True)
class FailureCause:
    """The cause that a failed command is put down to.

    Attributes:
        kind: the class, a name in `CLASSES`; "killed" for a death by a signal.
        text: one line for a person.
        evidence: what told the class, each in a few words.
        session: the training process in which it began; None if none had registered.
        error: the error that this process reported; None if it died without a word.
        repeats: whether the start before failed by the same error at the same step, so that the next one would, too.
    """

    kind: str
    text: str
    evidence: tuple[str, ...] = ()
    session: Session | None = None
    error: TrainingFailed | None = None
    repeats: bool = False
    #: Its process has told its error and no good-bye, so it may have died in its save, before its record.
    cut_off: bool = False

    def facts(self) -> dict[str, Any]:
        """Return the cause as plain JSON, for the helper of alerts and for the record in the store."""
        session, error = self.session, self.error
        at = None if session is None else session.position
        # A position is some seconds old: from before the error, or from the save at it.
        place = at if error is None else error
        # As in the record that its process writes.
        told = "" if error is None or error.confidence not in CONFIDENCES else error.confidence
        return {
            "class": self.kind,
            "text": self.text,
            "evidence": list(self.evidence),
            "confidence": told or confidence_of(len(self.evidence)),
            "repeats": self.repeats,
            "run_id": "" if session is None else session.run_id,
            "store": "" if session is None else session.store,
            "rank": None if session is None else session.rank,
            "world": None if session is None else session.world,
            "pid": None if session is None else session.pid,
            "step": None if session is None else error.step if error is not None else session.step,
            "attempt": None if at is None else at.attempt,
            "newest_checkpoint": at.checkpoint_step if at is not None and at.checkpoint_step >= 0 else None,
            "phase": "" if place is None else clip(place.phase, NAME),
            "where": "" if place is None else clip(place.where, TEXT),
            "reported": error is not None and not self.cut_off,
            **({} if error is None or not self.cut_off else _record_of(error)),
        }


class FailureLog:
    """The errors and silent deaths of the training processes in one start of the command."""

    def __init__(self) -> None:
        self._errors: deque[tuple[Session, TrainingFailed]] = deque(maxlen=_ERRORS)
        self._silent: list[Session] = []
        #: Numbers of the sessions whose processes are gone.
        self._gone: set[int] = set()
        #: The newest attempt of each run: a launcher that starts its ranks again by itself has had errors and deaths before.
        self._newest: dict[tuple[int, str], int] = {}
        #: The ranks that have registered, and no functions of `on_notice`.
        self._here: list[Session] = []
        #: Processes that save because of a launcher's SIGTERM, by the session's number, each with the step of its next position:
        #: None before that, because the position before it is older than the SIGTERM.
        self._ending: dict[int, tuple[Session, int | None]] = {}
        #: Processes whose socket is closed, and which lived when the server looked, by pid; and whether an error was told before.
        self._closed: dict[int, tuple[Session, bool]] = {}
        #: The fingerprints and the steps of the errors that ended the start before.
        self._before: frozenset[tuple[str, int]] = frozenset()
        #: The newest cause.
        self.last: FailureCause | None = None
        #: How often each class has ended this run so far, in all its attempts.
        self.counts: dict[str, int] = {}
        #: The run, and the first step behind the data that made its values wrong; None if no data is to be skipped.
        self._skip: tuple[str, int] | None = None
        #: A stall for which this start was ended.
        self._stall: FailureCause | None = None
        #: Whether this start has completed a step, and how many in a row have failed without one.
        self._has_stepped = False
        self._fruitless = 0

    def begin(self) -> None:
        """Forget the processes of the start before."""
        self._errors.clear()
        self._silent, self._closed, self._stall = [], {}, None
        self._gone, self._newest, self._here, self._ending = set(), {}, [], {}
        self._has_stepped = False

    def count_fruitless(self) -> int:
        """Count this start if it failed before it completed a step. Return how many in a row have."""
        self._fruitless = 0 if self._has_stepped else self._fruitless + 1
        return self._fruitless

    def heard(self, session: Session, position: Position) -> None:
        """Take in a position: it has the counts of failures from the store, because earlier attempts had other agents."""
        self._newest[session.run] = max(session.attempt, self._newest.get(session.run, -1))
        self._silent = [each for each in self._silent if self._is_newest(each)]
        if session.number in self._ending:
            _, step = self._ending[session.number]
            if step is None:
                self._ending[session.number] = session, position.step
            elif position.step > step:
                del self._ending[session.number]  # another rank got the SIGTERM, and this one trains on
        self.counts.update(larger_counts(self.counts, counts_of(position.failures)))
        self._forget_skip(session, position.good_step)
        self._stands_at(session, position.step)

    def _stands_at(self, session: Session, step: int) -> None:
        self._has_stepped = self._has_stepped or step > session.began >= 0

    def _forget_skip(self, session: Session, good_step: int) -> None:
        """Forget the data to skip, once a good checkpoint of this start is committed: it has its loader behind that data."""
        if self._skip is not None and self._skip[0] == session.run_id and good_step > session.began >= 0:
            self._skip = None

    def go_back(self, cause: FailureCause) -> None:
        """Have the next starts skip the data of the steps from the restore to the failed one, besides what this one skipped."""
        session, error = cause.session, cause.error
        if session is None or error is None or error.step < 0:
            return
        self._forget_skip(session, error.good_step)  # positions come every 2 s, and it may be newer
        began = max(0, session.began)
        run, before = self._skip or ("", 0)
        before = before if run == session.run_id else 0
        self._skip = session.run_id, max(before, began) + error.step + 1 - began

    @property
    def skip(self) -> str:
        """The data that the next start is to skip, as "RUN_ID:STEP"; "" for none."""
        return "" if self._skip is None else "{}:{}".format(*self._skip)

    def stood(self, session: Session | None, text: str) -> FailureCause:
        """The command, or a process of it, is ended because training stands still: its end has no other cause."""
        self._stall = self.last = FailureCause(
            "stall", text, ("no rank has made progress for twice the limit",), session
        )
        return self._stall

    def told(self, session: Session, message: TrainingFailed) -> None:
        """A process reports the error that ends it."""
        self._errors.append((session, message))
        self._stands_at(session, message.step)

    def opened(self, session: Session) -> None:
        """A process has registered, maybe after it had lost its socket. A function of `on_notice` has no store, and does not count."""
        if session.store:
            self._closed.pop(session.pid, None)
            self._here.append(session)

    def launcher_ends(self, session: Session) -> None:
        """A process saves because its launcher ends its ranks: its death follows from something else."""
        self._ending[session.number] = session, None

    def closed(self, session: Session) -> None:
        """A process has lost its socket. If it is the command itself, the command's end may be seen before its death is."""
        if session.store:
            self._closed[session.pid] = session, self._first() is not None

    def died(self, session: Session) -> str:
        """A process is gone. It counts if it trained, has not said good-bye, its launcher has not ended it, and no process has
        told an error before: then a launcher ends the others. A process that dies loses its socket some milliseconds earlier, in
        which its peers meet errors.

        Returns:
            A line about the first process that counts, for a launcher that will start its ranks again by itself; "" for another one.
        """
        if not session.store:
            return ""
        self._gone.add(session.number)
        _, told = self._closed.pop(session.pid, (session, self._first() is not None))
        if session.left or told or session.number in self._ending:
            return ""
        if not self._is_newest(session):
            return ""
        self._silent.append(session)
        # By this agent, which has logged it.
        killed = self._stall is not None and self._stall.session is session
        tells = len(self._silent) == 1 and not killed
        return f"training failed: {_last_seen([session])}: {_SILENCE}" if tells else ""

    def conclude(self, command: CommandEnded) -> FailureCause | None:
        """Return what the failed command is put down to; None if nothing tells."""
        if (own := self._closed.get(command.pid)) is not None:
            self.died(own[0])
        if self._stall is not None and (self._stall.session is None or self._is_newest(self._stall.session)):
            self._before = frozenset()
            return self._stall
        cause, first, before = self._cause(command), self._first(), self._before
        self._before = _keys(each for each in self._errors if self._is_newest(each[0]))
        if cause is not None and first is not None:
            cause = replace(cause, repeats=_repeats(first[1], before), cut_off=_is_cut_off(cause))
        self.last = cause
        return cause

    def repeated(self) -> FailureCause | None:
        """Return the cause that a launcher's ranks have met twice, at the same step, in two attempts; None if they have not.

        The process that has told it is gone, so it has saved what it could, and has written its record.
        """
        newest = self._first()
        if newest is None or newest[0].number not in self._gone:
            return None
        session = newest[0]
        older = [
            each for each in self._errors if each[0].run == session.run and each[0].attempt < session.attempt
        ]
        last = max((each.attempt for each, _ in older), default=-1)
        earlier = _keys(each for each in older if each[0].attempt == last)
        if not _repeats(newest[1], earlier or self._before):
            return None
        cause = cause_of(*newest)
        self.last = replace(cause, repeats=True, cut_off=_is_cut_off(cause))
        return self.last

    def _first(self) -> tuple[Session, TrainingFailed] | None:
        """Return the first error of the newest attempts, of those that follow from no other rank's."""
        return _first_of([each for each in self._errors if self._is_newest(each[0])])

    def _is_newest(self, session: Session) -> bool:
        """Return whether no later attempt of its run is known. None is for a process that has told no position."""
        return session.attempt < 0 or session.attempt >= self._newest.get(session.run, -1)

    def _cause(self, command: CommandEnded) -> FailureCause | None:
        first = self._first()
        kind = "" if first is None else first[1].kind
        if (command.memory_kills or self._is_named(command)) and (
            first is None or kind == "loader-worker" or _class_of(kind).follows
        ):
            return self._of_memory(command)
        if first is not None and not (self._silent and _class_of(kind).follows):
            return cause_of(*first)
        who = _last_seen(self._silent)
        dead = self._silent[0] if self._silent else None
        silence = (_SILENCE,) * bool(self._silent)
        ended = -min(0, command.returncode)
        if ended in _SIGNALS:
            told = (f"the command was ended by {signal.Signals(ended).name}", *silence)
            return FailureCause("killed", f"{who}: {_SIGNALS[signal.Signals(ended)]}", told, dead)
        # The exit status of a launcher's rank is not known here.
        if dead is not None and dead.pid == command.pid and command.returncode > 0:
            text = f"{who}: it ended with exit code {command.returncode} and without an error, as by os._exit() or in native code"
            return FailureCause("program", text, (), dead)
        if self._silent:
            text = f"{who}: {silence[0]}, so a signal or os._exit() has ended it; what to do: {DEATHS['killed'].advice}"
            return FailureCause("killed", text, silence, dead)
        return self._of_launcher()

    def _of_launcher(self) -> FailureCause | None:
        """Return the cause if a launcher has ended its ranks, and none of them has failed; None if nothing tells."""
        ended = next((each for each, _ in self._ending.values() if self._is_newest(each)), None)
        if ended is None or self._left_before(ended):
            return None
        text = (
            f"{_last_seen([ended])}: it was ended by SIGTERM, as a launcher does, and no rank here had failed"
        )
        told = ("SIGTERM, while no rank here had failed",)
        # A launcher that starts its ranks again may give this machine other ones.
        here = {each.rank for each in self._here if each.run == ended.run and self._is_newest(each)}
        if ended.world <= len(here):
            return FailureCause("killed", f"{text}; what to do: see the launcher's log", told, ended)
        known = _class_of("peer-lost")
        return FailureCause(known.name, f"{text}: {known.says}; what to do: {known.advice}", told, ended)

    def _left_before(self, ended: Session) -> bool:
        """Return whether a rank here had ended by itself, as by sys.exit(). Its launcher alone knows its exit status."""
        here = (each for each in self._here if each.run == ended.run and self._is_newest(each))
        return any(each.left and each.number not in self._ending for each in here)

    def _is_named(self, command: CommandEnded) -> bool:
        """Return whether the kernel's log names the command, or a process that died without a word."""
        pids = {command.pid, *(session.pid for session in self._silent)}
        return not pids.isdisjoint(command.killed_for_memory)

    def _of_memory(self, command: CommandEnded) -> FailureCause:
        limit = f", whose limit is {amount(command.memory_limit)}" if command.memory_limit else ""
        number = command.memory_kills
        killed = f"the kernel killed {number or 'a'} process{'' if number <= 1 else 'es'} of this job{limit}"
        named = [session for session in self._silent if session.pid in command.killed_for_memory]
        first = self._first()
        dead = named or self._silent or ([] if first is None else [first[0]])
        told = (
            *("the kernel's counter of kills for memory rose",) * bool(number),
            *("the kernel's log names its process",) * self._is_named(command),
            *(_SILENCE,) * bool(self._silent),
        )
        known = _class_of("host-memory")
        text = f"{_last_seen(dead)}: {known.says}: {killed}; what to do: {known.advice}"
        return FailureCause(known.name, text, told, dead[0] if dead else None)


def cause_of(session: Session, error: TrainingFailed) -> FailureCause:
    """Return the cause that a process's own report of its error names."""
    known = _class_of(error.kind)
    at = f" at {clip(error.where, TEXT)}" if error.where else ""
    said = f"{clip(error.error, NAME)}: {clip(error.message, TEXT)}".removesuffix(": ")
    text = f"{session.who} at step {error.step}: {known.says}{at} ({said}); what to do: {known.advice}"
    return FailureCause(known.name, text, ("the process's own error",), session, error)


def _is_cut_off(cause: FailureCause) -> bool:
    return cause.error is not None and cause.session is not None and not cause.session.left


def _record_of(error: TrainingFailed) -> dict[str, Any]:
    """Return what the record of an error has besides the facts of its cause."""
    return {
        "error": clip(error.error, NAME),
        "message": clip(error.message, TEXT),
        "fingerprint": clip(error.fingerprint, NAME),
        "stays": error.stays,
    }


def _class_of(kind: str) -> FailureClass:
    """Return the row of a class. Any process may write an unknown one to the socket."""
    return CLASSES.get(kind, CLASSES["program"])


def _keys(errors: Iterable[tuple[Session, TrainingFailed]]) -> frozenset[tuple[str, int]]:
    """Return what is equal for errors that a run meets again. If all ranks meet one, the first may be another rank's each time."""
    return frozenset((error.fingerprint, error.step) for _, error in errors)


def _repeats(error: TrainingFailed, before: frozenset[tuple[str, int]]) -> bool:
    """Return whether the attempt before ended by the same error at the same step, so that the next one would, too.

    The process itself knows that from the store if its run leaves machines: the agent of the attempt before is gone then. This agent
    knows it of its own starts also if the store has no record.

    Args:
        before: the errors that ended the attempt before, as this agent knows them.
    """
    return error.stays and (error.repeats or (error.fingerprint, error.step) in before)


def _first_of(errors: Sequence[tuple[Session, TrainingFailed]]) -> tuple[Session, TrainingFailed] | None:
    """Return the error that came first, of those that follow from no other rank's; None if there are none."""
    own = (each for each in errors if not _class_of(each[1].kind).follows)
    return next(own, errors[0] if errors else None)


def _last_seen(dead: Sequence[Session]) -> str:
    """Return the first dead process, with what was last known of it."""
    if not dead:
        return "the command"
    session, at = dead[0], dead[0].position
    newest = f", with a checkpoint of step {at.checkpoint_step}" if at and at.checkpoint_step >= 0 else ""
    return f"{session.who}, last seen at step {session.step}{newest}" if session.step >= 0 else session.who
