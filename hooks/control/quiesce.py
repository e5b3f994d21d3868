"""Quiescence: the state stands still for a save, at the gate, and in a job of several ranks at one step for all ranks.

A single rank takes the step that it has. In a job of several ranks, each rank closes its gate, offers the earliest step that it
can still give, and obeys the one decision. The gate lets a rank that is behind through to that step, and no further.

`JobCoordinator` is the saver thread's view of the other ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ..commit.cancel_scope import Abandoned
from ..save.request import SaveRequest, SaveSpec
from ..state.device_boundary import DeviceBoundary
from ..state.state import State
from .gate import Gate
from .gate_rule import GateRule, Shut
from .report import Report

if TYPE_CHECKING:
    from ..consensus.vote import Decision

#: Seconds that ranks wait for each other's offers. Offers come from threads that nothing blocks, so a rank that has not answered
#: after this time is dead. All other ranks stand still meanwhile. At a stall, a process waits no longer for its step to end: the
#: step that hangs will not.
_PATIENCE = 10.0
#: The share of the time that is left for the save that this wait takes at most. The wait is usually some milliseconds.
_SHARE = 0.4


class PassedStep(NamedTuple):
    """A step that the devices hold, and the host has passed."""

    step: int
    boundary: DeviceBoundary


class Quiescence:
    """The saver thread's way to a state that stands still: it shuts the gate and waits.

    Args:
        gate: parks the training thread.
        state: the state to save.
        listener: reports to the agent.
        ending: returns whether training is over, so that an unfinished step will reach no boundary.
        coordinator: the other ranks; None for a job of one process.
    """

    def __init__(
        self,
        gate: Gate,
        state: State,
        listener: Report,
        ending: Callable[[], bool],
        coordinator: JobCoordinator | None = None,
    ) -> None:
        self._gate = gate
        self._state = state
        self._listener = listener
        self._ending = ending
        self._coordinator = coordinator

    def stand(self, job: SaveRequest, boundary_only: bool, *, held: bool = True) -> SaveSpec:
        """Bring the state to a standstill, at this rank's step or at the step that all ranks agreed on.

        Args:
            job: the save.
            boundary_only: stop at a parked boundary only.
            held: a step that devices hold and the host has passed is enough.

        Returns:
            The spec of this rank's save.

        Raises:
            Abandoned: the save is out of time or was called off, or the ranks decided that nothing is saved.
        """
        # In a save by hand, the training thread stands at its boundary and waits for this save, unless a signal calls it away.
        # Other ranks' training threads may still be on their way to their own `save()` of that step; those ranks offer that step.
        by_hand = job.kind == "manual"
        at_boundary = boundary_only and not by_hand
        how = Shut.AT_BOUNDARY if at_boundary else Shut.BEFORE_CHANGE
        if held and not at_boundary and (passed := self._passed(job)) is not None:
            return self._stand_behind(job, passed)
        place = self._gate.close(how)
        decision = None
        if self._votes(job):
            # A background save takes the boundary after the earliest: the training thread has still to reach it, and takes
            # checksums there.
            ahead = job.is_checkpoint and not at_boundary
            decision = self._decide(job, how, place, place.earliest() + ahead)
            if ahead and decision.step is not None:
                self._state.audit.want(decision.step)
            self._gate.close(how, decision.step, awaited=at_boundary and decision.some_park)
        step = self._steady(job)
        if decision is not None and by_hand and step == decision.step and self._state.boundary_only:
            self._gate.close(Shut.AT_BOUNDARY, step)
            step, at_boundary = self._steady(job), True
        if step is None and job.scope.left() == 0:
            why = self._state.monitor.unmarked
            raise Abandoned(
                f"out of time: training reached no guard.step() before the deadline{'; ' * bool(why)}{why} [SG502]"
            )
        job.scope.check()
        if step is None:
            why = "training ended before its next guard.step()"
            if _is_stall(job) and not self._ending():
                why = "training stands in the middle of a step, and does not reach its next guard.step()"
            raise self._given_up(job, why)
        if decision is not None and step != decision.step:
            # A notice of this machine has shut the gate again at another step; that notice's call is on its way.
            raise Abandoned(f"the ranks agreed on step {decision.step}, but training is held at step {step}")
        self._arrive(job)
        if at_boundary:
            self._state.look_again()
        return replace(self._spec(job, decision, step), parked=at_boundary)

    def _stand_behind(self, job: SaveRequest, passed: PassedStep) -> SaveSpec:
        """Save a step that the devices hold. The host has passed it, so the gate only keeps it from going further."""
        place = self._gate.close()
        decision = (
            self._decide(job, Shut.BEFORE_CHANGE, place, passed.step, held=True) if self._votes(job) else None
        )
        job.scope.check()
        if decision is not None and decision.step != passed.step:
            raise self._given_up(
                job, f"the ranks agreed on step {decision.step}, but the devices hold step {passed.step}"
            )
        return replace(self._spec(job, decision, passed.step), held_by_devices=passed.boundary)

    def _votes(self, job: SaveRequest) -> bool:
        return self._coordinator is not None and not job.rehearsal

    def _spec(self, job: SaveRequest, decision: Decision | None, step: int) -> SaveSpec:
        if job.preemption is not None:
            self._listener.progress(job.preemption, "gate", step, 0, 0)
        if decision is None or self._coordinator is None:
            return SaveSpec(step)
        return self._coordinator.agreed(job, decision, step)

    def _given_up(self, job: SaveRequest, why: str) -> Abandoned:
        """Return the error of a part that will not come. The other ranks, which would wait for it, are told."""
        if self._coordinator is not None and self._votes(job):
            self._coordinator.failed(job, why)
        return Abandoned(why)

    def _passed(self, job: SaveRequest) -> PassedStep | None:
        """Return the step that the devices hold, if training hangs there and the host has passed it."""
        if not _is_stall(job):
            return None
        place, taken = self._gate.close(), self._state.taken
        boundary = self._state.device_boundary()
        now = self._gate.close()
        # The host may move meanwhile: a boundary between the two answers would give the step another number.
        moves = now != place or now.bounding is not None or self._state.taken != taken
        if boundary is None or moves or now.at_boundary:
            return None
        return PassedStep(now.completed - (taken - boundary.taken), boundary)

    def _steady(self, job: SaveRequest) -> int | None:
        until = job.scope.now() + _PATIENCE

        def left() -> float | None:
            seconds = job.scope.left()
            if not _is_stall(job):  # a notice that came meanwhile has its own deadline
                return seconds
            patience = max(0.0, until - job.scope.now())
            return patience if seconds is None else min(seconds, patience)

        return self._gate.wait_steady(left, lambda: job.scope.abandoned or self._ending())

    def _arrive(self, job: SaveRequest) -> None:
        """Wait until the devices have come to the boundary at which training is held.

        Raises:
            Abandoned: the save is out of time or was called off. Or training stands still, and so does a device, in a step
                before that boundary: the host had launched further steps.
        """
        until = job.scope.now() + _PATIENCE

        def pause(seconds: float) -> None:
            job.scope.pause(seconds)
            if _is_stall(job) and job.scope.now() >= until:
                why = "a device stands in a step before the last guard.step(): the host had launched further steps"
                raise self._given_up(job, why)

        self._state.fence.wait(pause)

    def refuse(self, job: SaveRequest) -> None:
        """Answer the other ranks that this rank has no state yet; then nothing is saved."""
        if self._coordinator is not None:
            self._take_part(self._coordinator, job, None, boundary=False, parks=False)

    def _decide(
        self, job: SaveRequest, how: Shut, place: GateRule, first: int, *, held: bool = False
    ) -> Decision:
        """Offer a step, and return the ranks' decision.

        Args:
            place: the position of the training thread, with the gate shut.
            first: the step to offer.
            held: the devices hold that step, and the host has passed it.
        """
        coordinator = self._coordinator
        assert coordinator is not None
        parks = how is Shut.AT_BOUNDARY
        to_come = first > place.earliest() or (parks and not (place.at_boundary or place.resting))
        hangs = _is_stall(job) and place.dirty and not place.resting and not held
        return self._take_part(coordinator, job, first, boundary=to_come or hangs, parks=parks)

    def _take_part(
        self, coordinator: JobCoordinator, job: SaveRequest, step: int | None, *, boundary: bool, parks: bool
    ) -> Decision:
        scope = job.scope
        left = scope.left()
        until = scope.now() + (_PATIENCE if left is None else min(_PATIENCE, left * _SHARE))
        decision = coordinator.decide(
            job,
            step,
            lambda: max(0.0, min(until, scope.deadline) - scope.now()),
            lambda: scope.abandoned,  # a rank that ends still saves its part: the others count on it
            boundary=boundary,
            parks=parks,
        )
        scope.check()
        if decision.step is None:
            raise AlreadyComplete(decision.why) if decision.saved >= 0 else Abandoned(decision.why)
        return decision


def _is_stall(job: SaveRequest) -> bool:
    return job.preemption is not None and job.preemption.stall


# --- the other ranks of the job ---


class AlreadyComplete(Abandoned):
    """Ranks are gone, and a complete checkpoint is as new as any that the others could save without them."""


class JobCoordinator(Protocol):
    """The other ranks, as the saver thread calls them. All methods but `decide` return at once."""

    @property
    def orphaned(self) -> bool:
        """Whether the job's own store is gone, so that the first rank calls for no more saves by hand."""
        ...

    def counts(self, epoch: int) -> bool:
        """Return whether the ranks still want the save of this call: no later call, notice or end of a notice has come."""
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
        """Offer a step to the other ranks, and return the decision, at the latest when no time is `left` or the save is `over`.

        Args:
            job: the save.
            step: the earliest step that this rank can still give; None: it has no state yet.
            left: returns the seconds that are left.
            over: returns whether the save does not count any more.
            boundary: this rank can give a step only at a parked boundary that it has not reached yet.
            parks: the gate holds this rank at that boundary until it has saved.
        """
        ...

    def agreed(self, job: SaveRequest, decision: Decision, step: int) -> SaveSpec:
        """Return the spec of this rank's save."""
        ...

    def again(self, job: SaveRequest, why: str) -> None:
        """Call for another save, at the next boundary: this rank's state moved while it was read."""
        ...

    def failed(self, job: SaveRequest, why: str) -> None:
        """Report that this rank's part of a save will not come, so that the other ranks need not wait for it."""
        ...

    def revote(self, job: SaveRequest) -> bool:
        """Have all ranks vote again on a notice's save, which lacks the rank that is gone with the job's own store.

        Returns:
            Whether they do: False if it is not worth the time that is left.
        """
        ...

    def by_hand(self, step: int) -> None:
        """Call for a save of this exact step. The first rank makes the call for all."""
        ...

    def over(self, id: str, why: str) -> None:
        """Call for training to go on: a notice of this machine is void, and no other rank will report that."""
        ...
