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

from .captures import capturing
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


class Fence:
    """The events of the last two boundaries on each device that holds state.

    A boundary has two events: `record` marks its end, and `begin` the first change after it. A device that has reached the
    first and not the second holds the state of that boundary.
    """

    def __init__(self, record: Callable[[torch.device, Event | None], Event] = record) -> None:
        self._record = record
        #: The devices that get an event at each boundary; never the host.
        self.devices: tuple[torch.device, ...] = ()
        self._last, self._before = _Boundary(), _Boundary()
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

    def record(self) -> None:
        """Record an event on each device. On the training thread, after it has launched everything of the boundary."""
        for devices in self._copied:
            if devices and not devices <= self._last.ended.keys():
                self.cover(devices)
        self._last, self._before = self._before, self._last
        self._last.changes = False
        for device in self.devices:
            self._last.ended[device] = self._record(device, self._last.ended.get(device))

    def begin(self) -> None:
        """Record an event before the first change after the last boundary. On the training thread."""
        if not self.devices or capturing():
            return
        begun = self._last.begun
        for device in self.devices:
            begun[device] = self._record(device, begun.get(device))
        self._last.changes = True

    def reached(self) -> bool:
        """Return whether every device has reached the end of the last boundary. This does not wait."""
        return all(event.query() for event in self._last.ended.values())

    def holds(self, back: int) -> bool:
        """Return whether all devices still hold the state of a boundary, although the host has launched changes of it.

        It does not wait, and any thread may call it.

        Args:
            back: 0 for the last boundary, 1 for the one before.
        """
        boundary = self._before if back else self._last
        return (
            boundary.changes
            and boundary.ended.keys() == boundary.begun.keys() == {*self.devices}
            and all(event.query() for event in boundary.ended.values())
            and not any(event.query() for event in boundary.begun.values())
        )

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


class _Boundary:
    """The events of one boundary, by device. The boundary after the next one records them again."""

    __slots__ = ("begun", "changes", "ended")

    def __init__(self) -> None:
        self.ended: dict[torch.device, Event] = {}
        self.begun: dict[torch.device, Event] = {}
        #: The host has launched a change of this boundary's state, behind `begun`.
        self.changes = False
