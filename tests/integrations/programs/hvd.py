"""A loop with Horovod: `hvd.py OUT CASE [STORE [EVENT…]]`, on each rank of horovodrun.

Events, each of one rank alone, after N steps: `step:N`, a notice on rank 0; `other:N`, on rank 1; `file:N`, the notice file
of rank 1's agent; `kill:N`, SIGKILL of rank 0.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import horovod.torch as hvd
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import spotguard
import spotguard.integrations.horovod as guarded

sys.path.insert(0, str(Path(__file__).parent))
from events import Ends

EPOCHS = 3

#: Arguments of `DistributedOptimizer`.
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "accumulation": {"backward_passes_per_step": 2},
    "inside": {"backward_passes_per_step": 2},
    "fp16": {"compression": hvd.Compression.fp16},
    "groups": {"groups": 2},
    "sum": {"op": hvd.Sum},
    "inner": {},
    "elastic": {},
    "unalike": {},
}


def main() -> None:
    out, case = Path(sys.argv[1]), sys.argv[2]
    hvd.init()
    rank = hvd.rank()
    ends = Ends(sys.argv[4:], Path(f"{out}.met{rank}"))
    torch.set_num_threads(1)
    torch.manual_seed(rank if case == "unalike" else 0)
    model: Any = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.Linear(16, 1))
    inner = torch.optim.AdamW(model.parameters(), lr=1e-2)
    optimizer: Any = hvd.DistributedOptimizer(inner, model.named_parameters(), **CASES[case])
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=10)
    if case != "unalike":
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    inputs = torch.randn(96, 8, generator=torch.Generator().manual_seed(1))
    dataset = TensorDataset(inputs, inputs.sum(1, keepdim=True))
    sampler: DistributedSampler[Any] = DistributedSampler(dataset, hvd.size(), rank, seed=3)
    loader: Any = DataLoader(dataset, batch_size=8, sampler=sampler)
    if case == "elastic":
        os.environ["HOROVOD_ELASTIC"] = "1"
    torch.manual_seed(100 + rank)  # each rank has a dropout of its own
    guard = None
    if len(sys.argv) > 3:
        loader = spotguard.ResumableLoader(loader)
        guard = guarded.register(
            model,
            inner if case == "inner" else optimizer,
            scheduler,
            store=sys.argv[3],
            run_id="horovod",
            loader=loader,
        )
        assert not torch.distributed.is_initialized()  # libraries would reduce over a group that they find
        with Path(f"{out}.began{rank}").open("a") as began:
            began.write(f"{guard.done}\n")
    done = guard.done if guard else 0
    passes = optimizer.backward_passes_per_step
    seen: list[Any] = []
    for epoch in range(loader.epoch if guard else 0, EPOCHS):
        sampler.set_epoch(epoch)
        for x, y in loader:
            if guard and ends.meets(f"step:{done}" if rank == 0 else f"other:{done}"):
                spotguard.testing.preempt(guard.guard, seconds=60)
            if guard and rank == 1 and ends.meets(f"file:{done}"):
                Path(f"{out}.notice").touch()
                while not guard.guard._saver.has_notice:
                    time.sleep(0.01)
            optimizer.zero_grad()
            for part, goal in zip(x.chunk(passes), y.chunk(passes), strict=True):
                (model(part) - goal).square().mean().backward()
                if guard and case == "inside":
                    guard.step()
            optimizer.step()
            scheduler.step()
            done += 1
            seen = [done, x, model[0].weight.detach().clone()]
            if guard:
                guard.step()
                if os.environ["SPOTGUARD_EVERY"] != "off":
                    time.sleep(0.1)  # a longer step, in which a background checkpoint is made
                if rank == 0 and ends.meets(f"kill:{done}"):
                    os.kill(os.getpid(), signal.SIGKILL)
    torch.save(
        {
            "weights": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scheduler": scheduler.state_dict(),
            "generator": torch.get_rng_state(),
            "seen": seen,
        },
        f"{out}{rank or ''}",
    )


if __name__ == "__main__":
    main()
