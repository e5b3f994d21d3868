"""A Trainer's script without a word of spotguard: `unchanged_trainer.py OUT CASE`. It writes what must be equal to OUT."""

from __future__ import annotations

import os
import sys
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "CUDA_VISIBLE_DEVICES": ""}

import torch
import transformers
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed

OUT, CASE = sys.argv[1:3]
#: The steps of earlier trainings of this process.
BEFORE = 0
transformers.logging.set_verbosity_error()
torch.set_num_threads(1)
set_seed(7)
config = GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=1, n_head=2)
numbers = torch.Generator().manual_seed(1)
data = [
    {"input_ids": (row := torch.randint(0, 64, (16,), generator=numbers)), "labels": row} for _ in range(45)
]
arguments: dict[str, Any] = {
    "num_train_epochs": 3,
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 2,
    "logging_steps": 3,
    "lr_scheduler_type": "cosine",
    "eval_strategy": "steps",
    "eval_steps": 7,
    "save_strategy": "steps" if CASE == "finds" else "no",
    "save_steps": 5,
    "disable_tqdm": True,
    "report_to": [],
    "use_cpu": True,
}


class Says(TrainerCallback):
    """Prints each step, for whoever ends this life at one."""

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        if state.is_world_process_zero:
            print(f"step {BEFORE + state.global_step}", flush=True)


class OwnTrainer(Trainer):
    """A Trainer that overrides what scripts override."""

    def train(self, *given: Any, **named: Any) -> Any:
        return super().train(*given, **named)

    def compute_loss(self, model: Any, inputs: Any, *given: Any, **named: Any) -> Any:
        found = super().compute_loss(model, inputs, *given, **named)
        return found * 1.5 if isinstance(found, torch.Tensor) else found


def trainer_of(model: Any) -> OwnTrainer:
    return OwnTrainer(
        model=model,
        args=TrainingArguments(f"{OUT}-files", **arguments),
        train_dataset=data,
        eval_dataset=data[:6],
        callbacks=[Says()],
    )


trainer = trainer_of(GPT2LMHeadModel(config))
last = None
if CASE == "finds" and os.path.isdir(f"{OUT}-files"):  # as the examples of transformers do
    last = transformers.trainer_utils.get_last_checkpoint(f"{OUT}-files")
trainer.train(resume_from_checkpoint=last)
earlier = trainer.state.log_history
if CASE in ("twice", "again"):  # two stages, or one Trainer's train() called again
    BEFORE = trainer.state.global_step
    trainer = trainer_of(trainer.model) if CASE == "twice" else trainer
    trainer.train()
times = ("runtime", "per_second", "total_flos")
if trainer.is_world_process_zero():
    both = [*earlier, *trainer.state.log_history]
    log = [{k: v for k, v in each.items() if not k.endswith(times)} for each in both]
    model = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    found = {"model": model, "log": log, "step": trainer.state.global_step, "rng": torch.get_rng_state()}
    torch.save(found | {"optimizer": trainer.optimizer.optimizer.state_dict()["state"]}, OUT)
