"""The drain at an agent's end: it waits for the processes beside it that still have something to do.

They are the operator's command of `--on-notice`, the helper of alerts with the last messages, and the record of a failure.
"""

from __future__ import annotations

import logging
import queue
from typing import TYPE_CHECKING

from ...providers.clock import Clock
from ..events import Event, Signalled
from .helpers.stall_recorder import StallRecorder
from .signals import DECIDED

if TYPE_CHECKING:  # loaded only when an option requests them
    from .helpers.alert_helper import AlertHelper
    from .notice_hook import NoticeHook

logger = logging.getLogger("spotguard.agent")

#: Seconds for the helper of alerts, at most, while it reports that it is busy.
_BUSY_ALERTS = 75.0
#: Seconds for a helper that does not report that: after a failure, and after any other end.
_ALERTS_AFTER_FAILURE, _ALERTS = 10.0, 3.0
#: Seconds for the record of a failure.
_RECORD = 10.0
#: Seconds that there are at least, if a notice leaves no time.
_LEAST = 2.0
#: Seconds between two looks whether a failure is recorded.
_RECORD_LOOK = 0.1


def drain(
    events: queue.SimpleQueue[Event],
    clock: Clock,
    *,
    failed: bool,
    until: float,
    notice_hook: NoticeHook | None = None,
    alerts: AlertHelper | None = None,
    stall_recorder: StallRecorder | None = None,
) -> None:
    """Wait for these processes. SIGTERM or SIGINT ends the wait.

    Args:
        events: the agent's queue.
        clock: the clock.
        failed: whether the agent ends with an exit code that is not 0.
        until: monotonic seconds of the end of the notice's window; 0 if there is no notice.
        notice_hook: the runner of the operator's command.
        alerts: the helper of alerts.
        stall_recorder: the recorder of failures.
    """
    now = clock.monotonic()
    began, ends = now, max(now + _LEAST, until) if until else now + _BUSY_ALERTS
    alerts_until = min(now + (_ALERTS_AFTER_FAILURE if failed else _ALERTS), ends)
    recorded_until = min(now + _RECORD, ends)
    if alerts is not None:
        alerts.finish()
    while True:
        now = clock.monotonic()
        waits = []
        if notice_hook is not None and notice_hook.busy:
            waits.append(until)
        if stall_recorder is not None and stall_recorder.records and now < recorded_until:
            waits.append(now + _RECORD_LOOK)
        if alerts is not None and alerts.busy:
            alerts_until = min(max(alerts_until, alerts.busy_until), ends)
            waits.append(min(alerts_until, now + 1.0) if now < alerts_until else now)
            alerts.finish()
        if not any(each > now for each in waits):
            if alerts is not None and alerts.busy:
                logger.warning(
                    "the helper of alerts has not ended in %.0f s: its last messages may be lost [SG113]",
                    now - began,
                )
            return
        try:
            event = events.get(timeout=min(each for each in waits if each > now) - now)
        except queue.Empty:
            continue
        if alerts is not None:
            alerts.take(event)
        if isinstance(event, Signalled) and event.signum in DECIDED:
            return
