"""What an Auto Scaling group means to do with its instance: `autoscaling/target-lifecycle-state`, one word.

The group decides to terminate (a scale-in, a failed health check, an instance refresh, Capacity Rebalancing) and says
so here, with no time. Without a lifecycle hook EC2 shuts the instance down within seconds; with one it may wait an
hour, which nothing here tells. So the window is short.
"""

from __future__ import annotations

from ...clock import Clock
from ...health import SEEING
from ...notice import Notice, NoticeKind, Sighting
from .imds import AwsImds
from .source import SHORT_WINDOW, AwsSource, shown, unread

_KEY = "autoscaling/target-lifecycle-state"

#: The words of the documentation after which the instance goes on, in lower case.
_STAYS = ("inservice", "standby", "detached", "warmed:running")
#: And those after which it does not.
_GOES = {"terminated": NoticeKind.TERMINATE, "warmed:terminated": NoticeKind.TERMINATE}
#: A warm pool's instance, prepared and then put to sleep. In service before, it is on its way back there.
_SLEEPS = {"warmed:stopped": NoticeKind.STOP, "warmed:hibernated": NoticeKind.HIBERNATE}
#: The words of an instance that does its group's work.
_SERVES = ("inservice", "standby")


class TargetState(AwsSource):
    """The key as a `NoticeSource`. It is absent without a group, and for a while on a young instance."""

    key = _KEY
    # A notice that gave way to another word is void: a hibernated instance wakes, and is in service again.
    withdraws = True

    def __init__(self, imds: AwsImds, clock: Clock) -> None:
        super().__init__(imds, clock)
        self._served = False

    def read(self, body: bytes, *, sure: bool) -> Sighting:
        said = parse_state(body, self._clock, served=self._served, strict=not sure)
        self._served |= said.health.seeing and _word(body) in _SERVES
        return said

    def absent(self) -> Sighting:
        # Forgotten by its group, as the instance may be while it ends: that takes nothing back.
        return Sighting(SEEING, tuple(self._shown.values()))


def parse_state(body: bytes, clock: Clock, *, served: bool = False, strict: bool = False) -> Sighting:
    """What a body of the key says: a notice, nothing, or a word that is not known (blind). Total.

    Args:
        served: the instance was seen in service.
        strict: believe nothing: the status was an error's.
    """
    word = _word(body)
    kind = _GOES.get(word) or (_SLEEPS.get(word) if served else None)
    if strict or (kind is None and word not in (*_STAYS, *_SLEEPS)):
        return Sighting(unread(_KEY, body, "state that this program knows"))
    if kind is None:
        return Sighting(SEEING)
    now, detail = clock.monotonic(), f"{shown(word)}: no time is said, taken as {SHORT_WINDOW:g} s from now"
    notice = Notice(
        f"aws/autoscaling/{word}",
        kind,
        f"aws {_KEY}",
        now + SHORT_WINDOW,
        now,
        detail=detail,
        window=SHORT_WINDOW,
    )
    return Sighting(SEEING, (notice,))


def _word(body: bytes) -> str:
    return body.decode("utf-8", "replace").strip().lower()
