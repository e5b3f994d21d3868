"""Training with a data loader's worker, forked or spawned: `loading.py fork|spawn`, lines on stdin as in train.py.

It wakes for every signal: the loader's handler of SIGCHLD runs on the main thread, between two of its instructions, and one
that comes just before that thread begins to read would wait for the next line. Says `sockets INODE…` (ours, before there is a worker), `worker PID`, then as train.py does; `loader died` when the
worker was killed, after which it waits as a job does whose data never comes.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import threading

import torch
import train  # type: ignore[import-not-found]  # the script beside this one
from torch.utils.data import DataLoader, Dataset

import spotguard


class Numbers(Dataset[tuple[torch.Tensor, int]]):
    def __len__(self) -> int:
        return 10_000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((8,), float(index)), os.getpid()


def sockets() -> str:
    """The sockets among our descriptors."""
    links = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the folder's own descriptor, closed by now
            links.append(os.readlink(f"/proc/self/fd/{name}"))
    return " ".join(sorted(link for link in links if link.startswith("socket:")))


def wake_for_signals() -> None:
    """Look at stdin only once there is something, or a signal has come."""
    waking, written = os.pipe()
    os.set_blocking(waking, False)
    os.set_blocking(written, False)
    signal.set_wakeup_fd(written, warn_on_full_buffer=False)
    read = train.read_line

    def read_line() -> list[str]:
        while 0 not in (ready := select.select([0, waking], [], [])[0]):
            if ready:
                os.read(waking, 4096)
        return list(read())

    train.read_line = read_line


def main(method: str) -> None:
    torch.set_num_threads(1)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    guard = spotguard.register(model=model, optimizer=optimizer)
    train.tell(f"sockets {sockets()}")
    done = guard.restore()
    train.tell(f"restored {done}")
    wake_for_signals()
    keyboard = train.Keyboard(guard)
    batches = iter(DataLoader(Numbers(), batch_size=2, num_workers=1, multiprocessing_context=method))
    try:
        for step in range(done, 1000):
            x, pids = next(batches)
            if step == done:
                train.tell(f"worker {int(pids[0])}")
            keyboard.before_step()
            model(x).sum().backward()
            optimizer.step()
            guard.step()
            train.tell(f"step {step + 1}")
    except (RuntimeError, OSError, EOFError) as error:  # the last two: it died with a batch half handed over
        stand(f"loader died: {type(error).__name__}")


def stand(last_words: str) -> None:
    """Say this and wait for ever, whatever the loader's own SIGCHLD handler raises meanwhile (RuntimeError, once a
    worker that died)."""
    while True:
        with contextlib.suppress(RuntimeError):
            if last_words:
                train.tell(last_words)
                last_words = ""
            threading.Event().wait()


if __name__ == "__main__":
    main(sys.argv[1])
