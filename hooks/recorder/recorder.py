"""The recorder of one training process: it writes each boundary as one line of JSON and carries out the plan's action."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer

from ...providers.clock import Clock
from ..restore.proof_file import own_script, running_code, versions
from . import checksums, startup
from .guard import GuardRecorder, RecordedGuard
from .plan import NEVER, LifePlan, Place
from .state import RegisteredObjects
from .trace import Trace
from .variables import CodeOwner, HiddenModules, VariableCensus

#: Seconds between two polls of a condition that the recorder waits for.
_LOOK = 0.01
#: Seconds that one boundary waits for a background checkpoint. The wait is short because the checkpoint of a job with
#: several ranks may need the other ranks to go on.
_PATIENCE = 0.2
#: Boundaries after which the recorder stops searching for hidden modules.
_SETTLED = 2


class RunRecorder(GuardRecorder):
    """The recorder of one training process. Only the training thread calls it, except for `leaving`."""

    def __init__(self, plan: LifePlan, state: dict[str, Any], clock: Clock) -> None:
        super().__init__(plan)
        self._clock = clock
        self._registered = RegisteredObjects(state)
        self._code = CodeOwner(plan.workdir)
        self._hidden = HiddenModules()
        self._trace = Trace(self._passing, self._opening, self._stepped)
        self._watch = startup.begin()
        self._completed = 0
        self._turns = 0
        self._acted = plan.action is None
        self._begin_of_turn: dict[str, Any] = {}
        #: Optimizers that have stepped, by id. The reference keeps each id from being reused.
        self._optimizers: dict[int, Optimizer] = {}
        self._known: dict[str, Any] = {}
        #: The number of loaded modules when the code was last recorded.
        self._loaded = 0
        self._steps_before_any_boundary = 0
        self._nothing = threading.Event()  # never set: `_wait` sleeps on it between two polls

    def begin(self, guard: RecordedGuard, rank: int, world: int, said: str) -> None:
        """Begin the record, once the guard exists.

        Args:
            said: the store and the run id that the script itself passed.

        Raises:
            SystemExit: the plan's action was already carried out, and a launcher has restarted the process.
        """
        self._open(guard, rank)
        if self._plan.acted.exists():
            raise SystemExit(75)
        self._write(
            "begin",
            rank=rank,
            world=world,
            pid=os.getpid(),
            seed=torch.initial_seed(),
            early=self._watched(),
            kinds=self._registered.kinds(),
            said=self._code.portable(said),
        )
        self._trace.begin()

    def restored(self, step: int) -> None:
        self._completed = step
        self._registered.note_held()
        self._hidden.search()
        self._trace.restored()
        self._write("restored", step=step, iterators=self._trace.early, **self._look())
        self._passing("boundary")

    def boundary(self, completed: int) -> None:
        """Record a boundary, after `guard.step()`.

        Raises:
            SystemExit: the plan ends here.
        """
        if self._ended:
            os._exit(0)  # the script caught the SystemExit that should have ended the process
        self._completed = completed
        self._turns += 1
        if self._turns <= _SETTLED:
            self._hidden.search()
        look = self._look()
        # `_look` has just found the names of the optimizers.
        turn = [(what, self._called(whose), *rest) for what, whose, *rest in self._trace.turn()]
        self._write("boundary", step=completed, turn=turn, opened=self._begin_of_turn, **look)
        self._begin_of_turn = {}
        if self._watch is not None:
            self._watch.still_alive()
        if self._plan.every and self._turns % self._plan.every == 0 and self._guard is not None:
            self._guard.checkpoint_soon()
        if completed >= self._plan.steps:
            self._end("steps")
            raise SystemExit(0)
        self._passing("boundary")

    def saved_by_hand(self) -> None:
        self._write("saved_by_hand", step=self._completed, **self._look())
        self._trace.saved_by_hand()

    # --- the action ---

    def _passing(self, place: Place) -> None:
        action, guard = self._plan.action, self._guard
        if self._acted or action is None or guard is None or self._rank != 0:
            return
        # A save that waits for a boundary is to be at this one, in front of what follows it: the notice comes a boundary earlier.
        early = place == "boundary" and action.kind != "kill" and guard.waits
        if action.at != place or self._completed < action.step - early:
            return
        if action.kind == "kill" and not self._wait(lambda: guard.committed > 0, _PATIENCE):
            return  # try again at the next boundary: a kill before the first checkpoint would prove nothing
        self._acted = True
        self._plan.acted.touch()
        if action.kind == "preempt":
            self._write("acted", step=self._completed, at=place)
            guard.preempt(self._plan.stall)
            return
        # The harness acts now: a notice shuts the gate, or a kill ends this process here.
        self._write("asks", action=action.kind, step=self._completed, at=place)
        self._wait(lambda: guard.held, self._plan.stall)

    def _wait(self, until: Callable[[], bool], seconds: float) -> bool:
        end = self._clock.monotonic() + seconds
        while not until() and self._clock.monotonic() < end:
            self._clock.wait(self._nothing, _LOOK)
        return until()

    # --- events of a turn ---

    def _opening(self) -> None:
        census = self._census()
        self._begin_of_turn = {"vars": census.values, "state": self._registered.items(small=True)}

    def _stepped(self, optimizer: Optimizer) -> None:
        self._optimizers.setdefault(id(optimizer), optimizer)
        if self._turns == 0 and self._completed == 0:
            self._steps_before_any_boundary += 1
            if self._steps_before_any_boundary >= NEVER * self._plan.steps:
                self._write("never", steps=self._steps_before_any_boundary)
                self._end("never")
                raise SystemExit(0)

    # --- one snapshot ---

    def _look(self) -> dict[str, Any]:
        census = self._census()
        if self._loaded != len(sys.modules):
            self._loaded = len(sys.modules)
            facts = {"script": own_script(), "arguments": sys.argv[1:], "files": running_code()}
            self._write("code", **facts, versions=versions())
        state = self._registered.items()
        moved, known = self._moved(census)
        for optimizer, facts in known.items():
            if self._known.get(optimizer) != facts:
                self._known[optimizer] = facts
                self._write("optimizer", name=optimizer, **facts)
        return {
            "state": state,
            "generators": checksums.of_generators(),
            "modules": census.modules,
            "optimizers": census.optimizers,
            "moved": moved,
            "vars": census.values,
            "objects": census.objects,
            "rebound": census.rebound,
            "held": census.held,
            "frozen": self._registered.frozen(),
            "evaluating": self._registered.evaluating(),
        }

    def _census(self) -> VariableCensus:
        ours = (self, self._guard, self._registered, self._trace)
        census = VariableCensus(self._code, self._registered, self._hidden, ours)
        try:
            census.take(sys._getframe(2))
        except Exception as error:  # noqa: BLE001 - a user's object may raise anything; the rest is still compared
            self._write("trouble", text=f"{type(error).__name__}: {error}")
        self._names = {**census.names, **self._registered.names}
        return census

    def _moved(self, census: VariableCensus) -> tuple[dict[str, str], dict[str, Any]]:
        """Return checksums of parameters that are unregistered but trained, and facts about each optimizer by its name."""
        registered = self._registered.parameter_names()
        names = {**census.names, **registered}
        moved: dict[str, str] = {}
        known: dict[str, Any] = {}
        for number, optimizer in enumerate(self._optimizers.values()):
            name = self._names.get(id(optimizer), f"{type(optimizer).__name__} {number + 1}")
            self._names[id(optimizer)] = name
            trains = []
            for at, parameter in enumerate(p for group in optimizer.param_groups for p in group["params"]):
                called = names.get(id(parameter), f"{name}'s parameter {at}")
                trains.append(called)
                if id(parameter) not in registered and called not in census.modules:
                    moved[called] = checksums.of_tensor(parameter)
            known[name] = {
                "registered": id(optimizer) in self._registered.names,
                "kind": type(optimizer).__name__,
                "trains": trains[:8],
                "count": len(trains),
            }
        return moved, known

    def _called(self, whose: str) -> str:
        return self._names.get(int(whose), whose) if whose.isdigit() else whose

    # --- the record ---

    def _watched(self) -> bool:
        """Report whether `startup` has watched files and threads from the interpreter's first line on."""
        return getattr(sys.modules.get(startup.NAME), "early", False)
