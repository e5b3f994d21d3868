"""A Lightning script without a word of spotguard: `unchanged_lightning.py OUT CASE`. It writes what must be equal to OUT."""

from __future__ import annotations

import glob
import os
import sys
import warnings
from typing import Any

import lightning
import torch
from lightning.pytorch.demos import Transformer
from torch import nn

warnings.filterwarnings("ignore")
OUT, CASE = sys.argv[1:3]
#: The steps of earlier trainings of this process.
BEFORE = 0
torch.set_num_threads(1)
lightning.seed_everything(7, verbose=False)
numbers = torch.Generator().manual_seed(1)
data = torch.utils.data.TensorDataset(
    torch.randn(46, 8, generator=numbers), torch.randn(46, 1, generator=numbers)
)


class Module(lightning.LightningModule):
    """A network with dropout, and a schedule by steps."""

    def __init__(self) -> None:
        super().__init__()
        self.lr = 1e-2  # what a Tuner finds
        self.net = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Linear(16, 1))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return nn.functional.mse_loss(self.net(batch[0]), batch[1])

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", nn.functional.mse_loss(self.net(batch[0]), batch[1]))

    def on_train_batch_end(self, *given: Any) -> None:
        print(f"step {BEFORE + self.global_step}", flush=True)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=100)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


class LanguageModel(Module):
    """The transformer of Lightning's example, which has dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Transformer(vocab_size=40, ninp=16, nhead=2, nhid=16, nlayers=1)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = nn.functional.nll_loss(self.net(*batch), batch[1].view(-1))
        self.log("train_loss", loss, on_epoch=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", nn.functional.nll_loss(self.net(*batch), batch[1].view(-1)))


module = LanguageModel() if CASE == "transformer" else Module()
if CASE == "transformer":
    tokens = torch.randint(0, 40, (46, 9), generator=numbers)
    data = torch.utils.data.TensorDataset(tokens[:, :-1], tokens[:, 1:])
arguments: dict[str, Any] = {
    "max_epochs": 3,
    "accelerator": "cpu",
    "devices": 1,
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "accumulate_grad_batches": 2,
}
if CASE == "transformer":  # 23 batches, validations and files between steps
    each = lightning.pytorch.callbacks.ModelCheckpoint(
        f"{OUT}-files", "{step}", save_top_k=-1, every_n_train_steps=5
    )
    arguments |= {"enable_checkpointing": True, "callbacks": [each], "val_check_interval": 7}
if CASE == "best":  # where Lightning puts it
    best = lightning.pytorch.callbacks.ModelCheckpoint(monitor="val_loss")
    logger = lightning.pytorch.loggers.CSVLogger(f"{OUT}-files")
    arguments |= {"enable_checkpointing": True, "callbacks": [best], "logger": logger}
trainer = lightning.Trainer(**arguments)
loaders = [torch.utils.data.DataLoader(data, 2, shuffle=shuffle) for shuffle in (True, False)]
if CASE == "tuned":
    from lightning.pytorch.tuner import Tuner

    Tuner(trainer).lr_find(module, *loaders, num_training=4, early_stop_threshold=None)
trainer.fit(module, *loaders, ckpt_path="last" if CASE == "last" else None)
if CASE == "twice":
    BEFORE = trainer.global_step
    trainer = lightning.Trainer(**arguments)
    trainer.fit(module, *loaders)
found = {"model": module.state_dict(), "step": trainer.global_step, "rng": torch.get_rng_state()}
if CASE == "best":
    trainer.validate(module, loaders[1], ckpt_path="best", verbose=False)
    found |= {
        "best": best.best_model_path.removeprefix(OUT),
        "score": best.best_model_score,
        "loaded": module.state_dict(),
    }
    found["files"] = sorted(
        os.path.relpath(each, f"{OUT}-files") for each in glob.glob(f"{OUT}-files/**/*.ckpt", recursive=True)
    )
torch.save(found | {"optimizer": trainer.optimizers[0].state_dict()["state"]}, OUT)
