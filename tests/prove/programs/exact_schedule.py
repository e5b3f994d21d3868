"""A scheduler, a gradient scaler and an averaged model, all registered, and accumulated gradients."""

from __future__ import annotations

import torch
from torch import nn

import spotguard

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 1))
ema = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=300)
scaler = torch.amp.GradScaler("cpu")
guard = spotguard.register(model=model, ema=ema, optimizer=optimizer, scheduler=scheduler, scaler=scaler)
for _ in guard.steps(200):
    optimizer.zero_grad()
    for _ in range(2):
        x = torch.randn(4, 8)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = (model(x) - x.sum(1, keepdim=True)).square().mean() / 2
        scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    scheduler.step()
    ema.update_parameters(model)
