"""Which runs of the command there are, how each ends, and the running of them.

A run of the command from its start to its end is a *life*. Lives that share a store and a copy of the working folder, each going
on where the one before was ended, are a *series*. Some series live at one time.
"""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

from spotguard.hooks.recorder.plan import Action, Place

from . import copies
from .record import Record
from .runner import Ground, Life, ProveError, Runner

#: Of a series' folder: where the copy is.
_COPY = "work"
#: What is too short to be preempted inside.
FEWEST_STEPS = 3
#: A place that this share of all turns passes is no event, but part of each step: a teacher's forward, a loader of one batch.
_USUAL = 0.5
#: Events of a training loop at which scripts go wrong. Programs read the names.
EVENTS: tuple[Place, ...] = ("epoch end", "evaluation", "save")
#: Where in the turn the notices come, one after the other, and what of a turn passes there.
_PLACES: tuple[tuple[Place, str], ...] = (
    ("forward", "input"),
    ("optimizer", "step"),
    ("after optimizer", "step"),
    ("boundary", ""),
)


@dataclass(frozen=True, slots=True)
class LifeSeries:
    """Lives one after the other. The last one has no action: it trains to the end."""

    name: str
    actions: tuple[Action | None, ...] = (None,)
    #: Steps between two background checkpoints; 0 for none.
    every: int = 0

    def life(self, number: int) -> str:
        """What the life of this number, from 0, is called on the page and in errors."""
        return self.name if len(self.actions) == 1 else f"{self.name}, run {number + 1}"


UNDISTURBED = (LifeSeries("plain-1"), LifeSeries("plain-2"))


def preempted(plain: Record, steps: int, tries: int) -> LifeSeries:
    """Notices at steps that are spread over the run. The first comes through `spotguard run`, as a cloud's would; the
    others by hand, in the middle of a turn, where a signal could not be aimed at."""
    met = {entry.what for look in plain.after(1) for entry in look.turn}
    places = cycle([place for place, what in _PLACES if not what or what in met])
    first, *others = _spread(steps, tries)
    later = (Action("preempt", step, next(places)) for step in others)
    return LifeSeries("preempted", (Action("notice", first), *later, None))


def killed(steps: int) -> LifeSeries:
    """The machine goes without a word, and a background checkpoint is what remains."""
    return LifeSeries("killed", (Action("kill", max(2, steps * 3 // 5)), None), every=max(1, steps // 10))


def _spread(steps: int, tries: int) -> list[int]:
    found = dict.fromkeys(max(1, min(steps - 1, round(steps * n / (tries + 1)))) for n in range(1, tries + 1))
    return list(found)


def around_events(plain: Record, steps: int) -> Iterator[LifeSeries]:
    """For each event that was met: a notice before it, in it and after it."""
    for event in EVENTS:
        if (turn := turn_of(event, plain, steps)) is not None:
            before, within = Action("preempt", turn - 1), Action("preempt", turn - 1, event)
            yield LifeSeries(event, (before, within, Action("preempt", turn), None))


def turn_of(event: Place, plain: Record, steps: int) -> int | None:
    """The first turn with this event that has a boundary before it and one after it; None where there is none."""
    if _is_usual(event, plain, steps):
        return None
    return next((look.step for look in plain.after(2) if look.has(event) and look.step < steps), None)


def not_tried(plain: Record, steps: int) -> list[Place]:
    """The events around which no notice can be had: no turn, or only the first one or the last, has them."""
    return [
        event
        for event in EVENTS
        if turn_of(event, plain, steps) is None and not _is_usual(event, plain, steps)
    ]


def _is_usual(event: Place, plain: Record, steps: int) -> bool:
    return event != "save" and sum(look.has(event) for look in plain.after(1)) > _USUAL * steps


class SeriesRunner:
    """
    Args:
        base: the folder that everything is written to.
        startup: where `runner.write_startup` has been.
        jobs: lives at one time.
        say: told of each life that has ended.
    """

    def __init__(
        self,
        runner: Runner,
        original: copies.Original,
        base: Path,
        startup: Path,
        jobs: int,
        say: Callable[[str], None],
    ) -> None:
        self._runner = runner
        self._original = original
        self._base = base
        self._startup = startup
        self._jobs = jobs
        self._say = say
        self._lock = threading.Lock()
        #: The lives of each series, in the order in which the series were asked for.
        self.lives: dict[str, list[Life]] = {}

    @property
    def count(self) -> int:
        return sum(map(len, self.lives.values()))

    def run(self, series: Sequence[LifeSeries]) -> None:
        """Some at a time. The first error ends all.

        Raises:
            ProveError: a life failed where that proves nothing.
            UsageError: the working folder cannot be copied.
        """
        self.lives |= {each.name: [] for each in series}
        with ThreadPoolExecutor(self._jobs, thread_name_prefix="prove") as pool:
            futures = [pool.submit(self._live_through, each) for each in series]
            try:
                wait(futures, return_when=FIRST_EXCEPTION)
                # In their order: what the first error has interrupted is no error of its own.
                failed = [each for each in futures if each.done() and each.exception() is not None]
            except BaseException:  # Ctrl-C: the lives go too
                self._stop(futures)
                raise
            if failed:
                self._stop(futures)
                failed[0].result()

    def _stop(self, futures: Sequence[Future[None]]) -> None:
        self._runner.stop.set()
        for each in futures:
            each.cancel()

    def _live_through(self, series: LifeSeries) -> None:
        ground = self._ground(series)
        copies.copy(self._original, ground.workdir)
        try:
            for number, action in enumerate(series.actions):
                life = self._runner.live(ground, series.life(number), action, series.every)
                self._say(f"{life.name}: step {life.began or 0} to {life.last} in {life.seconds:.1f} s")
                self.lives[series.name].append(life)
                if not self._goes_on(series, life, last=action is None):
                    return
        finally:
            shutil.rmtree(ground.folder / _COPY, ignore_errors=True)

    def _goes_on(self, series: LifeSeries, life: Life, *, last: bool) -> bool:
        """Whether the next life of the series has something to show.

        Raises:
            ProveError: this one has nothing.
        """
        resumed = len(self.lives[series.name]) > 1
        if life.failed and (not resumed or os.strerror(errno.ENOSPC) in life.failed):
            raise ProveError(
                f"run {life.name!r} ended with {life.failed}; run the command by itself first ({life.output})"
            )
        if life.failed:
            return False  # that it does not come back is a finding
        if resumed and life.began == 0 and not any(record.elsewhere for record in life.records):
            raise ProveError(
                f"run {life.name!r} began at step 0 though the one before it was ended later, so nothing was proven: no "
                f"checkpoint was found; see that every start registers, and calls restore ({life.output})"
            )
        if not (last or life.taken or resumed):
            raise ProveError(
                f"run {life.name!r} came to step {life.last} and was not ended before it: no checkpoint was committed by "
                f"then; give it more --steps ({life.output})"
            )
        return not last and life.taken

    def _ground(self, series: LifeSeries) -> Ground:
        name = series.name.replace(" ", "-")
        folder = self._base / name
        folder.mkdir(mode=0o700)
        return Ground(
            folder=folder,
            original=self._original.folder,
            workdir=copies.beside(self._original.folder, folder / _COPY),
            store=(folder / "store").as_uri(),
            run_id=f"prove-{name}-{os.getpid()}",
            startup=self._startup,
        )
