"""A `Guard` that also records: `register` returns it where a plan is set."""

from __future__ import annotations

import os
from typing import Any

from ...providers.clock import Clock
from ...providers.stores.base import BlobStore
from ..agreement.channel import Channel
from ..guard import Guard
from .plan import LifePlan
from .recorder import Recorder


class RecordedGuard(Guard):
    """Follows a plan: its store and run id hold, whatever the script says, and it ends where the plan ends."""

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
        """
        Args:
            said: the store and the run id that the script has named.
        """
        # What the script itself may have set: a stage outlives the run, and the recorder asks for background checkpoints.
        os.environ.pop("SPOTGUARD_STAGE", None)
        os.environ["SPOTGUARD_EVERY"] = "off"
        self._recorder = Recorder(plan, state, clock)
        super().__init__(store, run_id, state, clock, channel)
        self._recorder.begin(self, self._rank, self._world, " ".join(each or "-" for each in said))

    def restore(self, *, step: int | None = None, run_id: str | None = None) -> int:
        """The plan's run begins with nothing, and no other run is read: one that the script names is as if it were empty."""
        if run_id is not None and run_id != self._run_id:
            self._recorder.elsewhere(run_id)
            step = None
        done = super().restore(step=step)
        self._recorder.restored(done)
        return done

    def step(self) -> None:
        super().step()
        self._recorder.boundary(self._gate.place.completed)

    def leave(self, code: int) -> None:
        self._recorder.leaving()
        super().leave(code)

    # --- what the recorder asks ---

    @property
    def held(self) -> bool:
        """Whether a notice has closed the gate."""
        return self._gate.place.shut is not type(self._gate.place.shut).OPEN

    @property
    def committed(self) -> int:
        """The step of the newest checkpoint of this attempt; -1 before the first."""
        last = self._checkpointer.last
        return -1 if last is None else last.step

    def checkpoint_soon(self) -> None:
        """A background checkpoint at the next boundary."""
        self._cadence.ask(going=True)
