"""A Trainer of transformers on a small GPT-2: `hf.py OUT CASE [STORE [EVENT…]]`. CASE is words of CASES, as in `eval+peft`.

Without a store it trains plainly. With one it is guarded, and gets a notice at the first of the events that this life reaches:
`step:7` when step 7 begins, `eval:8` in the evaluation after step 8, `log:6` at that log. `kill:9` is SIGKILL at the beginning of
step 9, `half:9` between its micro-batches, and `ready:9` before its optimizer step: after a background checkpoint, or after a
save by hand if SPOTGUARD_EVERY is off. It exits with 75 after a notice. At the end it writes what must be equal to OUT.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "CUDA_VISIBLE_DEVICES": ""}

import torch
import transformers
from accelerate import FullyShardedDataParallelPlugin
from accelerate.utils import DistributedType
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

import spotguard

sys.path.insert(0, str(Path(__file__).parent))
from events import Ends, write

transformers.logging.set_verbosity_error()
torch.set_num_threads(1)

SAMPLES = 45  # an odd number: the last batch of an epoch, and its last accumulation, are short
BASE: dict[str, Any] = {
    "num_train_epochs": 3,
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 2,
    "logging_steps": 3,
    "learning_rate": 1e-2,
    "lr_scheduler_type": "cosine",
    "warmup_steps": 3,
    "save_strategy": "no",
    "seed": 7,
}
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "eval": {"eval_strategy": "steps", "eval_steps": 4},
    "epochs": {"eval_strategy": "epoch", "logging_strategy": "epoch"},
    "steps": {"num_train_epochs": 1, "max_steps": 17, "gradient_accumulation_steps": 1, "eval_strategy": "epoch"},
    "best": {
        "eval_strategy": "steps", "eval_steps": 4, "save_strategy": "steps", "save_steps": 4,
        "load_best_model_at_end": True, "save_total_limit": 2,
    },
    "early": {
        "eval_strategy": "steps", "eval_steps": 2, "save_strategy": "best", "load_best_model_at_end": True,
        "metric_for_best_model": "loss", "learning_rate": 0.3, "save_total_limit": 1,
    },
    "workers": {"dataloader_num_workers": 2, "gradient_accumulation_steps": 1, "num_train_epochs": 2},
    "grouped": {"train_sampling_strategy": "group_by_length"},
    "bf16": {"bf16": True, "gradient_checkpointing": True, "optim": "adamw_torch_fused"},
    "plateau": {"lr_scheduler_type": "reduce_lr_on_plateau", "eval_strategy": "steps", "eval_steps": 4},
    "compile": {"torch_compile": True, "torch_compile_backend": "eager", "num_train_epochs": 2},
    "peft": {},
    "fsdp2": {
        "eval_strategy": "steps", "eval_steps": 4, "fsdp": True,
        "fsdp_config": {"transformer_layer_cls_to_wrap": ["GPT2Block"], "cpu_ram_efficient_loading": False}},
    # one option each, for pairs
    "batch": {"gradient_accumulation_steps": 1},
    "batches": {"gradient_accumulation_steps": 3},
    "loading": {"dataloader_num_workers": 2},
    "short": {"max_steps": 17},
    "mixed": {"bf16": True},
    "recomputed": {"gradient_checkpointing": True},
    "fused": {"optim": "adamw_torch_fused"},
    "sgd": {"optim": "sgd"},
    "adafactor": {"optim": "adafactor"},
    # by hand
    "start": {"eval_on_start": True, "eval_strategy": "epoch"},
    "leaves": {},
    "stream": {"max_steps": 31},
    "drawn": {"accelerator_config": {"use_seedable_sampler": False}},
    # refused
    "stay": {"dataloader_num_workers": 1, "dataloader_persistent_workers": True},
    "buffers": {},
    "finds-size": {"auto_find_batch_size": True},
    "skips-nothing": {"ignore_data_skip": True},
    "twice": {"max_steps": 2},
}  # fmt: skip


class Samples(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    def __init__(self, number: int, *, lengths: bool = False) -> None:
        draws = torch.Generator().manual_seed(1)
        self.ids = torch.randint(0, 64, (number, 16), generator=draws)
        self.lengths = (
            torch.randint(4, 17, (number,), generator=draws) if lengths else torch.full((number,), 16)
        )

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = self.ids[index][: int(self.lengths[index])]
        return {"input_ids": ids, "labels": ids}


def collate(rows: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    longest = max(len(row["input_ids"]) for row in rows)

    def padded(key: str, value: int) -> torch.Tensor:
        return torch.stack(
            [nn.functional.pad(row[key], (0, longest - len(row[key])), value=value) for row in rows]
        )

    return {"input_ids": padded("input_ids", 0), "labels": padded("labels", -100)}


class Events(TrainerCallback):
    """The notices of this life. The first that training reaches is given; an event that an earlier life met is left out."""

    def __init__(self, events: list[str], met: Path) -> None:
        self.ends = Ends(events, met)
        self.binding: Any = None

    def _notice(self) -> None:
        spotguard.testing.preempt(self.binding.guard, seconds=60)

    def _kill(self, event: str, state: Any) -> None:
        if self.ends.meets(f"{event}:{state.global_step}"):
            if os.environ["SPOTGUARD_EVERY"] == "off":
                self.binding.guard.save()
            os.kill(os.getpid(), signal.SIGKILL)

    def on_step_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        self.ends.fail_at(state.global_step)
        if self.ends.meets(f"step:{state.global_step}"):
            self._notice()
        self._kill("kill", state)

    def on_substep_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        self._kill("half", state)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        self._kill("ready", state)

    def on_prediction_step(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        if self.ends.meets(f"eval:{state.global_step}"):
            self._notice()

    def on_log(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        if self.ends.meets(f"log:{state.global_step}"):
            self._notice()


class Stream(torch.utils.data.IterableDataset[dict[str, torch.Tensor]]):
    def __init__(self, samples: Samples) -> None:
        self.samples = samples

    def __iter__(self) -> Any:
        yield from (self.samples[at] for at in range(len(self.samples)))


class Leaves(TrainerCallback):
    """Leaves an epoch before its end, twice."""

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        control.should_epoch_stop = state.global_step in (4, 16)


class ShardedTrainer(Trainer):
    """accelerate makes FSDP2 on accelerators only; what it then prepares is the same on CPUs."""

    def create_accelerator_and_postprocess(self) -> None:
        super().create_accelerator_and_postprocess()
        state = self.accelerator.state
        state.distributed_type = DistributedType.FSDP
        state.fsdp_plugin = FullyShardedDataParallelPlugin(**self.args.fsdp_plugin_args)
        self.is_fsdp_enabled = True


def main() -> None:
    out, case = Path(sys.argv[1]), sys.argv[2].split("+")
    options = BASE | {key: value for word in case for key, value in CASES[word].items()}
    torch.manual_seed(0)
    model: Any = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=64, n_positions=16, n_embd=32, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0
        )
    )
    if "peft" in case:
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model, LoraConfig(r=4, target_modules=["c_attn"], lora_dropout=0.1))
    trained: Any = Samples(SAMPLES, lengths="grouped" in case)
    arguments = TrainingArguments(
        output_dir=f"{out}-files", report_to=[], use_cpu=True, disable_tqdm=True, **options
    )
    callbacks: list[Any] = []
    if "early" in case:
        callbacks.append(transformers.EarlyStoppingCallback(early_stopping_patience=3))
    if "leaves" in case:
        callbacks.append(Leaves())
    told = Events(sys.argv[4:], Path(f"{out}.met"))
    kind = ShardedTrainer if "fsdp2" in case else Trainer
    trainer = kind(
        model=model,
        args=arguments,
        train_dataset=Stream(trained) if "stream" in case else trained,
        eval_dataset=Samples(8),
        data_collator=collate,
        callbacks=[*callbacks, told],
    )
    if "buffers" in case:
        trainer._buffered_inputs = None  # as TRL's GRPOTrainer
    if len(sys.argv) > 3:
        told.binding = spotguard.integrations.transformers.attach(trainer, sys.argv[3], run_id="hf")
    trainer.train()
    if "twice" in case:
        trainer.train()
    if told.ends.meets("end"):
        spotguard.testing.preempt(told.binding.guard, seconds=60)
    write(result(trainer), out, arguments.process_index)


def result(trainer: Any) -> dict[str, Any]:
    """All that a run which was cut must have in common with one that was not."""
    log = [
        {key: value for key, value in entry.items() if not key.endswith(("runtime", "_per_second"))}
        for entry in trainer.state.log_history
    ]
    return {
        "weights": trainer.model.state_dict(),
        "optimizer": trainer.optimizer.state_dict(),
        "scheduler": trainer.lr_scheduler.state_dict(),
        "generator": torch.get_rng_state(),
        "log": json.dumps(log),
        "step": trainer.state.global_step,
        "best": (trainer.state.best_metric, trainer.state.best_global_step),
    }


if __name__ == "__main__":
    main()
