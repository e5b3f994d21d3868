"""The losses of one rank, from the script to the checkpoints that they make suspect.

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
from .detector import LASTING, QUIET, LossChange, LossDetector

log = logging.getLogger("spotguard")

#: Losses that may wait for their device. A host is some steps ahead of it at most, and later ones are left out.
_WAITING = 64


class _Readback(NamedTuple):
    """A loss on its way from a device: the memory that it comes to, and the event behind its copy."""

    step: int
    device: torch.device
    value: torch.Tensor
    event: Event


class LossWatch:
    """The watch over one rank's losses. The training thread gives them; any thread may ask, and never waits.

    Devices are asked on the training thread, and by a save that has the training stand still: another thread's question could
    fall into the capture of a CUDA graph.

    Args:
        rank: this rank.
        world: the number of ranks.
        listing: the command that lists this run's checkpoints, for the log.
        record: records an event on a device.
        at_once: whether tensors of the host are read at once.
    """

    def __init__(
        self,
        rank: int,
        world: int,
        listing: str,
        record: Callable[[torch.device, Event | None], Event] = record,
        at_once: bool = True,
    ) -> None:
        self._of_rank = f" on rank {rank}" if world > 1 else ""
        self._listing = listing
        self._record, self._at_once = record, at_once
        self._detector = LossDetector()
        #: Guards the judgement of one loss. It is held over no call of a device, and no log line.
        self._lock = threading.Lock()
        #: Held by the thread that asks the devices. No thread waits for it.
        self._reading = threading.Lock()
        #: Replaced by another at a restore, so that a thread that is reading drops what it has read.
        self._waiting: deque[_Readback] = deque()
        #: Events and host memory of losses that have been read.
        self._spare: dict[tuple[torch.device, torch.dtype], list[_Readback]] = {}
        #: Devices whose losses cannot be read without waiting.
        self._unread: set[torch.device] = set()
        #: The newest loss that was read; None if there is none.
        self.loss: float | None = None

    @property
    def bad_loss_steps(self) -> int:
        """The steps whose losses were not finite, or spikes that were reported."""
        return self._detector.bad_steps

    @property
    def high(self) -> str:
        """How losses are far above the usual ones; "" if they are not."""
        found = self._detector.high
        return "" if found is None else found.why

    def begin(self, step: int, inherited: str = "") -> None:
        """Begin anew at a restored state.

        Args:
            step: its completed steps.
            inherited: why this rank's losses made its checkpoint suspect; "" if they did not.
        """
        with self._lock:
            self._waiting = deque()
            self.loss = None
            self._detector.begin(step, inherited)

    def take(self, step: int, loss: Any) -> None:
        """Take the loss of a step, counted from 1. On the training thread.

        Raises:
            UsageError: it is not one real number.
        """
        # In this order, because `isinstance` of a float and a tensor takes a microsecond.
        if type(loss) is not float:
            loss = one_number(loss)
            if type(loss) is not float and loss.is_cpu and self._at_once:
                loss = float(loss.item())
        if self._waiting:
            self._read()
        if type(loss) is float:
            self._see(step, loss, self._waiting)
        else:
            self._send(step, loss)

    def why(self, step: int, read: bool = False) -> str:
        """Return why the checkpoint of a step is suspect, as far as losses are known; "" if it is not.

        Args:
            read: first read the losses that devices have computed. For a save that has the training stand still.
        """
        if read and self._waiting:
            self._read()
        return self._detector.why(step)

    def _send(self, step: int, loss: torch.Tensor) -> None:
        device = loss.device
        if device in self._unread or len(self._waiting) >= _WAITING:
            return
        if spare := self._spare.get((device, loss.dtype)):
            value, event = spare.pop()[2:]
        elif why := unordered(device):
            self._unread.add(device)
            log.warning("losses on %s are not read, %s: pass a number instead", device, why)
            return
        else:
            with torch.inference_mode(
                False
            ):  # memory of the inference mode could not be written outside of it
                value, event = host_tensor(loss).reshape(()), None
        value.copy_(loss.detach().reshape(()), non_blocking=True)
        self._waiting.append(_Readback(step, device, value, self._record(device, event)))

    def _read(self) -> None:
        """See the losses that their devices have computed."""
        if not self._reading.acquire(blocking=False):
            return
        try:
            waiting = self._waiting
            while waiting and _is_reached(waiting[0].event):
                first = waiting.popleft()
                self._see(first.step, first.value.item(), waiting)
                self._spare.setdefault((first.device, first.value.dtype), []).append(first)
        finally:
            self._reading.release()

    def _see(self, step: int, loss: float, waiting: deque[_Readback]) -> None:
        with self._lock:
            if waiting is not self._waiting:
                return  # it is a loss of the state before the restore
            self.loss = loss
            change = self._detector.see(step, loss)
            suspicion, high = self._detector.active, self._detector.high
        if change is None:
            return
        if change is LossChange.SUSPECT and suspicion is not None:
            log.warning(
                "%s%s: checkpoints are suspect from now on, and do not count for --keep, until the losses of %d steps in a row are "
                "finite. Training continues. If losses stay bad, go back to a checkpoint before it: `%s` lists them, "
                "guard.restore(step=…) loads one [SG421]",
                suspicion.why,
                self._of_rank,
                QUIET,
                self._listing,
            )
        elif change is LossChange.TRUSTED:
            log.warning(
                "the loss is finite again%s, %.4g at step %d: checkpoints count for --keep again",
                self._of_rank,
                loss,
                step,
            )
        elif change is LossChange.HIGH and high is not None:
            log.warning(
                "%s%s: far above the usual losses for %d steps. Training continues, and its checkpoints count for --keep. If it has "
                "diverged, go back to a checkpoint before it: `%s` lists them, guard.restore(step=…) loads one [SG423]",
                high.why,
                self._of_rank,
                LASTING,
                self._listing,
            )
        elif change is LossChange.USUAL:
            log.warning("the loss is as before again%s, %.4g at step %d", self._of_rank, loss, step)
        else:
            log.warning(
                "the loss stays at its new level%s, %.4g at step %d: from now on this is the usual one",
                self._of_rank,
                loss,
                step,
            )


def _is_reached(event: Event) -> bool:
    """Return whether its device has come to this event. A device that has failed has not: the error is training's own."""
    try:
        return event.query()
    except RuntimeError:
        return False


def one_number(loss: Any) -> float | torch.Tensor:
    """Return a loss as a float, or as a tensor that is one real number.

    Raises:
        UsageError: it is not one real number.
    """
    return _one(loss) if isinstance(loss, torch.Tensor) else _number(loss)


def _one(loss: torch.Tensor) -> torch.Tensor:
    """Return a tensor that is one real number. Of a DTensor it is this rank's part: no collective is called.

    Raises:
        UsageError: it has another number of elements, or no real number.
    """
    if loss.numel() != 1:
        raise UsageError(
            f"loss is a tensor of shape {tuple(loss.shape)}: pass one number, as in loss=loss.mean() [SG422]"
        )
    if loss.is_complex() or loss.dtype is torch.bool or loss.is_meta or loss.layout is not torch.strided:
        layout = "" if loss.layout is torch.strided else f" and layout {loss.layout}"
        raise UsageError(
            f"loss is a tensor of {loss.dtype}{layout} on {loss.device}: pass one real number, as in loss=loss.real [SG422]"
        )
    to_local = None if type(loss) is torch.Tensor else getattr(loss.detach(), "to_local", None)
    if to_local is None:
        return loss
    part: torch.Tensor = to_local()
    return part if part.numel() else part.new_zeros(())


def _number(loss: Any) -> float:
    """Return a number of any library as a float.

    Raises:
        UsageError: it is none.
    """
    try:
        number = loss.item() if hasattr(loss, "item") else loss  # NumPy's, and its arrays of one element
        if isinstance(number, (bool, str)) or not hasattr(number, "__float__"):
            raise TypeError
        return float(number)
    except OverflowError:
        wrong = f"{type(loss).__name__} that is too large for a float"
    except (TypeError, ValueError):
        # No other values: they may be of any length.
        shown = f" {loss!r:.40}" if isinstance(loss, (bool, complex, str)) else ""
        wrong = f"{type(loss).__name__}{shown}"
    raise UsageError(f"loss is {wrong}: pass a number, or a tensor of one element [SG422]")
