"""The losses of one rank, from the script to the checkpoints that they make suspect."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import torch

from ...state.device.events import Event, record
from .detector import LASTING, QUIET, LossChange, LossDetector
from .readback import Readback

log = logging.getLogger("spotguard")


class LossWatch:
    """The watch over one rank's losses. The training thread gives them; any thread may ask, and never waits.

    Args:
        rank: this rank.
        world: the number of ranks.
        listing: the command that lists this run's checkpoints, for the log.
        record, at_once: as in `Readback`.
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
        self._readback = self._new_readback()
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
            self._readback = self._new_readback()
            self.loss = None
            self._detector.begin(step, inherited)

    def take(self, step: int, loss: Any) -> None:
        """Take the loss of a step, counted from 1. On the training thread.

        Raises:
            UsageError: it is not one real number.
        """
        self._readback.take(step, loss)

    def read(self) -> None:
        """Read the losses that devices have computed, at a boundary: a script may give one every few steps only."""
        if self._readback.waiting:
            self._readback.read()

    def why(self, step: int, read: bool = False) -> str:
        """Return why the checkpoint of a step is suspect, as far as losses are known; "" if it is not.

        Args:
            read: first read the losses that devices have computed. For a save that has the training stand still.
        """
        if read:
            self._readback.read()
        return self._detector.why(step)

    def _new_readback(self) -> Readback:
        """Return the way of the next losses: a thread that still reads those before a restore drops what it has read."""
        readback = Readback(
            "loss", lambda step, loss: self._see(step, loss, readback), self._record, self._at_once
        )
        return readback

    def _see(self, step: int, loss: float, readback: Readback) -> None:
        with self._lock:
            if readback is not self._readback:
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
