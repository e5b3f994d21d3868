"""The name of this machine in Azure's events: from the service, or from the user if the service cannot be asked.

Without the name, the source cannot tell machines apart in a list with the events of a whole scale set. If both names are
known and differ, events of both names count: one of the two is this machine.
"""

from __future__ import annotations

import logging

from ...clock import Clock
from ...health import Health
from .imds import AzureImds

log = logging.getLogger("spotguard.providers")

#: Seconds from one try to read the name to the next, while no event waits for it.
_EVERY = 10.0


class OwnName:
    """The names that count as this machine's, in lower case. For the polling thread.

    Args:
        given: the user's name for this machine; "" if only the service knows it.
    """

    def __init__(self, imds: AzureImds, clock: Clock, given: str) -> None:
        self._imds = imds
        self._clock = clock
        self._given = given
        self._due = clock.monotonic()
        self._read = False
        self.known = frozenset({given.casefold()} - {""})
        #: Why the service gave no name; "" before the first request, or after a name.
        self.trouble = ""

    def learn(self, *, pressing: bool = False) -> None:
        """Ask the service for the name, if it has not given one and the next try is due; if `pressing`, it is due."""
        now = self._clock.monotonic()
        if self._read or (now < self._due and not pressing):
            return
        self._due = now + _EVERY
        name = self._imds.name()
        if isinstance(name, Health):
            self.trouble = name.detail
        elif name is not None:
            self._read, self.trouble = True, ""
            self.known |= {name.casefold()}
            if len(self.known) > 1:
                log.warning(
                    "--vm-name %r: the metadata service calls this machine %r; events of both names count",
                    self._given,
                    name,
                )
