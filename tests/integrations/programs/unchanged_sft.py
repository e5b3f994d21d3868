"""A script of TRL's shape without a word of spotguard: `unchanged_sft.py OUT CASE`. It writes what must be equal to OUT."""

from __future__ import annotations

import os
import random
import sys
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "CUDA_VISIBLE_DEVICES": ""}

import torch
import transformers
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, TrainerCallback, set_seed
from trl import SFTConfig, SFTTrainer

OUT = sys.argv[1]
WORDS = [f"w{number}" for number in range(50)]
transformers.logging.set_verbosity_error()
torch.set_num_threads(1)


class Says(TrainerCallback):
    """Prints each step, for whoever ends this life at one."""

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        print(f"step {state.global_step}", flush=True)


set_seed(7)
vocabulary = {"<unk>": 0, "<pad>": 1, "<eos>": 2} | {word: at for at, word in enumerate(WORDS, 3)}
words = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
words.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=words, unk_token="<unk>", pad_token="<pad>", eos_token="<eos>"
)
draws = random.Random(0)
rows = [{"text": " ".join(draws.choices(WORDS, k=draws.randint(6, 20)))} for _ in range(50)]
dataset = Dataset.from_list(rows)
trainer = SFTTrainer(
    model=GPT2LMHeadModel(
        GPT2Config(
            vocab_size=53, n_positions=64, n_embd=32, n_layer=1, n_head=2, bos_token_id=2, eos_token_id=2, pad_token_id=1
        )
    ),
    args=SFTConfig(
        f"{OUT}-files",
        num_train_epochs=3,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=3,  # does not divide the 25 batches
        logging_steps=2,
        eval_strategy="steps",
        eval_steps=4,
        save_steps=5,
        learning_rate=1e-2,
        max_length=64,
        bf16=False,
        gradient_checkpointing=False,
        use_cpu=True,
        disable_tqdm=True,
        report_to=[],
    ),
    train_dataset=dataset,
    eval_dataset=dataset.select(range(8)),
    processing_class=tokenizer,
    callbacks=[Says()],
)  # fmt: skip
trainer.train()
trainer.save_model(f"{OUT}-files")
times = ("runtime", "per_second", "total_flos")
log = [{k: v for k, v in each.items() if not k.endswith(times)} for each in trainer.state.log_history]
model = {name: value.clone() for name, value in trainer.model.state_dict().items()}
found = {"model": model, "log": log, "step": trainer.state.global_step, "rng": torch.get_rng_state()}
torch.save(found | {"optimizer": trainer.optimizer.optimizer.state_dict()["state"]}, OUT)
