"""A replica of a DDP job below torchrun. `erring.py STEPS HOW AT`: at step AT rank 1 meets an error, is killed, or hangs until it
is started again: with the interpreter's lock held ("hold"), or in front of its optimizer ("behind"). With HOW "paced" there is
none: it trains on, twenty steps a second, and tells of a step that took seconds."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import spotguard

total, how, at = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(100 + rank)
model = DistributedDataParallel(torch.nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters())
guard = spotguard.register(model=model, optimizer=optimizer)
begun = guard.restore()
last = time.monotonic()
for step in guard.steps(total):
    if step == at or step == 0:
        line = f"rank {rank} at step {step}{', again' if begun else ''}\n"
        os.write(
            1, line.encode()
        )  # at once: `print` may write the line's end apart, behind another rank's line
    if how == "paced":
        if time.monotonic() - last > 2:
            os.write(1, f"rank {rank} goes on\n".encode())
        last = time.monotonic()
        threading.Event().wait(0.05)
    wrong = rank == 1 and step == at and not (how in ("hang", "hold") and begun)
    if wrong and how == "hang":
        threading.Event().wait()  # the other rank waits in backward
    if wrong and how == "hold":
        libc, mutex = ctypes.PyDLL(None), ctypes.create_string_buffer(64)
        while True:
            libc.pthread_mutex_lock(mutex)
    if wrong and how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if wrong and how == "data":
        raise ValueError("no such sample")
    optimizer.zero_grad()
    model(torch.randn(4, 16)).square().mean().backward()
    if wrong and how == "nan":
        raise FloatingPointError("the loss is nan")
    if wrong and how == "late":
        time.sleep(2)  # the other rank steps meanwhile, and is a step ahead
        raise ValueError("behind backward")
    if how == "behind" and rank == 1 and step == at and not begun:
        threading.Event().wait()  # the other rank steps, and waits in the backward pass of the next step
    if how == "sleep" and step == at:
        if rank == 1:
            raise FloatingPointError("the loss is nan")
        time.sleep(60)  # in no collective: it learns of the error by torchrun's SIGTERM
    optimizer.step()
guard.save()
dist.destroy_process_group()
