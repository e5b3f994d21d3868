"""What ends this process in order: a SIGTERM, held while it would break a save, and the end of a notice that has no agent."""

from __future__ import annotations

import threading
from collections.abc import Callable

from ..ipc import protocol
from ..ipc.notice import PreemptionNotice
from . import sigterm
from .coordinator import Coordinator
from .requests import SaveRequests
from .session import AgentSession
from .sigterm import EX_TEMPFAIL

#: Seconds for a save where a launcher ends its workers: of its 30, one has gone by, and it is told of no more.
_LAUNCHER = 24.0
#: Seconds for which who ends waits for the call of a notice to come back: as long as for any other call; and between two looks.
_CALLED, _LOOK = 10.0, 0.02


class ProcessShutdown:
    """
    Args:
        leave: has training end with an exit code.
    """

    def __init__(
        self,
        saver: SaveRequests,
        agent: AgentSession,
        ranks: Coordinator | None,
        leave: Callable[[int], None],
    ) -> None:
        self._saver = saver
        self._agent = agent
        self._ranks = ranks
        self._leave = leave
        #: Of whose save the end was told last, and of how many notices it was then.
        self._answered: tuple[PreemptionNotice, int] | None = None

    def begin(self) -> None:
        """From here on a SIGTERM is held where it would end a save."""
        sigterm.hold_sigterm(self._hold, self._unnoticed)

    def at_exit(self) -> None:
        """Training has ended while a SIGTERM is held: one to a whole session ends a data loader's workers too, and training for
        want of data, before anybody can know why. What would be saved if it still stood is saved now. So it is where a notice
        was heard a moment before: of several ranks the save begins with the call to all."""
        if sigterm.held() and not self._saver.alarmed:
            sigterm.wait_explained()
            _wait(_LAUNCHER, self._unanswered)
        elif self._ranks is not None and self._saver.ready:
            # The others are being called.
            _wait(_CALLED, lambda: self._unanswered() and not self._saver.saving)

    def _unanswered(self) -> bool:
        """Whether a notice stands whose save has not come to its end. (What an earlier one asked for is no answer.)"""
        alarm, answered = self._saver.alarm, self._answered
        if alarm is None:
            return False
        return answered is None or answered[0] is not alarm or answered[1] < len(alarm.ids)

    def alarm_told(self, alarm: PreemptionNotice) -> None:
        """What a notice asked for has come to its end. What ends this process from now on is not held any more: it may be the
        agent, to whom that is being said."""
        self._answered = alarm, len(alarm.ids)

    def alarm_ended(self, alarm: PreemptionNotice, committed: bool) -> None:
        """A notice that came by hand (`spotguard.testing.preempt`), or of a launcher, has no agent to say what follows."""
        if alarm.kind == protocol.LAUNCHER:
            # Training goes on, for whom nobody has sent a SIGTERM; it goes its way where one is held.
            self._saver.void_all("the launcher's SIGTERM is obeyed")
            sigterm.redeliver()
        elif alarm.by_hand and committed:
            self._leave(EX_TEMPFAIL)

    def _hold(self) -> sigterm.SigtermHold:
        if self._saver.alarmed:
            return (
                sigterm.SigtermHold.SAVING
                if self._saver.saving and self._unanswered()
                else sigterm.SigtermHold.LEAVING
            )
        if self._saver.saving:
            return sigterm.SigtermHold.SAVING
        return sigterm.SigtermHold.GUARDED if self._agent.guarded else sigterm.SigtermHold.NOTHING

    def _unnoticed(self) -> bool:
        """torchrun ends all workers when a machine joins, and kills them 30 s later (pytorch#192815): all ranks save."""
        if self._ranks is None or not self._saver.ready:
            return False
        notice = protocol.Preempt("sigterm", _LAUNCHER, 0.0, protocol.LAUNCHER, "SIGTERM")
        self._ranks.notice(notice)
        return True


def _wait(seconds: float, needed: Callable[[], bool]) -> None:
    """While it is needed, and no longer than that: nobody is told when the last look would be another one."""
    never = threading.Event()
    any(not needed() or never.wait(_LOOK) for _ in range(int(seconds / _LOOK)))
