"""A loop with Lightning's Fabric: `fab.py OUT {auto|ddp|fsdp2} [STORE [EVENT…]]`; events `step:N`, and `kill:N` after a save."""

from __future__ import annotations

import logging
import os
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.fabric.strategies import ModelParallelStrategy
from torch import nn
from torch.distributed.fsdp import fully_shard

import spotguard

sys.path.insert(0, str(Path(__file__).parent))
from events import Ends, write

warnings.filterwarnings("ignore")
logging.getLogger("lightning.fabric").setLevel(logging.ERROR)
torch.set_num_threads(1)


def sharded(model: Any, mesh: Any) -> Any:
    return fully_shard(model, mesh=mesh["data_parallel"])


def main() -> None:
    out, case = Path(sys.argv[1]), sys.argv[2]
    ends = Ends(sys.argv[4:], Path(f"{out}.met"))
    strategy: Any = case
    if case == "fsdp2":
        strategy = ModelParallelStrategy(sharded, data_parallel_size=2, tensor_parallel_size=1)
    fabric = L.Fabric(accelerator="cpu", strategy=strategy, devices=1 if case == "auto" else 2)
    fabric.launch()
    fabric.seed_everything(0, verbose=False)
    model: Any = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.3), nn.Linear(16, 1))
    model = fabric.setup_module(model)
    optimizer: Any = fabric.setup_optimizers(torch.optim.AdamW(model.parameters(), lr=1e-2))
    inputs = torch.randn(42, 8)
    dataset = torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True))
    loader: Any = fabric.setup_dataloaders(torch.utils.data.DataLoader(dataset, batch_size=4, shuffle=True))
    guard, done, first = None, 0, 0
    if len(sys.argv) > 3:
        loader = spotguard.ResumableLoader(loader)
        guard = spotguard.register(
            sys.argv[3], run_id="fabric", model=model, optimizer=optimizer, loader=loader
        )
        done, first = guard.restore(), loader.epoch
    losses: dict[int, float] = {}
    for _ in range(first, 3):
        for x, y in loader:
            if guard:
                ends.fail_at(done)
            if guard and ends.meets(f"step:{done}"):
                spotguard.testing.preempt(guard, seconds=60)
            loss = (model(x) - y).square().mean()
            fabric.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            done += 1
            losses[done] = loss.item()
            if guard:
                guard.step()
                if ends.meets(f"kill:{done}"):
                    guard.save()
                    os.kill(os.getpid(), signal.SIGKILL)
    result = {
        "weights": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "generator": torch.get_rng_state(),
        "step": done,
        "last": losses[done],
    }
    write(result, out, fabric.global_rank)


if __name__ == "__main__":
    main()
