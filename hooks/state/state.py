"""All registered values as one state: proven at `register`, copied at boundaries, collected for a save, filled by a
restore.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import FrameType
from typing import Any

import torch

from ...providers.clock import Clock, SystemClock
from ...providers.errors import StateError
from ..checkpoint.format.coverage import MergedTensor
from ..checkpoint.format.packing import pack_state
from ..checkpoint.format.values.state_check import RNG
from .changes.audit import Audit
from .changes.change_detector import ChangeDetector
from .changes.step_hooks import hook
from .collected import CollectedState, collect, describe
from .device.events import Fence
from .device_boundary import DeviceBoundary, KeptBoundaries
from .inventory.frozen import largest, prove
from .misuse.boundary_times import COSTLY_SECONDS, LATE_SECONDS, BoundaryTimes
from .misuse.forgotten import Forgotten, SavedValues
from .misuse.script.loose_generators import LooseGenerators
from .misuse.script.rebound_names import ReboundNames
from .misuse.step_monitor import StepMonitor
from .misuse.turn_signs import TurnSigns
from .misuse.unregistered import parameter_names
from .misuse.unsaved import UnsavedState
from .parts.loaders.part import LoaderPart
from .parts.module import ModulePart
from .parts.optimizers.optimizer import OptimizerPart
from .parts.registry import build, check_held
from .parts.values import DictPart, Part, StatefulPart, check_savable
from .restore_plan import NOBODY, RestorePlan, may_be_missing, plan, put_back
from .sharding.dtensor import RankOf, local
from .sharding.fingerprint import alone, fingerprint

log = logging.getLogger("spotguard")

#: Boundaries at which the training thread checks all optimizer state, until the optimizers have created it. At this last one copies
#: are made in any case.
_EARLY = 4
#: Seconds between two checks of the modules' tables at boundaries. A check costs 15 µs for ResNet-50. A save checks again.
_LOOK_EVERY = 1.0


class State:
    """The registered values, and the hooks that watch them change.

    Args:
        values: by registered name: modules, optimizers, anything with `state_dict`/`load_state_dict`, tensors, dicts
            of plain values.
        before_change: called before a registered optimizer changes anything, with the frame that runs its step.
        clock: the clock that measures steps.
        after_change: called when that step is over, with the frame that runs it.
        fence: records when each device reaches a boundary; by default a new one.
        rank: this process's rank in the job.
        world: the number of ranks in the job. With more than one, each rank saves tensors that nothing declares
            shared under a private name.

    Raises:
        StateError: a value cannot be saved. The message names the value, its type, and what to do.
    """

    def __init__(
        self,
        values: Mapping[str, Any],
        before_change: Callable[[FrameType], object],
        clock: Clock | None = None,
        *,
        after_change: Callable[[FrameType], object] = lambda frame: None,
        fence: Fence | None = None,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        #: Why saves wait for the boundary; "" if they can start at once. Once set, it is never unset.
        self.boundary_only = ""
        #: Why training must not continue on this memory: a restore ended halfway. "" if the memory is sound.
        self.poisoned = ""
        #: The number of boundaries taken. While this number is unchanged, the values that a save reads at rest are
        #: unchanged too.
        self.taken = 0
        #: The generators' states of the last restore, until training goes on from it.
        self._generators: dict[str, Any] = {}
        #: Whether the next checkpoint to restore is of this run, and whether training goes on from one.
        self._own = self._resumed = False
        self._may_be_missing: frozenset[str] = frozenset()
        self._before_change, self._after_change = before_change, after_change
        self._now = (clock or SystemClock()).monotonic
        self._environment = describe()
        self._threads = torch.get_num_threads()
        self._stepped = False
        #: Boundaries since training began or returned to an earlier one, and whether this one is among 0, 1, 2, 4, 8 and so on: there
        #: the state is looked through for what costs too much at each.
        self.passed, self.looks = 0, True
        #: Whether an optimizer creates new state tensors at every step (LBFGS). Then each boundary checks its state.
        self._restless = False
        #: Checksums of the last boundary's state. They find edits that the change detector misses.
        self.audit = Audit(self._now, self.save_at_boundaries)
        #: Records when each device has reached the last boundary.
        self.fence = Fence() if fence is None else fence
        self._kept = KeptBoundaries()
        #: Monotonic seconds at which the last boundary's copies were complete; 0 before the first boundary.
        self.ended_at = 0.0
        self._stepped_at = 0.0
        self._look_at = 0.0
        self._times = BoundaryTimes(self.save_at_boundaries)
        self._ranks = RankOf(rank, world)
        registered = build(values, self._ranks)
        self.parts, self._rng = registered.parts, registered.rng
        self._held = registered.held
        forgotten = Forgotten(
            values,
            lambda: 0 if self._resumed else self.passed,
            lambda: not self.monitor.trains_elsewhere,
            lambda: SavedValues(
                [each.tensor for part in self.parts for each in part.state_tensors()],
                [part.tree() for part in self.parts if isinstance(part, (DictPart, StatefulPart))],
            ),
            registered.attributes,
        )
        watches = (registered.attributes, forgotten, ReboundNames(values), LooseGenerators(values))
        self._unsaved = UnsavedState(registered.lost, watches, self.save_at_boundaries)
        #: The wrapped loaders. Each is told of every boundary, also if no copies are made there.
        self.loaders = [part.value for part in self.parts if isinstance(part, LoaderPart)]
        self._modules = [p for p in self.parts if isinstance(p, ModulePart)]
        self._optimizers = [p for p in self.parts if isinstance(p, OptimizerPart)]
        self.fence.watch([part.forms.devices for part in self.parts])
        self._refresh()
        self._prove()
        if registered.boundary_only:
            self.save_at_boundaries(registered.boundary_only)
        # This is the last step that can fail: if `register` refuses a value, no hooks are left on the optimizers.
        self._hooks = [
            handle
            for optimizer in registered.optimizers
            for handle in hook(optimizer, self._on_step, self._after_step)
        ]
        #: Finds misuse of the guard in the training loop. It begins with the guard.
        saved = {part.name: part.optimizer for part in self._optimizers}
        self.monitor = StepMonitor(
            values, saved, self._now, self.save_at_boundaries, registered.attributes.add
        )
        #: The signs of the turn behind the last boundary.
        self.turn = TurnSigns(
            self.parts,
            lambda: (
                [[p for g in o.param_groups for p in g["params"]] for o in registered.optimizers]
                or [[*m.parameters()] for m in values.values() if isinstance(m, torch.nn.Module)]
            ),
            lambda: parameter_names(values),
        )

    def forget(self, trains: Callable[[], object]) -> None:
        """Watch nothing more in a forked child.

        Args:
            trains: called before each step of a registered optimizer.
        """
        self.monitor.close()
        self.audit.forget()
        self._before_change = lambda frame: trains()

    def close(self) -> None:
        """Remove the hooks from the optimizers."""
        self.monitor.close()
        for handle in self._hooks:
            handle.remove()

    @property
    def evaluates(self) -> bool:
        """Whether registered modules are in evaluation, and none trains. Any thread may ask."""
        return bool(self._modules) and not any(each.training for each in self._modules)

    def is_finite(self) -> bool:
        """Return whether all that the optimizers step, and all that they keep, is finite. One sum a tensor, without memory.

        Raises:
            RuntimeError: a device cannot be read any more.
        """
        tensors = [local(t) for part in self._optimizers for t in part.tensors]
        plain = (
            t for t in tensors if type(t) in (torch.Tensor, torch.nn.Parameter) and t.is_floating_point()
        )
        return all(
            math.isfinite(t.detach().sum(dtype=torch.promote_types(t.dtype, torch.float32)).item())
            for t in plain
        )

    @property
    def environment(self) -> dict[str, Any]:
        """The training thread's environment.

        Torch counts threads per thread, so the saver thread would report another number.
        """
        return {**self._environment, "threads": self._threads}

    def _prove(self) -> None:
        """Save and read back every tree in memory. A value that cannot be saved is refused now, not when a notice arrives."""
        for part in self.parts:
            part.at_boundary()
            for state_tensor in part.state_tensors():
                check_savable(state_tensor.name, state_tensor.tensor)
                self.fence.follow([state_tensor.tensor])
        trees: dict[str, Any] = {}
        values = {part.name: part.tree() for part in self.parts}
        for part in self.parts:
            part.targets(prove(part.name, values[part.name], trees))
        pack_state(trees, lambda name: largest(name, values[name]))

    def expected_bytes(self) -> int:
        """Return roughly how many bytes a full save will write.

        The estimate holds before the optimizers have created their state: it assumes two more numbers per parameter,
        as Adam keeps.
        """
        existing = sum(
            state_tensor.tensor.nbytes for part in self.parts for state_tensor in part.state_tensors()
        )
        fresh = [part for part in self._optimizers if not part.optimizer.state]
        return existing + 2 * sum(local(p).nbytes for part in fresh for p in part.tensors)

    # --- the training thread ---

    def _on_step(self, frame: FrameType) -> None:
        self._before_change(frame)
        # This code runs after the gate. If this step waited for another thread's boundary, that boundary does not
        # belong to this step.
        if not self._stepped:
            self._stepped = True
            self._stepped_at = self._now()
            if not self.passed:
                self.turn.keep_weights()
            self.audit.look()
            if self.fence.devices and not self.boundary_only:
                self.fence.begin(self._detector.unchanged_by_host)
        elif self.fence.devices:
            self.fence.join()

    def _after_step(self, frame: FrameType) -> None:
        self._stepped_at = self._now()
        self._after_change(frame)

    def copies_late(self) -> bool:
        """Count a boundary, and return whether its copies wait until a save wants them. On the training thread, once for each step."""
        self.passed += 1
        self.looks = not self.passed & (self.passed - 1) or self._unsaved.unsettled
        if self.passed == 1:
            self._rng.trained()
        return self.boundary_only != "" and not self.looks

    def at_boundary(self) -> None:
        """Copy the values that change between steps, and mark the values that must not change.

        Raises:
            StateError: a registered value can no longer be saved.
        """
        started, times = self._now(), self._times
        # Measure this thread's own CPU time: waiting for the GIL during a save is no cost of the copies. The system
        # call would run twice, 1.3 µs each, of the 5 µs that `guard.step()` may take. So it runs only once the copies
        # look costly. This value measures a cost, and nothing is ordered by it or waits for it. So no Clock provides
        # it.
        worked = time.thread_time() if times.costly else None
        self.taken += 1
        for part in self.parts:
            part.at_boundary()
        counts = 0
        for optimizer in self._optimizers:
            counts += optimizer.counts()
        once = 0.0
        if self.passed <= _EARLY or counts != self._counts or self._restless:
            self._environment = describe()
            looking = self._now()
            moved = any(part.moved() for part in self._optimizers)
            if self.passed == _EARLY:
                self._restless = moved
            if moved:
                for part in self._optimizers:
                    check_held(part.name, part.optimizer, self._held())
                self._refresh()
            if not self._restless:
                once = self._now() - looking
        if self.looks:  # it takes some ms each time, and the first step creates the moments and late layers
            looking = self._now()
            self._unsaved.look_elsewhere(self._refresh)
            self.monitor.look_again()
            self._look_at = 0.0
            once += self._now() - looking
        if not self._detector.stands():  # a storage was resized: do not read the old block again
            self._refresh()
        if started >= self._look_at:
            self._look_at = started + _LOOK_EVERY
            if any(m.outdated() for m in self._modules) or any(o.outdated() for o in self._optimizers):
                self._refresh()
            for module in self._modules:
                module.say_what_is_new()
        # If saves wait for boundaries anyway, compare nothing: each comparison would have to query a device.
        moved = self._detector.mark(self._stepped or self.boundary_only != "")
        self._threads = torch.get_num_threads()
        if self.fence.devices and not self.boundary_only:
            self._kept.keep(self.taken, self.parts, self._detector)
        if moved:
            self.save_at_boundaries("parameters changed although no registered optimizer stepped")
        elif started - self._stepped_at > LATE_SECONDS and self._stepped and self.ended_at:
            times.came_late(started - self._stepped_at, started - self.ended_at)
        else:
            times.late = 0
        cost = self._now() - started if worked is None else time.thread_time() - worked
        # The time spent to follow new optimizer state does not predict the cost of later boundaries.
        if cost - once >= COSTLY_SECONDS:
            times.copied(cost - once, started - self.ended_at)
        else:
            times.costly = 0
        # Take the slice after the costs are weighed: the audit limits slices to a share of their own.
        if self.boundary_only:
            self.audit.forget()
        else:
            self.audit.turn(started - self.ended_at if self._stepped else 0.0)
        # After the slice: the saver thread compares the slice on its own stream.
        events = self.fence.record()
        if self.fence.devices:
            self._kept.ended(events)
        self._stepped = False
        self.ended_at = self._now()

    def first_boundary(self) -> None:
        """Take the boundary from which training goes on, with the generators as they were restored: objects may draw when asked."""
        self.at_boundary()
        if self._generators:
            self._rng.put_back(self._generators)
            self._rng.arrived(own=self._own)
        self._generators = {}

    def loop_begins(self, done: int, total: int | None, *, left: bool) -> None:
        """Note that a loop over `guard.steps()` begins. On the training thread, at a boundary.

        Args:
            done: completed steps.
            total: the number of steps at which the loop ends; None for a loop without an end.
            left: whether the loop before it was left early.
        """
        for loader in self.loaders:
            loader.before_turn()
        if total is None or self.loaders or (left and self.passed):
            self._rng.loop_left()
        else:
            self._rng.loop_begins(follows=done < total, ends=done == total)

    def loop_goes_on(self, done: int, total: int | None) -> None:
        """Note, before a boundary, that it is one of the loop over `guard.steps()`."""
        if total is not None and not self.loaders:
            self._rng.loop_goes_on(follows=done < total)

    def restored(self) -> None:
        """Note that training begins, or returns to an earlier step. On the training thread."""
        self.monitor.restored(resumed=self._resumed)
        self.passed, self.looks = 0, True
        self._unsaved.restored()
        for module in self._modules:
            module.begin()
        self.turn.mark(look=True)
        for loader in self.loaders:
            loader.restored()

    def save_at_boundaries(self, why: str) -> None:
        """Make saves wait for the boundary from now on.

        Args:
            why: the reason, for the log and the status.
        """
        if not self.boundary_only:
            self.boundary_only = why
            self._kept.forget()
            log.warning("from now on a save waits for the next guard.step(): %s [SG406]", why)

    def _refresh(self) -> None:
        for module in self._modules:
            module.refresh()
        for optimizer in self._optimizers:
            optimizer.refresh()
        self._counts = sum([part.counts() for part in self._optimizers])
        owned = [t for part in self._optimizers for t in part.tensors]
        sources = [pair for part in self.parts for pair in part.sources()]
        watched = {id(t): t for part in self.parts for t in part.in_place()}
        for tensor in owned:
            watched.pop(id(tensor), None)
        self._detector = ChangeDetector([*map(local, owned)], [*map(local, watched.values())], sources)
        self._kept.follow(map(local, (*owned, *watched.values())))
        self.fence.follow([*owned, *watched.values(), *(live for live, _ in sources)])
        state_tensors = [state_tensor for part in self.parts for state_tensor in part.state_tensors()]
        self._unsaved.look_for_gaps(state_tensors)
        self.audit.follow(state_tensors, map(local, (*owned, *watched.values())))
        #: By group of ranks that hold the same tensors: a hash of these, equal on all ranks. Computed now, because the training thread
        #: may be in the first step when a save asks, which creates state.
        self.fingerprint = fingerprint(state_tensors)
        #: Whether this rank has tensors that no other rank has.
        self.alone = alone(state_tensors, self._ranks.rank)

    def take_again(self) -> None:
        """Take the boundary again, with the values of this moment, for a save that the script asks for.

        On the training thread.
        """
        self.taken += 1
        self.audit.forget()
        if not self.looks:
            self.looks = True
            self._unsaved.look_for_changes()
        for part in self.parts:
            part.at_boundary()
        self._threads = torch.get_num_threads()
        self._kept.forget()
        self.look_again()
        self.fence.record()

    def look_again(self) -> None:
        """Follow tensors that were replaced. The training thread must be parked at its boundary."""
        self._refresh()
        self._detector.mark(stepped=True)

    # --- the saver thread, gate shut ---

    def device_boundary(self) -> DeviceBoundary | None:
        """Return the boundary whose state the devices hold, if the host has launched changes of it; None if there is none."""
        return None if self.boundary_only else self._kept.find(self)

    def replaced(self) -> str:
        """Return what was put in the place of a tensor since the boundary; "" if nothing was."""
        if any(part.moved() for part in self._optimizers):
            return "an optimizer replaced its state after guard.step()"
        if any(part.moved() for part in self._modules):
            return "a module was given another parameter or buffer after guard.step()"
        return ""

    def inconsistency(self) -> str:
        """Return what moved since the boundary; "" if the state is unchanged."""
        return self.replaced() or self._detector.inconsistency()

    def begun(self) -> str:
        """Return the first sign that the turn behind the last boundary has begun; "" if there is none."""
        if self.monitor.steps:
            return "an optimizer has stepped"
        # Forward moves buffers alone. A script that also changes weights there loads a model, or converts it.
        return self.turn.begun(buffers=not (self.boundary_only or self.inconsistency()))

    @property
    def trained(self) -> bool:
        """Whether training has gone on from the restore: a boundary came, or an optimizer stepped and left other weights."""
        return self.passed > 0 or self.turn.has_other_weights()

    def edited(self) -> str:
        """Return what the audit finds changed since the boundary; "" if it finds nothing."""
        return self.audit.look(wait=True)

    def collect(self, parts: Sequence[Part] | None = None) -> CollectedState:
        """Return the state as it is now, without copying a tensor.

        Args:
            parts: the parts to ask; by default those of the last boundary.

        Raises:
            StateError: the state cannot be saved. The bytes of a tensor are not in its own memory, or a restore ended
                halfway. Or an optimizer holds state that no save would contain.
        """
        if self.poisoned:
            raise StateError(f"{self.poisoned}; spotguard does not save it")
        if self._unsaved.lacks:
            raise StateError(self._unsaved.lacks)
        return collect(self.parts if parts is None else parts, self._ranks, self.monitor.dead)

    # --- restore, on the main thread ---

    def targets(
        self,
        states: Sequence[Mapping[str, Any]],
        entries: Mapping[str, MergedTensor],
        stand_ins: Mapping[int, int] = NOBODY,
    ) -> RestorePlan:
        """Return `restore_plan.plan` of a checkpoint. Nothing is written yet."""
        self._refresh()  # follow tensors that were replaced or added since `register`
        return plan(self.parts, states, entries, self._ranks, stand_ins, self._may_be_missing)

    def expect(self, names: Iterable[str], *, own: bool) -> None:
        """Tell of the next checkpoint to restore: what it may lack (`restore_plan.may_be_missing`), and whether it is of this run.

        Another run's checkpoint does not decide what this one trains.
        """
        self._may_be_missing, self._own = may_be_missing(self.parts, names), own
        for part in self._optimizers:
            part.own = own

    def put_back(self, restoring: RestorePlan) -> list[str]:
        """Give every object its tree, by `restore_plan.put_back`, and return the warnings."""
        warnings = put_back(self.parts, restoring)
        self._resumed = True
        self._generators = restoring.trees.get(RNG, {})
        self._refresh()
        self._environment = describe()
        return warnings
