"""The recorder of one training process: it writes each boundary as one line of JSON and carries out the plan's action.

`RecordedGuard` is the `Guard` that feeds it.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch.optim import Optimizer

from ...providers.clock import Clock
from ...providers.stores.base import BlobStore
from ..consensus.channel import Channel
from ..guard import Guard
from . import checksums, startup
from .plan import LifePlan, Place
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
#: Optimizer steps without a boundary, per step of the plan, after which the recorder ends the run.
_NEVER = 10


class RunRecorder:
    """The recorder of one training process. Only the training thread calls it, except for `leaving`."""

    def __init__(self, plan: LifePlan, state: dict[str, Any], clock: Clock) -> None:
        self._plan = plan
        self._clock = clock
        self._registered = RegisteredObjects(state)
        self._code = CodeOwner(plan.workdir)
        self._hidden = HiddenModules()
        self._trace = Trace(self._passing, self._opening, self._stepped)
        self._watch = startup.begin()
        self._guard: RecordedGuard | None = None
        self._out = -1
        self._pid = os.getpid()
        self._rank = 0
        self._completed = 0
        self._turns = 0
        self._ended = False
        self._acted = plan.action is None
        self._begin_of_turn: dict[str, Any] = {}
        #: Optimizers that have stepped, by id. The reference keeps each id from being reused.
        self._optimizers: dict[int, Optimizer] = {}
        self._known: dict[str, Any] = {}
        self._steps_before_any_boundary = 0
        self._nothing = threading.Event()  # never set: `_wait` sleeps on it between two polls

    def begin(self, guard: RecordedGuard, rank: int, world: int, said: str) -> None:
        """Begin the record, once the guard exists.

        Args:
            said: the store and the run id that the script itself passed.

        Raises:
            SystemExit: the plan's action was already carried out, and a launcher has restarted the process.
        """
        self._guard, self._rank = guard, rank
        path = Path(self._plan.folder, f"rank-{rank}.jsonl")
        self._out = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
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
        atexit.register(self._left_by_itself)

    def elsewhere(self, run_id: str) -> None:
        """Record that the script restores another run than its own."""
        self._write("elsewhere", run_id=run_id)

    def restored(self, step: int) -> None:
        self._completed = step
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

    def leaving(self) -> None:
        """Record that training is asked to leave. Any thread may call it."""
        if self._guard is not None:
            self._write("leaving", step=self._guard.committed)

    # --- the action ---

    def _passing(self, place: Place) -> None:
        action, guard = self._plan.action, self._guard
        if self._acted or action is None or guard is None or self._rank != 0:
            return
        if action.at != place or self._completed < action.step:
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
            if self._steps_before_any_boundary >= _NEVER * self._plan.steps:
                self._write("never", steps=self._steps_before_any_boundary)
                self._end("never")
                raise SystemExit(0)

    # --- one snapshot ---

    def _look(self) -> dict[str, Any]:
        census = self._census()
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
            "frozen": self._registered.frozen(),
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

    def _end(self, why: str) -> None:
        self._ended = True
        self._write("end", why=why, step=self._completed)

    def _left_by_itself(self) -> None:
        if not self._ended:
            self._end("own end" if getattr(sys, "last_value", None) is None else "error")

    def _write(self, what: str, **facts: Any) -> None:
        if os.getpid() != self._pid:
            return  # a forked child
        os.write(self._out, (json.dumps({"what": what, **facts}) + "\n").encode())


class RecordedGuard(Guard):
    """A `Guard` that also records; `register` returns it if a plan is set.

    The plan's store and run id override the script's, and the run ends where the plan ends.
    """

    def __init__(
        self,
        plan: LifePlan,
        store: BlobStore,
        run_id: str,
        state: dict[str, Any],
        clock: Clock,
        channel: Channel | None = None,
        *,
        said: tuple[str | None, str | None] = (None, None),
    ) -> None:
        """Make the guard and begin its record.

        Args:
            said: the store and the run id that the script passed.
        """
        # The script may have set both. A stage outlives the run, and the recorder itself requests background checkpoints.
        os.environ.pop("SPOTGUARD_STAGE", None)
        os.environ["SPOTGUARD_EVERY"] = "off"
        self._recorder = RunRecorder(plan, state, clock)
        super().__init__(store, run_id, state, clock, channel)
        self._recorder.begin(self, self._rank, self._world, " ".join(each or "-" for each in said))

    def restore(
        self, *, step: int | None = None, run_id: str | None = None, missing: Iterable[str] = ()
    ) -> int:
        """Restore the plan's own run. If the script names another run, treat that run as empty and do not read it."""
        if run_id is not None and run_id != self._run_id:
            self._recorder.elsewhere(run_id)
            step = None
        done = super().restore(step=step, missing=missing)
        self._recorder.restored(done)
        return done

    def step(self, *, loss: Any = None) -> None:
        super().step(loss=loss)
        self._recorder.boundary(self._gate.place.completed)

    def leave(self, code: int) -> None:
        self._recorder.leaving()
        super().leave(code)

    # --- for the recorder ---

    @property
    def held(self) -> bool:
        """Report whether a notice has closed the gate."""
        return self._gate.place.shut is not type(self._gate.place.shut).OPEN

    @property
    def committed(self) -> int:
        """Return the step of this attempt's newest checkpoint; -1 before the first."""
        last = self._checkpointer.last
        return -1 if last is None else last.step

    def checkpoint_soon(self) -> None:
        """Request a background checkpoint at the next boundary."""
        self._schedule.ask(going=True)
