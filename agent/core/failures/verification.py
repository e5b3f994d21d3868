"""Verification of checkpoints while training: when the newest one is read again, and what follows from damage. Pure.

The reading is a process of its own. It goes on only while training does and no notice is active, and waits during uploads.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from ....hooks.ipc import protocol
from ....providers.text import TEXT, clip
from ...actions import PauseVerification, Send, StopVerification, Verify
from ...events import Verified
from ..session import Session, Sessions
from ..state import Turn

#: Seconds after which a verification that was cut off, or found out nothing, begins again; sooner with a short interval.
_AGAIN = 600.0


class VerificationSchedule:
    """The schedule of verifications of one command's runs. One machine of a job verifies: the one of the first rank.

    Args:
        turn: the actions.
        sessions: the training processes of this machine.
        every: seconds between two verifications (`--verify-every`); None: none are made.
    """

    def __init__(self, turn: Turn, sessions: Sessions, every: float | None) -> None:
        self._turn = turn
        self._sessions = sessions
        self._every = every
        #: Monotonic seconds of the next one.
        self._due: float | None = None
        self._count = 0
        self._running: Verify | None = None
        self._paused = False
        #: The last result that counts.
        self.last: Verified | None = None
        self._last_at = 0.0

    def advance(self, *, watching: bool) -> None:
        """Begin, pause or stop a verification, as the training processes stand now.

        Args:
            watching: the command runs, and no notice is active.
        """
        if self._every is None:
            return
        now = self._turn.now
        if self._due is None:
            self._due = now + self._every
        first = next(self._first_ranks(), None) if watching else None
        if self._running is not None:
            if first is None or first.run_id != self._running.run_id:
                self._turn.do(StopVerification())
                self._end(_AGAIN)
            elif _uploads(first) != self._paused:
                self._paused = not self._paused
                self._turn.do(PauseVerification(self._paused))
        elif first is not None and now >= self._due and _is_full(first) and not _uploads(first):
            position = first.position
            assert position is not None
            self._count += 1
            self._running = Verify(self._count, first.run_id, first.store, position.checkpoint_step)
            self._turn.do(self._running)

    def ended(self, event: Verified) -> None:
        """Take in the result of a verification."""
        running = self._running
        if running is None or event.number != running.number:
            return  # it was stopped meanwhile
        if event.status == "partial":
            # What is complete and then lacks an object is damaged, unless a newer checkpoint has replaced it.
            newest = any(_newest(each) == running.step for each in self._ranks(running.run_id))
            event = event.with_status("damaged" if newest else "unknown")
        self.last, self._last_at = event, self._turn.now
        self._end(_AGAIN if event.status == "unknown" else None)
        if event.status == "damaged":
            self._found_damage(event, running)
        elif event.status == "sound":
            self._turn.log(f"the checkpoint of step {running.step} was read again: every checksum agrees")
        else:
            self._turn.log(
                f"the checkpoint of step {running.step} could not be verified: {event.detail} [SG509]",
                logging.WARNING,
            )

    def status(self, now: float) -> dict[str, Any] | None:
        """Return the state for `status`; None if no verifications are made."""
        if self._every is None:
            return None
        running, last = self._running, self.last
        return {
            "every": self._every,
            "running": None if running is None else running.step,
            "step": None if last is None else last.step,
            "status": None if last is None else last.status,
            "checkpoint": None if last is None else last.checkpoint,
            "detail": "" if last is None else last.detail,
            "age": None if last is None else round(now - self._last_at, 1),
        }

    def _found_damage(self, event: Verified, running: Verify) -> None:
        damage = protocol.CheckpointDamaged(
            event.checkpoint, running.step, clip(event.detail, TEXT), event.objects
        )
        self._turn.log(damage_line(running.run_id, running.store, damage), logging.ERROR)
        for session in self._ranks(running.run_id):
            if session.store != running.store:
                continue  # another job that shares the name
            self._sessions.damaged(session, damage)
            if session.checkpoints and not session.left:
                self._turn.do(Send(session.number, damage))

    def _end(self, again: float | None) -> None:
        assert self._every is not None
        self._running, self._paused = None, False
        self._due = self._turn.now + (self._every if again is None else min(self._every, again))

    def _first_ranks(self) -> Iterator[Session]:
        return (
            each for each in self._sessions.open.values() if each.rank == 0 and each.store and not each.left
        )

    def _ranks(self, run_id: str) -> Iterator[Session]:
        return (each for each in self._sessions.open.values() if each.run_id == run_id and each.store)


def damage_line(run_id: str, store: str, damage: protocol.CheckpointDamaged) -> str:
    """Return the log line about a damaged checkpoint of a run."""
    name = damage.checkpoint or f"of step {damage.step}"
    return (
        f"checkpoint {name} of run {run_id} in {store} is DAMAGED: {damage.reason}; the next background "
        "checkpoint is written in full, and a restore takes an older one until then. Keep the damaged one to look into "
        "the store [SG508]"
    )


def _newest(session: Session) -> int:
    return session.position.checkpoint_step if session.position else -1


def _is_full(session: Session) -> bool:
    return (
        session.position is not None and _newest(session) >= 0 and session.position.checkpoint_level == "full"
    )


def _uploads(session: Session) -> bool:
    return session.position is not None and session.position.uploading
