"""torchtitan's debug model on a CPU: `titan.py OUT CASE [STORE [EVENT…]]`; events: `step:N`, `val:N`, `kill:N`.

torchtitan 0.3.0 knows no CPU, and calls a function that torch 2.13.0 has under another name. `_for_a_cpu` changes both before
torchtitan is imported; nothing else of it is changed.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.distributed.fsdp import FSDPModule

import spotguard

sys.path.insert(0, str(Path(__file__).parent))
from events import Ends

CASES: dict[str, list[str]] = {
    "plain": [],
    "override": [],
    "validation": ["--validator.enable", "--validator.freq=3", "--validator.steps=2"],
    "accumulation": ["--training.global_batch_size=4", "--training.dtype=bfloat16"],
    "workers": ["--dataloader.num_workers=1"],
    "own": ["--checkpoint.enable", "--checkpoint.interval=4"],
    "fsdp": ["--parallelism.spmd_backend=partial_dtensor"],
    "twice": ["--training.steps=1"],
}
STEPS = 10


def _for_a_cpu() -> None:
    torch._utils._get_available_device_type = lambda: "cpu"
    distributed.set_timeout = distributed.distributed_c10d._set_pg_timeout  # type: ignore[attr-defined]
    cpu: Any = torch.cpu
    cpu.current_device = lambda: 0
    cpu.get_device_name = lambda device=None: "cpu"
    cpu.get_device_properties = lambda device=None: type("Properties", (), {"total_memory": 2**34})
    cpu.memory_stats = lambda device=None: {}
    cpu.reset_peak_memory_stats = cpu.empty_cache = lambda: None
    torch.set_num_threads(1)
    alone = {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "0",
    }
    os.environ.update({**alone, "HF_HUB_OFFLINE": "1", **os.environ})


_for_a_cpu()


def _assets(folder: Path) -> None:
    """Write a tokenizer of 64 words and 40 texts: the wheel has neither."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = [f"w{at}" for at in range(64)]
    tokenizer = Tokenizer(models.WordLevel({each: at for at, each in enumerate(["<s>", "</s>", *words])}))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    (folder / "data").mkdir(parents=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"bos_token": "<s>", "eos_token": "</s>"}')
    draw = random.Random(0)
    texts = [" ".join(draw.choices(words, k=draw.randrange(5, 60))) for _ in range(40)]
    (folder / "data" / "texts.jsonl").write_text("".join(json.dumps({"text": each}) + "\n" for each in texts))


def _trainer(out: Path, case: str, store: str | None) -> Any:
    from torchtitan.config import ConfigManager
    from torchtitan.models.common.attention import ScaledDotProductAttention
    from torchtitan.models.llama3 import config_registry

    def small() -> Any:
        config = config_registry.llama3_debugmodel()
        layers: Any = config.model_spec.model.layers
        del layers[2:]
        for each in layers:  # FlexAttention has no backward on a CPU
            each.attention.inner_attention = ScaledDotProductAttention.Config()
        config.validator.dataloader.dataset = "c4_test"
        config.validator.dataloader.dataset_path = config.dataloader.dataset_path = str(assets / "data")
        return config

    assets = out.parent / "assets"
    config_registry.small = small
    arguments = [
        *("--module", "llama3", "--config", "small", f"--hf_assets_path={assets}"),
        *(f"--dump_folder={out}-folder", f"--training.steps={STEPS}", "--training.seq_len=32"),
        *("--training.local_batch_size=2", "--training.disable_cuda_graphs", "--debug.seed=0", *CASES[case]),
    ]
    if store and case == "override":
        given = json.dumps({"store": store, "run_id": "titan"})
        arguments += ["--override.imports", f"spotguard.integrations.torchtitan.guarded={given}"]
    trainer: Any = ConfigManager().parse_args(arguments).build()
    for module in trainer.model_parts[0].modules():
        if isinstance(module, FSDPModule):  # gloo has no scaled sum
            module.set_force_sum_reduction_for_comms(True)
    if store and case != "override":
        from spotguard.integrations.torchtitan import attach

        attach(trainer, store, run_id="titan")
    return trainer


def _local(tensors: dict[str, Any]) -> dict[str, Any]:
    """The tensors, and of a sharded one this rank's shard."""
    return {name: each.to_local() if hasattr(each, "to_local") else each for name, each in tensors.items()}


def main() -> None:
    out, case, store = Path(sys.argv[1]), sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else None
    ends = Ends(sys.argv[4:], Path(f"{out}.met"))
    if not (out.parent / "assets").exists() and os.environ["RANK"] == "0":
        _assets(out.parent / "assets")
    trainer = _trainer(out, case, store)
    train_step, log = trainer.train_step, Path(f"{out}.log")

    def step(batches: Any) -> None:
        if ends.meets(f"step:{trainer.step - 1}"):
            spotguard.testing.preempt(trainer.spotguard.guard, seconds=60)
        if ends.meets(f"kill:{trainer.step - 1}"):
            os.kill(os.getpid(), signal.SIGKILL)
        train_step(batches)

    def logged(metrics: dict[str, Any], step: int) -> None:
        kept = {
            key: value for key, value in metrics.items() if "loss" in key or key[:2] in ("gr", "lr", "n_")
        }
        with log.open("a") as lines:
            lines.write(json.dumps([step, kept]) + "\n")
        if "validation_metrics/loss" in metrics and ends.meets(f"val:{step}"):
            spotguard.testing.preempt(trainer.spotguard.guard, seconds=60)

    trainer.train_step = step
    if os.environ["RANK"] == "0":
        trainer.metrics_processor.logger.log = logged
    trainer.train()
    if case == "twice":
        trainer.train()
    trainer.close()
    generator = torch.get_rng_state()
    optimizer = trainer.optimizers.optimizers[0]
    rank = int(os.environ["RANK"])
    torch.save(
        {
            "weights": _local(trainer.model_parts[0].state_dict()),
            "moments": [_local(each) for each in optimizer.state.values()],
            "rates": [group["lr"] for group in optimizer.param_groups],
            "schedulers": trainer.lr_schedulers.state_dict(),
            "next": next(trainer.dataloader.loader._iterator),
            "train": trainer.state_dict(),
            "generator": generator,
            "log": sorted(set(log.read_text().splitlines())),  # a repeated line is the same line
            "own": sorted(each.name for each in Path(f"{out}-folder").rglob("step-*")),
        },
        f"{out}{rank or ''}",
    )
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
