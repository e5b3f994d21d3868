"""Epochs of a stateful loader, an evaluation at the begin of a turn, and a save of the script's own."""

from __future__ import annotations

import torch
from torch import nn
from torchdata.stateful_dataloader import StatefulDataLoader  # type: ignore[import-untyped]

import spotguard

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
data = torch.utils.data.TensorDataset(torch.randn(64, 8), torch.randn(64, 1))
loader = spotguard.ResumableLoader(StatefulDataLoader(data, batch_size=4, shuffle=True))
progress = {"epoch": 0, "step": 0}
guard = spotguard.register(model=model, optimizer=optimizer, loader=loader, progress=progress)
guard.restore()
while progress["epoch"] < 8:
    for x, y in loader:
        if progress["step"] % 10 == 5:
            model.eval()
            with torch.no_grad():
                model(torch.randn(4, 8))
            model.train()
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
        progress["step"] += 1
        if progress["step"] % 12 == 0:
            torch.save(model.state_dict(), "model.pt")
        guard.step()
    progress["epoch"] += 1
