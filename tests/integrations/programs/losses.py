"""The losses that an adapter passes on: `losses.py FRAMEWORK OUT STORE`.

Each step has two micro-batches; the first one of step 6 is poisoned. OUT gets what the guard was given for each step, and what the
script's own micro-batches had; the metrics that it was given, and the losses of the script's own validations; and behind how many
losses training was ended, and the script's callback of training's end came.
"""

from __future__ import annotations

import json
import logging
import math
import os
import sys
import warnings
from pathlib import Path
from typing import Any

os.environ |= {"DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": ""}

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import spotguard
from spotguard.hooks.control.losses.metrics import ScriptMetrics
from spotguard.hooks.control.losses.watch import LossWatch
from spotguard.hooks.ipc.failures.progress import TrainingProgress

STEPS, POISONED = 8, 6

warnings.filterwarnings("ignore")
torch.set_num_threads(1)
framework, out, store = sys.argv[1:]
own: list[float] = []
given: list[tuple[int, float]] = []
take = LossWatch.take


def noted(watch: LossWatch, step: int, loss: Any) -> None:
    take(watch, step, loss)
    given.append((step, float(loss)))


metrics: list[tuple[str, float]] = []
validated: list[float] = []
take_metric = ScriptMetrics.take


def metric_noted(of_script: ScriptMetrics, name: str, value: Any, step: int) -> None:
    take_metric(of_script, name, value, step)
    metrics.append((name, float(value)))


ends: list[int | str] = []
end = TrainingProgress.end


def end_noted(progress: TrainingProgress) -> None:
    end(progress)
    ends.append(len(given))


TrainingProgress.end = end_noted  # type: ignore[method-assign,assignment]
ScriptMetrics.take = metric_noted  # type: ignore[method-assign,assignment]
LossWatch.take = noted  # type: ignore[method-assign,assignment]
torch.manual_seed(0)
inputs = torch.randn(8 * STEPS, 8)
inputs[8 * (POISONED - 1)] = math.nan
targets = torch.randn(8 * STEPS, 1)
dataset = TensorDataset(inputs, targets)
network = nn.Linear(8, 1)


def loss_of(model: Any, x: Any, y: Any) -> Any:
    loss = (model(x) - y).square().mean()
    (own if torch.is_grad_enabled() else validated).append(loss.item())
    return loss


def transformers() -> Any:
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Uploads(TrainerCallback):
        def on_train_end(self, *given: Any, **more: Any) -> None:
            ends.append("callback")

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self, x: Any, labels: Any) -> Any:
            return {"loss": loss_of(self.network, x, labels)}

    class InOrder(Trainer):
        def _get_train_sampler(self, *given: Any) -> Any:
            return torch.utils.data.SequentialSampler(self.train_dataset)

    arguments = TrainingArguments(
        str(Path(out).parent / "hf"), max_steps=STEPS, per_device_train_batch_size=4, gradient_accumulation_steps=2,
        eval_strategy="steps", eval_steps=4, per_device_eval_batch_size=4, logging_steps=2, save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True,
    )  # fmt: skip
    rows: Any = [{"x": x, "labels": y} for x, y in zip(inputs, targets, strict=True)]
    trainer = InOrder(
        model=Model(), args=arguments, train_dataset=rows, eval_dataset=rows[:4], callbacks=[Uploads()]
    )
    binding = spotguard.integrations.transformers.attach(trainer, store, run_id="losses")
    trainer.train()
    return binding.guard


def lightning() -> Any:
    import lightning.pytorch as pl

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return loss_of(self.network, *batch)

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.log("val_loss", loss_of(self.network, *batch))

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters())

    class Uploads(pl.Callback):
        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            ends.append("callback")

    callback = spotguard.integrations.lightning.SpotguardCallback(store, run_id="losses")
    trainer = pl.Trainer(
        max_epochs=1, accelerator="cpu", accumulate_grad_batches=2, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, val_check_interval=8, num_sanity_val_steps=0, callbacks=[Uploads(), callback],
    )  # fmt: skip
    validation = DataLoader(TensorDataset(inputs[:4], targets[:4]), batch_size=4)
    trainer.fit(Module(), DataLoader(dataset, batch_size=4), validation)
    assert callback.binding is not None
    return callback.binding.guard


def accelerate() -> Any:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model, optimizer, loader = accelerator.prepare(
        network, torch.optim.AdamW(network.parameters()), DataLoader(dataset, batch_size=4)
    )
    guard = spotguard.integrations.accelerate.register(
        accelerator, model, optimizer, loader, store=store, run_id="losses"
    )
    for batch in guard.loader:
        with accelerator.accumulate(model):
            loss = loss_of(model, *batch)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        guard.step(loss=loss)
    return guard.guard


def deepspeed() -> Any:
    import deepspeed

    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # type: ignore[attr-defined]
    deepspeed.init_distributed("gloo", verbose=False)
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 2,
        "zero_allow_untested_optimizer": True,
    }
    optimizer = torch.optim.AdamW(network.parameters())
    engine, *_ = deepspeed.initialize(model=network, optimizer=optimizer, config=config)
    guard = spotguard.integrations.deepspeed.register(
        engine, DataLoader(dataset, batch_size=4), store=store, run_id="losses"
    )
    for batch in guard.loader:
        loss = loss_of(engine, *batch)
        engine.backward(loss)
        engine.step()
        guard.step(loss=loss)
    return guard.guard


guard = globals()[framework]()
saved = guard.save()
Path(out).write_text(
    json.dumps(
        {
            "own": own,
            "given": given,
            "suspect": saved.suspect,
            "metrics": metrics,
            "validated": validated,
            "ends": ends,
        }
    )
)
