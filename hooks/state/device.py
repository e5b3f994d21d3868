"""Order between the training thread's kernels and the copies of a save, where there is a GPU, or several.

The host runs ahead of the device: when `guard.step()` returns, the kernels of that step may not have run. An
event recorded at the boundary says when they have; the saving thread waits for it, bounded, and copies on a
stream of its own, so that it never waits for the kernels of the next step. A stream and an event belong to one device
and order nothing on another, so there is one of each for every device that holds state, whichever is the current one.
Without CUDA nothing here does anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

import torch

#: Seconds between two looks at an event: a host-side wait for it could not be called off.
_POLL = 0.0005


class _Event(Protocol):
    def query(self) -> bool: ...


def _record(device: torch.device, held: _Event | None) -> _Event:
    """An event on the stream that the calling thread computes with on that device."""
    event = held if isinstance(held, torch.cuda.Event) else torch.cuda.Event()
    event.record(torch.cuda.current_stream(device))
    return event


class Fence:
    """The end of the last boundary on each device that holds state."""

    def __init__(self, record: Callable[[torch.device, _Event | None], _Event] = _record) -> None:
        self._record = record
        #: The devices that are recorded; never the host.
        self.devices: tuple[torch.device, ...] = ()
        self._events: dict[torch.device, _Event] = {}

    def follow(self, tensors: Iterable[torch.Tensor]) -> None:
        """These tensors are the state now. On the training thread."""
        self.cover({tensor.device for tensor in tensors})

    def cover(self, devices: Iterable[torch.device]) -> None:
        """The state lies on these devices. One that held some before is kept: its kernels may still be running."""
        found = {device for device in devices if device.type == "cuda"}
        self.devices = tuple(sorted({*self.devices, *found}, key=str))

    def record(self) -> None:
        """On the training thread, after everything of the boundary was launched."""
        for device in self.devices:
            self._events[device] = self._record(device, self._events.get(device))

    def wait(self, pause: Callable[[float], object]) -> None:
        """On the saving thread: until every device has reached the boundary.

        Raises:
            Exception: what `pause` raises: one device did not in time (a hung kernel), or the save was called off.
        """
        for event in list(self._events.values()):
            while not event.query():
                pause(_POLL)


class _Stream(Protocol):
    def synchronize(self) -> None: ...


def _new_stream(device: torch.device) -> _Stream:
    return torch.cuda.Stream(device)


def _under(stream: _Stream) -> AbstractContextManager[object]:
    assert isinstance(stream, torch.cuda.Stream)
    return torch.cuda.stream(stream)


class SideStreams:
    """A stream of one's own for each device that is copied from. Used by one thread at a time."""

    def __init__(
        self,
        new: Callable[[torch.device], _Stream] = _new_stream,
        under: Callable[[_Stream], AbstractContextManager[object]] = _under,
    ) -> None:
        self._new = new
        self._under = under
        self._streams: dict[torch.device, _Stream] = {}
        self._used: dict[torch.device, _Stream] = {}

    @contextmanager
    def on(self, device: torch.device) -> Iterator[None]:
        """Launch inside what reads from `device`. It has not happened before `finish`."""
        if device.type != "cuda":
            yield
            return
        stream = self._streams.get(device)
        if stream is None:
            stream = self._streams[device] = self._new(device)
        self._used[device] = stream
        with self._under(stream):
            yield

    def finish(self) -> None:
        """Wait for what was launched since the last time, on every device."""
        used, self._used = self._used, {}
        for stream in used.values():
            stream.synchronize()


def host_tensor(like: torch.Tensor) -> torch.Tensor:
    """Host memory for a copy of `like`: pinned where it comes from a GPU."""
    return torch.empty(like.shape, dtype=like.dtype, device="cpu", pin_memory=like.is_cuda)


def own_streams(devices: Iterable[torch.device]) -> None:
    """Give the calling thread streams of its own there: the default ones wait for everybody's kernels."""
    for device in devices:
        torch.cuda.set_stream(torch.cuda.Stream(device))
