"""Order between the training thread's kernels and a save's copies, on one accelerator or several.

The host runs ahead of the device: when `guard.step()` returns, the kernels of that step may not have run. An event
recorded at the boundary completes when these kernels have run. The saver thread waits for that event with a deadline.
It copies on a stream of its own, so it never waits for the kernels of the next step. A stream and an event belong to
one device and order nothing on another. So each device that holds state has its own stream and event, whichever
device is current. On the host this module does nothing.

CUDA devices use `torch.cuda`. Other accelerators use `torch.accelerator`, `torch.Stream` and `torch.Event`. Torch 2.6
provides everything that this module uses, but its streams are not yet context managers. A device without streams and
events is refused (`unordered`): no call would report when its bytes have arrived.
"""

from __future__ import annotations

import ctypes
import logging
import mmap
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from typing import Any, Protocol

import torch

log = logging.getLogger("spotguard")

#: Seconds between two queries of an event. A host-side wait for an event could not be cancelled.
_POLL = 0.0005
#: Device types without kernels.
_HOST = ("cpu", "meta")


class Event(Protocol):
    def query(self) -> bool: ...


def _backend(device: torch.device) -> Any:
    """Return the torch module that knows the current streams of devices of this kind."""
    return torch.cuda if device.type == "cuda" else torch.accelerator


def record(device: torch.device, held: Event | None) -> Event:
    """Record an event on the calling thread's current stream of a device, and return the event.

    Args:
        device: the device.
        held: an event to record again; None makes a new one.
    """
    event: Any = held
    if event is None:
        event = torch.cuda.Event() if device.type == "cuda" else torch.Event(device)
    event.record(_backend(device).current_stream(device))
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
    if device.type in (*_HOST, "cuda"):
        return ""
    known = accelerator()
    if known is None or known.type != device.type:
        return f"and torch {torch.__version__} has no streams and events there"
    try:
        record(device, None).query()
        with _under(_new_stream(device)):
            pass
    except (RuntimeError, TypeError, AttributeError) as error:
        return (
            f"and torch {torch.__version__} has no streams and events there "
            f"({' '.join(str(error).split())[:100]})"
        )
    return ""


class Fence:
    """The events that mark the end of the last boundary on each device that holds state."""

    def __init__(self, record: Callable[[torch.device, Event | None], Event] = record) -> None:
        self._record = record
        #: The devices that get an event at each boundary; never the host.
        self.devices: tuple[torch.device, ...] = ()
        self._events: dict[torch.device, Event] = {}
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
        added = {device for device in devices if device.type not in _HOST}
        self.devices = tuple(sorted({*self.devices, *added}, key=str))

    def record(self) -> None:
        """Record an event on each device. On the training thread, after it has launched everything of the boundary."""
        for devices in self._copied:
            if devices and not devices <= self._events.keys():
                self.cover(devices)
        for device in self.devices:
            self._events[device] = self._record(device, self._events.get(device))

    def reached(self) -> bool:
        """Return whether every device has reached its last recorded event. This does not wait."""
        return all(event.query() for event in self._events.values())

    def wait(self, pause: Callable[[float], object]) -> None:
        """Wait until every device has reached the boundary. On the saver thread.

        Args:
            pause: waits for a number of seconds; called between two queries.

        Raises:
            Exception: the exception of `pause`: a device did not arrive in time (a hung kernel), or the save was
                cancelled.
        """
        for event in list(self._events.values()):
            while not event.query():
                pause(_POLL)


class DeviceProbes:
    """A few bytes of tensors on devices, as they were at the last boundary.

    The training thread never waits for a device here. It launches a comparison on the device. It reads the verdict at
    a later boundary, once the device has computed it.

    Args:
        owned: tensors that only a hooked optimizer changes.
        others: tensors that any code may change at a boundary, and none between two boundaries.
        record: records an event on a device.
    """

    def __init__(
        self,
        owned: Iterable[torch.Tensor],
        others: Iterable[torch.Tensor],
        record: Callable[[torch.device, Event | None], Event] = record,
    ) -> None:
        self._record = record
        groups: dict[torch.device, list[torch.Tensor]] = {}
        bytes_of: dict[torch.device, int] = {}
        for tensor in owned:
            groups.setdefault(tensor.device, []).append(_middle(tensor))
            bytes_of[tensor.device] = bytes_of.get(tensor.device, 0) + tensor.itemsize
        for tensor in others:
            groups.setdefault(tensor.device, []).append(_middle(tensor))
        #: The probed bytes of each device, with the optimizers' bytes first; and how many of them are the optimizers'.
        self._probes = [*groups.values()]
        self._owned = [bytes_of.get(device, 0) for device in groups]
        self._seen: list[torch.Tensor] = []
        #: Comparisons that a device has not finished: the event behind each, and the host tensor for its verdict.
        self._verdicts: list[tuple[Event, torch.Tensor]] = []

    def mark(self, stepped: bool) -> bool:
        """Record the bytes as they are now. On the training thread.

        Args:
            stepped: a registered optimizer stepped since the last mark, so nothing is compared.

        Returns:
            Whether bytes that only optimizers change have moved without a step, at this mark or at an earlier one.
        """
        if not self._probes:
            return False
        before, self._seen = self._seen, [torch.cat(probes) for probes in self._probes]
        if before and not stepped:
            for owned, old, new in zip(self._owned, before, self._seen, strict=True):
                if owned:
                    self._compare(old[:owned], new[:owned])
        pending, self._verdicts = self._verdicts, []
        moved = False
        for event, verdict in pending:
            if event.query():
                moved = moved or bool(verdict)
            else:
                self._verdicts.append((event, verdict))
        return moved

    def _compare(self, old: torch.Tensor, new: torch.Tensor) -> None:
        differs = torch.ne(old, new).any()
        verdict = host_tensor(differs)
        verdict.copy_(differs, non_blocking=True)
        self._verdicts.append((self._record(differs.device, None), verdict))

    def differ(self) -> bool:
        """Return whether the bytes differ from those at the mark.

        The bytes are compared on the host. A comparison on the device is a kernel, and a device that hangs in a kernel of
        training's may not begin another: a save then waited 52 s, until training's kernel ended (seen on an H200). Copies
        wait for the calling thread's stream only. Any thread may call this.
        """
        pairs = zip(self._probes, self._seen, strict=False)
        return any(
            not torch.equal(torch.cat([probe.cpu() for probe in probes]), seen.cpu())
            for probes, seen in pairs
        )


def _middle(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of the middle element, as an alias. Compared as bytes, a NaN equals itself."""
    middle = sum((size // 2) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    first = (tensor.storage_offset() + middle) * tensor.itemsize
    alias = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return alias.set_(tensor.untyped_storage(), first, (tensor.itemsize,), (1,))


class _Stream(Protocol):
    def synchronize(self) -> None: ...


def _new_stream(device: torch.device) -> _Stream:
    stream: _Stream = torch.cuda.Stream(device) if device.type == "cuda" else torch.Stream(device)
    return stream


@contextmanager
def _under(stream: _Stream) -> Iterator[None]:
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


def capturing() -> bool:
    """Return whether the calling thread captures a CUDA graph. What it launches then runs later, and again at each replay."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


_thread = threading.local()
#: `CU_STREAM_CAPTURE_MODE_RELAXED` of the CUDA driver.
_RELAXED = 2


def work_beside_captures() -> None:
    """Let the calling thread, one of ours, use CUDA while another thread captures a graph.

    A capture in torch's default mode ("global") forbids other threads to allocate, to pin, and to query events, and fails if
    one does. A thread that has chosen the relaxed mode for itself is left out (CUDA driver API,
    `cuThreadExchangeStreamCaptureMode`).
    """
    if getattr(_thread, "relaxed", False) or torch.version.cuda is None:
        return
    mode = ctypes.c_int(_RELAXED)
    try:
        error: object = ctypes.CDLL("libcuda.so.1").cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
    except (OSError, AttributeError) as missing:
        error = missing
    if error:
        log.debug("a save during the capture of a CUDA graph would end that capture: %s", error)
    _thread.relaxed = True


class SideStreams:
    """One stream of our own for each device that a save copies from. Only one thread at a time may use it."""

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
        """Launch the copies of the `with` block, which read from `device`. They are complete only after `finish`."""
        if device.type in _HOST:
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


def host_tensor(like: torch.Tensor) -> torch.Tensor:
    """Return host memory for a copy of `like`: pinned memory if `like` is on a CUDA device."""
    return torch.empty(like.shape, dtype=like.dtype, device="cpu", pin_memory=like.is_cuda)


#: `cudaHostRegisterPortable` of the CUDA runtime: pinned for all devices.
_PORTABLE = 1


def host_memory(nbytes: int, device: torch.device | None) -> tuple[torch.Tensor, bool]:
    """Return host memory for copies of tensors as bytes, each page touched, and whether it is pinned.

    Torch's own pinned memory takes the next power of two for each tensor: up to twice the bytes of the state, for which
    nobody has planned. So the pages come from the kernel, and the driver pins them as they are. Call this on a thread that
    ends afterwards: the runtime keeps the error of a refused pin for the thread's next kernel.

    Args:
        nbytes: bytes; at least one.
        device: the CUDA device whose process pins the memory, for all devices; None for memory that is not pinned. Another
            device would get a context of this process, of hundreds of MB.
    """
    pages = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    # A fork would copy pinned pages at once (138 ms for 256 MiB), and each later write of this process would copy others.
    pages.madvise(mmap.MADV_DONTFORK)
    memory = torch.frombuffer(pages, dtype=torch.uint8)
    # Without the GIL, and without a team of threads beside training's.
    ctypes.memset(memory.data_ptr(), 0, nbytes)
    if device is None:
        return memory, False
    work_beside_captures()
    with torch.cuda.device(device):
        runtime: Any = torch.cuda.cudart()
        if refused := int(runtime.cudaHostRegister(memory.data_ptr(), nbytes, _PORTABLE)):
            log.debug("the driver does not pin %d bytes of host memory: error %d", nbytes, refused)
            return memory, False
    unpin = weakref.finalize(memory.untyped_storage(), _unpin, os.getpid(), device, memory.data_ptr(), pages)
    unpin.atexit = False
    return memory, True


def _unpin(pid: int, device: torch.device, address: int, pages: mmap.mmap) -> None:
    """Unpin memory that no tensor uses any more. `pages` keeps it mapped until then."""
    if os.getpid() == pid:  # a forked child has neither the memory nor CUDA
        with torch.cuda.device(device):
            runtime: Any = torch.cuda.cudart()
            runtime.cudaHostUnregister(address)


class OwnStreams:
    """Streams for the calling thread alone. On the default streams it would wait for the kernels of all threads."""

    def __init__(
        self,
        new: Callable[[torch.device], Any] = _new_stream,
        backend: Callable[[torch.device], Any] = _backend,
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
