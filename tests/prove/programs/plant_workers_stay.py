"""Plant: workers that stay have drawn numbers that new ones have not; a helper's best value decides nothing."""

from __future__ import annotations

import random

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import spotguard


class Flipped(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, number: int) -> torch.Tensor:
        sample = torch.arange(4.0) + number
        return sample.flip(0) if random.random() < 0.5 else sample


class Saver:
    def __init__(self, model: nn.Module) -> None:
        self.model, self.best, self.files = model, float("inf"), [""]

    def see(self, loss: float, epoch: int) -> None:
        if loss < self.best:
            self.best, self.files = loss, [*self.files, f"{epoch}.pt"]


torch.manual_seed(0)
random.seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
saver = Saver(model)
loader = spotguard.ResumableLoader(
    DataLoader(Flipped(), batch_size=4, shuffle=True, num_workers=1, persistent_workers=True)
)
guard = spotguard.register(model=model, optimizer=optimizer, loader=loader)
guard.restore()
loss = torch.zeros(())
for epoch in range(loader.epoch, 60):
    for x in loader:
        optimizer.zero_grad()
        loss = (model(x) - 1).square().mean()
        loss.backward()
        optimizer.step()
        guard.step()
    saver.see(loss.item(), epoch)
