"""Events of the training thread's stream, which tell a save how far each accelerator has come.

The host runs ahead of the device: when `guard.step()` returns, the kernels of that step may not have run. An event
recorded at the boundary completes when these kernels have run. The saver thread waits for that event with a deadline.
An event belongs to one device and orders nothing on another. So each device that holds state has its own, whichever
device is current. On the host this module does nothing.

CUDA devices use `torch.cuda`. Other accelerators use `torch.accelerator`, `torch.Stream` and `torch.Event`. Torch 2.6
provides everything that this room uses, but its streams are not yet context managers. A device without streams and
events is refused (`unordered`): no call would report when its bytes have arrived.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set
from functools import cache
from typing import Any, Protocol

import torch

from .cuda_graphs import capturing
from .streams import HOST, backend, new_stream, under

#: Seconds between two queries of an event. A host-side wait for an event could not be cancelled.
_POLL = 0.0005


class Event(Protocol):
    def query(self) -> bool: ...


def record(device: torch.device, held: Event | None) -> Event:
    """Record an event on the calling thread's current stream of a device, and return the event.

    Args:
        device: the device.
        held: an event to record again; None makes a new one.
    """
    event: Any = held
    if event is None:
        event = torch.cuda.Event() if device.type == "cuda" else torch.Event(device)
    event.record(backend(device).current_stream(device))
    made: Event = event
    return made


def accelerator() -> torch.device | None:
    """Return the kind of accelerator that this torch was built for, whether or not the machine has one."""
    try:
        current: torch.device | None = torch.accelerator.current_accelerator()
    except RuntimeError:  # torch 2.6 raises, and later versions return None
        return None
    return current


@cache
def unordered(device: torch.device) -> str:
    """Return why no call can report that a device has run its kernels; "" if streams and events work there."""
    if device.type in (*HOST, "cuda"):
        return ""
    known = accelerator()
    if known is None or known.type != device.type:
        return f"and torch {torch.__version__} has no streams and events there"
    try:
        record(device, None).query()
        with under(new_stream(device)):
            pass
    except (RuntimeError, TypeError, AttributeError) as error:
        return (
            f"and torch {torch.__version__} has no streams and events there "
            f"({' '.join(str(error).split())[:100]})"
        )
    return ""


def stream_of(device: torch.device) -> object:
    """Return the calling thread's current stream of a device."""
    current: object = backend(device).current_stream(device)
    return current


class BoundaryEvents:
    """The events of one boundary, by device: its end, and the first change behind it.

    A device that has reached the first and not the second holds the state of that boundary.
    """

    __slots__ = ("begun", "changes", "ended", "streams")

    def __init__(self) -> None:
        self.ended: dict[torch.device, Event] = {}
        self.begun: dict[torch.device, Event] = {}
        #: The stream on which each device trains.
        self.streams: dict[torch.device, object] = {}
        #: The host has launched changes of this boundary's state, all of them behind `begun`.
        self.changes = False

    def held(self) -> bool:
        """Return whether all devices hold the state of this boundary, although the host has launched changes of it.

        It does not wait, and any thread may call it.
        """
        return (
            self.changes
            and self.ended.keys() == self.begun.keys()
            and all(event.query() for event in self.ended.values())
            and not any(event.query() for event in self.begun.values())
        )


class Fence:
    """Records the events of boundaries on each device that holds state.

    Args:
        record: records an event on a device.
        stream: returns the calling thread's current stream of a device.
    """

    def __init__(
        self,
        record: Callable[[torch.device, Event | None], Event] = record,
        stream: Callable[[torch.device], object] = stream_of,
    ) -> None:
        self._record, self._stream = record, stream
        #: The devices that get an event at each boundary; never the host.
        self.devices: tuple[torch.device, ...] = ()
        self._last, self._before = BoundaryEvents(), BoundaryEvents()
        self._copied: Sequence[Set[torch.device]] = ()

    def watch(self, copied: Sequence[Set[torch.device]]) -> None:
        """Also record the devices on which boundaries make copies.

        Args:
            copied: sets of such devices. The sets may grow later.
        """
        self._copied = copied

    def follow(self, tensors: Iterable[torch.Tensor]) -> None:
        """Record the devices of these tensors, which are the state from now on. On the training thread."""
        self.cover({tensor.device for tensor in tensors})

    def cover(self, devices: Iterable[torch.device]) -> None:
        """Record these devices from now on. A device that held state earlier stays: its kernels may still be running."""
        added = {device for device in devices if device.type not in HOST}
        self.devices = tuple(sorted({*self.devices, *added}, key=str))

    def record(self) -> BoundaryEvents:
        """Record an event on each device. On the training thread, after it has launched everything of the boundary.

        Returns:
            The boundary's events. The boundary after the next one records them again.
        """
        for devices in self._copied:
            if devices and not devices <= {*self.devices}:
                self.cover(devices)
        if not self.devices:
            return self._last
        self._last, self._before = self._before, self._last
        boundary = self._last
        boundary.changes = False
        for device in self.devices:
            boundary.ended[device] = self._record(device, boundary.ended.get(device))
        return boundary

    def begin(self, unchanged: Callable[[], bool]) -> None:
        """Record an event in front of the first change after the last boundary. On the training thread.

        Args:
            unchanged: returns whether the host has launched no change of the state before.
        """
        if capturing() or not unchanged():
            return
        boundary = self._last
        for device in self.devices:
            boundary.streams[device] = self._stream(device)
            boundary.begun[device] = self._record(device, boundary.begun.get(device))
        boundary.changes = True

    def join(self) -> None:
        """Note a further change after the last boundary: on another stream, no event of ours is in front of it."""
        boundary = self._last
        if boundary.changes and any(self._stream(each) != one for each, one in boundary.streams.items()):
            boundary.changes = False

    def reached(self) -> bool:
        """Return whether every device has reached the end of the last boundary. This does not wait."""
        return all(event.query() for event in self._last.ended.values())

    def wait(self, pause: Callable[[float], object]) -> None:
        """Wait until every device has reached the boundary. On the saver thread.

        Args:
            pause: waits for a number of seconds; called between two queries.

        Raises:
            Exception: the exception of `pause`: a device did not arrive in time (a hung kernel), or the save was
                cancelled.
        """
        for event in list(self._last.ended.values()):
            while not event.query():
                pause(_POLL)
