"""One name's numbers, from the script to the code that judges or shows them.

A number, and a tensor on the host, are read at once. A tensor on a device is copied to pinned memory behind the kernels that
compute it, and read at a later boundary, once the device has come that far: training never waits for it. The copy is made in the
order of the script's stream, so the script may free or overwrite its tensor.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from ....providers.errors import UsageError
from ...state.device.events import Event, record, unordered
from ...state.device.host_memory import host_tensor

log = logging.getLogger("spotguard")

#: Numbers that may wait for their device. A host is some steps ahead of it at most, and later ones are left out.
_WAITING = 64


class _OnDevice(NamedTuple):
    """A number on its way from a device: the memory that it comes to, and the event behind its copy."""

    step: int
    device: torch.device
    value: torch.Tensor
    event: Event


class Readback:
    """The way of one name's numbers. The training thread gives them.

    Devices are asked on the training thread, and by a save that has the training stand still: another thread's question could
    fall into the capture of a CUDA graph.

    Args:
        name: the name, for errors and the log.
        see: called with the step and the value of each number, in the order in which they were given.
        record: records an event on a device.
        at_once: whether tensors of the host are read at once.

    Attributes:
        waiting: the numbers whose device has not come so far, or was not asked since.
    """

    def __init__(
        self,
        name: str,
        see: Callable[[int, float], None],
        record: Callable[[torch.device, Event | None], Event] = record,
        at_once: bool = True,
    ) -> None:
        self._name, self._see = name, see
        self._record, self._at_once = record, at_once
        self.waiting: deque[_OnDevice] = deque()
        #: Held by the thread that asks the devices. No thread waits for it.
        self._reading = threading.Lock()
        #: Events and host memory of numbers that have been read.
        self._spare: dict[tuple[torch.device, torch.dtype], list[_OnDevice]] = {}
        #: Devices whose numbers cannot be read without waiting.
        self._unread: set[torch.device] = set()

    def take(self, step: int, value: Any) -> None:
        """Take the number of a step. On the training thread.

        Raises:
            UsageError: it is not one real number.
        """
        # In this order, because `isinstance` of a float and a tensor takes a microsecond.
        if type(value) is not float:
            value = one_number(value, self._name)
            if type(value) is not float and value.is_cpu and self._at_once:
                value = float(value.item())
        if self.waiting:
            self.read()
        if type(value) is float:
            self._see(step, value)
        else:
            self._send(step, value)

    def read(self) -> None:
        """See the numbers that their devices have computed."""
        if not self._reading.acquire(blocking=False):
            return
        try:
            while self.waiting and _is_reached(self.waiting[0].event):
                first = self.waiting.popleft()
                self._see(first.step, first.value.item())
                self._spare.setdefault((first.device, first.value.dtype), []).append(first)
        finally:
            self._reading.release()

    def _send(self, step: int, tensor: torch.Tensor) -> None:
        device = tensor.device
        if device in self._unread or len(self.waiting) >= _WAITING:
            return
        if spare := self._spare.get((device, tensor.dtype)):
            value, event = spare.pop()[2:]
        elif why := unordered(device):
            self._unread.add(device)
            log.warning("%s on %s is not read, %s: pass a number instead", self._name, device, why)
            return
        else:
            # Memory of the inference mode could not be written outside of it.
            with torch.inference_mode(False):
                value, event = host_tensor(tensor).reshape(()), None
        value.copy_(tensor.detach().reshape(()), non_blocking=True)
        self.waiting.append(_OnDevice(step, device, value, self._record(device, event)))


def _is_reached(event: Event) -> bool:
    """Return whether its device has come to this event. A device that has failed has not: the error is training's own."""
    try:
        return event.query()
    except RuntimeError:
        return False


def one_number(value: Any, name: str = "loss") -> float | torch.Tensor:
    """Return a value as a float, or as a tensor that is one real number.

    Args:
        value: the value.
        name: its name, for the error.

    Raises:
        UsageError: it is not one real number.
    """
    return _one(value, name) if isinstance(value, torch.Tensor) else _number(value, name)


def _one(value: torch.Tensor, name: str) -> torch.Tensor:
    """Return a tensor that is one real number. For a DTensor it is this rank's part: no collective is called.

    Raises:
        UsageError: it has another number of elements, or no real number.
    """
    if value.numel() != 1:
        raise UsageError(
            f"{name} is a tensor of shape {tuple(value.shape)}: pass one number, as in {name}.mean() [SG422]"
        )
    if value.is_complex() or value.dtype is torch.bool or value.is_meta or value.layout is not torch.strided:
        layout = "" if value.layout is torch.strided else f" and layout {value.layout}"
        raise UsageError(
            f"{name} is a tensor of {value.dtype}{layout} on {value.device}: pass one real number, as in {name}.real [SG422]"
        )
    to_local = None if type(value) is torch.Tensor else getattr(value.detach(), "to_local", None)
    if to_local is None:
        return value
    part: torch.Tensor = to_local()
    return part if part.numel() else part.new_zeros(())


def _number(value: Any, name: str) -> float:
    """Return a number of any library as a float.

    Raises:
        UsageError: it is none.
    """
    try:
        number = value.item() if hasattr(value, "item") else value  # NumPy's, and its arrays of one element
        if isinstance(number, (bool, str)) or not hasattr(number, "__float__"):
            raise TypeError
        return float(number)
    except OverflowError:
        wrong = f"{type(value).__name__} that is too large for a float"
    except (TypeError, ValueError):
        # No other values: they may be of any length.
        shown = f" {value!r:.40}" if isinstance(value, (bool, complex, str)) else ""
        wrong = f"{type(value).__name__}{shown}"
    raise UsageError(f"{name} is {wrong}: pass a number, or a tensor of one element [SG422]")
