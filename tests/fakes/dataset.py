"""A data set whose items say what the worker that made them has inherited."""

from __future__ import annotations

import os
import signal
import threading

import torch


class Facts(torch.utils.data.Dataset[torch.Tensor]):
    """Item i is (i, threads of spotguard here, whether SIGTERM is handled here, whether the socket is open here).

    Args:
        size: how many items.
        socket: what /proc/self/fd calls the hook's socket in the training process: "socket:[1234]".
    """

    def __init__(self, size: int, socket: str = "") -> None:
        self.size = size
        self.socket = socket

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> torch.Tensor:
        threads = sum(thread.name.startswith("spotguard") for thread in threading.enumerate())
        handled = signal.getsignal(signal.SIGTERM) not in (signal.SIG_DFL, None)
        return torch.tensor([float(index), threads, handled, self.socket in open_files()])


def open_files() -> list[str]:
    """What this process has open."""
    found = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{fd}"))
        except FileNotFoundError:
            continue  # the listing's own descriptor
    return found
