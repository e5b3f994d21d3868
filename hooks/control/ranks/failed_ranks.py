"""The ranks whose part of a save will not come, and why: they have reported it, or are gone with the job's own store."""

from __future__ import annotations

import threading

from ...consensus.channel import Channel
from ...consensus.events import FailedEvent
from ...consensus.failover import side


class FailedRanks:
    """This rank's knowledge of failed ranks, by the epoch of the call that asked for the save.

    Args:
        channel: the ranks' log.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        #: Why the state is not to be saved at an error: a rank has told that its values may be wrong.
        self.distrusted = ""
        self._lock = threading.Lock()  # guards what follows
        #: Ranks with the reason, by epoch. A save under way watches the dictionary of its epoch.
        self._failed: dict[int, dict[int, str]] = {}
        #: This rank's own reports. Ranks that have left the first store have not read those that were made there.
        #: By whether a save has failed; the other one is that this rank's values may be wrong.
        self._reported: dict[bool, FailedEvent] = {}

    @property
    def reported(self) -> list[FailedEvent]:
        """This rank's own reports, the newest of each kind."""
        with self._lock:
            return [*self._reported.values()]

    def report(self, epoch: int, why: str) -> FailedEvent:
        """Keep and return the report of this rank: its save of this epoch has failed; with 0, its values may be wrong."""
        call = FailedEvent(epoch, self._channel.rank, why)
        with self._lock:
            self._reported[bool(epoch)] = call
        return call

    def heard(self, call: FailedEvent) -> None:
        """Take in a report of any rank."""
        if not call.epoch:
            self.distrusted = f"on rank {call.rank} {call.why}"
            return
        with self._lock:
            self._failed.setdefault(call.epoch, {})[call.rank] = call.why

    def any(self, epoch: int) -> bool:
        """Return whether a rank's part of this save is known not to come. One is enough to end the saves of all."""
        with self._lock:
            return bool(self._failed.get(epoch))

    def begin(self, epoch: int) -> dict[int, str]:
        """Return the failed ranks of a save that begins. What this rank learns later comes into the same dictionary."""
        with self._lock:
            self._failed = {of: each for of, each in self._failed.items() if of >= epoch}
            failed = self._failed.setdefault(epoch, {})
            if not side(epoch):
                failed.update(self.gone())
        return failed

    def orphaned(self) -> None:
        """Have a save that is under way not wait for the rank that is gone with the job's own store."""
        wanted = self._channel.standing.wanted
        if wanted is not None and not side(wanted.epoch):
            with self._lock:
                self._failed.setdefault(wanted.epoch, {}).update(self.gone())

    def gone(self) -> dict[int, str]:
        """Return the rank that is gone with the job's own store (see `Channel.gone_rank`), and why nothing more comes from it."""
        gone = self._channel.gone_rank
        return {} if gone is None else {gone: "its process is gone, and the job's store with it"}
