"""The events at which lives of a training end, and the file that it leaves."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_map


class EndedByError(Exception):
    """The error that ends a life."""


class Ends:
    """The events of one training, over all its lives. A life meets one, and none that an earlier life has met.

    Args:
        events: their names, as in `step:7`.
        met: a file that outlives the life: the names of those that were met. Each rank has one of its own.
    """

    def __init__(self, events: list[str], met: Path) -> None:
        self._events, self._given = events, False
        self._met = Path(f"{met}{os.environ.get('RANK', '')}")

    def meets(self, event: str) -> bool:
        """Whether this life ends here."""
        known = self._met.read_text().split() if self._met.exists() else []
        if self._given or event not in self._events or event in known:
            return False
        self._given = True
        with self._met.open("a") as met:
            met.write(f"{event}\n")
        return True

    def fail_at(self, step: int) -> None:
        """End this life by an error, if that is its event. Only the first of several ranks meets it."""
        if os.environ.get("RANK", "0") == "0" and self.meets(f"error:{step}"):
            raise EndedByError(f"at step {step}")


def write(result: dict[str, Any], out: Path, rank: int) -> None:
    """Write a rank's result to OUT, or OUT1 and so on; of a sharded tensor its own part. The process group ends here: a thread
    of gloo's that is left aborts its process at exit, now and then.
    """
    own = tree_map(lambda value: value.to_local() if isinstance(value, DTensor) else value, result)
    torch.save(own, f"{out}{rank or ''}")
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
