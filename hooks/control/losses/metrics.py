"""The script's own numbers, such as a validation loss, which the agent shows as metrics. The newest of each name counts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from ....providers.errors import UsageError
from ...ipc.protocol import METRIC_NAME, MOST_METRICS
from ...state.device.events import Event, record
from .readback import Readback


class ScriptMetrics:
    """The newest number of each name. The training thread reads them; any thread may give one, and ask for `texts`.

    Args:
        record, at_once: as in `Readback`.
    """

    def __init__(
        self, record: Callable[[torch.device, Event | None], Event] = record, at_once: bool = True
    ) -> None:
        self._record, self._at_once = record, at_once
        self.begin()

    def begin(self) -> None:
        """Forget all numbers: training goes on from another state."""
        self._readbacks: dict[str, Readback] = {}
        self._values: dict[str, float] = {}

    def take(self, name: Any, value: Any, step: int) -> None:
        """Take a number of the script's.

        Args:
            name: its name.
            value: a number, or a tensor of one element on any device.
            step: the completed steps.

        Raises:
            UsageError: the name cannot be used, it is one too many, or the value is not one real number.
        """
        known = self._readbacks.get(name) if isinstance(name, str) else None
        readback = known or self._new_readback(name)
        readback.take(step, value)
        # A new dict: another thread may evaluate, and give a first number while a boundary reads.
        if known is None:
            self._readbacks = {**self._readbacks, name: readback}

    def read(self) -> None:
        """Read the numbers that their devices have computed, at a boundary."""
        for each in self._readbacks.values():
            if each.waiting:
                each.read()

    @property
    def texts(self) -> dict[str, str]:
        """The newest numbers that were read, as text, because JSON has no "nan"."""
        return {name: repr(value) for name, value in self._values.copy().items()}

    def _new_readback(self, name: Any) -> Readback:
        if not isinstance(name, str) or METRIC_NAME.fullmatch(name) is None:
            raise UsageError(
                f"guard.watch_metric() got the name {name!r:.80}: expected a small letter, then at most 63 small letters, digits "
                "and _, as in validation_loss"
            )
        if len(self._readbacks) >= MOST_METRICS:
            raise UsageError(
                f"guard.watch_metric() got {name!r}, and has {MOST_METRICS} names already, the most that it takes: "
                f"{', '.join(self._readbacks)}; leave one of them out"
            )
        return Readback(name, partial(self._see, name), self._record, self._at_once)

    def _see(self, name: str, step: int, value: float) -> None:
        self._values[name] = value
