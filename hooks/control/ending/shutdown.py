"""The orderly end of this process: a signal, held while it would break a save, or the end of a notice without an agent."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable

from ...arguments.settings import is_under_run
from ...ipc import protocol
from ...ipc.notice import PreemptionNotice
from ..agent_session import AgentSession
from ..ranks.coordinator import Coordinator
from ..save_requests import SaveRequests
from . import sigterm
from .sigterm import EX_TEMPFAIL

#: Seconds for a save when a launcher ends its workers. One of the launcher's 30 s has passed, and no later notice follows.
_LAUNCHER = 24.0
#: Seconds for which an ending process waits for the call of a notice to come back (as long as for any other call), and seconds
#: between two checks.
_CALLED, _LOOK = 10.0, 0.02


class ProcessShutdown:
    """The rules by which this process ends after a SIGTERM or a notice.

    Args:
        saver: takes the save requests.
        agent: this process's connection to the agent.
        coordinator: the other ranks; None for a job of one process.
        leave: ends training with an exit code.
    """

    def __init__(
        self,
        saver: SaveRequests,
        agent: AgentSession,
        coordinator: Coordinator | None,
        leave: Callable[[int], None],
    ) -> None:
        self._saver = saver
        self._agent = agent
        self._coordinator = coordinator
        self._leave = leave
        #: Training has ended, and what it waits for now is saved already, or is for an earlier signal.
        self._over = False
        #: The notice whose save's outcome was reported last, and the number of its notices at that time.
        self._answered: tuple[PreemptionNotice, int] | None = None

    def begin(self) -> None:
        """Install the signal handler, which holds a signal that would end a save, or training without one."""
        sigterm.hold_sigterm(self._hold, self._unnoticed, self._tell if is_under_run() else None)

    def at_exit(self, *, interrupted: bool = False) -> None:
        """Wait for a save that a signal or a notice asks for, after training has ended.

        A SIGTERM to a whole session ends a data loader's workers too. Training then ends for lack of data, before the agent can
        deliver a notice. This process now saves the state that it would save if training still ran. The same holds if a notice
        came a moment before: in a job of several ranks, the save begins with the call to all ranks.

        Args:
            interrupted: Ctrl-C has ended training. If a save for an earlier Ctrl-C is under way, it ends too.
        """
        self._over = True
        preemption = self._saver.preemption
        pressed = interrupted and preemption is not None and preemption.source == signal.SIGINT.name
        if pressed and self.unanswered():
            sigterm.drop_ctrl_c()
            self._saver.void_all("Ctrl-C was pressed again")
        elif sigterm.held() and not self._saver.has_notice:
            sigterm.wait_explained()
            _wait(_LAUNCHER, self.unanswered)
        elif self._coordinator is not None and self._saver.ready:
            # The call to the other ranks may be under way.
            _wait(_CALLED, lambda: self.unanswered() and not self._saver.saving)
        sigterm.drop_ctrl_c()  # a script's exit handlers run

    def unanswered(self) -> bool:
        """Return whether an active notice's save has not ended. The save of an earlier notice does not count."""
        preemption, answered = self._saver.preemption, self._answered
        if preemption is None:
            return False
        return answered is None or answered[0] is not preemption or answered[1] < len(preemption.ids)

    def outcome_reported(self, preemption: PreemptionNotice) -> None:
        """Note that a notice's save has ended. From now on the handler holds no SIGTERM: it may be the agent's.

        The process reports the outcome to the agent right after this call.
        """
        self._answered = preemption, len(preemption.to_report)

    def preemption_ended(self, preemption: PreemptionNotice, committed: bool) -> None:
        """End a notice that has no agent to decide what follows: by hand (`spotguard.testing.preempt`), or of a rank itself."""
        if preemption.kind in protocol.OF_A_RANK:
            # Training goes on in a process that got no SIGTERM, and has met no error. A SIGTERM that is held is delivered now.
            self._saver.void_all("the save has ended")
            sigterm.redeliver()
        elif preemption.by_hand and committed:
            self._leave(EX_TEMPFAIL)

    def _hold(self, signum: int) -> sigterm.SigtermHold:
        if self._saver.has_notice:
            # A job's save begins as the call to all ranks comes back, some 10 ms after this rank has made it.
            begins = self._saver.saving or (self._coordinator is not None and self._saver.ready)
            return sigterm.SigtermHold.SAVING if begins and self.unanswered() else sigterm.SigtermHold.LEAVING
        if self._saver.saving:
            return sigterm.SigtermHold.SAVING
        # Before training and behind it, a Ctrl-C has nothing to save. An error has had its own save.
        ended = self._over or self._saver.no_more_steps
        worth = signum != signal.SIGINT or (self._saver.ready and not ended)
        return sigterm.SigtermHold.GUARDED if worth and self._agent.guarded else sigterm.SigtermHold.NOTHING

    def _tell(self, signum: int) -> None:
        """Have the agent of `run` answer a signal of the terminal with a notice."""
        name = signal.Signals(signum).name
        self._agent.send(protocol.Delivered(name, time.monotonic(), protocol.SIGNAL, name))

    def _unnoticed(self) -> bool:
        """Have all ranks save at a SIGTERM that no notice explains; return whether they do.

        torchrun ends all workers when a machine joins, and kills them 30 s later (pytorch#192815).
        """
        if self._coordinator is None or not self._saver.ready or self._coordinator.failed_ranks.distrusted:
            return False
        notice = protocol.Preempt("sigterm", _LAUNCHER, 0.0, protocol.LAUNCHER, "SIGTERM")
        self._coordinator.notice(notice)
        return True


def _wait(seconds: float, needed: Callable[[], bool]) -> None:
    """Wait while `needed()` is true, and `seconds` at most. Poll, because no event marks the end."""
    never = threading.Event()
    any(not needed() or never.wait(_LOOK) for _ in range(int(seconds / _LOOK)))
