"""The runs of the command: how each one ends, and the code that runs them.

A *life* is one run of the command from its start to its end. A *series* is a sequence of lives that share a store and a copy of
the working directory; each life resumes where the one before was ended. Several series run at one time.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

from spotguard.hooks.recorder.plan import Action, Place

from . import copies
from .record import Record
from .runner import Ground, Life, ProveError, Runner, wait

#: The copy's name in the series' directory.
_COPY = "work"
#: The series whose run is ended without a notice.
KILLED = "killed"
#: The fewest steps of a run that can be preempted inside.
FEWEST_STEPS = 3
#: If more than this share of all turns have an event, it is part of each step: a teacher's forward, a loader of one batch.
_USUAL = 0.5
#: Events of a training loop at which scripts go wrong. Programs read these names.
EVENTS: tuple[Place, ...] = ("epoch end", "evaluation", "save")
#: The event of a checkpoint that the script asks for.
BY_HAND: Place = "guard.save()"
#: The places in a turn at which the notices come, in rotation, and the kind of entry that a turn must have for each.
_PLACES: tuple[tuple[Place, str], ...] = (
    ("forward", "input"),
    ("optimizer", "step"),
    ("after optimizer", "step"),
    ("boundary", ""),
)


@dataclass(frozen=True, slots=True)
class LifeSeries:
    """Lives that run one after the other. The last one has no action: it trains to the end."""

    name: str
    actions: tuple[Action | None, ...] = (None,)
    #: Steps between two background checkpoints; 0 for none.
    every: int = 0

    def life(self, number: int) -> str:
        """Return the name of life `number`, counted from 0, for the page and for errors."""
        return self.name if len(self.actions) == 1 else f"{self.name}, run {number + 1}"


UNDISTURBED = (LifeSeries("plain-1"), LifeSeries("plain-2"))


def preempted(plain: Record, steps: int, tries: int) -> LifeSeries:
    """Return the series of notices, at steps that are spread over the run.

    The first notice comes through `spotguard run`, as a cloud's would. The recorder plays the others in the middle of a
    turn, where a signal cannot be aimed. One more comes behind the last of the first changes of variables, as that of a rate which
    the script lowers once: nothing else shows that a resumed run begins it anew.
    """
    met = {entry.what for look in plain.after(1) for entry in look.turn}
    places = cycle([place for place, what in _PLACES if not what or what in met])
    first, *others = _spread(steps, tries)
    if (late := _last_first_change(plain, steps)) > [first, *others][-1]:
        others.append(late)
    later = (Action("preempt", step, next(places)) for step in others)
    return LifeSeries("preempted", (Action("notice", first), *later, None))


def _last_first_change(plain: Record, steps: int) -> int:
    """Return the last of the steps behind which a variable first had another value than at the start, and a turn follows; 0 for none."""
    begun = plain.looks[0].variables if 0 in plain.looks else {}
    changed: dict[str, int] = {}
    for look in plain.after(1):
        for name, text in look.variables.items():
            if begun.get(name) != text:
                changed.setdefault(name, look.step)
    return max((step for step in changed.values() if step < steps), default=0)


def killed(steps: int) -> LifeSeries:
    """Return the series in which the machine is lost without a notice, and only a background checkpoint remains."""
    return LifeSeries(KILLED, (Action("kill", max(2, steps * 3 // 5)), None), every=max(1, steps // 10))


def _spread(steps: int, tries: int) -> list[int]:
    chosen = dict.fromkeys(
        max(1, min(steps - 1, round(steps * n / (tries + 1)))) for n in range(1, tries + 1)
    )
    return list(chosen)


def around_events(plain: Record, steps: int) -> Iterator[LifeSeries]:
    """Yield a series for each event that the run met: a notice before the event, in it and after it."""
    for event in EVENTS:
        if (turn := turn_of(event, plain, steps)) is not None:
            before, within = Action("preempt", turn - 1), Action("preempt", turn - 1, event)
            yield LifeSeries(event, (before, within, Action("preempt", turn), None))
    # The machine is lost behind it: what the script changed before it is in the checkpoint, and is not to be changed again.
    if (turn := turn_of(BY_HAND, plain, steps)) is not None:
        yield LifeSeries(BY_HAND, (Action("kill", turn - 1, BY_HAND), None))


def _may_have(event: Place, plain: Record) -> bool:
    """Return whether a longer run may have an event: without a loader no pass of one ends."""
    return event != "epoch end" or plain.iterators > 0 or any(look.has("iterator") for look in plain.after(1))


def turn_of(event: Place, plain: Record, steps: int) -> int | None:
    """Return the first turn with this event that has a boundary before and after it; None without such a turn."""
    if _is_usual(event, plain, steps):
        return None
    return next((look.step for look in plain.after(2) if look.has(event) and look.step < steps), None)


def not_tried(plain: Record, steps: int) -> list[Place]:
    """Return the events around which no notice can be placed: only the first or the last turn has them, or none does."""
    return [
        event
        for event in EVENTS
        if turn_of(event, plain, steps) is None
        and not _is_usual(event, plain, steps)
        and _may_have(event, plain)
    ]


def passed_over(of: LifeSeries, lives: Sequence[Life]) -> bool:
    """Report whether each resumed life of an event's series began behind the event."""
    before = next(action.step for action in of.actions if action is not None)
    return len(lives) > 1 and all((life.began or 0) > before for life in lives[1:])


def _is_usual(event: Place, plain: Record, steps: int) -> bool:
    return event != "save" and sum(look.has(event) for look in plain.after(1)) > _USUAL * steps


class _SeriesDiffers(Exception):
    """A resumed life differs, and `--fail-fast` ends the other series: no error."""


class SeriesRunner:
    """Runs series of lives, several at one time.

    Args:
        base: the directory for all files.
        startup: the directory with the `sitecustomize` that `runner.write_startup` wrote.
        jobs: the number of lives at one time.
        say: called with one line for each life that has ended.
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
        #: The lives of each series, in the order in which the series were passed to `run`.
        self.lives: dict[str, list[Life]] = {}
        #: Digests of the files that each completed series has written to its copy.
        self.written: dict[str, dict[str, tuple[str, str]]] = {}

    @property
    def count(self) -> int:
        return sum(map(len, self.lives.values()))

    def seconds(self, series: Sequence[LifeSeries], of_one: float) -> float:
        """Return about how long the series take, if each life takes as long as a whole run."""
        each = [len(one.actions) * of_one for one in series]
        return max([sum(each) / self._jobs, *each])

    def run(
        self,
        series: Sequence[LifeSeries],
        judge: Callable[[Life], str] = lambda life: "",
        *,
        fail_fast: bool = False,
    ) -> None:
        """Run the series, up to `jobs` at one time. The first error ends all.

        Args:
            judge: returns how a resumed life differs from an undisturbed one; "" if it does not. A life that differs ends its series.
            fail_fast: a life that differs ends all series.

        Raises:
            ProveError: a life failed in a way that proves nothing.
            UsageError: the working directory cannot be copied.
        """
        self.lives |= {each.name: [] for each in series}
        with ThreadPoolExecutor(self._jobs, thread_name_prefix="prove") as pool:
            futures: list[Future[None]] = []
            try:  # also around the starts: the pool's end waits for the lives that run by then
                for each in series:
                    futures.append(pool.submit(self._live_through, each, judge, fail_fast))
                wait(futures, self._runner.clock)
                # In the order of the series: a life that the first error interrupted has no error of its own.
                failed = [each for each in futures if each.done() and each.exception() is not None]
            except BaseException:  # Ctrl-C: end the lives too
                self._stop(futures)
                raise
            if failed:
                self._stop(futures)
                if not any(isinstance(each.exception(), _SeriesDiffers) for each in failed):
                    failed[0].result()

    def _stop(self, futures: Sequence[Future[None]]) -> None:
        self._runner.stop.set()
        for each in futures:
            each.cancel()

    def _live_through(self, series: LifeSeries, judge: Callable[[Life], str], fail_fast: bool) -> None:
        ground = self._ground(series)
        copies.copy(self._original, ground.workdir)
        try:
            for number, action in enumerate(series.actions):
                life = self._runner.live(ground, series.life(number), action, series.every)
                self._say(f"{life.name}: step {life.began or 0} to {life.last} in {life.seconds:.1f} s")
                self.lives[series.name].append(life)
                goes_on = self._goes_on(series, life, last=action is None)
                if number and (differs := judge(life)):
                    self._say(f"{life.name}: INEXACT: {differs}")
                    if fail_fast:
                        raise _SeriesDiffers
                    return
                if action is None and not life.failed:
                    self.written[series.name] = copies.written(self._original, ground.workdir)
                if not goes_on:
                    return
        finally:
            shutil.rmtree(ground.folder / _COPY, ignore_errors=True)

    def _goes_on(self, series: LifeSeries, life: Life, *, last: bool) -> bool:
        """Report whether the next life of the series can show anything.

        Raises:
            ProveError: this life proves nothing.
        """
        resumed = len(self.lives[series.name]) > 1
        if life.failed and (not resumed or os.strerror(errno.ENOSPC) in life.failed):
            raise ProveError(
                f"run {life.name!r} ended with {life.failed}; run the command by itself first ({life.output})"
            )
        if life.failed:
            return False  # a resumed life that fails is a finding
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
        name = re.sub(r"\W+", "-", series.name).strip("-")  # a run id, and a directory
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
