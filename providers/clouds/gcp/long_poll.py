"""A hanging GET: the service holds the request until the value changes, so the agent learns of a change immediately.

The order matters. A plain GET comes first, for its ETag. Then `wait_for_change` passes that ETag as `last_etag`. Without
`last_etag` the service waits for the *next* change, and never delivers a change that has already happened. With it, no
change between two requests is lost.
"""

from __future__ import annotations

from typing import TypeGuard
from urllib.parse import quote

from ...clock import Clock
from ...health import Health
from ..http import MetadataAnswer
from .metadata import GcpMetadata

#: Seconds that the service may hold a request. Google's guest agent takes 60. A connection may die silently, for example
#: when the VM moves to another host; with 20 s the agent notices three times as soon.
HANG = 20.0
#: Seconds that the client waits beyond that, for an answer that was sent in time.
_SLACK = 5.0
#: Seconds after which the client gives up a hanging GET, whatever the service does.
HELD = HANG + _SLACK

#: Seconds: a hanging GET that ends sooner was not held.
_HASTY = 1.0
#: Seconds between two requests if the answers do not set the pace: the interval of terminal keys elsewhere.
_PLAIN = 1.0
#: Seconds to wait the first time that a request is not held; doubled each time, up to `_PLAIN`.
_FIRST_GAP = 0.05
#: Seconds without hanging GETs after one that got no answer at all.
_DISTRUST = 300.0

#: Seconds to the next poll after a failed one; after a good one, too short to lose anything. The poller doubles it with
#: each failure, ten times at most (`agent.sources.poller`). The first retries follow immediately, and in the longest storm
#: the next poll comes after 0.9 s. From 1 ms on, the cap would be above a second.
RETRY = 0.0009


class HangingGet:
    """One key, read again and again. For one thread."""

    def __init__(self, metadata: GcpMetadata, key: str, clock: Clock) -> None:
        self._metadata = metadata
        self._key = key
        self._clock = clock
        self._etag = ""
        self._gap = 0.0
        self._plain_until = clock.monotonic()
        #: Why hanging GETs are not in use; "" if they are.
        self.trouble = ""

    @property
    def interval(self) -> float:
        """Return the seconds from the start of the last `read` to the start of the next."""
        return max(self._gap, RETRY)

    def read(self) -> MetadataAnswer | Health:
        """Return the key's next answer: a plain GET's if there is no ETag yet, else on a change or after `HANG` seconds.

        A failed hanging GET decides nothing, because a 503 may come at any time. A plain GET then decides.
        """
        began = self._clock.monotonic()
        etag = self._etag if began >= self._plain_until else ""
        answer = self._ask(etag)
        if etag and not _good(answer):
            if isinstance(answer, Health) and answer.reason == "timeout":
                self._plain_until = self._clock.monotonic() + _DISTRUST
            answer = self._ask("")
        # After a failure, the value may have changed unnoticed: the next request is a plain GET.
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
        """Return, after a good answer, why requests are not held, and the gap to the next request in seconds."""
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
