"""What the agent's words do to a guarded process, on the listener thread."""

from __future__ import annotations

import logging
from collections.abc import Callable

from ..providers.clock import Clock
from . import protocol
from .alarm import alarm_of
from .cadence import Cadence
from .ranks import Ranks
from .report import Report
from .saver import Saver

log = logging.getLogger("spotguard")


class Words:
    """Hears one after the other, and hands each to whom it concerns; none of them blocks.

    Args:
        leave: has training end with an exit code.
        ranks: the others of this job, who are to hear of it too.
    """

    def __init__(
        self,
        saver: Saver,
        cadence: Cadence,
        report: Report,
        clock: Clock,
        leave: Callable[[int], None],
        ranks: Ranks | None = None,
    ) -> None:
        self._saver = saver
        self._cadence = cadence
        self._report = report
        self._clock = clock
        self._leave = leave
        self._ranks = ranks

    def hear(self, message: protocol.Message) -> None:
        """One of them."""
        match message:
            case protocol.Preempt():
                now = self._clock.monotonic()
                self._report.told(message.id)
                log.warning(
                    "%s from %s: %.1f s left, saving", message.kind, message.source, message.seconds_left
                )
                if self._ranks is not None:
                    self._ranks.notice(message)
                else:
                    self._saver.emergency(alarm_of(message, now))
            case protocol.Checkpoint(reason=reason, going=going):
                if self._cadence.ask(going=going):
                    if self._ranks is not None and not self._ranks.first:  # its own boundary asks
                        self._ranks.background(reason)
                    log.info("a checkpoint at the next step, beside training: %s", reason)
                else:
                    log.info("no checkpoint, for background checkpoints are switched off: %s", reason)
            case protocol.Withdrawn(id=id):
                self._release(id, "the notice was withdrawn")
            case protocol.Resume(id=id):
                self._release(id, "the drill is over")
            case protocol.Leave(code=code):
                self._leave(code)

    def _release(self, id: str, why: str) -> None:
        if self._ranks is not None:
            self._ranks.withdrawn(id, why)
        else:
            self._saver.release(id, why)
