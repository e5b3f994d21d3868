"""Go-aheads for Azure (`StartRequests`): the agent sends one only on request, after a commit.

Azure then begins the event for every machine that it concerns. So the agent sends a go-ahead only for an event that
concerns this machine alone.
"""

from __future__ import annotations

import logging
import queue

from ..http import MetadataAnswer
from .imds import AzureImds
from .tracker import SOURCE, EventTracker

log = logging.getLogger("spotguard.providers")

#: Tries for one event, one at each poll.
_TRIES = 5


class GoAheads:
    """A queue of requested go-aheads, from any thread to the polling thread."""

    def __init__(self, imds: AzureImds) -> None:
        self._imds = imds
        self._asked: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._left: dict[str, int] = {}

    def ask(self, notice_id: str) -> None:
        """Request a go-ahead. For any thread. An id that is not one of Azure's notices has no effect."""
        self._asked.put(notice_id)

    def send(self, book: EventTracker, names: frozenset[str]) -> None:
        """Try each requested go-ahead once. For the polling thread."""
        while not self._asked.empty():
            self._left.setdefault(self._asked.get_nowait(), _TRIES)
        for notice_id in list(self._left):
            self._left[notice_id] -= 1
            if self._send(notice_id, book, names) or not self._left[notice_id]:
                del self._left[notice_id]

    def _send(self, notice_id: str, book: EventTracker, names: frozenset[str]) -> bool:
        """Try one go-ahead, and return whether it needs no further try."""
        event = book.event(notice_id)
        if event is None or event.started:
            return True
        if not event.id or len(names) != 1 or not event.is_only_about(names):
            log.info("%s: not acknowledged, for it is not about this machine alone: %s", SOURCE, event.words)
            return True
        answer = self._imds.acknowledge(event.id)
        if isinstance(answer, MetadataAnswer) and answer.status == 200:
            log.info("%s: acknowledged, so Azure may begin: %s", SOURCE, event.words)
            return True
        if answer is not None:
            log.warning("%s: could not be acknowledged: %s", SOURCE, self._imds.judge_start(answer).detail)
        return isinstance(answer, MetadataAnswer) and answer.status == 400
