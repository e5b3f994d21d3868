"""The protocol of an adapter: what a framework's training is made of, and where its steps end.

A framework owns the loop, so the script cannot write `restore` and `step` into it. An adapter answers four questions:

- State: which values to register, by name.
- Position: which small values belong to a boundary beside them, such as counters, logs and flags.
- Resume: how the position goes back into the framework's objects after a restore.
- Repeat: what the framework does between a boundary and the next step (log, evaluate, save), which a resumed run does
  again; and at which moments the generators must be as they were.

`Bound` does the rest for all adapters: it registers, restores, marks boundaries, and keeps the generators.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from contextlib import suppress
from os import PathLike
from typing import Any, Protocol

import torch

from spotguard.hooks.arguments.settings import attached_to
from spotguard.hooks.checkpoint.attempts import attempt_record
from spotguard.hooks.control.losses.readback import one_number
from spotguard.hooks.guard import Guard
from spotguard.hooks.register import register
from spotguard.hooks.save.request import SavedCheckpoint
from spotguard.hooks.state.parts import rng
from spotguard.hooks.state.parts.loaders import ResumableLoader
from spotguard.providers.errors import SpotguardError, UsageError

from .refusals import refused

log = logging.getLogger("spotguard")


class Binding(Protocol):
    """One framework's training."""

    def state(self) -> dict[str, Any]:
        """Return the values to register, by name. Called once, when model and optimizer are as training uses them."""
        ...

    def position(self) -> dict[str, Any]:
        """Return the small values of this boundary as a dict of plain values and tensors. Called after every step."""
        ...

    def resume(self, position: Mapping[str, Any]) -> None:
        """Put a position back into the framework's objects. Called during the restore, with a result of `position`.

        Until training goes on, `position` returns the same values again: `spotguard prove` compares them.
        """
        ...


class _BoundaryPosition:
    """The position as a value that `register` takes."""

    #: The modules whose attributes the position has; nothing needs to watch them.
    saved_modules: Collection[object] = ()

    def __init__(self, binding: Binding, saved_modules: Collection[object]) -> None:
        self._binding, self.saved_modules = binding, saved_modules

    def state_dict(self) -> dict[str, Any]:
        return self._binding.position()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._binding.resume(state)


class Bound:
    """A training that is registered and restored.

    Args:
        binding: the adapter's view of the framework's training.
        store: the store, as `spotguard.register` takes it.
        run_id: the run, as `spotguard.register` takes it.
        saved_modules: modules inside the state whose attributes the position has.

    Attributes:
        guard: the guard of this process.
        done: the steps that were completed before this start.
    """

    def __init__(
        self,
        binding: Binding,
        store: str | PathLike[str] | None,
        run_id: str | None,
        saved_modules: Collection[object] = (),
    ) -> None:
        position = _BoundaryPosition(binding, saved_modules)
        self.guard: Guard = register(store, run_id=run_id, position=position, **binding.state())
        self.guard.loop_owned = True
        if attached_to():
            _check_attempt_before(self.guard)
        self.done = self.guard.restore()
        self._generators = captured()
        #: Whether the last boundary is newer than what was restored, and than what `end_training` has saved.
        self._ahead = False

    def step(self, loss: Any, *, last: bool) -> None:
        """Mark a boundary.

        Args:
            loss: the loss of its step, as `Guard.step` takes it.
            last: whether training ends here. What follows may change weights in place, so the boundary is saved at once.
        """
        self.guard.step(loss=loss)
        self._ahead = True
        if last:
            self.end_training()

    def end_training(self) -> None:
        """Tell that no step follows for now, and save the last boundary, unless it is saved. A failure does not end the script."""
        self.guard.end_training()
        if self._ahead and not self.guard.in_step:
            self._ahead = False
            try:
                self.guard.save()
            except SpotguardError as error:
                log.warning("the last step is not saved, and the script continues: %s", error)

    def keep_generators(self) -> None:
        """Make the generators' present states the ones that `put_generators_back` sets."""
        self._generators = captured()

    def put_generators_back(self) -> None:
        """Set the generators as they were after the restore, or at the last `keep_generators`."""
        put_back(self._generators)


def _check_attempt_before(guard: Guard) -> None:
    """Refuse a training that would resume another one, of another process in this start of the command.

    A script without a line of spotguard cannot give it a run of its own. At a restart with other arguments it goes on.

    Raises:
        UsageError: the attempt before was of another command line, in this start of the command.
    """
    view = guard.view
    if view.rank or view.attempt < 2:
        return
    two = [attempt_record(view.store, view.run_id, view.attempt - back) for back in (1, 0)]
    before, here = ({} if each is None else each.info for each in two)
    if (
        before.get("launch")
        and before["launch"] == here.get("launch")
        and before["command"] != here["command"]
    ):
        raise refused(
            f"run {view.run_id} is of `{' '.join(before['command'])}`, and another process of the same command is to train it now: "
            "start each training by a spotguard run of its own"
        )


class GuardedLoop(Binding):
    """The guard of a loop that the script writes around a framework's objects. A subclass is the loop's `Binding`.

    Attributes:
        guard: the guard beneath, for everything else.
        loader: the loader to train on, or None.
        done: the optimizer steps that were completed before this start.
    """

    def __init__(self, loader: Any, store: str | PathLike[str] | None, run_id: str | None) -> None:
        self.loader = None if loader is None else ResumableLoader(loader)
        bound = Bound(self, store, run_id)
        self.guard: Guard = bound.guard
        self.done = bound.done
        self._loss = StepLoss(mean=True)

    @property
    def epoch(self) -> int:
        """Passes over the loader that are over; 0 without a loader."""
        return 0 if self.loader is None else self.loader.epoch

    def save(self) -> SavedCheckpoint:
        """Save the last boundary now, and wait for the commit, as `Guard.save` does."""
        return self.guard.save()

    def state(self) -> dict[str, Any]:
        """Return the loader, if there is one; a subclass adds what it trains."""
        return {} if self.loader is None else {"loader": self.loader}


class StepLoss:
    """The loss of an optimizer step, from its micro-batches. Tensors stay on their device, and nothing waits for them.

    Args:
        mean: whether each micro-batch's loss counts whole, so that the step's is their mean. A framework that has divided them
            by their number needs the sum.
    """

    def __init__(self, *, mean: bool) -> None:
        self._mean = mean
        self._sum: Any = None
        self._count = 0

    def add(self, loss: Any) -> None:
        """Take the loss of a micro-batch; None if there is none.

        Raises:
            UsageError: it is not one real number.
        """
        if loss is None:
            return
        number = one_number(loss)
        if isinstance(number, torch.Tensor):
            # At least float32: a sum of many in float16 is infinite, and one in bfloat16 stands still. A copy, because the script may
            # write the next one into the same memory.
            dtype = torch.float64 if number.dtype is torch.float64 else torch.float32
            number = number.detach().reshape(()).to(dtype, copy=True)
        self._sum = number if self._sum is None else self._sum + number
        self._count += 1

    def add_of_framework(self, loss: Any) -> None:
        """Take the loss of a micro-batch, if it is one: a script may give its framework any value."""
        if isinstance(loss, torch.Tensor):
            with suppress(UsageError):
                self.add(loss)

    def take(self) -> Any:
        """Return the loss of the step that ends here, and begin the next one; None if there is none."""
        whole, count = self._sum, self._count
        self._sum, self._count = None, 0
        return whole / count if self._mean and count > 1 else whole


def watch_validation_loss(guard: Guard, value: Any) -> None:
    """Pass the loss of a framework's evaluation on, if it is one: a script may log any value under its name."""
    with suppress(UsageError):
        guard.watch_metric("validation_loss", value)


def captured() -> dict[str, Any]:
    """Return the states of all generators, those of the accelerator included."""
    return rng.capture(rng.other_generators())


def put_back(states: dict[str, Any]) -> None:
    """Set the generators to states that `captured` returned."""
    rng.restore(states, rng.other_generators())


def unwrapped(optimizer: Any) -> Any:
    """Return the optimizer inside accelerate's wrapper. `register` itself looks into any other."""
    return optimizer.optimizer if type(optimizer).__name__ == "AcceleratedOptimizer" else optimizer
