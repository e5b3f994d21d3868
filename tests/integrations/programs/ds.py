"""A loop around DeepSpeed's engine: `ds.py OUT CASE [STORE [EVENT…]]`; events `step:N`, and `kill:N` after a save.

CASE is a stage of ZeRO, a type, and a variant, as in `3-bf16` or `2-fp32-frozen`.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from pathlib import Path
from typing import Any

os.environ |= {"DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": ""}

import deepspeed
import torch
from torch import nn

import spotguard

sys.path.insert(0, str(Path(__file__).parent))
from events import Ends, write

logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
torch.set_num_threads(1)
# On CPUs DeepSpeed compiles an allreduce of its own at each first start; a killed build would hang the next.
sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # type: ignore[attr-defined]


class Centered(nn.Module):
    """A buffer that each rank has of its own, as BatchNorm's, which lacks bfloat16 on CPUs."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(32))
        self.mean: torch.Tensor

    def forward(self, x: Any) -> Any:
        if self.training:
            self.mean = self.mean.lerp(x.detach().mean(0).to(self.mean.dtype), 0.1)  # a new tensor
        return x - self.mean.to(x.dtype)


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 32), Centered(), nn.Dropout(0.3), nn.Linear(32, 1))
        self.small = nn.Linear(1, 1)  # ZeRO-3 keeps it gathered

    def forward(self, x: Any) -> Any:
        return self.small(self.layers(x))


class ModelParallel:
    """All ranks hold one model, as Megatron tells DeepSpeed."""

    def __init__(self) -> None:
        ranks = range(torch.distributed.get_world_size())
        self._all = torch.distributed.new_group([*ranks])
        alone = [torch.distributed.new_group([each]) for each in ranks]
        self._own = alone[torch.distributed.get_rank()]

    def get_model_parallel_group(self) -> Any:
        return self._all

    def get_model_parallel_rank(self) -> int:
        return torch.distributed.get_rank()

    def get_model_parallel_world_size(self) -> int:
        return torch.distributed.get_world_size()

    def get_data_parallel_group(self) -> Any:
        return self._own

    def get_data_parallel_rank(self) -> int:
        return 0

    def get_data_parallel_world_size(self) -> int:
        return 1


def initialize(case: str, network: nn.Module, dataset: Any) -> Any:
    stage, dtype, *variant = case.split("-")
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 1 if "manual" in variant else 2,
        "zero_optimization": {"stage": int(stage), "stage3_param_persistence_threshold": 10},
        "zero_allow_untested_optimizer": True,
        "gradient_clipping": 0.0 if "unclipped" in variant else 1.0,
        "steps_per_print": 10**9,
        "dataloader_drop_last": True,
    }
    if dtype != "fp32":
        config[dtype] = {"enabled": True}
    if dtype == "fp16":
        # DeepSpeed takes CPUs without instructions of their own for it to have none; torch computes in it all the same.
        deepspeed.get_accelerator().is_fp16_supported = lambda: True
        config[dtype] |= {
            "initial_scale_power": 15,
            "hysteresis": 1,
            "loss_scale_window": 2,
        }  # shrinks, and grows
    if "offload" in variant:
        config["zero_optimization"]["offload_optimizer"] = {"device": "cpu"}
        config["zero_force_ds_cpu_optimizer"] = False
    trained = [p for p in network.parameters() if p.requires_grad]
    if "compiled" in variant:  # DeepSpeed's own Adam, in C++ on a CPU
        config["optimizer"] = {"type": "Adam", "params": {"lr": 1e-2, "betas": [0.8, 0.999]}}
    return deepspeed.initialize(
        model=network,
        model_parameters=trained,
        optimizer=None if "compiled" in variant else torch.optim.AdamW(trained, lr=1e-2),
        lr_scheduler=lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10),
        training_data=dataset,
        config=config,
        mpu=ModelParallel() if "parallel" in variant else None,
    )


def main() -> None:
    out, case = Path(sys.argv[1]), sys.argv[2]
    deepspeed.init_distributed("gloo", verbose=False)
    rank = int(os.environ["RANK"])
    ends = Ends(sys.argv[4:], Path(f"{out}.met"))
    torch.manual_seed(0)
    inputs = torch.randn(52, 8)
    dataset = torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True))
    network = Network()
    if "frozen" in case:
        network.layers[0].weight.requires_grad_(False)
    engine, _, loader, scheduler = initialize(case, network, dataset)
    torch.manual_seed(100 + rank)
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[case.split("-")[1]]
    guard = None
    losses: dict[str, float] = {}  # a life may have no step left
    if len(sys.argv) > 3:
        guard = spotguard.integrations.deepspeed.register(
            engine, loader, store=sys.argv[3], run_id="deepspeed", losses=losses
        )
    for _ in range(guard.epoch if guard else 0, 12 if "long" in case else 3):
        for x, y in guard.loader if guard else loader:
            done = engine.global_steps
            if guard:
                ends.fail_at(done)
            if guard and ends.meets(f"step:{done}"):
                spotguard.testing.preempt(guard.guard, seconds=60)
            loss = (engine(x.to(dtype)).float() - y).square().mean()
            engine.backward(loss)
            engine.step()
            losses[str(engine.global_steps)] = loss.item()
            if guard:
                guard.step()
                if engine.global_steps > done and ends.meets(f"kill:{engine.global_steps}"):
                    guard.save()
                    os.kill(os.getpid(), signal.SIGKILL)
    write(result(engine, scheduler) | {"last": losses[str(engine.global_steps)]}, out, rank)


def result(engine: Any, scheduler: Any) -> dict[str, Any]:
    """All that a run which was cut must have in common with one that was not."""
    if engine.zero_optimization_stage() == 3:
        with deepspeed.zero.GatheredParameters(list(engine.module.parameters())):
            weights = {name: value.clone() for name, value in engine.module.state_dict().items()}
        masters = {}  # in the moments' order; the padding at the end of a part is never set
    else:
        weights = engine.module.state_dict()
        masters = dict(enumerate(p for group in engine.basic_optimizer.param_groups for p in group["params"]))
    return {
        "weights": weights,
        "masters": masters,
        "moments": [list(each.values()) for each in engine.basic_optimizer.state.values()],
        "scheduler": scheduler.state_dict(),
        "generator": torch.get_rng_state(),
        "step": engine.global_steps,
        "counters": (engine.global_steps, engine.global_samples, engine.skipped_steps, engine.micro_steps),
        "scale": getattr(engine.optimizer, "cur_scale", 1.0),
    }


if __name__ == "__main__":
    main()
