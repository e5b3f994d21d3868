"""The demo's three acts: an uninterrupted run, a machine that is preempted, and the next machine.

The first act runs beside the other two, so that the demo takes no longer than they do. Each training process has one
thread of its own, so that the processes do not change each other's sums.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from spotguard.hooks.checkpoint.catalog import scan
from spotguard.hooks.checkpoint.format.keys import MARKER
from spotguard.providers.clock import Clock
from spotguard.providers.errors import SpotguardError
from spotguard.providers.simulator.base import Simulator
from spotguard.providers.stores.factory import open_store

from .clouds import DemoCloud
from .compare import Losses
from .machine import DemoMachine
from .screen import Screen
from .timeline import Timeline, read_outcome, timeline

_EX_TEMPFAIL = 75
#: Seconds between two reads of the scripts' log files.
_LOOK = 0.1
#: The largest share of the steps before the notice comes, even if the demo still waits for a checkpoint.
_LATEST = 0.85
#: Seconds between two background checkpoints, in a demo whose window is too short for a save.
_EVERY = 2
#: The shortest run in which a notice "in the middle" is in the middle of something.
SHORTEST = 20


@dataclass(frozen=True, slots=True)
class DemoPlan:
    cloud: DemoCloud
    script: Path
    steps: int
    #: Seconds from the notice to the end of the machine.
    window: float
    #: Mbit/s of the simulated link to the store; 0 for no link, which is as fast as the disk.
    link: float
    #: The directory that the demo runs in, removed at its end.
    folder: Path
    #: The directory that stays, with the report and the machines' output.
    left: Path
    #: The URL of the store for checkpoints.
    store: str
    #: The run's name in the store.
    run_id: str

    @property
    def short(self) -> bool:
        """Whether the window is shorter than the cloud's: then perhaps only a background checkpoint remains."""
        return self.window < self.cloud.window


@dataclass(frozen=True, slots=True)
class Scenario:
    """The result of the three acts."""

    #: The losses of the uninterrupted run.
    reference: Losses
    #: The losses of machine 1 and of machine 2.
    parts: tuple[Losses, Losses]
    #: The file with the uninterrupted run's final state, saved by the script.
    reference_final: Path
    #: The file with machine 2's final state, saved by the script.
    final: Path
    timeline: Timeline
    #: Completed steps when the notice was given.
    noticed_at: int
    #: Bytes of one checkpoint; 0 if none was ever whole.
    nbytes: int

    @property
    def saved(self) -> bool:
        """Whether machine 1 saved after the notice, judged by the step at which machine 2 resumed from the store.

        The agent's own record cannot tell: if the window is too short, the agent dies before it writes the record.
        """
        return self.resumed_at >= self.noticed_at

    @property
    def resumed_at(self) -> int:
        """Completed steps at which machine 2 began."""
        return self.parts[1].started or 0

    @property
    def lost(self) -> int:
        """Steps that machine 1 did and machine 2 had to repeat."""
        return max(0, self.parts[0].step - self.resumed_at)


class Director:
    """Plays the cloud, and shows the events on the screen."""

    def __init__(self, plan: DemoPlan, screen: Screen, clock: Clock) -> None:
        self._plan = plan
        self._store = open_store(plan.store)
        self._screen = screen
        self._clock = clock
        self._lanes: dict[DemoMachine, tuple[Losses, str]] = {}
        self._pause = threading.Event()  # never set: the event to wait on between two reads

    def play(self) -> Scenario:
        """Play all three acts.

        Raises:
            SpotguardError: a machine failed, so that there is nothing to compare.
        """
        with ExitStack() as stack:
            reference, losses = self._machine("no cloud", stack)
            self._screen.say("the run to compare with begins: no spot machine, and no spotguard in it")
            reference.start([sys.executable, *self._training(), "--plain"])
            lost, line, noticed_at = self._first(stack)
            last, resumed = self._second(stack)
            self._watch(lambda: reference.ended)
            self._show()
            self._must(reference.returncode == 0, reference, "the uninterrupted run failed")
            parts = (lost, resumed)
            return Scenario(
                losses, parts, reference.final, last.final, line, noticed_at, self._checkpoint_bytes()
            )

    # --- the acts ---

    def _first(self, stack: ExitStack) -> tuple[Losses, Timeline, int]:
        """Run machine 1, and preempt it in the middle of its work."""
        plan, simulator = self._plan, stack.enter_context(self._plan.cloud.simulator())
        machine, losses = self._machine("machine 1", stack)
        self._screen.say("machine 1 begins: spotguard run -- python train.py")
        machine.start(self._guarded(machine, simulator))
        self._watch(lambda: machine.ended or self._is_time(losses))
        self._must(not machine.ended, machine, "machine 1 ended before its notice")

        visible_wall, visible = self._clock.time(), self._clock.monotonic()
        plan.cloud.preempt(simulator, plan.window)
        end, noticed_at = visible + plan.window, losses.step
        own = (
            f" ({plan.cloud.title} gives {plan.cloud.window:g} s)" if plan.window != plan.cloud.window else ""
        )
        self._screen.say(
            f"the cloud wants machine 1 back, at step {noticed_at}: {plan.cloud.words(plan.window)}{own}"
        )
        self._doing(machine, "noticed")
        pressed = None
        if (button := plan.cloud.button(plan.window)) is not None:
            self._watch(lambda: machine.ended or self._clock.monotonic() >= visible + button)
            pressed = self._clock.monotonic() - visible
            machine.press_button()
        self._watch(lambda: machine.ended or self._clock.monotonic() >= end)
        return losses, self._end_of(machine, losses, visible, visible_wall, pressed), noticed_at

    def _is_time(self, losses: Losses) -> bool:
        """Report whether to give the notice: half-way. A short window also waits for a background checkpoint."""
        if self._plan.short and not self._has_checkpoint():
            return losses.step >= self._plan.steps * _LATEST
        return losses.step >= self._plan.steps // 2

    def _end_of(
        self, machine: DemoMachine, losses: Losses, visible: float, visible_wall: float, pressed: float | None
    ) -> Timeline:
        late = not machine.ended
        left_over = machine.power_off()
        losses.refresh()
        ended = (machine.ended_at or self._clock.monotonic()) - visible
        outcome = read_outcome(machine.outcome)
        self._must(
            late or machine.returncode == _EX_TEMPFAIL,
            machine,
            f"machine 1 came to an end with code {machine.returncode} before it saw its notice (more --steps give it "
            "time)",
        )
        result = timeline(
            outcome,
            visible_wall=visible_wall,
            window=self._plan.window,
            ended=ended,
            killed=late,
            pressed=pressed,
        )
        if result.line:
            self._screen.say(f"machine 1, in its own words: {result.line}")
        if late:
            self._screen.say(
                f"the deadline: SIGKILL to the {left_over} processes that still ran on machine 1"
            )
        else:
            self._screen.say(
                f"machine 1 has exited with {machine.returncode} ({result.slack:.1f} s before its end, "
                f"{left_over} processes left over) and is gone, its disk too"
            )
        self._doing(machine, "gone")
        machine.discard()
        return result

    def _second(self, stack: ExitStack) -> tuple[DemoMachine, Losses]:
        """Run machine 2, which resumes from the store."""
        simulator = stack.enter_context(self._plan.cloud.simulator())
        machine, losses = self._machine("machine 2", stack)
        self._screen.say("machine 2 begins: the same command, the same store")
        machine.start(self._guarded(machine, simulator))
        self._watch(lambda: machine.ended or losses.started is not None)
        self._must(losses.started is not None, machine, "machine 2 did not begin")
        self._screen.say(f"machine 2 resumes after step {losses.started}")
        self._watch(lambda: machine.ended)
        self._must(machine.returncode == 0, machine, "machine 2 failed")
        return machine, losses

    # --- helpers ---

    def _machine(self, name: str, stack: ExitStack) -> tuple[DemoMachine, Losses]:
        file = name.replace(" ", "-")
        machine = DemoMachine(name, self._plan.folder / file, self._plan.left / f"{file}.txt", self._clock)
        stack.callback(machine.power_off)
        self._lanes[machine] = losses, _ = Losses(machine.log), "starts"
        return machine, losses

    def _training(self) -> list[str]:
        return [str(self._plan.script), "--steps", str(self._plan.steps)]

    def _guarded(self, machine: DemoMachine, simulator: Simulator) -> list[str]:
        plan = self._plan
        behind = ["-m", "spotguard.demo.throttled_store", f"{plan.link:g}"] if plan.link else []
        return [
            *(sys.executable, "-m", "spotguard", "run"),
            *("--provider", plan.cloud.name, "--metadata-endpoint", simulator.endpoint),
            *plan.cloud.options(plan.window),
            *("--store", plan.store, "--run-id", plan.run_id),
            *(("--every", str(_EVERY)) if plan.short else ()),
            *("--socket", str(machine.socket)),
            "--",
            *(sys.executable, *behind, *self._training()),
        ]

    def _has_checkpoint(self) -> bool:
        return self._checkpoint_bytes() > 0

    def _checkpoint_bytes(self) -> int:
        """Return the bytes of the newest marked checkpoint in the store; 0 if there is none."""
        marked = (folder for folder in scan(self._store, self._plan.run_id) if MARKER in folder.files)
        newest = next(marked, None)
        return sum(newest.files.values()) if newest is not None else 0

    def _doing(self, machine: DemoMachine, doing: str) -> None:
        self._lanes[machine] = self._lanes[machine][0], doing
        self._show()

    def _watch(self, until: Callable[[], bool]) -> None:
        """Show the machines' progress until `until` returns True."""
        self._refresh()
        while not until():
            self._show()
            self._clock.wait(self._pause, _LOOK)
            self._refresh()
        self._refresh()  # lines written between the last read and the end

    def _refresh(self) -> None:
        for losses, _ in self._lanes.values():
            losses.refresh()

    def _show(self) -> None:
        for machine, (losses, doing) in self._lanes.items():
            if doing == "starts" and losses.by_step:
                doing = "trains"
            if doing == "trains" and machine.ended:
                doing = "done"
            self._lanes[machine] = losses, doing
            self._screen.lane(machine.name, losses.step, losses.loss, doing)

    def _must(self, fact: bool, machine: DemoMachine, otherwise: str) -> None:
        if not fact:
            raise SpotguardError(f"{otherwise}: {machine.last_words()} (more in {machine.console})")
