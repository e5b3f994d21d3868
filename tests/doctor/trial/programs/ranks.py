"""Two ranks of a DistributedDataParallel module, whose loaders have a worker each."""

from __future__ import annotations

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import spotguard

distributed.init_process_group("gloo")
torch.manual_seed(distributed.get_rank())
model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 512), nn.Dropout(0.1), nn.Linear(512, 1)))
optimizer = torch.optim.AdamW(model.parameters())
loader = DataLoader(TensorDataset(torch.randn(8000, 64)), batch_size=8, num_workers=1)
guard = spotguard.register(model=model, optimizer=optimizer)
done = guard.restore()
for (x,) in loader:
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
    guard.step()
distributed.destroy_process_group()
