"""How long each phase of training may stand still: five times the longest pause in it that ended by itself.

The script's own code between steps is a phase that most scripts hardly ever pause in, so a hang there is found by the steps' own times.

A checkpoint carries the times, so that a later attempt knows them from its first steps on.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

from ..messages import PHASES, STEP_PHASES

#: The shortest time without progress that is a stall, in seconds, and its multiple of the longest that ended by itself.
LEAST, TIMES = 60.0, 5.0
#: The same shortest time in a program or a pool of the script's, of whose progress nothing is seen: twenty that took up to 10 s each
#: say little of the next (a replay of recorded trainings for 100 h: an alarm after a minute).
LEAST_PROCESS = 300.0
#: The same for the script's own code while too little is known of its pauses, and the completed steps here from which on it holds: five
#: times the longest turn, which has the first step's compiling and each evaluation so far in it. A hang there was unseen for 30 minutes.
LEAST_OTHER, ENOUGH_STEPS = 300.0, 50
#: The number of times that a phase must have passed, in all attempts together; and in this one, as the steps must: what compiles,
#: or fills a buffer, does so in the first steps of every attempt.
ENOUGH, ENOUGH_HERE = 20, 5
#: The longest pause that counts while nothing is usual yet, in seconds: a first step may compile for minutes.
_LONGEST = 1800.0
#: Two moments of the last progress that differ by less are one: they are reckoned from ages.
_SAME = 0.5
#: No count that is real is larger.
_LARGEST = 10**15


class PhaseTimes:
    """The phases of one training thread, from one look at it to the next. It is pure: times are handed in."""

    def __init__(self) -> None:
        #: By phase: how often it has passed in this attempt, and in earlier ones.
        self._here: Counter[str] = Counter()
        self._earlier: dict[str, int] = {}
        #: How often each had passed at the last completed step, and the steps completed here. Within one pass, a thread may be found
        #: moving many times: a first step compiles, and a first evaluation scores, for longer than either has shown before.
        self._passed: Counter[str] = Counter()
        self._steps = 0
        #: Monotonic seconds at which a completed step was seen last, and the longest time between two.
        self._stepped_at = math.inf
        self._longest_turn = 0.0
        #: By phase: the longest pause, here or in an earlier attempt; and the longest one behind the first pass, which later attempts
        #: are told. A first step that compiles would make their limits as long as its own.
        self._longest: dict[str, float] = {}
        self._longest_later: dict[str, float] = {}
        #: The last look, in monotonic seconds, and what it has found.
        self._looked_at = 0.0
        self._phase, self._moved_at, self._step = "", math.inf, -1

    def look(self, phase: str, still: float, step: int, now: float) -> float:
        """Take in a look; return the seconds without progress that are a stall in this phase, or -1 while too little is known.

        Args:
            phase: the phase, as in `progress.ProgressSeen`.
            still: seconds without progress.
            step: the completed steps.
            now: monotonic seconds.
        """
        moved_at = now - still
        if moved_at > self._moved_at + _SAME and self._phase in PHASES:
            # No more than the limit: a stall makes the next limit five times as long, not a hundred times.
            limit = self._limit(self._phase)
            stood = min(max(0.0, self._looked_at - self._moved_at), _LONGEST if limit < 0 else limit)
            self._longest[self._phase] = max(stood, self._longest.get(self._phase, 0.0))
            if self._here[self._phase]:
                self._longest_later[self._phase] = max(stood, self._longest_later.get(self._phase, 0.0))
            self._here[self._phase] += 1
        if step > self._step >= 0:
            self._here.update(dict.fromkeys(STEP_PHASES, step - self._step))
            self._passed = self._here.copy()
            self._steps += step - self._step
            self._longest_turn = max(self._longest_turn, now - self._stepped_at)
        if step != self._step:
            self._stepped_at = now
        self._phase, self._moved_at, self._step, self._looked_at = phase, moved_at, step, now
        return self._limit(phase)

    def _limit(self, phase: str) -> float:
        passed = self._passed[phase] + self._earlier.get(phase, 0)
        if min(self._here[phase], self._steps) < ENOUGH_HERE or passed < ENOUGH:
            if phase == "other" and self._steps >= ENOUGH_STEPS:
                return max(LEAST_OTHER, TIMES * self._longest_turn)
            return -1.0
        return max(LEAST_PROCESS if phase == "process" else LEAST, TIMES * self._longest.get(phase, 0.0))

    @property
    def facts(self) -> dict[str, Any]:
        """The times as plain JSON: by phase, how often it has passed, and the longest pause in seconds."""
        return {
            phase: [
                self._passed[phase] + self._earlier.get(phase, 0),
                round(self._longest_later.get(phase, 0.0), 1),
            ]
            for phase in PHASES
            if self._passed[phase] or phase in self._earlier
        }

    def restored(self, told: object) -> None:
        """Take in the `facts` that a checkpoint carries. Another program may have written anything there."""
        if not isinstance(told, Mapping):
            return
        self._here.clear()  # a restore in one process: the checkpoint has them
        self._passed.clear()
        for phase in PHASES:
            match told.get(phase):
                case [int(passed), float() | int() as longest] if 0 < passed <= _LARGEST and longest >= 0:
                    self._earlier[phase] = passed
                    pause = float(min(longest, _LONGEST))
                    self._longest[phase] = max(pause, self._longest.get(phase, 0.0))
                    self._longest_later[phase] = max(pause, self._longest_later.get(phase, 0.0))
