"""What the hook says about an emergency save: to the agent while it happens, and in the store when it ended."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from typing import Protocol

from ...providers.clock import Clock
from ...providers.errors import SpotguardError
from ..checkpoint.format.keys import outcome_key
from ..ipc import protocol
from ..ipc.notice import PreemptionNotice
from ..save.request import SavedCheckpoint

log = logging.getLogger("spotguard")

#: Seconds between two words about how far a save is: a person cannot read more.
_PROGRESS_EVERY = 0.25
#: Seconds that writing the outcome may cost: the commit is made, but the machine is going.
_OUTCOME_TIMEOUT = 2.0
#: And also where the save took all the time there was: the agent waits a little longer than that.
_OUTCOME_LEAST = 0.1


class MessageSender(Protocol):
    """`Client.send`."""

    def __call__(self, message: protocol.Message, *, droppable: bool = False) -> bool: ...


class Report:
    """What the agent is told, and what the store keeps.

    Args:
        put: puts something small into the store, within so many seconds (`Errands.put`).
        send: to the agent; False when there is none. What is said to be droppable it never waits for.
        telling: called with each alarm that ends, before the agent hears of it: from its word on it may end this process.
        ended: called with each alarm that ended, and whether it committed.
        rank: of this process.
        keeps: whether it is this rank that writes the record, for all.
    """

    def __init__(
        self,
        put: Callable[[str, memoryview, float], None],
        run_id: str,
        attempt: int,
        clock: Clock,
        send: MessageSender,
        telling: Callable[[PreemptionNotice], None],
        ended: Callable[[PreemptionNotice, bool], None],
        *,
        rank: int = 0,
        keeps: Callable[[], bool] = lambda: True,
    ) -> None:
        self._put = put
        self._rank = rank
        self._keeps = keeps
        self._run_id = run_id
        self._attempt = attempt
        self._clock = clock
        self._send = send
        self._telling = telling
        self._ended = ended
        self._count = 0
        self._lock = threading.Lock()  # guards what follows
        self._said_at = -_PROGRESS_EVERY
        self._said: tuple[str, ...] = ()
        #: The notice that the agent was told of because it did not send it.
        self._introduced: PreemptionNotice | None = None

    def told(self, id: str) -> None:
        self._send(protocol.Delivered(id, self._clock.monotonic()))

    def progress(self, alarm: PreemptionNotice, phase: str, step: int, done: int, total: int) -> None:
        """Each phase once, and how far it is four times a second at most. The writer's threads call this: it never
        waits for an agent that does not read."""
        now = self._clock.monotonic()
        said = (phase, *alarm.ids)
        with self._lock:
            if said == self._said and now - self._said_at < _PROGRESS_EVERY:
                return
            self._said, self._said_at = said, now
        self._introduce(alarm)
        for id in list(alarm.ids):
            self._send(protocol.Progress(id, phase, now, step, done, total), droppable=True)

    def committed(self, alarm: PreemptionNotice, saved: SavedCheckpoint) -> None:
        now = self._clock.monotonic()
        self._record(
            alarm,
            committed=True,
            step=saved.step,
            bytes=saved.nbytes,
            url=saved.url,
            level=saved.level,
            reason=saved.why,
        )
        self._telling(alarm)
        self._introduce(alarm)
        for id in list(alarm.ids):
            self._send(_committed(id, saved, now))
        self._ended(alarm, True)

    def failed(self, alarm: PreemptionNotice, reason: str, last_step: int) -> None:
        newest = f"the newest checkpoint is of step {last_step}" if last_step >= 0 else "there is none yet"
        log.error("nothing new is committed: %s; %s", reason, newest)
        self._telling(alarm)
        self._introduce(alarm)
        for id in list(alarm.ids):
            self._send(protocol.Failed(id, reason, last_step))
        self._record(alarm, committed=False, step=last_step, bytes=0, url="", level="", reason=reason)
        self._ended(alarm, False)

    def checkpointed(self, saved: SavedCheckpoint) -> None:
        self._send(_committed("", saved, self._clock.monotonic()))

    def _introduce(self, alarm: PreemptionNotice) -> None:
        """Tell the agent, once, of a notice that it did not send: it keeps an outcome of it, too."""
        with self._lock:
            if alarm.kind != protocol.LAUNCHER or self._introduced is alarm:
                return
            self._introduced = alarm
        now = self._clock.monotonic()
        for id in list(alarm.ids):
            left = max(0.0, alarm.deadline - now)
            self._send(protocol.Delivered(id, now, alarm.kind, alarm.source, left))

    def _record(self, alarm: PreemptionNotice, **facts: object) -> None:
        """One JSON object beside the checkpoints, for whoever asks later what became of a notice."""
        if not self._keeps():
            return
        self._count += 1
        record = {
            "notice": {"ids": alarm.ids, "kind": alarm.kind, "source": alarm.source, "drill": alarm.drill},
            "ended": self._clock.time(),
            "seconds_left": round(alarm.deadline - self._clock.monotonic(), 3),
            **facts,
        }
        data = json.dumps(record, indent=1).encode()
        key = outcome_key(self._run_id, self._attempt, self._count, self._rank)
        left = min(_OUTCOME_TIMEOUT, max(_OUTCOME_LEAST, alarm.save_by - self._clock.monotonic()))
        try:
            self._put(key, memoryview(data), left)
        except SpotguardError as error:  # the agent must hear of a commit before it gives up on it
            log.warning("the outcome could not be written to the store: %s", error)


def _committed(id: str, saved: SavedCheckpoint, now: float) -> protocol.Committed:
    return protocol.Committed(
        id, saved.step, saved.nbytes, saved.seconds, saved.url, now, saved.level, saved.why
    )
