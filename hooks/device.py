"""Order between the training thread's kernels and the copies of a save, where there is a GPU.

The host runs ahead of the device: when `guard.step()` returns, the kernels of that step may not have run. An
event recorded at the boundary says when they have; the saving thread waits for it, bounded, and copies on a
stream of its own, so that it never waits for the kernels of the next step. Without CUDA nothing here does
anything.
"""

from __future__ import annotations

import torch

from .effort import Effort

#: Seconds between two looks at an event: a host-side wait for it could not be called off.
_POLL = 0.0005


class Fence:
    """The end of the last boundary on the device."""

    def __init__(self) -> None:
        self._event: torch.cuda.Event | None = None

    def record(self) -> None:
        """On the training thread, after everything of the boundary was launched."""
        if torch.cuda.is_initialized():
            if self._event is None:
                self._event = torch.cuda.Event()
            self._event.record()

    def wait(self, effort: Effort) -> None:
        """On the saving thread: until the device has reached the boundary.

        Raises:
            Abandoned: it did not in time (a hung kernel), or the save was called off.
        """
        while self._event is not None and not self._event.query():
            effort.pause(_POLL)


def own_stream() -> None:
    """Give the calling thread a stream of its own: the default one waits for everybody's kernels."""
    if torch.cuda.is_available():
        torch.cuda.set_stream(torch.cuda.Stream())


def host_tensor(like: torch.Tensor) -> torch.Tensor:
    """Host memory for a copy of `like`: pinned where it comes from a GPU."""
    return torch.empty(like.shape, dtype=like.dtype, pin_memory=like.is_cuda)


def finish_copies() -> None:
    """Wait for the calling thread's own stream."""
    if torch.cuda.is_initialized():
        torch.cuda.current_stream().synchronize()
