"""Order between the training thread's kernels and the copies of a save, where there is an accelerator, or several.

The host runs ahead of the device: when `guard.step()` returns, the kernels of that step may not have run. An
event recorded at the boundary says when they have; the saving thread waits for it, bounded, and copies on a
stream of its own, so that it never waits for the kernels of the next step. A stream and an event belong to one device
and order nothing on another, so there is one of each for every device that holds state, whichever is the current one.
On the host nothing here does anything.

CUDA's go by `torch.cuda`, those of other accelerators by `torch.accelerator`, `torch.Stream` and `torch.Event`, of which
torch 2.6 has all that is used here; its streams are no context managers yet. A device without them is refused
(`unordered`): nothing would say when its bytes are there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from typing import Any, Protocol

import torch

#: Seconds between two looks at an event: a host-side wait for it could not be called off.
_POLL = 0.0005
#: Where there are no kernels.
_HOST = ("cpu", "meta")


class Event(Protocol):
    def query(self) -> bool: ...


def _backend(device: torch.device) -> Any:
    """What knows the current streams of such devices."""
    return torch.cuda if device.type == "cuda" else torch.accelerator


def record(device: torch.device, held: Event | None) -> Event:
    """An event on the stream that the calling thread computes with on that device."""
    event: Any = held
    if event is None:
        event = torch.cuda.Event() if device.type == "cuda" else torch.Event(device)
    event.record(_backend(device).current_stream(device))
    made: Event = event
    return made


def accelerator() -> torch.device | None:
    """The one that this torch was built for, whether or not there is any."""
    try:
        found: torch.device | None = torch.accelerator.current_accelerator()
    except RuntimeError:  # torch 2.6 raises where later ones say None
        return None
    return found


@cache
def unordered(device: torch.device) -> str:
    """Why nothing can say when what was launched on a device is done; "" where something can."""
    if device.type in (*_HOST, "cuda"):
        return ""
    known = accelerator()
    if known is None or known.type != device.type:
        return f"and torch {torch.__version__} knows no streams and events there"
    try:
        record(device, None).query()
        with _under(_new_stream(device)):
            pass
    except (RuntimeError, TypeError, AttributeError) as error:
        return f"and there torch {torch.__version__} has no streams and events ({' '.join(str(error).split())[:100]})"
    return ""


class Fence:
    """The end of the last boundary on each device that holds state."""

    def __init__(self, record: Callable[[torch.device, Event | None], Event] = record) -> None:
        self._record = record
        #: The devices that are recorded; never the host.
        self.devices: tuple[torch.device, ...] = ()
        self._events: dict[torch.device, Event] = {}
        self._copied: Sequence[Set[torch.device]] = ()

    def watch(self, copied: Sequence[Set[torch.device]]) -> None:
        """
        Args:
            copied: devices on which something is copied at boundaries; they may grow.
        """
        self._copied = copied

    def follow(self, tensors: Iterable[torch.Tensor]) -> None:
        """These tensors are the state now. On the training thread."""
        self.cover({tensor.device for tensor in tensors})

    def cover(self, devices: Iterable[torch.device]) -> None:
        """The state lies on these devices. One that held some before is kept: its kernels may still be running."""
        found = {device for device in devices if device.type not in _HOST}
        self.devices = tuple(sorted({*self.devices, *found}, key=str))

    def record(self) -> None:
        """On the training thread, after everything of the boundary was launched."""
        for devices in self._copied:
            if devices and not devices <= self._events.keys():
                self.cover(devices)
        for device in self.devices:
            self._events[device] = self._record(device, self._events.get(device))

    def reached(self) -> bool:
        """Whether every device has reached what was recorded last. Nothing waits."""
        return all(event.query() for event in self._events.values())

    def wait(self, pause: Callable[[float], object]) -> None:
        """On the saving thread: until every device has reached the boundary.

        Raises:
            Exception: what `pause` raises: one device did not in time (a hung kernel), or the save was called off.
        """
        for event in list(self._events.values()):
            while not event.query():
                pause(_POLL)


class DeviceProbes:
    """A few bytes of tensors on devices, as they were at the last boundary.

    The training thread never waits for a device here. It launches a comparison there, and reads the verdict at a later
    boundary, once the device has reached it.

    Args:
        owned: tensors that only a hooked optimizer changes.
        others: tensors that anybody may change at a boundary, and nobody between two.
        record: how an event is recorded on a device.
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
        #: By device, the optimizers' first; and how many bytes are the optimizers'.
        self._probes = [*groups.values()]
        self._owned = [bytes_of.get(device, 0) for device in groups]
        self._seen: list[torch.Tensor] = []
        #: Comparisons that a device has not been seen to finish: the event behind each, and where its verdict arrives.
        self._verdicts: list[tuple[Event, torch.Tensor]] = []

    def mark(self, stepped: bool) -> bool:
        """Take the bytes as they are now. On the training thread.

        Args:
            stepped: a registered optimizer stepped since the last mark, so nothing is compared.

        Returns:
            Whether what only optimizers change was seen to move, at this mark or an earlier one, though none had stepped.
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
        """Whether the bytes are other than at the mark. Waits for the calling thread's stream; any thread."""
        pairs = zip(self._probes, self._seen, strict=False)
        return any(not torch.equal(torch.cat(probes), seen) for probes, seen in pairs)


def _middle(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of the element in the middle, as an alias: compared as bytes, a NaN equals itself."""
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
    """Launch inside on this stream."""
    assert isinstance(stream, torch.Stream)
    if isinstance(stream, torch.cuda.Stream):
        with torch.cuda.stream(stream):
            yield
        return
    # A stream that is set makes its device the current one: both are put back, the device last.
    here, there = torch.accelerator.current_stream(), torch.accelerator.current_stream(stream.device)
    torch.accelerator.set_stream(stream)
    try:
        yield
    finally:
        torch.accelerator.set_stream(there)
        torch.accelerator.set_stream(here)


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
        if device.type in _HOST:
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
    """Host memory for a copy of `like`: pinned where it comes from a GPU of CUDA's."""
    return torch.empty(like.shape, dtype=like.dtype, device="cpu", pin_memory=like.is_cuda)


class OwnStreams:
    """Streams of the calling thread's own: on the default ones it would wait for everybody's kernels."""

    def __init__(
        self,
        new: Callable[[torch.device], Any] = _new_stream,
        backend: Callable[[torch.device], Any] = _backend,
    ) -> None:
        self._new, self._backend = new, backend
        self._given: set[torch.device] = set()

    def take(self, devices: Iterable[torch.device]) -> None:
        """Have one on each of these, from now on. Always on the same thread."""
        for device in devices:
            if device not in self._given:
                self._backend(device).set_stream(self._new(device))
                self._given.add(device)
