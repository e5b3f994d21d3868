"""`RecordedGuard`, the `Guard` of a run under a plan, and the base of the recorders that it feeds."""

from __future__ import annotations

import atexit
import json
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ...providers.clock import Clock
from ...providers.stores.base import BlobStore
from ..arguments.settings import Settings
from ..commit.plan.partitioner import ALL_STAY
from ..consensus.channel import Channel
from ..guard import Guard
from ..ipc.notice import PreemptionNotice
from ..ipc.protocol import Position
from ..save.request import SavedCheckpoint
from .plan import LifePlan


class GuardRecorder(ABC):
    """A recorder of one training process: it writes what its guard does as lines of JSON, and ends the run as the plan requires."""

    def __init__(self, plan: LifePlan) -> None:
        self._plan = plan
        self._guard: RecordedGuard | None = None
        self._rank = 0
        self._out = -1
        self._pid = os.getpid()
        self._ended = False

    @abstractmethod
    def begin(self, guard: RecordedGuard, rank: int, world: int, said: str) -> None:
        """Begin the record, once the guard exists.

        Args:
            said: the store and the run id that the script itself passed.
        """

    @abstractmethod
    def restored(self, step: int) -> None:
        """Record a restore to this step."""

    @abstractmethod
    def boundary(self, completed: int) -> None:
        """Record a boundary, after `guard.step()`.

        Raises:
            SystemExit: the plan ends here.
        """

    def saved_by_hand(self) -> None:  # noqa: B027
        """Record a `guard.save()` of the script that has committed."""

    def saved(self, saved: SavedCheckpoint | None, notice: PreemptionNotice | None = None) -> None:  # noqa: B027
        """Record a committed checkpoint, or None for a notice whose save committed nothing. The saving thread calls it."""

    def elsewhere(self, run_id: str) -> None:
        """Record that the script restores another run than its own."""
        self._write("elsewhere", run_id=run_id)

    def leaving(self) -> None:
        """Record that training is asked to leave. Any thread may call it."""
        if self._guard is not None:
            self._write("leaving", step=self._guard.committed)

    def _open(self, guard: RecordedGuard, rank: int) -> None:
        self._guard, self._rank = guard, rank
        path = Path(self._plan.folder, f"rank-{rank}.jsonl")
        self._out = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        atexit.register(self._left_by_itself)

    def _end(self, why: str) -> None:
        self._ended = True
        self._write("end", why=why)

    def _left_by_itself(self) -> None:
        if not self._ended:
            self._end("own end" if getattr(sys, "last_value", None) is None else "error")

    def _write(self, what: str, **facts: Any) -> None:
        if os.getpid() != self._pid or self._out < 0:
            return  # a forked child
        os.write(self._out, (json.dumps({"what": what, **facts}) + "\n").encode())


class RecordedGuard(Guard):
    """A `Guard` that also records; `register` returns it if a plan is set.

    The plan's store, stage and run id override the script's, and the run ends where the plan ends.
    """

    def __init__(
        self,
        recorder: GuardRecorder,
        plan: LifePlan,
        store: BlobStore,
        run_id: str,
        state: dict[str, Any],
        clock: Clock,
        channel: Channel | None = None,
        settings: Settings | None = None,
        *,
        said: tuple[str | None, str | None] = (None, None),
    ) -> None:
        """Make the guard and begin its record.

        Args:
            said: the store and the run id that the script passed.
        """
        self._recorder = recorder
        super().__init__(store, run_id, state, clock, channel, settings)
        self._recorder.begin(
            self, self._parts.rank, self._parts.world, " ".join(each or "-" for each in said)
        )

    def restore(
        self, *, step: int | None = None, run_id: str | None = None, missing: Iterable[str] = ()
    ) -> int:
        """Restore the plan's own run. If the script names another run, treat that run as empty and do not read it."""
        if run_id is not None and run_id != self._parts.run_id:
            self._recorder.elsewhere(run_id)
            step = None
        done = super().restore(step=step, missing=missing)
        self._recorder.restored(done)
        return done

    def step(self, *, loss: Any = None) -> None:
        super().step(loss=loss)
        self._recorder.boundary(self._gate.place.completed)

    def save(self) -> SavedCheckpoint:
        saved = super().save()
        self._recorder.saved_by_hand()
        return saved

    def leave(self, code: int) -> None:
        self._recorder.leaving()
        super().leave(code)

    def _counted(self, saved: SavedCheckpoint) -> None:
        super()._counted(saved)
        self._recorder.saved(saved)

    def _preemption_ended(self, preemption: PreemptionNotice, committed: bool) -> None:
        self._recorder.saved(self._checkpointer.last if committed else None, preemption)
        super()._preemption_ended(preemption, committed)

    # --- for the recorder ---

    @property
    def held(self) -> bool:
        """Report whether a notice has closed the gate."""
        return self._gate.place.shut is not type(self._gate.place.shut).OPEN

    @property
    def waits(self) -> bool:
        """Report whether a save waits for the next boundary."""
        return self._state.boundary_only != ""

    @property
    def committed(self) -> int:
        """Return the step of this attempt's newest checkpoint; -1 before the first."""
        last = self._checkpointer.last
        return -1 if last is None else last.step

    def checkpoint_soon(self) -> None:
        """Request a background checkpoint at the next boundary."""
        self._schedule.ask(going=True)

    @property
    def evaluates(self) -> bool:
        """Whether the registered models are in evaluation."""
        return self._state.evaluates

    @property
    def share(self) -> int:
        """Bytes that this rank writes of a save of all ranks; of its whole state until a save is planned."""
        cost = self._checkpointer.cost(ALL_STAY)
        return cost.weights + cost.moments

    @property
    def unmarked_steps(self) -> int:
        """Optimizer steps since the last boundary; before the first one, since training began."""
        return self._state.monitor.steps

    @property
    def position(self) -> Position:
        """The position that this guard would send to an agent."""
        return self._position()

    @property
    def held_bytes(self) -> int:
        """Bytes of all state that this rank holds."""
        return self._checkpointer.nbytes
