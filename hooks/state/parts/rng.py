"""The random number generators that training draws from: python's, numpy's (if imported), torch's, and each accelerator's.

The training thread copies them at every boundary, and `restore` puts them back. So dropout and shuffling continue
with the very next number.

A script may draw or seed between `restore()` and its loop over `guard.steps()`, and does so at each start. An uninterrupted run has
drawn there once, before its first step. So a restored process has the generators of an uninterrupted run where its loop meets it again:

- The boundary is within a loop with an end ("goes on"): that loop begins with the generators of the boundary.
- The boundary is before a loop, or at a loop's end: the code behind that end runs again, with the generators of the boundary. The loop
  that follows begins with the generators with which it began ("drawn"), if it had.

Where a loader is registered, `iter()` draws before the loop or in it, and the loader puts the generators right itself (`passes`). A loop
without an end is left by a break, at which no restart is, and a restored process may begin it behind what came next. So nothing is
done in both cases.
"""

from __future__ import annotations

import random
import sys
from functools import cache
from typing import Any, Protocol

import torch

from ....providers.errors import CheckpointError, StateError
from ...checkpoint.format.values.sameness import same
from ...checkpoint.format.values.state_check import LOOP, check_generators
from ..device.events import accelerator
from .values import REFUSALS, Part, error_text

#: The generators of a kind of accelerator: its name, and a module with the same state functions as `torch.cuda`.
Generators = tuple[str, Any]


@cache
def other_generators() -> Generators | None:
    """Return the generators of the accelerator that this torch was built for; None if that is CUDA, or if there are none."""
    device = accelerator()
    if device is None or device.type == "cuda":
        return None
    module = torch.get_device_module(device)
    known = all(
        hasattr(module, function) for function in ("get_rng_state_all", "set_rng_state_all", "is_initialized")
    )
    return (device.type, module) if known else None


def capture(others: Generators | None = None) -> dict[str, Any]:
    """Return the generators' states as they are now.

    Nothing is drawn. With python, numpy and torch on a CPU this takes about 20 µs.

    Args:
        others: the generators of an accelerator other than CUDA.
    """
    states: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        states["numpy"] = numpy.random.get_state()
    # The state of an unused device is not worth saving, and asking for it would initialize the device.
    if torch.cuda.is_initialized():
        states["cuda"] = torch.cuda.get_rng_state_all()
    if others is not None and others[1].is_initialized():
        states[others[0]] = others[1].get_rng_state_all()
    return states


def restore(states: dict[str, Any], others: Generators | None = None) -> list[str]:
    """Put captured states back.

    Args:
        states: the result of `capture`.
        others: the generators of an accelerator other than CUDA.

    Returns:
        The names of states that this process has no generator for.
    """
    missing: list[str] = []
    for name, state in states.items():
        if name == "python":
            random.setstate(state)
        elif name == "torch":
            torch.set_rng_state(state)
        elif name == "numpy" and "numpy" in sys.modules:
            sys.modules["numpy"].random.set_state(state)
        elif name == "cuda" and torch.cuda.is_available() and len(state) == torch.cuda.device_count():
            torch.cuda.set_rng_state_all(state)
        elif others is not None and name == others[0] and len(state) == others[1].device_count():
            others[1].set_rng_state_all(state)
        else:
            missing.append(name)
    return missing


class OtherGenerators(Protocol):
    """Generators beside the global ones."""

    def look(self) -> None: ...
    def states(self) -> dict[str, Any]: ...
    def set(self, states: dict[str, Any]) -> None: ...


class RngPart(Part):
    """The generators' states as a part of the registered state.

    Args:
        name: its name.
        others: the generators of an accelerator other than CUDA.
        registered: generators in registered dicts. Their parts save them, and this part knows what a script draws before its loop.
    """

    def __init__(
        self, name: str, others: Generators | None = None, registered: OtherGenerators | None = None
    ) -> None:
        super().__init__(name)
        self._others, self._registered = others, registered
        #: Whether the next boundary is within a loop over `guard.steps()` that goes on behind it; None: there was no such loop.
        self._in_loop: bool | None = None
        #: Of the restored boundary, until a loop goes on from it or a step is done: what is known of its loop, and the generators.
        self._loop: dict[str, Any] | None = None
        self._restored: dict[str, Any] | None = None

    def at_boundary(self) -> None:
        states = capture(self._others)
        if self._loop is not None:
            states[LOOP] = self._loop
        elif self._in_loop is not None:
            states[LOOP] = {"goes on": self._in_loop, "drawn": None}
        self._frozen = states

    def arrived(self, *, own: bool) -> None:
        """Note that training goes on from the checkpoint that was put back, and all objects have their state again.

        Args:
            own: whether it is one of this run. The loops of another run count for nothing.
        """
        if self._loop is not None and own:
            self._in_loop, self._restored = self._loop["goes on"], self._states()
        else:
            self._loop = self._in_loop = None
        self.at_boundary()

    def trained(self) -> None:
        """Note that training has gone on: what is drawn from now on belongs to it."""
        self._loop = self._restored = None

    def loop_begins(self, *, follows: bool, ends: bool) -> None:
        """Note that a loop over `guard.steps()` begins.

        Args:
            follows: whether it has a step to do.
            ends: whether this boundary is its end.

        Raises:
            StateError: a generator refuses its state.
        """
        if self._loop is not None and self._restored is not None:
            if follows and self._loop["drawn"] is not None:
                self._set(self._loop["drawn"])
            elif self._loop["goes on"] if follows else ends:
                self._set(
                    self._restored
                )  # what comes next is what an uninterrupted run did behind this boundary
        if follows:
            self.trained()
            known = self._frozen.get(LOOP)
            if known is None or not (known["goes on"] or known["drawn"]):
                now, boundary = self._states(), {name: s for name, s in self._frozen.items() if name != LOOP}
                if now["registered"] or same(boundary, now["global"]):
                    # At once, as a save may ask meanwhile.
                    self._frozen = {**boundary, LOOP: {"goes on": False, "drawn": now}}
            self._in_loop = True

    def loop_goes_on(self, *, follows: bool) -> None:
        """Note, before the boundary of a loop over `guard.steps()`, whether another step of the loop follows it."""
        self._in_loop = follows

    def loop_left(self) -> None:
        """Note that nothing is known of a loop: it was left early, or what it reads draws too. A restore sets the generators alone."""
        self.trained()
        self._in_loop = None
        self._frozen = {name: states for name, states in self._frozen.items() if name != LOOP}

    def _states(self) -> dict[str, Any]:
        if self._registered is not None:
            self._registered.look()
        registered = {} if self._registered is None else self._registered.states()
        return {"global": capture(self._others), "registered": registered}

    def _set(self, states: dict[str, Any]) -> None:
        try:
            restore(states["global"], self._others)
            if self._registered is not None:
                self._registered.look()  # a script may have put another one in its place
                self._registered.set(states["registered"])
        except REFUSALS as error:
            raise StateError(
                f"{self.name}: a generator refuses the state in which its loop began ({error_text(error)}); restore another step "
                "by guard.restore(step=…)"
            ) from error

    def targets(self, tree: Any) -> None:
        """Check the form of the states.

        `put_back` leaves out the generators that this process lacks, and the restore warns.
        """
        try:
            check_generators(tree)
        except CheckpointError as error:
            raise CheckpointError(f"{self.name}: {error}") from error
        drawn = (tree.get(LOOP) or {}).get("drawn") or {}
        try:
            _try_on(tree)
            _try_on(drawn.get("global", {}))
        except REFUSALS as error:
            raise CheckpointError(
                f"{self.name}: a generator's state is invalid ({error_text(error)})"
            ) from error

    def put_back(self, tree: Any) -> None:
        try:
            missing = ", ".join(restore({k: v for k, v in tree.items() if k != LOOP}, self._others))
        except REFUSALS as error:
            raise StateError(
                f"{self.name}: a generator refuses the checkpoint's state ({error_text(error)}); "
                "restore with the versions of torch and numpy that saved it"
            ) from error
        self._loop = tree.get(LOOP)
        self.said = [f"this process has no generator for the saved RNG state of {missing}"] if missing else []


def _try_on(states: dict[str, Any]) -> None:
    """Load numpy's state into a temporary generator; `check_generators` knows the others'."""
    numpy, state = sys.modules.get("numpy"), states.get("numpy")
    if numpy is not None and isinstance(
        state, tuple
    ):  # a dict belongs to another bit generator than the default
        numpy.random.RandomState().set_state(state)
