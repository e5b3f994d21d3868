"""Streams of our own, one for each device: a save's copies never wait there for the kernels of training's next step.

A stream belongs to one device and orders nothing on another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import torch

from .cuda_graphs import work_beside_captures

#: Device types without kernels.
HOST = ("cpu", "meta")


def backend(device: torch.device) -> Any:
    """Return the torch module that knows the current streams of devices of this kind."""
    return torch.cuda if device.type == "cuda" else torch.accelerator


class _Stream(Protocol):
    def synchronize(self) -> None: ...


def new_stream(device: torch.device) -> _Stream:
    stream: _Stream = torch.cuda.Stream(device) if device.type == "cuda" else torch.Stream(device)
    return stream


@contextmanager
def under(stream: _Stream) -> Iterator[None]:
    """Launch the kernels of the `with` block on this stream."""
    assert isinstance(stream, torch.Stream)
    if isinstance(stream, torch.cuda.Stream):
        with torch.cuda.stream(stream):
            yield
        return
    # `set_stream` also makes the stream's device current. Restore both, the current device last.
    here, there = torch.accelerator.current_stream(), torch.accelerator.current_stream(stream.device)
    torch.accelerator.set_stream(stream)
    try:
        yield
    finally:
        torch.accelerator.set_stream(there)
        torch.accelerator.set_stream(here)


class CopyStreams:
    """One stream of our own for each device that a save copies from. Only one thread at a time may use it."""

    def __init__(
        self,
        new: Callable[[torch.device], _Stream] = new_stream,
        under: Callable[[_Stream], AbstractContextManager[object]] = under,
    ) -> None:
        self._new = new
        self._under = under
        self._streams: dict[torch.device, _Stream] = {}
        self._used: dict[torch.device, _Stream] = {}

    @contextmanager
    def on(self, device: torch.device) -> Iterator[None]:
        """Launch the copies of the `with` block, which read from `device`. They are complete only after `finish`."""
        if device.type in HOST:
            yield
            return
        work_beside_captures()
        stream = self._streams.get(device)
        if stream is None:
            stream = self._streams[device] = self._new(device)
        self._used[device] = stream
        with self._under(stream):
            yield

    def finish(self) -> None:
        """Wait, on every device, for the copies launched since the last call."""
        used, self._used = self._used, {}
        for stream in used.values():
            stream.synchronize()


class ThreadStreams:
    """Streams for the calling thread alone. On the default streams it would wait for the kernels of all threads."""

    def __init__(
        self,
        new: Callable[[torch.device], Any] = new_stream,
        backend: Callable[[torch.device], Any] = backend,
    ) -> None:
        self._new, self._backend = new, backend
        self._given: set[torch.device] = set()

    def take(self, devices: Iterable[torch.device]) -> None:
        """Give the calling thread its own stream on each of these devices. Always call this on the same thread."""
        for device in devices:
            if device not in self._given:
                work_beside_captures()
                self._backend(device).set_stream(self._new(device))
                self._given.add(device)
