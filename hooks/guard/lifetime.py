"""The end of a guard: it is closed by the script, at exit, or because it could not be made; a forked child forgets it."""

from __future__ import annotations

import atexit
import logging
import os
from collections.abc import Callable

from ...providers.errors import UsageError
from ..control.ending import sigterm
from ..control.ending.error_save import no_worker_error
from .parts import GuardParts

log = logging.getLogger("spotguard")

#: Seconds that an ending process waits for a background checkpoint that is still uploading.
_LAST_UPLOAD = 60.0


class GuardLifetime:
    """The life of one guard, to its end.

    Args:
        parts: the parts of the guard.
        at_exit: closes the guard when the interpreter ends.
    """

    def __init__(self, parts: GuardParts, at_exit: Callable[[], None]) -> None:
        self._parts, self._at_exit = parts, at_exit
        #: Also set in a forked child, which is not the guarded process.
        self.closed = False
        self._forked = False
        #: A forked child, which has not reported yet that it trains on.
        self._unguarded = False

    def begin(self) -> None:
        """Tell the agent, and follow the end of the process, and forks of it."""
        self._parts.progress.prepare()
        self._parts.agent.built()
        self._parts.shutdown.begin()
        self._parts.errors.begin()
        sigterm.in_child(self._forget)
        atexit.register(self._at_exit)

    def check(self, method: str) -> None:
        """Raise `UsageError` if the guard's method cannot be called any more."""
        if self.closed and not self._forked:
            raise UsageError(
                f"guard.{method}() was called after guard.close(): a closed guard neither saves nor restores"
            )
        if self._parts.gate.inert:
            raise UsageError(
                f"guard.{method}() was called in a forked child: only the process that called register() "
                "saves and restores [SG413]"
            )

    def _forget(self) -> None:
        """Drop everything in a forked child."""
        self._forked = self._unguarded = not self.closed
        self._parts.gate.inert = self.closed = True
        atexit.unregister(self._at_exit)
        self._parts.forget(self.say_unguarded)

    def say_unguarded(self) -> None:
        """Report, once, that a forked child trains on."""
        if self._unguarded:
            self._unguarded = False
            log.warning(
                "process %d was forked from the one that called register(), and trains on unguarded: nothing of it is saved, and "
                "no notice reaches it; call register() in the process that trains [SG413]",
                os.getpid(),
            )

    def close(self) -> None:
        """Wait for the save that is under way, then leave the agent and the other ranks. A second call does nothing."""
        if self.closed:
            return
        parts = self._parts
        why = "interrupted" if isinstance(parts.errors.ending, KeyboardInterrupt) else "ended"
        try:
            parts.errors.end()
            with no_worker_error():  # a launcher ends the loader's workers, too
                parts.shutdown.at_exit(interrupted=why == "interrupted")
                self.closed = True
                parts.saver.close(_LAST_UPLOAD, lambda: self._record_end(why))
        finally:  # even after a Ctrl-C meanwhile
            self.undo()

    def _record_end(self, why: str) -> None:
        """Record that the script has ended by itself. A notice and an error have records of their own."""
        parts = self._parts
        if parts.saver.ready and not (parts.errors.met or parts.saver.has_notice or sigterm.held()):
            parts.report.record_end(why)

    def undo(self) -> None:
        """Leave the agent, the other ranks and the script's optimizers, without a save."""
        self.closed = True
        atexit.unregister(self._at_exit)
        self._parts.close()
