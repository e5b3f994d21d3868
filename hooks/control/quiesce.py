"""How the state comes to stand still for a save: at the gate, and in a job of several ranks at one step for all.

Alone, a rank takes the step it has. Together, each closes its gate, offers the earliest step that it can still give, and
obeys the one decision: who is behind is let through to it, and to no step further.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from ..save.cancel_scope import Abandoned
from ..save.request import SaveRequest, SaveSpec
from ..state.state import State
from .gate import Gate
from .gate_rule import Shut
from .report import Report

if TYPE_CHECKING:
    from ..consensus.vote import Decision

if TYPE_CHECKING:
    from ..consensus.vote import Decision

#: Seconds that ranks wait for each other's offers: these come from threads that nothing blocks, so who has not answered
#: by then is dead, and all others stand still meanwhile.
_PATIENCE = 10.0
#: And of the time that is left for the save at most. It is usually some milliseconds.
_SHARE = 0.4


class Quiescence:
    """Shuts the gate and waits. On the saving thread.

    Args:
        ending: whether training is over, so that a step in its middle will have no boundary any more.
        assembly: the other ranks; None for a job of one process.
    """

    def __init__(
        self,
        gate: Gate,
        state: State,
        listener: Report,
        ending: Callable[[], bool],
        assembly: JobCoordinator | None = None,
    ) -> None:
        self._gate = gate
        self._state = state
        self._listener = listener
        self._ending = ending
        self._assembly = assembly

    def stand(self, job: SaveRequest, boundary_only: bool) -> SaveSpec:
        """Have the state stand still, where this rank is or where all ranks are to be.

        Args:
            boundary_only: only a parked boundary will do.

        Raises:
            Abandoned: out of time, called off, or the ranks decided that nothing is saved.
        """
        together = self._assembly is not None and not job.rehearsal
        # By hand, the training thread stands at its boundary and waits for us, unless a signal calls it away. Those of
        # other ranks may be anywhere, on their way to their own `save()` of that step: they offer that one.
        by_hand = job.kind == "manual"
        at_boundary = boundary_only and not by_hand
        how = Shut.AT_BOUNDARY if at_boundary else Shut.BEFORE_CHANGE
        ahead = together and job.is_checkpoint and not at_boundary
        decision = self._decide(job, how, ahead=ahead) if together else None
        if decision is None:
            self._gate.close(how)
        else:
            if ahead and decision.step is not None:
                self._state.audit.want(decision.step)
            self._gate.close(how, decision.step, awaited=at_boundary and decision.some_park)
        step = self._steady(job)
        if decision is not None and by_hand and step == decision.step and self._state.boundary_only:
            self._gate.close(Shut.AT_BOUNDARY, step)
            step, at_boundary = self._steady(job), True
        if step is None and job.scope.left() == 0:
            why = self._state.monitor.unmarked
            raise Abandoned(f"out of time: no guard.step() was reached in the window{'; ' * bool(why)}{why}")
        job.scope.check()
        if step is None:
            raise Abandoned("training ended before its next guard.step()")
        if decision is not None and step != decision.step:
            # A notice of this machine has shut the gate anew, where it stood: its own call is on its way.
            raise Abandoned(f"step {decision.step} was agreed on, and training is held at step {step}")
        self._state.fence.wait(job.scope.pause)
        if at_boundary:
            self._state.look_again()
        if job.alarm is not None:
            self._listener.progress(job.alarm, "gate", step, 0, 0)
        if decision is None or self._assembly is None:
            return SaveSpec(step, parked=at_boundary)
        return replace(self._assembly.agreed(job, decision, step), parked=at_boundary)

    def _steady(self, job: SaveRequest) -> int | None:
        return self._gate.wait_steady(job.scope.left, lambda: job.scope.abandoned or self._ending())

    def refuse(self, job: SaveRequest) -> None:
        """There is no state yet: the others hear of it, and nothing is saved."""
        if self._assembly is not None:
            self._take_part(self._assembly, job, None, boundary=False, parks=False)

    def _decide(self, job: SaveRequest, how: Shut, *, ahead: bool) -> Decision:
        """
        Args:
            ahead: at the boundary after the earliest, which the training thread has not come to: there it takes checksums.
        """
        assembly = self._assembly
        assert assembly is not None
        place = self._gate.close(how)
        parks = how is Shut.AT_BOUNDARY
        to_come = ahead or (parks and not (place.at_boundary or place.resting))
        return self._take_part(assembly, job, place.earliest() + ahead, boundary=to_come, parks=parks)

    def _take_part(
        self, assembly: JobCoordinator, job: SaveRequest, step: int | None, *, boundary: bool, parks: bool
    ) -> Decision:
        scope = job.scope
        left = scope.left()
        until = scope.now() + (_PATIENCE if left is None else min(_PATIENCE, left * _SHARE))
        decision = assembly.decide(
            job,
            step,
            lambda: max(0.0, min(until, scope.deadline) - scope.now()),
            lambda: scope.abandoned,  # a rank that ends saves what it has: the others count on it
            boundary=boundary,
            parks=parks,
        )
        scope.check()
        if decision.step is None:
            raise AlreadyComplete(decision.why) if decision.stands >= 0 else Abandoned(decision.why)
        return decision


# The other ranks of the job, as the saving thread of this one meets them.


class AlreadyComplete(Abandoned):
    """Ranks are gone, and a complete checkpoint is as new as what the others could save without them."""


class JobCoordinator(Protocol):
    """All methods but `decide` return at once."""

    @property
    def lost(self) -> bool:
        """The job's store is gone: nobody calls, and nobody is heard."""
        ...

    def counts(self, epoch: int) -> bool:
        """Whether the ranks still want the save of this call: no later one, no notice and no end of one was heard."""
        ...

    def decide(
        self,
        job: SaveRequest,
        step: int | None,
        left: Callable[[], float],
        over: Callable[[], bool],
        *,
        boundary: bool,
        parks: bool,
    ) -> Decision:
        """Offer a step to the others; returns what is decided, at the latest when nothing is `left` or it is `over`.

        Args:
            step: the earliest that this rank can still give; None: it has no state yet.
            boundary: it can give none but at a parked boundary that it has not come to yet.
            parks: it is held at that boundary until it has saved.
        """
        ...

    def agreed(self, job: SaveRequest, decision: Decision, step: int) -> SaveSpec:
        """What this rank's save is to do."""
        ...

    def again(self, job: SaveRequest, why: str) -> None:
        """This rank's state moved while it was read: call for another save, at the next boundary."""
        ...

    def failed(self, job: SaveRequest, why: str) -> None:
        """This rank's part of a save will not be there: the others need not wait for it."""
        ...

    def by_hand(self, step: int) -> None:
        """Call for a save of this very step; the first rank does, for all."""
        ...

    def over(self, id: str, why: str) -> None:
        """A notice of this machine is void, and nobody else will say so: call for training to go on."""
        ...
