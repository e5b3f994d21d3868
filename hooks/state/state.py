"""Everything that was registered, as one: proven at `register`, copied at boundaries, collected for a save,
put back by a restore.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import FrameType
from typing import Any

import torch

from ...providers.clock import Clock, SystemClock
from ...providers.errors import StateError
from ..checkpoint.format.coverage import MergedTensor
from .changes.audit import Audit
from .changes.change_detector import ChangeDetector
from .collected import CollectedState, collect, describe
from .device import Fence
from .memory_access import gap
from .misuse.step_monitor import StepMonitor, hook
from .parts.module import ModulePart
from .parts.optimizer import OptimizerPart
from .parts.registry import build, check_held
from .parts.rng import RngPart
from .parts.values import Copied, InPlace, check_savable, prove
from .restore_plan import NOBODY, RestorePlan, plan
from .sharding.dtensor import RankOf, local
from .sharding.fingerprint import alone, digests, fingerprint
from .tensor_item import StateTensor

log = logging.getLogger("spotguard")

#: Boundaries at which everything is looked at anew, until optimizers have made their state.
_EARLY = 4
#: A boundary's copies may cost this much, or this share of a step, before saves wait for the boundary instead.
_COSTLY_SECONDS, _COSTLY_SHARE = 0.002, 0.01


#: Seconds between two looks at what hangs in the modules, at boundaries: 15 µs for ResNet-50. A save looks by itself.
_LOOK_EVERY = 1.0
#: A step may spend this long, and this share of itself, between the optimizer and the boundary unremarked.
_LATE_SECONDS, _LATE_SHARE = 1.0, 0.3


class State:
    """The registered values.

    Args:
        values: by registered name: modules, optimizers, anything with `state_dict`/`load_state_dict`, tensors,
            dicts of plain values.
        before_change: called before a registered optimizer changes anything, with the frame that runs its step.
        after_change: called when that step is over.
        clock: by which steps are measured.
        rank: this process's, in the job.
        world: the job's processes. More than one: what nobody declares to be shared is saved by each under its own name.

    Raises:
        StateError: a value cannot be saved; names it, its type, and what to do.
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
        #: Why saves wait for the boundary, "" where they can start at once. Only ever set, never unset.
        self.boundary_only = ""
        #: What an optimizer has come to hold that no save would have: then none is made. "" where all is well.
        self._lacks = ""
        #: Why nobody may train on what is in memory: a restore ended in its middle. "" where all is well.
        self.poisoned = ""
        #: How often it was taken: while this stays, so does what a save reads at rest.
        self.taken = 0
        self._gone = ""
        self._before_change, self._after_change = before_change, after_change
        self._now = (clock or SystemClock()).monotonic
        self._environment = describe()
        self._threads = torch.get_num_threads()
        self._stepped = False
        self._boundaries = 0
        #: An optimizer makes new state tensors at every step (LBFGS): it is looked at anew each time.
        self._restless = False
        #: Checksums of the last boundary's state, by which an edit is found that the witness does not see.
        self.audit = Audit(self._now, self.save_at_boundaries)
        #: When the device has reached the last boundary.
        self.fence = Fence() if fence is None else fence
        #: Monotonic seconds: when the last boundary's copies were made; 0 before the first.
        self.ended_at = 0.0
        self._stepped_at = 0.0
        self._look_at = 0.0
        self._costly = 0
        self._late = 0
        self._ranks = RankOf(rank, world)
        registered = build(values, self._ranks)
        self.parts = registered.parts
        self._held = registered.held
        self._lost = registered.lost
        self._changing = registered.changing
        self._modules = [p for p in self.parts if isinstance(p, ModulePart)]
        self._optimizers = [p for p in self.parts if isinstance(p, OptimizerPart)]
        self.fence.watch([part.devices for part in self.parts if isinstance(part, Copied)])
        self._refresh()
        self._prove()
        if registered.boundary_only:
            self.save_at_boundaries(registered.boundary_only)
        # Last: who was refused has no hooks on his optimizers.
        self._hooks = [
            handle
            for optimizer in registered.optimizers
            for handle in hook(optimizer, self._on_step, self._after_step)
        ]
        #: What the loop does wrong. It begins with the guard.
        saved = {part.name: part.optimizer for part in self._optimizers}
        self.monitor = StepMonitor(values, saved, self._now, self.save_at_boundaries)

    def close(self) -> None:
        """Let go of the optimizers: their steps are nobody's business any more."""
        self.monitor.close()
        for handle in self._hooks:
            handle.remove()
        self.audit.close()

    @property
    def environment(self) -> dict[str, Any]:
        """The training thread's. (torch counts threads for each thread by itself: the saving one has other numbers.)"""
        return {**self._environment, "threads": self._threads}

    def _prove(self) -> None:
        """Save and read back every tree in memory: what cannot be saved is refused now, not at the notice."""
        for part in self.parts:
            part.at_boundary()
            for leaf in part.leaves():
                check_savable(leaf.name, leaf.tensor)
                self.fence.follow([leaf.tensor])
        for part in self.parts:
            part.targets(prove(part.name, part.tree()))

    def expected_bytes(self) -> int:
        """About what a full save will write, also before the optimizers have made their state (Adam: two more
        numbers a parameter)."""
        held = sum(leaf.tensor.nbytes for part in self.parts for leaf in part.leaves())
        fresh = [part for part in self._optimizers if not part.optimizer.state]
        return held + 2 * sum(local(p).nbytes for part in fresh for p in part.tensors)

    # --- the training thread ---

    def _on_step(self, frame: FrameType) -> None:
        self._before_change(frame)
        # Behind the gate: the boundary of another thread, for which this step waited, is not this step's.
        if not self._stepped:
            self._stepped = True
            self._stepped_at = self._now()
            self.audit.look()

    def _after_step(self, frame: FrameType) -> None:
        self._stepped_at = self._now()
        self._after_change(frame)

    def at_boundary(self) -> None:
        """Copy what changes between steps, and remember what must not.

        Raises:
            StateError: a restore ended in its middle, or what is registered cannot be saved any more.
        """
        started = self._now()
        # This thread's own time: waiting for the GIL while something is saved is no cost of the copies. It is asked
        # for only once they look costly: a system call, 1.3 µs twice in 5. It is a cost and no instant: nothing is
        # ordered by it or waits for it, so no Clock has it.
        worked = time.thread_time() if self._costly else None
        self.taken += 1
        for part in self.parts:
            part.at_boundary()
        counts = 0
        for optimizer in self._optimizers:
            counts += optimizer.counts()
        once = 0.0
        if self._boundaries < _EARLY or counts != self._counts or self._restless:
            self._boundaries += 1
            self._environment = describe()
            looking = self._now()
            moved = any(part.moved() for part in self._optimizers)
            if self._boundaries == _EARLY:
                self._restless = moved
            if moved:
                for part in self._optimizers:
                    check_held(part.name, part.optimizer, self._held())
                self._refresh()
            if not self._restless:
                once = self._now() - looking
        if not self.taken & (self.taken - 1):
            looking = self._now()
            self._look_for_the_unsaved()
            once += self._now() - looking
        if not self._witness.stands():  # a storage was resized: the old block is not read any more
            self._refresh()
        if started >= self._look_at:
            self._look_at = started + _LOOK_EVERY
            if any(module.outdated() for module in self._modules):
                self._refresh()
        # Where saves wait for boundaries anyway nothing is compared: a device would have to be asked each time.
        moved = self._witness.mark(self._stepped or self.boundary_only != "")
        self._threads = torch.get_num_threads()
        if moved:
            self.save_at_boundaries("parameters changed although no registered optimizer stepped")
        elif started - self._stepped_at > _LATE_SECONDS and self._stepped and self.ended_at:
            self._look_at_the_rest(started - self._stepped_at, started - self.ended_at)
        else:
            self._late = 0
        cost = self._now() - started if worked is None else time.thread_time() - worked
        # Following what optimizers have made says nothing about the price of later boundaries.
        if cost - once >= _COSTLY_SECONDS:
            self._weigh(cost - once, started - self.ended_at)
        else:
            self._costly = 0
        # Behind the weighing: a slice keeps within a share of its own.
        if self.boundary_only:
            self.audit.forget()
        else:
            self.audit.turn(started - self.ended_at if self._stepped else 0.0)
        self.fence.record()  # behind the slice: who saves compares it on a stream of its own
        self._stepped = False
        self.ended_at = self._now()

    def save_at_boundaries(self, why: str) -> None:
        """Have saves wait for the boundary from now on."""
        if not self.boundary_only:
            self.boundary_only = why
            log.warning("from now on a save waits for the next guard.step(): %s", why)

    def _look_at_the_rest(self, dirty: float, step: float) -> None:
        """Time between the optimizer and `guard.step()` is time in which a notice must wait: say so, once."""
        self._late = self._late + 1 if dirty > _LATE_SHARE * step else 0
        if self._late == 3:
            log.warning(
                "%.1f s of each %.1f s step lie between optimizer.step() and guard.step(), and a notice waits for "
                "them: call guard.step() right after the optimizer (and scheduler), before evaluation",
                dirty,
                step,
            )

    def _weigh(self, cost: float, step: float) -> None:
        """A boundary that took long, and after it two whose copies cost too much by this thread's own time: from
        now on they are made only when wanted."""
        if cost < _COSTLY_SHARE * (cost + step):
            self._costly = 0
            return
        self._costly += 1
        if self._costly == 3:
            self.save_at_boundaries(f"copying what changes between steps costs {cost * 1e3:.1f} ms a step")

    def _refresh(self) -> None:
        for module in self._modules:
            module.refresh()
        for optimizer in self._optimizers:
            optimizer.refresh()
        self._counts = sum([part.counts() for part in self._optimizers])
        owned = [t for part in self._optimizers for t in part.tensors]
        sources = [pair for part in self.parts if isinstance(part, InPlace) for pair in part.sources()]
        watched = {id(t): t for part in self.parts if isinstance(part, InPlace) for t in part.in_place()}
        for tensor in owned:
            watched.pop(id(tensor), None)
        self._witness = ChangeDetector([*map(local, owned)], [*map(local, watched.values())], sources)
        self.fence.follow([*owned, *watched.values(), *(live for live, _ in sources)])
        leaves = [leaf for part in self.parts for leaf in part.leaves()]
        self._look_for_gaps(leaves)
        self.audit.follow(leaves, map(local, (*owned, *watched.values())))
        # Here and not when it is asked for: then the training thread may be within the first step, which makes state.
        self._fingerprint = fingerprint(leaves)
        self._alone = alone(leaves, self._ranks.rank)

    def _look_for_gaps(self, leaves: Sequence[StateTensor]) -> None:
        """Tensors that no save can hold, though `register` saw none: said now, and refused by name at each save."""
        found = ((leaf.name, gap(leaf.tensor)) for leaf in leaves)
        gone = next((f"{name} is {why}" for name, why in found if why), "")
        if gone and gone != self._gone:
            self.save_at_boundaries(gone)
            log.error("%s: no save is possible while it is; use a plain tensor", gone)
        self._gone = gone

    def _look_for_the_unsaved(self) -> None:
        """What optimizers have come to hold since `register`, in places that no save looks at. At boundary 1, 2, 4, 8 and so
        on: some ms each time, and moments are made by the first step."""
        if lost := self._lost():
            self._refresh()  # it may be of a parameter that took another's place
            lost = self._lost()
        if lost != self._lacks:
            self._lacks = lost
            if lost:
                log.error("no save is possible: %s", lost)
        for each in self._changing:
            each.look()

    def take_again(self) -> None:
        """Take the boundary anew, just as it is now: somebody saves by hand. On the training thread."""
        self.taken += 1
        self.audit.forget()
        for part in self.parts:
            part.at_boundary()
        self._threads = torch.get_num_threads()
        self.look_again()
        self.fence.record()

    def look_again(self) -> None:
        """Follow tensors that were replaced. With the training thread parked at its boundary."""
        self._refresh()
        self._witness.mark(stepped=True)

    # --- the saving thread, gate shut ---

    def broken(self) -> str:
        """Nothing while the state stands as it stood at the boundary, else what moved."""
        if any(part.moved() for part in self._optimizers):
            return "an optimizer replaced its state after guard.step()"
        if any(part.moved() for part in self._modules):
            return "a module was given another parameter or buffer after guard.step()"
        return self._witness.broken()

    def collect(self) -> CollectedState:
        """The state as it stands, nothing copied.

        Raises:
            StateError: it cannot be saved: a tensor has no bytes of its own, or a restore ended in its middle.
        """
        if self.poisoned:
            raise StateError(f"{self.poisoned}; it is not saved")
        if self._lacks:
            raise StateError(self._lacks)
        return collect(self.parts, self._ranks, self.monitor.dead)

    def fingerprint(self) -> Mapping[tuple[int, ...], str]:
        """By the ranks that hold the same as this one: a hash of what that is, equal on all of them. Of the last boundary,
        or of the one before whose tensors were the same. Any thread."""
        return self._fingerprint

    def alone(self) -> bool:
        """Whether it has tensors that no other rank has. As `fingerprint`."""
        return self._alone

    def digests(self, leaves: Iterable[StateTensor], look: Callable[[], object] = int) -> dict[str, int]:
        """The CRC32 of what other ranks hold too, for `fingerprint.drifted`. Reads every byte of it.

        Args:
            leaves: as they were collected, or copies of them.
            look: called before each 64 MiB; what it raises ends the reading.
        """
        return digests(leaves, self._ranks.rank, look)

    # --- restore, on the main thread ---

    def targets(
        self,
        states: Sequence[Mapping[str, Any]],
        entries: Mapping[str, MergedTensor],
        stand_ins: Mapping[int, int] = NOBODY,
    ) -> RestorePlan:
        """Check that a checkpoint fits, before a byte is written, and say where each tensor goes.

        Args:
            states: of each rank of the job that saved, in order: the encoded trees by registered name.
            entries: the checkpoint's tensors by name.
            stand_ins: by rank that said nothing, the one whose state is its own too.

        Raises:
            StateError: it does not fit.
            CheckpointError: it is not as this version writes it.
        """
        self._refresh()  # what was replaced or put in since `register`
        return plan(self.parts, states, entries, self._ranks, stand_ins)

    def put_back(self, restoring: RestorePlan) -> list[str]:
        """Hand every object its tree; returns warnings. All tensors are filled and verified by now.

        Raises:
            StateError: an object's own code refuses what was saved.
        """
        for part in self.parts:
            if part.name in restoring.trees:
                part.put_back(restoring.trees[part.name])
        self._refresh()
        self._environment = describe()
        left = next(part.left_out for part in self.parts if isinstance(part, RngPart))
        warnings = [*restoring.warnings]
        if left:
            warnings.append(f"no generator here for the saved RNG state of {', '.join(left)}")
        if names := ", ".join(restoring.left_out):
            warnings.append(f"the checkpoint also holds {names}, registered nowhere here: not restored")
        return warnings
