"""The boundary whose state the devices still hold, while the host has launched changes of it.

A collective or a kernel that hangs stops a device within a step. The host does not wait for it: it launches the rest of that
step, passes `guard.step()`, and stands one step further on when something reads a result. The state that is whole then is that
of the step before the one that hangs:

    host      boundary k ── forward, backward ── step ── boundary k+1 ── forward … waits for a result
    device    boundary k ── forward, backward hangs

Tensors on devices have the bytes of boundary k, until the device begins the optimizer's step. What the host keeps has gone on.
So the values that boundaries copy are kept for two boundaries, with the bytes of tensors in host memory (Adam's step counts).

The host records an event in front of each optimizer's step (`Fence`). A copy that is complete before the device reaches it is of
boundary k. If a tensor's version counter shows an earlier change, no event is recorded, and the boundary is not used.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from .changes.audit import Audit
from .changes.change_detector import ChangeDetector, on_host
from .collected import CollectedState
from .device.events import BoundaryEvents
from .memory_access import unreadable
from .parts.boundary_copies import BoundaryCopies
from .parts.values import Part

#: The most bytes of tensors in host memory that are kept. Adam counts the steps of 10,000 parameters in 40 KB.
_MOST_ON_HOST = 64 * 2**10


class HostState(Protocol):
    """The state as the host has it; implemented by `State`."""

    parts: tuple[Part, ...]
    taken: int
    audit: Audit

    @property
    def environment(self) -> dict[str, Any]: ...
    def replaced(self) -> str: ...
    def collect(self, parts: Sequence[Part]) -> CollectedState: ...


@dataclass(slots=True)
class KeptBoundary:
    """The host's side of one boundary."""

    #: The number of that boundary, as `State.taken` counts them.
    taken: int
    #: The values that each part has copied.
    copies: Sequence[Any]
    #: The bytes of tensors in host memory that a save reads in place.
    on_host: bytes
    #: The sampled bytes of tensors on devices.
    seen: Sequence[torch.Tensor]
    in_place: TensorsInPlace
    detector: ChangeDetector
    events: BoundaryEvents | None = None


class TensorsInPlace:
    """The tensors that a save reads in place: copies of those in host memory, and the addresses of all."""

    def __init__(self, tensors: Sequence[torch.Tensor], copies: BoundaryCopies) -> None:
        self.copies = copies
        self._tensors = tensors
        self._addresses = self._now()

    @classmethod
    def of(cls, tensors: Sequence[torch.Tensor]) -> TensorsInPlace | None:
        """Return these tensors; None if the copies would be too large, or the next one would overwrite them."""
        there = [each for each in tensors if on_host(each) and each.numel() and not unreadable(each)]
        addresses = {each.data_ptr() for each in there}
        if (
            sum(each.nbytes for each in there) > _MOST_ON_HOST
            or len(addresses) < len(there)  # two of them begin at one address
            or any(each.is_pinned() for each in there)  # a device may fill it later
        ):
            return None
        copies = BoundaryCopies(there)
        return None if copies.overwrites else cls(tensors, copies)

    def _now(self) -> list[int]:
        return [0 if unreadable(each) else each.data_ptr() for each in self._tensors]

    def moved(self) -> bool:
        """Return whether a tensor has other memory. On the saver thread."""
        return self._now() != self._addresses


class KeptBoundaries:
    """The host's side of the last two boundaries. The training thread keeps it, and the saver thread asks for it."""

    def __init__(self) -> None:
        #: The tensors that are read in place, until the first boundary that is kept.
        self._followed: Sequence[torch.Tensor] = ()
        self._in_place: TensorsInPlace | None = None
        self._last: KeptBoundary | None = None
        self._before: KeptBoundary | None = None

    def follow(self, tensors: Iterable[torch.Tensor]) -> None:
        """Follow these tensors, which a save reads in place, from now on."""
        self._followed, self._in_place = [*tensors], None
        self.forget()

    def keep(self, taken: int, parts: Sequence[Part], detector: ChangeDetector) -> None:
        """Keep what the host has at this boundary. After the parts' copies; `ended` follows."""
        self._before, self._last = self._last, None
        if self._followed:
            self._in_place, self._followed = TensorsInPlace.of(self._followed), ()
        in_place = self._in_place
        if in_place is None or not in_place.copies.stand():
            return
        copies = [part.copied() for part in parts]
        if any(each is None for each in copies):
            return
        in_place.copies.take()
        self._last = KeptBoundary(
            taken, copies, in_place.copies.taken, detector.on_devices, in_place, detector
        )

    def ended(self, events: BoundaryEvents) -> None:
        """Note the events of the boundary."""
        last = self._last  # the saver thread may forget it
        if last is not None:
            last.events = events

    def forget(self) -> None:
        self._last = self._before = None

    def find(self, state: HostState) -> DeviceBoundary | None:
        """Return the boundary whose state the devices hold, if the host has launched changes of it; None if there is none."""
        for kept in (self._last, self._before):
            if kept is not None and kept.events is not None:
                boundary = DeviceBoundary(state, kept, kept.events)
                if not boundary.inconsistency():
                    return boundary
        return None


class DeviceBoundary:
    """A boundary whose state the devices hold, for a save of it. It has those methods of `State` that a save needs.

    Args:
        state: the state, as the host has it.
        kept: what the host had at that boundary.
        events: the events of that boundary.
    """

    def __init__(self, state: HostState, kept: KeptBoundary, events: BoundaryEvents) -> None:
        self._state = state
        self._kept = kept
        self._events = events
        self.taken, self.audit, self.environment = kept.taken, state.audit, state.environment

    def collect(self) -> CollectedState:
        """Return the state of that boundary. Tensors on devices are not copied.

        Raises:
            StateError: the state cannot be saved.
        """
        kept = self._kept
        parts = [part.as_of(copied) for part, copied in zip(self._state.parts, kept.copies, strict=True)]
        collected = self._state.collect(parts)
        by_address = kept.in_place.copies.as_of(kept.on_host)
        return replace(
            collected, state_tensors=tuple(each.read_from(by_address) for each in collected.state_tensors)
        )

    def inconsistency(self) -> str:
        """Return why the devices do not hold that boundary's state; "" if they do."""
        kept = self._kept
        try:
            why = self._state.replaced() or kept.detector.inconsistency(kept.seen)
            if not why and kept.in_place.moved():
                why = "a tensor was given other memory after guard.step()"
            # After the reads: whatever they have read is older than this answer.
            if not why and not self._events.held():
                why = "a device went on with its step"
        except RuntimeError as error:  # a device has failed, or the host is creating state at this moment
            return f"it cannot be read: {error}"
        # The boundary after the next one records these events again.
        return why or ("training went on" if self._state.taken - kept.taken > 1 else "")

    def edited(self) -> str:
        """Return "": the slices of the audit are sums that the devices have not computed yet."""
        return ""
