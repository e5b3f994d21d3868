"""Base class of the sources that each read one key of GCE's metadata service."""

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
    """One key as a `NoticeSource`, with its own connection and health. For one thread."""

    name: str
    #: Enough for a warning of minutes or days; a key that announces the end in seconds has its own interval.
    interval: float = 10.0
    #: The requests of one poll: the key, one or two beside it, and for each the proof that an unsigned answer is Google's.
    longest: float = 6 * TIMEOUT
    #: These keys are states, not events: a key that is idle again was called off, or is over.
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
        """Read the key and return what it shows. An exception is a bug, and is reported as blindness."""


def same(known: Notice | None, new: Notice) -> Notice:
    """Return one warning for two readings of it: first seen at the first reading, with the greater severity.

    Its deadline only moves earlier. (An advisory's deadline means nothing: the notice that follows it has its own.)
    """
    if known is None or known.id != new.id or _RANKS[new.severity] > _RANKS[known.severity]:
        return new
    earlier = new.severity is known.severity and new.deadline < known.deadline - JITTER
    return replace(known, deadline=new.deadline) if earlier else known
