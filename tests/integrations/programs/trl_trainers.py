"""TRL's SFTTrainer and DPOTrainer on a small GPT-2: `trl_trainers.py OUT {sft|dpo} [STORE [EVENT…]]`; events as in hf.py."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "CUDA_VISIBLE_DEVICES": ""}

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

import spotguard

sys.path.insert(0, str(Path(__file__).parent))
from hf import Events, result

torch.set_num_threads(1)

WORDS = [f"w{number}" for number in range(50)]
COMMON: dict[str, Any] = {
    "report_to": [],
    "use_cpu": True,
    "disable_tqdm": True,
    "num_train_epochs": 2,
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 2,
    "logging_steps": 3,
    "learning_rate": 1e-2,
    "save_strategy": "no",
    "eval_strategy": "steps",
    "eval_steps": 5,
    "seed": 3,
    "bf16": False,
    "gradient_checkpointing": False,
    "max_length": 64,
}


def tokenizer() -> Any:
    vocabulary = {"<unk>": 0, "<pad>": 1, "<eos>": 2} | {word: at for at, word in enumerate(WORDS, 3)}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="<unk>", pad_token="<pad>", eos_token="<eos>"
    )


def main() -> None:
    out, case = Path(sys.argv[1]), sys.argv[2]
    draws = random.Random(0)
    texts = [" ".join(draws.choices(WORDS, k=draws.randint(6, 20))) for _ in range(60)]
    torch.manual_seed(0)
    model: Any = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=53, n_positions=64, n_embd=32, n_layer=1, n_head=2, bos_token_id=2, eos_token_id=2, pad_token_id=1
        )
    )  # fmt: skip
    model.save_pretrained(f"{out}-model")  # DPOTrainer loads its reference from there
    model = GPT2LMHeadModel.from_pretrained(f"{out}-model")
    told = Events(sys.argv[4:], Path(f"{out}.met"))
    arguments: Any
    if case == "sft":
        rows = [{"text": text} for text in texts]
        kind, arguments = SFTTrainer, SFTConfig(output_dir=f"{out}-files", **COMMON)
    else:
        rows = [
            {"prompt": text, "chosen": texts[(at + 1) % 60], "rejected": texts[(at + 7) % 60]}
            for at, text in enumerate(texts)
        ]
        kind, arguments = DPOTrainer, DPOConfig(output_dir=f"{out}-files", **COMMON)
    dataset = Dataset.from_list(rows)
    trainer = kind(
        model=model,
        args=arguments,
        train_dataset=dataset,
        eval_dataset=dataset.select(range(8)),
        processing_class=tokenizer(),
        callbacks=[told],
    )
    if len(sys.argv) > 3:
        told.binding = spotguard.integrations.transformers.attach(trainer, sys.argv[3], run_id="trl")
    trainer.train()
    torch.save(result(trainer), out)


if __name__ == "__main__":
    main()
