"""Whether a dataset draws random numbers in a loader's workers.

A restart begins workers anew. If they draw, workers that an earlier pass has started are in a state that no restart finds again, and
a position that is set without loading the batches before it leaves their draws out.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data import get_worker_info

from ....checkpoint.format.values.sameness import same
from .. import rng
from .generators import OwnGenerators


class WorkerDraws:
    """A note in shared memory that workers make as soon as a sample has moved a generator of theirs."""

    def __init__(self) -> None:
        self._noted = torch.zeros(1, dtype=torch.uint8).share_memory_()
        self._begin: Any = None
        self._collate: Any = None
        self._own: OwnGenerators | None = None
        self._states: Any = None

    def __bool__(self) -> bool:
        return bool(self._noted.item())

    @contextmanager
    def watching(self, loader: Any) -> Iterator[None]:
        """Have the workers that the loader starts in this block make the note. The loader itself is as it was behind it."""
        self._begin, self._collate = loader.worker_init_fn, loader.collate_fn
        loader.worker_init_fn, loader.collate_fn = self.begin, self.collate
        try:
            yield
        finally:
            loader.worker_init_fn, loader.collate_fn = self._begin, self._collate

    # --- in a worker ---

    def begin(self, worker: int) -> None:
        """Note the generators with which a worker begins."""
        if self._begin is not None:
            self._begin(worker)
        info = get_worker_info()
        self._own = OwnGenerators(None if info is None else info.dataset)
        self._states = self._now()

    def collate(self, samples: Any) -> Any:
        """Compare the generators behind the samples of a batch with those before them."""
        if not self._noted.item() and self._own is not None:
            states = self._now()
            if same(states, self._states):
                self._noted.fill_(1)
            self._states = states
        return self._collate(samples)

    def _now(self) -> dict[str, Any]:
        own = {} if self._own is None else self._own.states()
        return rng.capture() | {f"own {path}": state for path, state in own.items()}
