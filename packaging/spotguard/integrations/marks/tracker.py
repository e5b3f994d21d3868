"""One run of an experiment tracker, and the thread that writes a guard's marks into it."""

from __future__ import annotations

import atexit
import json
import logging
import os
import queue
import threading
import weakref
from typing import TYPE_CHECKING, Any, Protocol

from spotguard.hooks.save.request import SavedCheckpoint

from .history import Note, PastPreemption, preemptions, steps_lost
from .mark import TrackerMark

if TYPE_CHECKING:
    from spotguard.hooks.guard.view import GuardView

log = logging.getLogger("spotguard")

#: Seconds that an ending process waits for its last marks. A machine that goes has no more to spare.
_LAST_MARKS = 2.0
#: Marks that wait for a tracker that fails. The newest stay.
_WAITING = 1000
#: Above every attempt: of a tracker that cannot be searched.
ALL = 10**15


class Tracker(Protocol):
    """One run of an experiment tracker. Only the thread of its `Marks` calls it; any method may raise or hang."""

    #: The place of its data. A guard marks each place once.
    place: str
    #: Seconds between two notes of the newest step.
    every: float

    def add(self, mark: TrackerMark) -> None:
        """Write this mark. After an error it is added again."""
        ...

    def flush(self, *, leaving: bool) -> None:
        """Write what was added through to its disk or server. `leaving`: this process ends now."""
        ...

    def marked(self, run_id: str) -> int:
        """Return the newest attempt whose preemption is marked; 0 for none."""
        ...

    def read_note(self) -> str:
        """Return the newest note; "" if there is none."""
        ...

    def write_note(self, note: str) -> None:
        """Replace the note."""
        ...


def follow(guard: Any, tracker: Tracker) -> None:
    """Mark in `tracker` what happens to `guard` from now on. Ranks other than the first, and `spotguard prove`, mark nothing.

    Args:
        guard: the guard, or an adapter's object that has one.
        tracker: the tracker.
    """
    guard = getattr(guard, "guard", guard)
    if guard.view.rank or os.environ.get("SPOTGUARD_PROVE"):
        return
    places = _places.setdefault(guard, set())
    if tracker.place not in places:
        places.add(tracker.place)
        Marks(guard.view, tracker).start()


#: The places that each guard marks already.
_places: weakref.WeakKeyDictionary[Any, set[str]] = weakref.WeakKeyDictionary()


class Marks:
    """The marks of one guard in one tracker, and the thread that writes them."""

    def __init__(self, guard: GuardView, tracker: Tracker) -> None:
        self._guard, self._tracker = guard, tracker
        self._run_id, self._attempt = guard.run_id, guard.attempt
        self._events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._waiting: list[TrackerMark] = []
        self._preemptions = 0
        self._restored = self._leaving = self._added = self._warned = False
        self._note = ""
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._run, name="spotguard-marks", daemon=True)

    def start(self) -> None:
        self._guard.follow(self._events)
        self._thread.start()
        atexit.register(self._at_exit)

    def _at_exit(self) -> None:
        if os.getpid() == self._pid:
            self._events.put(None)
            self._thread.join(_LAST_MARKS)

    # --- the thread ---

    def _run(self) -> None:
        ended = False
        while not ended:
            try:
                event = self._events.get(timeout=self._tracker.every)
                ended = event is None
            except queue.Empty:
                event = None
            try:
                if event is not None:
                    self._waiting += self._marks_of(*event)
                self._write(ended)
            except Exception as error:  # noqa: BLE001 - a tracker's: training must not end for it
                level = logging.DEBUG if self._warned else logging.WARNING
                log.log(
                    level,
                    "%s: spotguard cannot write its marks, training continues: %r",
                    self._tracker.place,
                    error,
                )
                self._warned = True
                del self._waiting[:-_WAITING]

    def _write(self, ended: bool) -> None:
        if self._guard.saving() and not (self._leaving or ended):
            return  # a notice waits for its commit
        while self._waiting:
            self._tracker.add(self._waiting[0])
            self._added = True
            del self._waiting[0]
        if self._added:
            self._tracker.flush(leaving=self._leaving)
            self._added = self._leaving = False
        if self._restored:
            note = {"attempt": self._attempt, "step": self._guard.completed(), "ended": ended}
            if (text := json.dumps(note)) != self._note:
                self._tracker.write_note(text)
                self._note = text

    def _marks_of(self, step: int, saved: SavedCheckpoint | None, notice: Any) -> list[TrackerMark]:
        now = self._guard.clock.time()
        if saved is None:
            return self._resumed(step, now)
        if notice is None or notice.drill:
            return [TrackerMark("checkpoint", step, now, {"seconds": saved.seconds, "bytes": saved.nbytes})]
        self._leaving = True
        self._preemptions += 1
        preemption = PastPreemption(
            self._attempt, notice.kind, notice.source, step, now, True, saved.level, saved.why, saved.nbytes,
            saved.seconds, max(0.0, saved.at - notice.seen),
        )  # fmt: skip
        return [preemption.mark(self._run_id, self._preemptions)]

    def _resumed(self, step: int, now: float) -> list[TrackerMark]:
        """Return the mark of this restore, after those of the preemptions that the tracker lacks."""
        note = Note.parse(self._note or self._tracker.read_note())
        again, self._restored = self._restored, True
        known = [] if again else preemptions(self._guard.store, self._run_id, self._attempt)
        if not again:
            self._preemptions = len(known)
        newest = self._tracker.marked(self._run_id) if known else 0
        marks = [
            each.mark(self._run_id, number) for number, each in enumerate(known, 1) if each.attempt > newest
        ]
        if self._attempt == 1 and not (step or again):
            return marks
        # The last process, if a notice ended it.
        by = known[-1] if known and known[-1].attempt >= (note.attempt or self._attempt - 1) else None
        lost, exactly = steps_lost(step, note, by)
        values: dict[str, float] = {"attempt": self._attempt, "preemptions": self._preemptions}
        ended = f"after {by.cause} at step {by.step}" if by else "after an end without a notice"
        text = f"resumed from step {step} in attempt {self._attempt}, {'in place' if again else ended}"
        if lost is None:
            text += ": the steps lost are not known"
        else:
            values["steps_lost"] = lost
            text += f": {'' if exactly else 'at least '}{lost} steps lost"
        return [*marks, TrackerMark("resumed", step, now, values, text)]
