"""What the keys of GCE's metadata service have in common as sources of notices."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from dataclasses import replace

from ...clock import Clock
from ...notice import JITTER, Notice, Severity, Sighting, looked
from ..http import TIMEOUT
from .metadata import GcpMetadata

log = logging.getLogger("spotguard.providers")

_RANKS = {Severity.ADVISORY: 0, Severity.LATER: 1, Severity.TERMINAL: 2}


class GcpSource(ABC):
    """One key as a `NoticeSource`, with a connection and a health of its own. For one thread."""

    name: str
    #: A warning of minutes or days is seen in time; what ends the VM in seconds is asked for otherwise.
    interval: float = 10.0
    #: A key, one beside it or two, and for each the proof that an answer without a signature is Google's.
    longest: float = 6 * TIMEOUT
    #: These keys are states, not events: one that is back at its idle value was called off, or is over.
    withdraws = True

    def __init__(self, metadata: GcpMetadata, clock: Clock) -> None:
        self._metadata = metadata
        self._clock = clock

    def poll(self) -> Sighting:
        return looked(self.name, self._look)

    def close(self) -> None:
        self._metadata.close()

    @abstractmethod
    def _look(self) -> Sighting:
        """Read the key, and say what it shows. May raise: that is a bug, and shown as blindness."""


def same(known: Notice | None, new: Notice) -> Notice:
    """One warning is one value, first read when it was first read; what it asks for becomes only more, and its deadline
    only moves earlier. (The deadline of a mere warning means nothing: what comes of it has its own.)"""
    if known is None or known.id != new.id or _RANKS[new.severity] > _RANKS[known.severity]:
        return new
    earlier = new.severity is known.severity and new.deadline < known.deadline - JITTER
    return replace(known, deadline=new.deadline) if earlier else known
