"""Reports of an emergency save: messages to the agent while it runs, and a record in the store when it has ended."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from ...providers.clock import Clock
from ...providers.errors import SpotguardError
from ..checkpoint.format.keys import end_key, failure_key, outcome_key, stacks_key
from ..ipc import protocol
from ..ipc.failures.flight_recorder import recorded_collectives
from ..ipc.failures.progress import ProgressSeen
from ..ipc.failures.thread_place import stacks
from ..ipc.notice import PreemptionNotice
from ..save.request import SavedCheckpoint

log = logging.getLogger("spotguard")

#: Seconds between two progress messages: a person cannot read more.
_PROGRESS_EVERY = 0.25
#: Seconds at most for writing the outcome: the commit is made, but the machine is going.
_OUTCOME_TIMEOUT = 2.0
#: Seconds at least for writing the outcome, even if the save took all the time: the agent waits a little longer than that.
_OUTCOME_LEAST = 0.1


class MessageSender(Protocol):
    """The signature of `Client.send`."""

    def __call__(self, message: protocol.Message, *, droppable: bool = False) -> bool: ...


class Report:
    """The reports of one process: it sends messages to the agent, and writes records to the store.

    Args:
        put: uploads a small object to the store, within the given seconds (`Errands.put`).
        run_id: the run that the records belong to.
        attempt: returns the attempt that the records belong to: a second restore begins another one.
        clock: the clock.
        send: sends a message to the agent; returns False if there is none. It never waits for a droppable message.
        telling: called with each notice that ends, before the agent gets the message: from then on the agent may end this
            process.
        ended: called with each notice that ended, and whether it committed.
        rank: the rank of this process.
        keeps: returns whether this rank writes the record, for all ranks.
        history: returns the facts of this attempt for a record (`AttemptHistory`).
        place: returns where the training thread is (`TrainingProgress.look`).
        shown: returns whether an agent shows at this very terminal what it is told.
    """

    def __init__(
        self,
        put: Callable[[str, memoryview, float], None],
        run_id: str,
        attempt: Callable[[], int],
        clock: Clock,
        send: MessageSender,
        telling: Callable[[PreemptionNotice], None],
        ended: Callable[[PreemptionNotice, bool], None],
        *,
        rank: int = 0,
        keeps: Callable[[], bool] = lambda: True,
        history: Callable[[], Mapping[str, Any]] = dict,
        place: Callable[[], ProgressSeen] = ProgressSeen,
        shown: Callable[[], bool] = lambda: False,
    ) -> None:
        self._put = put
        self._rank = rank
        self._keeps = keeps
        self._history = history
        self._place = place
        self.shown = shown
        self._run_id = run_id
        self._attempt = attempt
        self._clock = clock
        self._send = send
        self._telling = telling
        self._ended = ended
        #: The attempt of the newest record, and the number of its records of notices.
        self._counted, self._count = attempt(), 0
        #: The place and the stacks of this process in the newest stall, by its notice, and the number of stalls.
        self._stacks: dict[str, dict[str, object]] = {}
        self._stalls = 0
        #: The ids of the stalls whose stacks were taken.
        self._stacked: frozenset[str] = frozenset()
        #: Rises with each notice that is confirmed, and with each that ends.
        self.answers = 0
        self._lock = threading.Lock()  # guards what follows
        self._said_at = -_PROGRESS_EVERY
        self._said: tuple[str, ...] = ()
        #: The notice that this process announced to the agent, because the agent did not deliver it.
        self._introduced: PreemptionNotice | None = None

    def told(self, message: protocol.Preempt) -> None:
        """Confirm a notice. At a stall, log and keep the stacks of all threads: a save may move them."""
        self.answers += 1
        self._send(protocol.Delivered(message.id, self._clock.monotonic()))
        if message.kind == protocol.STALL:
            self._take_stacks([message.id])

    def _take_stacks(self, ids: list[str]) -> None:
        """Log the stacks of all threads at a stall, and keep them for its record; once, if the ids are of one stall."""
        if self._stacked.isdisjoint(ids):
            place, found = self._place(), stacks()
            facts = {"phase": place.phase, "where": place.where, "stood": max(0.0, round(place.still, 1))}
            self._stacks = {ids[0]: {**facts, "stacks": found}}
            log.warning("training stands still here: %s", found[0])
        self._stacked = frozenset(ids)

    def _take_stacks_of_peers(self, preemption: PreemptionNotice) -> None:
        """At a stall that only another machine's agent has seen, take the stacks here, too: the cause may be here.

        Ranks there learn of it by the job's call, and no agent tells them. The save has moved no thread that stands still.
        """
        if preemption.stall and preemption.drill and preemption.to_report:
            self._take_stacks(preemption.to_report)

    def progress(self, preemption: PreemptionNotice, phase: str, step: int, done: int, total: int) -> None:
        """Report each phase once, and the progress in it at most four times a second.

        The writer's threads call this, so it never waits for an agent that does not read.
        """
        now = self._clock.monotonic()
        current = (phase, *preemption.ids)
        with self._lock:
            if current == self._said and now - self._said_at < _PROGRESS_EVERY:
                return
            self._said, self._said_at = current, now
        self._introduce(preemption)
        for id in list(preemption.ids):
            self._send(protocol.Progress(id, phase, now, step, done, total), droppable=True)

    def committed(self, preemption: PreemptionNotice, saved: SavedCheckpoint) -> None:
        self._take_stacks_of_peers(preemption)
        _log(
            preemption,
            logging.INFO,
            f"step {saved.step} is committed: {saved.nbytes} bytes in {saved.seconds:.1f} s, level {saved.level}, "
            f"at {saved.url}{''.join(f'; {why}' for why in (saved.less, saved.suspect and f'suspect: {saved.suspect}') if why)}",
        )
        now = self._clock.monotonic()
        self._record(
            preemption,
            preemption.to_report,
            committed=True,
            step=saved.step,
            bytes=saved.nbytes,
            url=saved.url,
            level=saved.level,
            reason=saved.why,
            suspect=saved.suspect,
            left_out=saved.left_out,
            seconds=round(saved.seconds, 3),
            seconds_to_commit=round(max(0.0, saved.at - preemption.seen), 3),
        )
        self._telling(preemption)
        self._introduce(preemption)
        ids = preemption.to_report
        for id in ids:
            self._send(_committed(id, saved, now))
        self._record_stacks(preemption, ids, saved.step)
        self.answers += 1
        self._ended(preemption, True)

    def failed(self, preemption: PreemptionNotice, reason: str, last_step: int, *, lost: bool = True) -> None:
        """Report that the notice's save committed nothing.

        Args:
            lost: whether training is lost with it; False if there was nothing to save.
        """
        self._take_stacks_of_peers(preemption)
        newest = (
            f"the newest checkpoint is of step {last_step}"
            if last_step >= 0
            else "there is no checkpoint yet"
        )
        if lost:
            _log(preemption, logging.ERROR, f"nothing new is committed: {reason}; {newest} [SG501]")
        else:
            _log(preemption, logging.INFO, f"nothing new is committed: {reason}; {newest}")
        self._telling(preemption)
        self._introduce(preemption)
        # The agent may release the notice once it has heard, and that takes them away.
        ids = preemption.to_report
        for id in ids:
            self._send(protocol.Failed(id, reason, last_step))
        self._record(
            preemption, ids, committed=False, step=last_step, bytes=0, url="", level="", reason=reason
        )
        self._record_stacks(preemption, ids, last_step)
        self.answers += 1
        self._ended(preemption, False)

    def error(self, message: protocol.TrainingFailed) -> None:
        """Tell the agent of the error that ends training."""
        self._send(message)

    def _number(self) -> int:
        """Return the attempt. The numbers of a new one's records begin again."""
        if (attempt := self._attempt()) != self._counted:
            self._counted, self._count, self._stalls = attempt, 0, 0
        return attempt

    def record_error(self, record: dict[str, Any]) -> None:
        """Write the record of the error that ends training beside the checkpoints."""
        key = failure_key(self._run_id, self._number(), self._rank)
        facts = {"rank": self._rank, "ended": self._clock.time(), "history": self._history()}
        self._store_record(key, {**record, **facts}, _OUTCOME_TIMEOUT)

    def record_end(self, why: str) -> None:
        """Write the record of an end that neither a notice nor an error brought."""
        if self._keeps():
            record = {"why": why, "ended": self._clock.time(), "history": self._history()}
            self._store_record(end_key(self._run_id, self._number()), record, _OUTCOME_TIMEOUT)

    def checkpointed(self, saved: SavedCheckpoint) -> None:
        self._send(_committed("", saved, self._clock.monotonic()))

    def _introduce(self, preemption: PreemptionNotice) -> None:
        """Announce to the agent, once, a notice that the agent did not deliver: it keeps an outcome of that one, too."""
        with self._lock:
            if preemption.kind not in protocol.OF_A_RANK or self._introduced is preemption:
                return
            self._introduced = preemption
        now = self._clock.monotonic()
        for id in list(preemption.ids):
            left = max(0.0, preemption.deadline - now)
            self._send(protocol.Delivered(id, now, preemption.kind, preemption.source, left))

    def _record_stacks(self, preemption: PreemptionNotice, ids: list[str], step: int) -> None:
        """At a stall, write this rank's stacks and its newest collectives. Torch may hang when it is asked for these, so all else is
        told before.
        """
        attempt = self._number()
        for id in ids:
            if found := self._stacks.pop(id, None):
                self._stalls += 1
                key = stacks_key(self._run_id, attempt, self._stalls, self._rank)
                seen = {"notice": id, "ended": self._clock.time(), "step": step, **found}
                if (collectives := recorded_collectives()) is not None:
                    log.warning("training stands still here: %s", collectives)
                    seen["collectives"] = collectives.record()
                self._write(preemption, key, seen)

    def _record(self, preemption: PreemptionNotice, ids: list[str], **facts: object) -> None:
        """Write one JSON object beside the checkpoints: the record of what became of a notice."""
        attempt = self._number()
        if not self._keeps():
            return
        self._count += 1
        record = {
            "notice": {
                "ids": ids,
                # Another machine's agent has seen the stall: here it is a drill of that machine.
                "kind": protocol.STALL if preemption.stall and preemption.drill else preemption.kind,
                "source": preemption.source,
                "drill": preemption.drill,
                **({"detail": preemption.detail} if preemption.detail else {}),
            },
            "ended": self._clock.time(),
            "seconds_left": round(preemption.deadline - self._clock.monotonic(), 3),
            **facts,
            "history": self._history(),
        }
        self._write(preemption, outcome_key(self._run_id, attempt, self._count, self._rank), record)

    def _write(self, preemption: PreemptionNotice, key: str, record: dict[str, object]) -> None:
        left = min(_OUTCOME_TIMEOUT, max(_OUTCOME_LEAST, preemption.save_by - self._clock.monotonic()))
        self._store_record(key, record, left)

    def _store_record(self, key: str, record: dict[str, Any], seconds: float) -> None:
        try:
            self._put(key, memoryview(json.dumps(record, indent=1).encode()), seconds)
        except SpotguardError as error:  # the agent must learn of a commit before the agent gives up on it
            log.warning("spotguard could not write a record to the store: %s", error)


def _log(preemption: PreemptionNotice, level: int, outcome: str) -> None:
    """Log the outcome of a notice's save, once: an agent that lost the connection delivers the notice again."""
    if preemption.outcome == outcome:
        level = logging.DEBUG
    preemption.outcome = outcome
    log.log(level, "%s", outcome)


def _committed(id: str, saved: SavedCheckpoint, now: float) -> protocol.Committed:
    return protocol.Committed(
        id, saved.step, saved.nbytes, saved.seconds, saved.url, now, saved.level, saved.less
    )
