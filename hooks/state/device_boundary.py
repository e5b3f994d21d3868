"""The boundary whose state the devices still hold, while the host has launched changes of it.

A collective or a kernel that hangs stops a device within a step. The host does not wait for it: it launches the rest of that
step, passes `guard.step()`, and stands one step further on when something reads a result. The state that is whole then is that
of the step before the one that hangs:

    host      boundary k ── forward, backward ── step ── boundary k+1 ── forward … waits for a result
    device    boundary k ── forward, backward hangs

Tensors on devices have the bytes of boundary k, until the device begins the optimizer's step. What the host keeps has gone on.
So the values that boundaries copy are kept for two boundaries, with the bytes of tensors in host memory (Adam's step counts).

The device's events order this (`Fence`). Copies that were complete before the event in front of the optimizer's step was reached
hold nothing of that step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import torch

from ...providers.errors import StateError
from .changes.audit import Audit
from .changes.change_detector import ChangeDetector, on_host
from .collected import CollectedState
from .device.events import Fence
from .memory_access import unreadable
from .parts.boundary_copies import BoundaryCopies
from .parts.values import COPY_AT_BOUNDARY, Part
from .tensor_item import StateTensor


class PassedState(Protocol):
    """The state, as the host has it: implemented by `State`."""

    parts: tuple[Part, ...]
    taken: int
    fence: Fence
    audit: Audit

    @property
    def environment(self) -> dict[str, Any]: ...
    def replaced(self) -> str: ...
    def collect(self, parts: Sequence[Part]) -> CollectedState: ...
    def digests(self, state_tensors: Iterable[StateTensor], look: Callable[[], object]) -> dict[str, int]: ...


class KeptBoundary(NamedTuple):
    """What the host had at one boundary."""

    #: `State.taken` at that boundary.
    taken: int
    #: The values that each part has copied.
    copies: Sequence[Any]
    #: The tensors in host memory that are read in place, and their bytes.
    in_place: BoundaryCopies
    bytes: bytes
    #: The change detector, and the sampled bytes of devices.
    detector: ChangeDetector
    seen: Sequence[torch.Tensor]


class KeptBoundaries:
    """What the host had at the last two boundaries. The training thread keeps it, and the saver thread asks for it."""

    def __init__(self) -> None:
        #: The tensors that are read in place, until the first boundary that is kept.
        self._followed: Sequence[torch.Tensor] = ()
        #: Copies of those in host memory; None if they are too many.
        self._in_place: BoundaryCopies | None = None
        self._last: KeptBoundary | None = None
        self._before: KeptBoundary | None = None

    def follow(self, tensors: Iterable[torch.Tensor]) -> None:
        """Keep the bytes of those tensors that are in host memory from now on, if they are few.

        Args:
            tensors: all tensors that a save reads in place.
        """
        self._followed, self._in_place = [*tensors], None
        self.forget()

    def keep(self, taken: int, parts: Sequence[Part], detector: ChangeDetector) -> None:
        """Keep what the host has at this boundary. After the parts' copies, and before the fence's event."""
        self._before, self._last = self._last, None
        if self._followed:
            self._in_place, self._followed = _copies_on_host(self._followed), ()
        in_place = self._in_place
        if in_place is None or not in_place.stand():
            return
        copies = [part.copied() for part in parts]
        if any(each is None for each in copies):
            return
        in_place.take()
        self._last = KeptBoundary(taken, copies, in_place, in_place.taken, detector, detector.on_devices)

    def forget(self) -> None:
        self._last = self._before = None

    def find(self, state: PassedState) -> DeviceBoundary | None:
        """Return the boundary whose state the devices hold, if the host has launched changes of it; None if there is none.

        Call it with the gate shut.
        """
        for back, kept in enumerate((self._last, self._before)):
            if kept is not None and kept.taken == state.taken - back and state.fence.holds(back):
                boundary = DeviceBoundary(state, kept, back)
                return None if boundary.broken() else boundary
        return None


def _copies_on_host(tensors: Iterable[torch.Tensor]) -> BoundaryCopies | None:
    there = [each for each in tensors if on_host(each) and each.numel() and not unreadable(each)]
    if sum(each.nbytes for each in there) > COPY_AT_BOUNDARY:
        return None
    copies = BoundaryCopies(there)
    return None if copies.overwrites else copies


class DeviceBoundary:
    """One such boundary, for a save of it. It has those methods of `State` that a save needs.

    Args:
        state: the state.
        kept: what the host had at that boundary.
        back: boundaries that the host has passed since.
    """

    def __init__(self, state: PassedState, kept: KeptBoundary, back: int) -> None:
        self._state = state
        self._kept = kept
        self.back = back
        self.taken = kept.taken

    @property
    def audit(self) -> Audit:
        return self._state.audit

    @property
    def environment(self) -> dict[str, Any]:
        return self._state.environment

    def digests(
        self, state_tensors: Iterable[StateTensor], look: Callable[[], object] = int
    ) -> dict[str, int]:
        return self._state.digests(state_tensors, look)

    def collect(self) -> CollectedState:
        """Return the state of that boundary. Tensors on devices are not copied.

        Raises:
            StateError: the state cannot be saved, or has numbers that the host has changed since.
        """
        kept = self._kept
        parts = [part.as_of(copies) for part, copies in zip(self._state.parts, kept.copies, strict=True)]
        collected = self._state.collect(parts)
        made = zip(kept.in_place.live, kept.in_place.made_of(kept.bytes), strict=True)
        by_address = {live.data_ptr(): tensor for live, tensor in made}
        return replace(
            collected,
            state_tensors=tuple(_with_bytes_of(by_address, each) for each in collected.state_tensors),
        )

    def broken(self) -> str:
        """Return why the state is not that boundary's any more; "" if it is."""
        kept = self._kept
        why = self._state.replaced() or kept.detector.broken_on_devices(kept.seen)
        if why:
            return why
        # After the reads above: whatever they have read is older than this answer.
        if self._state.taken - kept.taken != self.back or not self._state.fence.holds(self.back):
            return "the devices went on with their step"
        return ""

    def edited(self) -> str:
        """Return "": the slices of the audit are sums that the devices have not computed yet."""
        return ""


def _with_bytes_of(by_address: Mapping[int, torch.Tensor], each: StateTensor) -> StateTensor:
    found = by_address.get(each.tensor.data_ptr())
    if found is None or not each.tensor.is_cpu or not each.tensor.numel():
        return each
    if found.nbytes != each.tensor.nbytes:
        raise StateError(f"{each.name} shares its memory with another tensor")
    return replace(each, tensor=found.view(each.tensor.dtype), still=True)
