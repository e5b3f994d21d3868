"""A hanging GET: the service holds the request until the value changes, so a change is known when it is made.

The order that must hold: a plain GET first, for its ETag, and then `wait_for_change` with that as `last_etag`. Without
`last_etag` the service waits for the *next* change, and a value that has changed already is never told. With it no
change is lost between two requests, whatever happened meanwhile.
"""

from __future__ import annotations

from typing import TypeGuard
from urllib.parse import quote

from ...clock import Clock
from ...health import Health
from ..http import MetadataAnswer
from .metadata import GcpMetadata

#: Seconds that the service is asked to hold a request. Google's guest agent takes 60; a connection that died in
#: silence, as one may when the VM is moved to another host, is found out three times as soon with 20.
HANG = 20.0
#: Seconds that the client waits longer than that, for an answer that was asked for in time.
_SLACK = 5.0
#: Seconds after which a hanging GET is over, whatever the service does.
HELD = HANG + _SLACK

#: A hanging GET that is over sooner was not held.
_HASTY = 1.0
#: Seconds between two requests where answers do not set the pace: as often as a terminal key is asked for elsewhere.
_PLAIN = 1.0
#: Seconds, the first time that a request is not held; doubled each time, up to `_PLAIN`.
_FIRST_GAP = 0.05
#: Seconds for which a hanging GET is not tried again after one that was not answered at all.
_DISTRUST = 300.0

#: Seconds to the next look after one that failed, and after a good one none is lost. Whoever looks doubles it with
#: each failure, ten times at most (`agent.sources.poller`): the first tries follow each other at once, and in the longest
#: storm the next is 0.9 s away. From 1 ms on the cap would be above a second.
RETRY = 0.0009


class HangingGet:
    """One key, read for ever. For one thread."""

    def __init__(self, metadata: GcpMetadata, key: str, clock: Clock) -> None:
        self._metadata = metadata
        self._key = key
        self._clock = clock
        self._etag = ""
        self._gap = 0.0
        self._plain_until = clock.monotonic()
        #: Why the service is not let hold requests; "" when it is.
        self.trouble = ""

    @property
    def interval(self) -> float:
        """Seconds from the start of the last `read` to the start of the next."""
        return max(self._gap, RETRY)

    def read(self) -> MetadataAnswer | Health:
        """The key's next answer: of a plain GET where there is no ETag yet, else when the value changes or `HANG` is
        over. A hanging GET that fails says nothing yet (a 503 may meet it at any time): a plain one decides."""
        began = self._clock.monotonic()
        etag = self._etag if began >= self._plain_until else ""
        answer = self._ask(etag)
        if etag and not _good(answer):
            if isinstance(answer, Health) and answer.reason == "timeout":
                self._plain_until = self._clock.monotonic() + _DISTRUST
            answer = self._ask("")
        # After a failure the value may have changed unseen: a plain GET is next.
        self._etag = answer.headers.get("ETag", "")[:200] if _good(answer) else ""
        hasty = bool(etag) and self._clock.monotonic() - began < _HASTY
        self.trouble, self._gap = self._pace(hasty) if _good(answer) else ("", 0.0)
        return answer

    def _ask(self, etag: str) -> MetadataAnswer | Health:
        if not etag:
            return self._metadata.get(self._key)
        wait = f"wait_for_change=true&last_etag={quote(etag, safe='')}&timeout_sec={HANG:.0f}"
        return self._metadata.get(f"{self._key}?{wait}", timeout=HELD)

    def _pace(self, hasty: bool) -> tuple[str, float]:
        """After a good answer: what keeps requests from being held, and the gap to the next one."""
        if self._clock.monotonic() < self._plain_until:
            return f"a hanging GET was not answered: asked every {_PLAIN:g} s for now", _PLAIN
        if not self._etag:
            return f"answers have no ETag: asked every {_PLAIN:g} s", _PLAIN
        if not hasty:
            return "", 0.0
        gap = min(max(_FIRST_GAP, self._gap * 2), _PLAIN)
        return f"hanging GETs are not held: asked every {_PLAIN:g} s" if gap == _PLAIN else "", gap


def _good(answer: MetadataAnswer | Health) -> TypeGuard[MetadataAnswer]:
    return isinstance(answer, MetadataAnswer) and answer.status == 200
