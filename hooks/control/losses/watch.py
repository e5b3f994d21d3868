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
from ...state.device import Event, host_tensor, record, unordered
from .detector import QUIET, LossDetector

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
    """The watch over one rank's losses. The training thread gives them; any thread may ask.

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
        self._lock = threading.Lock()  # guards what follows: the saver thread looks for losses, too
        self._detector = LossDetector()
        self._waiting: deque[_Readback] = deque()
        #: Events and host memory of losses that have been read.
        self._spare: dict[tuple[torch.device, torch.dtype], list[_Readback]] = {}
        #: Devices whose losses cannot be read without waiting.
        self._unread: set[torch.device] = set()
        #: The newest loss that was read; None if there is none.
        self.loss: float | None = None

    @property
    def suspect_steps(self) -> int:
        """The losses seen while checkpoints were suspect."""
        return self._detector.suspect_steps

    def begin(self, step: int, inherited: str = "") -> None:
        """Begin anew at a restored state.

        Args:
            step: its completed steps.
            inherited: why its checkpoint is suspect; "" if it is not.
        """
        with self._lock:
            self._waiting.clear()
            self.loss = None
            self._detector.begin(step, inherited)

    def take(self, step: int, loss: Any) -> None:
        """Take the loss of a step, counted from 1. On the training thread.

        Raises:
            UsageError: it is not one real number.
        """
        # In this order, because `isinstance` of a float and a tensor takes a microsecond.
        if type(loss) is not float:
            if not isinstance(loss, torch.Tensor):
                loss = _number(loss)
            elif (loss := _one(loss)).is_cpu and self._at_once:
                loss = float(loss.item())
        with self._lock:
            if self._waiting:
                self._read()
            if type(loss) is float:
                self._see(step, loss)
            else:
                self._send(step, loss)

    def why(self, step: int) -> str:
        """Return why the checkpoint of a step is suspect, as far as losses are known; "" if it is not."""
        with self._lock:
            self._read()
            return self._detector.why(step)

    # --- inside, with the lock ---

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
            value, event = host_tensor(loss), None
        value.copy_(loss.detach(), non_blocking=True)
        self._waiting.append(_Readback(step, device, value, self._record(device, event)))

    def _read(self) -> None:
        while self._waiting and self._waiting[0].event.query():
            first = self._waiting.popleft()
            self._see(first.step, first.value.item())
            self._spare.setdefault((first.device, first.value.dtype), []).append(first)

    def _see(self, step: int, loss: float) -> None:
        self.loss = loss
        if not self._detector.see(step, loss):
            return
        if (found := self._detector.active) is not None:
            log.warning(
                "%s%s: checkpoints are suspect from now on, and do not count for --keep, until %d losses in a row are normal. "
                "Training continues. If losses stay bad, go back to a checkpoint before it: `%s` lists them, "
                "guard.restore(step=…) loads one [SG421]",
                found.why,
                self._of_rank,
                QUIET,
                self._listing,
            )
        else:
            log.warning(
                "the loss is normal again%s, %.4g at step %d: checkpoints count for --keep again",
                self._of_rank,
                loss,
                step,
            )


def _one(loss: torch.Tensor) -> torch.Tensor:
    """Return a tensor that is one real number. Of a DTensor it is this rank's part: no collective is called.

    Raises:
        UsageError: it has another number of elements, or no real number.
    """
    if loss.numel() != 1:
        raise UsageError(
            f"loss is a tensor of shape {tuple(loss.shape)}: pass one number, as in loss=loss.mean() [SG422]"
        )
    if loss.is_complex() or loss.dtype is torch.bool or loss.is_meta:
        raise UsageError(
            f"loss is a tensor of {loss.dtype} on {loss.device}: pass one real number, as in loss=loss.real [SG422]"
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
    except (TypeError, ValueError, OverflowError):
        raise UsageError(
            f"loss is {type(loss).__name__} {str(loss)[:40]!r}: pass a number, or a tensor of one element [SG422]"
        ) from None
