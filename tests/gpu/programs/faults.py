"""A training on the GPU in which something happens at step 6: `faults.py HOW`, where HOW is

none      nothing
memory    the GPU has no memory left
assert    a kernel reads outside its tensor: the device stops at an assertion
hang      a kernel does not end for a minute, and the training thread waits for it
ahead     the same, and the training thread waits for it in the next step
far       the same, and the training thread waits for it two steps later
"""

from __future__ import annotations

import sys

import torch
from torch import nn

import spotguard


def fault(how: str, lost: torch.Tensor) -> None:
    if how == "memory":
        torch.empty(2 * torch.cuda.get_device_properties(0).total_memory, dtype=torch.uint8, device="cuda")
    elif how == "assert":
        lost[torch.tensor([lost.numel()], device="cuda")].sum().item()
    elif how in ("hang", "ahead", "far"):
        torch.cuda._sleep(60 * 1_900_000_000)  # cycles: a minute, and less where the clock is slow
        if how == "hang":
            wait()


def wait() -> None:
    print("hangs", flush=True)
    torch.cuda.synchronize()


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(512, 512), nn.BatchNorm1d(512), nn.Dropout(0.1), nn.Linear(512, 1)).cuda()
optimizer = torch.optim.AdamW(model.parameters())  # which counts its steps in host memory
guard = spotguard.register(model=model, optimizer=optimizer)
for step in guard.steps(9):
    print(f"step {step}", flush=True)
    optimizer.zero_grad()
    loss = model(torch.randn(16, 512, device="cuda")).square().mean()
    if step == {"ahead": 7, "far": 8}.get(sys.argv[1]):
        wait()
    if step == 6:
        fault(sys.argv[1], loss.detach().reshape(1))
    loss.backward()
    optimizer.step()
guard.close()
print(f"sum {sum(float(p.detach().double().sum()) for p in model.parameters())!r}", flush=True)
