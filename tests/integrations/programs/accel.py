"""A loop that accelerate prepared: `accel.py OUT CASE [STORE [EVENT…]]`; events as in hf.py: `step:N`, `kill:N`.

CASE is the loader or FSDP, and more words, as in `seedable+batches+mixed`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from accelerate.utils import DataLoaderConfiguration, DistributedType, set_seed
from torch import nn

import spotguard

sys.path.insert(0, str(Path(__file__).parent))
from events import Ends, write

CASES: dict[str, dict[str, Any]] = {
    "seedable": {"use_seedable_sampler": True},
    "shuffled": {},
    "stateful": {"use_stateful_dataloader": True, "use_seedable_sampler": True},
    "unseeded": {"use_stateful_dataloader": True},
    "by-hand": {},
    "fsdp1": {},
    "fsdp2": {},
    # one option each, for pairs
    "split": {"split_batches": True},
    "uneven": {"even_batches": False},
    "dispatched": {"dispatch_batches": True},
}
ACCUMULATION = {"batch": 1, "batches": 3}


def shard(accelerator: Any, version: int) -> None:
    """Give the Accelerator FSDP, which it makes on accelerators only; what it then prepares is the same on CPUs."""
    accelerator.state.distributed_type = DistributedType.FSDP
    accelerator.state.fsdp_plugin = FullyShardedDataParallelPlugin(
        fsdp_version=version, auto_wrap_policy="size_based_wrap", min_num_params=10, cpu_ram_efficient_loading=False
    )  # fmt: skip


def main() -> None:
    out, case = Path(sys.argv[1]), sys.argv[2].split("+")
    ends = Ends(sys.argv[4:], Path(f"{out}.met"))
    torch.set_num_threads(1)
    set_seed(0)
    accelerator = Accelerator(
        cpu=True,
        gradient_accumulation_steps=next((ACCUMULATION[word] for word in case if word in ACCUMULATION), 2),
        mixed_precision="bf16" if "mixed" in case else "no",
        step_scheduler_with_optimizer="alone" not in case,
        dataloader_config=DataLoaderConfiguration(
            **{key: value for word in case for key, value in CASES.get(word, {}).items()}
        ),
    )
    if case[0].startswith("fsdp"):
        shard(accelerator, int(case[0][-1]))
    model: Any = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.3), nn.Linear(16, 1))
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler: Any = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=10)
    inputs = torch.randn(44, 8)
    dataset = torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True))
    loader: Any = torch.utils.data.DataLoader(
        dataset, batch_size=4, shuffle="ordered" not in case, num_workers=2 if "loading" in case else 0
    )
    if "fsdp1" not in case:  # which torch does not make on CPUs
        model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    guard = None
    if len(sys.argv) > 3:
        guard = spotguard.integrations.accelerate.register(
            accelerator, model, optimizer, loader, scheduler, store=sys.argv[3], run_id="accelerate"
        )
    done, first = (guard.done, guard.epoch) if guard else (0, 0)
    losses: dict[int, float] = {}
    by_hand = "by-hand" in case
    for _ in range(first, 3):
        for batch, (x, y) in enumerate(guard.loader if guard else loader):
            if guard:
                ends.fail_at(done)
            if guard and ends.meets(f"step:{done}"):
                spotguard.testing.preempt(guard.guard, seconds=60)
            with contextlib.nullcontext() if by_hand else accelerator.accumulate(model):
                loss = (model(x) - y).square().mean()
                accelerator.backward(loss)
                stepped = batch % 2 == 1 if by_hand else accelerator.sync_gradients
                if stepped or not by_hand:
                    optimizer.step()
                    scheduler.step()
                    optimizer.zero_grad()
            if stepped:
                done += 1
                losses[done] = loss.item()
            if guard:
                guard.step()
                if stepped and ends.meets(f"kill:{done}"):
                    guard.save()
                    os.kill(os.getpid(), signal.SIGKILL)
    result = {
        "weights": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scheduler": scheduler.state_dict(),
        "generator": torch.get_rng_state(),
        "step": done,
        "last": losses[done],
    }
    write(result, out, accelerator.process_index)


if __name__ == "__main__":
    main()
