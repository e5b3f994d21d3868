"""The history of a run, as its checkpoints carry it: where each attempt began, how fast it trained, what its checkpoints cost.

Pruning deletes old checkpoints, and a machine that goes takes its logs along. So each checkpoint has the history of the training
that led to it: one entry for each earlier attempt, and the facts of its own. `spotguard report` reads them; no save or restore
depends on them. An older checkpoint has none, and another program may have written anything there, so a reader cleans it.
"""

from __future__ import annotations

import logging
import math
import statistics
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from .format.manifest import RankManifest

log = logging.getLogger("spotguard")

#: Steps of each kind whose seconds are kept: the median of the newest ones counts.
_STEPS = 1024
#: Earlier attempts that are kept one by one. The two oldest entries of a longer history become one.
_EARLIER = 200


class AttemptHistory:
    """The history of the training in this process, from its restore on.

    It is pure: times are handed in. The training thread calls `restored` and `boundary`, which costs a tenth of a microsecond. The
    saving thread calls `saving` and `saved`.

    Args:
        phases: returns how long the phases of training take (`ipc.failures.phase_times`), for later attempts.
    """

    def __init__(self, phases: Callable[[], Mapping[str, Any]] = dict) -> None:
        self._phases = phases
        #: Seconds between background checkpoints; infinity if they are off.
        self.interval = math.inf
        self._clear()

    def _clear(self) -> None:
        self._facts: dict[str, Any] = {}
        self._earlier: list[dict[str, Any]] = []
        #: What `phases` returned in the attempt that made the restored checkpoint, as its file has it.
        self.earlier_phases: object = None
        #: The median seconds of a step in that attempt; 0 if not known, or if it had another number of ranks.
        self.earlier_step_seconds = 0.0
        #: Seconds of the newest steps without a save, and with one.
        self._alone: deque[float] = deque(maxlen=_STEPS)
        self._beside: deque[float] = deque(maxlen=_STEPS)
        #: Monotonic seconds of the last boundary.
        self._since = 0.0
        #: A save is under way; and one was, at some moment of the present step.
        self._saving = self._disturbed = False
        #: The save that is under way is a drill's.
        self._drills = False
        #: The first step is under way: it may compile, so it is not like any other.
        self._compiling = True
        #: Seconds of the present step for which training stood still for a copy: they are a cost of their own.
        self._stood = 0.0
        #: Seconds that the checkpoints cost training, and their number.
        self._cost, self._saves = 0.0, 0
        #: The step of the newest checkpoint of this attempt that no notice asked for.
        self._periodic: int | None = None

    def restored(
        self,
        manifests: Sequence[RankManifest],
        *,
        step: int,
        own: bool,
        now: float,
        wall: float,
        world: int = 1,
    ) -> None:
        """Begin: training goes on from here.

        Args:
            manifests: the manifests of the restored checkpoint; () for none.
            step: the completed steps.
            own: whether it is a checkpoint of this run.
            now: monotonic seconds.
            wall: wall-clock seconds.
            world: the number of ranks.
        """
        self._clear()
        self._since, self._compiling = now, True
        self._facts = {"began": round(wall, 3), "first": step}
        if not manifests:
            return
        self._facts["from"] = str(manifests[0].checkpoint)
        if not own:
            self._facts["run"] = manifests[0].run_id
            return
        try:
            told = next((each.history for each in manifests if each.history), {})
            self.earlier_phases = told.get("phases")
            if manifests[0].world == world:
                self.earlier_step_seconds = _cleaned(told, _KEPT).get("step_seconds") or 0.0
            entry = {**_cleaned(told, _KEPT), "attempt": manifests[0].attempt, "last": step}
            # After a drill training went on, so the attempt lost what it had trained since.
            if manifests[0].kind == "emergency" and not told.get("drill"):
                entry["committed"] = 1
            self._earlier = [*_earlier(told), entry]
            if len(self._earlier) > _EARLIER:
                self._earlier[:2] = [merged(*self._earlier[:2])]
        except Exception:  # a history is for people: it must never stop a restore
            log.exception("the history of the run is lost; please report it [SG704]")
            self._earlier = []

    def boundary(self, now: float) -> None:
        """Note a boundary, at `now` in monotonic seconds."""
        seconds, self._since, self._stood = max(0.0, now - self._since - self._stood), now, 0.0
        if self._compiling:
            self._compiling, self._disturbed = False, self._saving
        elif self._disturbed:
            self._disturbed = self._saving
            self._beside.append(seconds)
        else:
            self._alone.append(seconds)

    @contextmanager
    def saving(self, *, drill: bool = False) -> Iterator[None]:
        """Keep the steps that a save inside this context disturbs apart.

        Args:
            drill: whether the save is a drill's. Its checkpoint carries that, because it ends no attempt.
        """
        self._saving = self._disturbed = True
        self._drills = drill
        try:
            yield
        finally:
            self._saving = self._drills = False

    def stood_still(self, seconds: float) -> None:
        """Note that training stood still for a copy. The saving thread calls it as soon as training may go on."""
        self._stood += seconds

    def saved(self, step: int, cost: float) -> None:
        """Note a checkpoint that no notice asked for, with the seconds of training that it cost."""
        self._periodic, self._saves, self._cost = step, self._saves + 1, self._cost + cost

    @property
    def step_seconds(self) -> tuple[float, float]:
        """The median seconds of a step beside a save, and of one without; 0 if not known."""
        beside, alone = [*self._beside.copy()], [*self._alone.copy()]
        return statistics.median(beside or [0.0]), statistics.median(alone or [0.0])

    @property
    def committed_attempts(self) -> set[int]:
        """The earlier attempts from whose last step training went on: a notice, an error or a stall was committed there."""
        return {each["attempt"] for each in self._earlier if each.get("committed")}

    @property
    def facts(self) -> dict[str, Any]:
        """The facts of this attempt, as plain JSON."""
        _, alone = self.step_seconds
        return {
            **self._facts,
            "step_seconds": round(alone, 6) or None,
            "saves": self._saves,
            "cost": round(self._cost, 3),
            "periodic": self._periodic,
            "interval": None if math.isinf(self.interval) else round(self.interval, 1),
        }

    def of_rank(self, rank: int) -> dict[str, Any]:
        """Return the facts that this rank knows: the first one alone has the times of steps and checkpoints."""
        return {name: value for name, value in self.facts.items() if not rank or name not in _TIMES}

    @property
    def whole(self) -> dict[str, Any]:
        """The facts, and an entry for each earlier attempt whose steps count, the oldest first."""
        drill = {"drill": True} if self._drills else {}
        return {**self.facts, **drill, "phases": dict(self._phases()), "earlier": self._earlier}


_TIMES = ("step_seconds", "saves", "cost", "interval")
#: Facts of an attempt that later attempts hand on.
_KEPT = ("began", "first", "run", "step_seconds", "cost", "saves", "committed")
#: Facts that are whole numbers.
_WHOLE = ("attempt", "attempts", "first", "last", "saves", "committed")
#: No step, count or second that is real is larger, and no name is longer.
_LARGEST, _NAME = {True: 10**15, False: 2**32}, 255


def _cleaned(told: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Return those facts of a file that can be true."""
    facts = {}
    for name in names:
        value, integral = told.get(name), name in _WHOLE
        if name == "run":
            good = isinstance(value, str) and len(value) <= _NAME
        else:
            kinds = (int,) if integral else (int, float)
            good = type(value) in kinds and 0 <= (value or 0) <= _LARGEST[integral]
        if good:
            facts[name] = value
    return facts


def _earlier(told: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the entries of a history that make sense, the newest ones if there are too many."""
    entries = told.get("earlier")
    if not isinstance(entries, list):
        return []
    some = [_cleaned(each, (*_KEPT, *_WHOLE)) for each in entries[-_EARLIER:] if isinstance(each, dict)]
    return [each for each in some if "attempt" in each and "last" in each]


def merged(older: Mapping[str, Any], newer: Mapping[str, Any]) -> dict[str, Any]:
    """Return two successive entries as one: what they trained takes as long as before."""
    entry = dict(newer)
    for name in ("began", "first", "run"):
        entry.pop(name, None)
        if name in older:
            entry[name] = older[name]
    entry["attempts"] = older.get("attempts", 1) + newer.get("attempts", 1)
    for name in ("cost", "saves"):
        entry[name] = (older.get(name) or 0) + (newer.get(name) or 0)
    steps: list[int] = [
        max(0, each["last"] - each["first"]) if "first" in each else 0 for each in (older, newer)
    ]
    seconds = [each.get("step_seconds") for each in (older, newer)]
    total: int = sum(steps)
    if None not in seconds and total:
        trained = sum(count * each for count, each in zip(steps, seconds, strict=True) if each)
        entry["step_seconds"] = round(trained / total, 6)
    return entry
