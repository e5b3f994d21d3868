"""The state that an Auto Scaling group plans for its instance: one word in `autoscaling/target-lifecycle-state`.

The group decides to terminate (a scale-in, a failed health check, an instance refresh, Capacity Rebalancing) and
announces it here, without a time. Without a lifecycle hook EC2 shuts the instance down within seconds. With a hook
it may wait an hour, and no key tells which applies. So the window is short.
"""

from __future__ import annotations

from ...clock import Clock
from ...health import SEEING
from ...notice import Notice, NoticeKind, Sighting
from .imds import AwsImds
from .source import SHORT_WINDOW, AwsSource, shown, unread

_KEY = "autoscaling/target-lifecycle-state"

#: The documented words after which the instance goes on, in lower case.
_STAYS = ("inservice", "standby", "detached", "warmed:running")
#: The documented words after which the instance ends.
_GOES = {"terminated": NoticeKind.TERMINATE, "warmed:terminated": NoticeKind.TERMINATE}
#: States of a warm pool's instance that was prepared and then put to sleep. They are a notice only if the instance was in
#: service before: then it is on its way back to the pool.
_SLEEPS = {"warmed:stopped": NoticeKind.STOP, "warmed:hibernated": NoticeKind.HIBERNATE}
#: Words of an instance that works for its group.
_SERVES = ("inservice", "standby")


class TargetState(AwsSource):
    """The key as a `NoticeSource`. Without a group the key is absent; on a young instance it is absent for a while."""

    key = _KEY
    # A notice that another word replaces is void: a hibernated instance wakes, and is in service again.
    withdraws = True

    def __init__(self, imds: AwsImds, clock: Clock) -> None:
        super().__init__(imds, clock)
        self._served = False

    def read(self, body: bytes, *, sure: bool) -> Sighting:
        sighting = parse_state(body, self._clock, served=self._served, strict=not sure)
        self._served |= sighting.health.seeing and _word(body) in _SERVES
        return sighting

    def absent(self) -> Sighting:
        # An absent key withdraws nothing: the group may forget an instance while it ends.
        return Sighting(SEEING, tuple(self._shown.values()))


def parse_state(body: bytes, clock: Clock, *, served: bool = False, strict: bool = False) -> Sighting:
    """Return what a body of the key means: a notice, nothing, or an unknown word (blind). Never raises.

    Args:
        served: the instance was seen in service.
        strict: believe nothing, because the HTTP status was an error.
    """
    word = _word(body)
    kind = _GOES.get(word) or (_SLEEPS.get(word) if served else None)
    if strict or (kind is None and word not in (*_STAYS, *_SLEEPS)):
        return Sighting(unread(_KEY, body, "state that this program knows"))
    if kind is None:
        return Sighting(SEEING)
    now, detail = clock.monotonic(), f"{shown(word)}: without a time, assumed {SHORT_WINDOW:g} s from now"
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
