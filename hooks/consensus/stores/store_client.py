"""`StoreClient`: one of the job's stores, with this rank's connections to it, and the thread that reads the log there."""

from __future__ import annotations

from collections.abc import Callable

from ....providers.clock import Clock
from .. import protocol
from ..protocol import Answer, Has, Keys, LogEntry, Saying, Set, Wait, Waited
from .connection import JobStore, StoreConnection, StoreSilent, do, first_pause, wait

#: Seconds that one wait of the mailbox may take: c10d counts milliseconds in 32 bits, which are 24 days.
_LONGEST_WAIT = 20 * 86_400.0


class StoreClient:
    """One store of the job that keeps a log, with this rank's connections to it. A job has one, or a second one behind it.

    Args:
        store: the store. The client holds it: if this process serves it, it lives on.
        keys: the keys of this job in the store.
        clock: the time.
        which: ends the names of its threads.
    """

    def __init__(self, store: JobStore, keys: Keys, clock: Clock, which: str = "") -> None:
        self.store = store
        self.keys = keys
        #: The store has ended, or broken this rank's connection: no entry comes from it any more.
        self.gone = False
        #: Number of the last entry that this rank has read here.
        self.heard = keys.before
        self._leaving = False
        self._mailbox, self.caller, self.agreement = (
            StoreConnection(f"spotguard-{name}{which}", store, clock, first=first_pause(keys.world))
            for name in ("mailbox", "caller", "agreement")
        )
        self.connections = [self._mailbox, self.caller, self.agreement]

    def listen(self, rank: int, hear: Callable[[LogEntry], None], gone: Callable[[Exception], None]) -> None:
        """Have the mailbox's thread call `hear` once for each entry, in order, and `gone` once if no more come."""
        self._mailbox.give(lambda store: self._listen(store, rank, hear, gone))

    def stop(self, rank: int, left: Callable[[], float], join: float) -> None:
        """End the mailbox's thread: ring the bell that it waits for, and join it.

        Args:
            left: returns the seconds that the store has for it.
            join: seconds for the thread to end.

        Raises:
            StoreSilent: the store is gone, or has not answered in time.
        """
        self._leaving = True
        self.caller.say(_wake(self.keys, rank, self.heard + 1), left)
        self._mailbox.close(join)

    def end(self, join: float) -> None:
        """End the threads. One that hangs in the store is left behind.

        Args:
            join: seconds for each thread to end.
        """
        for connection in self.connections:
            connection.close(join)

    def _listen(
        self, store: JobStore, rank: int, hear: Callable[[LogEntry], None], gone: Callable[[Exception], None]
    ) -> None:
        try:
            saying: Saying[None] = protocol.listen(self.keys, rank)
            operation = next(saying)
            while True:
                answer: Answer = None
                if isinstance(operation, LogEntry):
                    hear(operation)
                    self.heard = operation.epoch
                elif isinstance(operation, Wait):
                    answer = self._wait(store, operation)
                else:
                    answer = do(store, operation)
                operation = saying.send(answer)
        except StopIteration:
            return
        except Exception as why:  # noqa: BLE001 other ranks and this rank's saver must not rely on a listener that has ended
            self.gone = True
            if not self._leaving or not isinstance(why, StoreSilent):
                gone(why)

    def _wait(self, store: JobStore, operation: Wait) -> Waited:
        while not self._leaving:
            if wait(store, operation.keys, _LONGEST_WAIT):
                break
        return Waited.OVER if self._leaving else Waited.THERE


def _wake(keys: Keys, rank: int, epoch: int) -> Saying[None]:
    """Ring the bell that this rank's own mailbox waits for, so that it stops listening."""
    yield Set(((keys.bell(rank, epoch), "1"),))
    yield Has((keys.bell(rank, epoch),))


def nothing() -> Saying[None]:
    """Ask for nothing, to see that the store answers."""
    yield Has(("spotguard",))
