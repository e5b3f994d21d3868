"""What Azure's events call this machine: the service says it, or the user where the service cannot be asked.

Without it nothing can be told apart in a list that holds the events of a whole scale set. Where both are known and
differ, events of both names count: one of the two is this machine.
"""

from __future__ import annotations

import logging

from ...clock import Clock
from ...health import Health
from .imds import AzureImds

log = logging.getLogger("spotguard.providers")

#: Seconds from one try to read it to the next, while no event waits for it.
_EVERY = 10.0


class OwnName:
    """The names that count as ours, in lower case. For the thread that looks.

    Args:
        given: what the user calls this machine; "" where only the service knows.
    """

    def __init__(self, imds: AzureImds, clock: Clock, given: str) -> None:
        self._imds = imds
        self._clock = clock
        self._given = given
        self._due = clock.monotonic()
        self._read = False
        self.known = frozenset({given.casefold()} - {""})
        #: Why the service did not tell; "" while it was not asked, or has told.
        self.trouble = ""

    def learn(self, *, pressing: bool = False) -> None:
        """Ask the service, where it has not told yet and it is time to; where it is pressing, it is time."""
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
