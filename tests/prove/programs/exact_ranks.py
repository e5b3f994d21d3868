"""Two ranks of a DistributedDataParallel module, with a sampler by epochs and a counter that all ranks share."""

from __future__ import annotations

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

import spotguard

distributed.init_process_group("gloo")
torch.manual_seed(distributed.get_rank())
model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.Linear(16, 1)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
samples = {"seen": 0}
guard = spotguard.register(model=model, optimizer=optimizer, samples=samples)
for _ in guard.steps(200):
    x = torch.randn(4, 8)
    optimizer.zero_grad()
    (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
    optimizer.step()
    samples["seen"] += 8
distributed.destroy_process_group()
