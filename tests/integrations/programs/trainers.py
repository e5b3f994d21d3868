"""Trainings whose trainer logs to TensorBoard by itself: the adapter marks there, and the script calls nothing for it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from events import Ends
from torch import nn

import spotguard

TOTAL = 15
INPUTS = torch.arange(60 * 8).reshape(60, 8) % 7 / 7


def lightning(data: Path, ends: Ends, store: str | None) -> dict[str, Any]:
    import lightning as L
    from lightning.pytorch.loggers import TensorBoardLogger

    class Network(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.3), nn.Linear(16, 1))

        def training_step(self, batch: Any, number: int) -> Any:
            (x,) = batch
            loss = (self.layers(x) - x.sum(1, keepdim=True)).square().mean()
            self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

    class Events(L.Callback):
        def on_train_batch_start(self, trainer: Any, *given: Any) -> None:
            if ends.meets(f"step:{trainer.global_step}"):
                spotguard.testing.preempt(guarded.binding.guard, seconds=60)

    L.seed_everything(0, verbose=False)
    callbacks: list[Any] = [Events()]
    if store is not None:
        guarded: Any = spotguard.integrations.lightning.SpotguardCallback(store, run_id="marked")
        callbacks.append(guarded)
    trainer = L.Trainer(
        accelerator="cpu", max_epochs=1, callbacks=callbacks, enable_checkpointing=False, log_every_n_steps=1,
        enable_progress_bar=False, enable_model_summary=False,
        logger=TensorBoardLogger(data.parent, name=data.name, version=""),
    )  # fmt: skip
    network = Network()
    dataset = torch.utils.data.TensorDataset(INPUTS)
    trainer.fit(network, torch.utils.data.DataLoader(dataset, batch_size=4, shuffle=True))
    return dict(network.state_dict())


def transformers(data: Path, ends: Ends, store: str | None) -> dict[str, Any]:
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

    class Events(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            if ends.meets(f"step:{state.global_step}"):
                spotguard.testing.preempt(binding.guard, seconds=60)

    os.environ["TENSORBOARD_LOGGING_DIR"] = str(data)
    torch.manual_seed(0)
    ids = (INPUTS * 7).long()
    trainer = Trainer(
        model=GPT2LMHeadModel(
            GPT2Config(vocab_size=8, n_positions=8, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
        ),
        args=TrainingArguments(
            output_dir=f"{data}-files", report_to=["tensorboard"], use_cpu=True, disable_tqdm=True, logging_steps=1,
            per_device_train_batch_size=4, num_train_epochs=1, save_strategy="no",
        ),
        train_dataset=[{"input_ids": each, "labels": each} for each in ids],
        callbacks=[Events()],
    )  # fmt: skip
    if store is not None:
        binding = spotguard.integrations.transformers.attach(trainer, store, run_id="marked")
    trainer.train()
    return dict(trainer.model.state_dict())


TRAIN = {"lightning": lightning, "transformers": transformers}
