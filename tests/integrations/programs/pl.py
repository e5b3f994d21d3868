"""Lightning's Trainer on a small network: `pl.py OUT CASE [STORE [EVENT…]]`. CASE is words of CASES, as in `stateful+half`.

Events: `step:5` when a batch begins and 5 steps are done, `val:6` in a validation after 6 steps, `kill:4` for SIGKILL.
"""

from __future__ import annotations

import importlib
import logging
import os
import pickle
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
import torchmetrics
from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from torchdata.stateful_dataloader import StatefulDataLoader  # type: ignore[import-untyped]

import spotguard

sys.path.insert(0, str(Path(__file__).parent))
from events import Ends, write

L: Any = importlib.import_module(os.environ.get("LIGHTNING", "lightning.pytorch"))

warnings.filterwarnings("ignore")
logging.getLogger(L.__name__).setLevel(logging.ERROR)
torch.set_num_threads(1)

CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "stateful": {},
    "accumulation": {"accumulate_grad_batches": 2},
    "half": {"val_check_interval": 0.5, "accumulate_grad_batches": 3},
    "manual": {},
    "gathers": {},
    "drops": {},
    "plateau": {},
    "steps": {"max_epochs": None, "max_steps": 15},
    "workers": {},
    "kept": {"num_sanity_val_steps": 0},
    "stops": {"min_epochs": 3},
    "early": {"max_epochs": 8},
    "older": {},
    "saves": {"val_check_interval": 0.5, "enable_checkpointing": True},
    "averaged": {"max_epochs": 4},
    "norms": {},
    "sanity": {"num_sanity_val_steps": 2},
    "means": {
        "val_check_interval": 0.5,
        "accumulate_grad_batches": 2,
        "logger": True,
        "log_every_n_steps": 1,
    },
    "scheduled": {},
    "stream": {},
    "several": {},
    "tuned": {},
    "tested": {},
    # one option each, for pairs
    "batches": {"accumulate_grad_batches": 3},
    "often": {"val_check_interval": 0.5},
    "logged": {"logger": True, "log_every_n_steps": 1},
    "mixed": {"precision": "bf16-mixed"},
    "clipped": {"gradient_clip_val": 0.5},
    "constant": {},
    "averages": {},
    "ddp": {"strategy": "ddp", "devices": 2},
    "fsdp2": {"strategy": "fsdp2", "devices": 2},
    # refused
    "twice": {"max_epochs": 1},
    "keeps": {"max_epochs": 1},
    "finds": {"max_epochs": 1},
    "unequal": {"max_epochs": 1},
    "iterator": {"max_epochs": 1},
    "exception": {"max_epochs": 1},
    "thaws": {"max_epochs": 1},
    "reloads": {"max_epochs": 1, "reload_dataloaders_every_n_epochs": 1},
    "own": {"max_epochs": 1},
}


class Network(L.LightningModule):
    def __init__(self, case: list[str]) -> None:
        super().__init__()
        self.case, self.lr = case, 1e-2
        self.automatic_optimization = "manual" not in case
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.3), nn.Linear(16, 1))
        if "norms" in case:
            self.layers.append(nn.BatchNorm1d(1))
        self.seen: list[float] = []
        self.error = torchmetrics.MeanAbsoluteError()

    def configure_model(self) -> None:
        if "fsdp2" in self.case and not isinstance(self.layers, FSDPModule):
            fully_shard(self.layers, mesh=self.device_mesh["data_parallel"])

    def training_step(self, batch: Any, number: int) -> Any:
        x, y = batch
        self.seen.append(x.sum().item())
        answer = self.layers(x)
        loss = (answer - y).square().mean()
        if {"means", "averages", "ddp"} & set(self.case):
            self.log("loss", loss, on_step=True, on_epoch=True, sync_dist=True)
            self.log("largest", loss.detach(), on_step=False, on_epoch=True, reduce_fx=max)
            self.error(answer.detach(), y)
            self.log("error", self.error, on_step=False, on_epoch=True)
            if number == 1:
                self.log("once", loss.detach(), on_step=False, on_epoch=True)
        if not self.automatic_optimization:
            optimizer: Any = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
        return loss

    def validation_step(self, batch: Any, number: int, dataloader_idx: int = 0) -> None:
        x, y = batch
        torch.rand(3)  # a validation that draws
        self.log("v", (self.layers(x) - y).square().mean())

    test_step = validation_step

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.lr)
        if "plateau" in self.case:
            plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=10.0)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": plateau, "monitor": "v"}}
        if "constant" in self.case:
            return optimizer
        cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 30)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": cosine, "interval": "step"}}


class Two(Network):
    """Two optimizers: the first one's loss passes through what the second one trains, which steps at every third batch."""

    def __init__(self, case: list[str]) -> None:
        super().__init__(case)
        self.automatic_optimization = False

    def training_step(self, batch: Any, number: int) -> Any:
        x, y = batch
        self.seen.append(x.sum().item())
        first, second = self.optimizers()
        first.zero_grad()
        loss = (self.layers(x) - y).square().mean()
        self.manual_backward(loss)
        first.step()
        if "gathers" in self.case or number % 3 == 2:
            if "drops" in self.case:
                self.layers[2].zero_grad()
            self.manual_backward((self.layers[2](torch.ones(2, 16)) - 1).square().mean())
            if number % 3 == 2:
                second.step()
                second.zero_grad()
        return loss

    def configure_optimizers(self) -> Any:
        return [torch.optim.Adam(self.layers[at].parameters(), lr=1e-2) for at in (0, 2)]


class Stops(L.Callback):
    """Asks for the end long before the last epoch that there must be, as EarlyStopping does."""

    def on_train_batch_end(self, trainer: Any, *given: Any) -> None:
        if trainer.global_step == 14:
            trainer.should_stop = True


class Thaws(L.callbacks.BaseFinetuning):
    def freeze_before_training(self, pl_module: Any) -> None:
        self.freeze(pl_module.layers[0])

    def finetune_function(self, pl_module: Any, epoch: int, optimizer: Any) -> None:
        if epoch == 1:
            self.unfreeze_and_add_param_group(pl_module.layers[0], optimizer)


class TakesBatches(Network):
    def training_step(self, dataloader_iter: Any) -> Any:  # type: ignore[override]
        batch, number, _ = next(dataloader_iter)
        return super().training_step(batch, number)


class Stream(IterableDataset[Any]):
    """A dataset without a length."""

    def __init__(self, samples: Any) -> None:
        self.samples = samples

    def __iter__(self) -> Any:
        yield from (self.samples[at] for at in range(len(self.samples)))


class Own(L.callbacks.Checkpoint):
    """A script's own way to save, which has a folder too."""

    dirpath = "saved"


class Log(L.loggers.logger.DummyLogger):
    """A logger that writes lines to a file that outlives the process."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def log_metrics(self, metrics: Any, step: int | None = None) -> None:
        with self.path.open("a") as log:
            log.write(f"{step} {sorted(metrics.items())}\n")


class Events(L.Callback):
    def __init__(self, events: list[str], met: Path) -> None:
        self.ends = Ends(events, met)
        self.guarded: Any = None

    def on_train_batch_start(self, trainer: Any, *given: Any) -> None:
        self.ends.fail_at(trainer.global_step)
        if self.ends.meets(f"step:{trainer.global_step}"):
            spotguard.testing.preempt(self.guarded.binding.guard, seconds=60)
        if self.ends.meets(f"kill:{trainer.global_step}"):
            os.kill(os.getpid(), signal.SIGKILL)

    def on_validation_batch_start(self, trainer: Any, *given: Any) -> None:
        if not trainer.sanity_checking and self.ends.meets(f"val:{trainer.global_step}"):
            spotguard.testing.preempt(self.guarded.binding.guard, seconds=60)


def main() -> None:
    out, case = Path(sys.argv[1]), sys.argv[2].split("+")
    L.seed_everything(0, verbose=False)
    inputs = torch.randn(42, 8)
    dataset = TensorDataset(inputs, inputs.sum(1, keepdim=True))
    kind: Any = StatefulDataLoader if "stateful" in case else DataLoader
    kept: dict[str, Any] = {"num_workers": 1, "persistent_workers": True} if "kept" in case else {}
    workers: dict[str, Any] = {"num_workers": 2} if "workers" in case else kept
    loader = kind(dataset, batch_size=4, shuffle=True, **workers)
    told = Events(sys.argv[4:], Path(f"{out}.met"))
    callbacks: list[Any] = [told]
    if "early" in case:
        callbacks.append(L.callbacks.EarlyStopping("v", patience=1, min_delta=10.0))
    if "stops" in case:
        callbacks.append(Stops())
    if "scheduled" in case:
        callbacks.append(L.callbacks.GradientAccumulationScheduler({0: 1, 1: 3}))
    if "finds" in case:
        callbacks.append(L.callbacks.LearningRateFinder())
    folder = Path(f"{out}.saved")
    if "saves" in case:
        callbacks.append(L.callbacks.ModelCheckpoint(folder, monitor="v", save_last=True))
        callbacks.append(L.callbacks.ModelCheckpoint(folder, "{step}", save_top_k=-1, every_n_train_steps=3))
        below = L.callbacks.ModelCheckpoint(folder, "{epoch}/m", save_top_k=-1, save_last="link")
        callbacks += [below, Own()]
        if not folder.exists():
            (folder / "epoch=1").mkdir(parents=True)
            (folder / "epoch=1" / "m.ckpt").write_text("of an earlier run")
    if "averaged" in case:
        callbacks.append(L.callbacks.StochasticWeightAveraging(1e-2, swa_epoch_start=2))
    if "keeps" in case:
        callbacks.append(L.callbacks.WeightAveraging())
    if "exception" in case:
        callbacks.append(L.callbacks.OnExceptionCheckpoint(str(out.parent)))
    if "thaws" in case:
        callbacks.append(Thaws())
    if len(sys.argv) > 3:
        told.guarded = spotguard.integrations.lightning.SpotguardCallback(sys.argv[3], run_id="lightning")
        callbacks.append(told.guarded)
    options = {
        "enable_checkpointing": "exception" in case,
        "max_epochs": 5 if "stops" in case else 3,
        "num_sanity_val_steps": 0,
        "logger": False,
    } | {key: value for word in case for key, value in CASES[word].items()}
    if "fsdp2" in case:
        options["strategy"] = L.strategies.ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1)
    if options["logger"]:
        options["logger"] = Log(Path(f"{out}.log"))
    trainer = L.Trainer(
        accelerator="cpu",
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=callbacks,
        **options,
    )
    kinds = {"iterator": TakesBatches, "gathers": Two, "drops": Two}
    network = next((kinds[word] for word in case if word in kinds), Network)(case)
    shorter = DataLoader(dataset, batch_size=16, **kept)
    given: dict[str, Any] = {}
    if "own" in case:
        trainer.strategy.connect(network)
        trainer.save_checkpoint(own := Path(f"{out}.ckpt"))
        given["ckpt_path"] = own
    if "stream" in case:
        loader = DataLoader(Stream(dataset), batch_size=4)
    if "tuned" in case:
        L.tuner.Tuner(trainer).lr_find(network, loader, num_training=20)
    validated = [shorter, loader] if "several" in case else shorter
    trainer.fit(network, [loader, shorter] if "unequal" in case else loader, validated, **given)
    if "tested" in case:
        trainer.test(network, shorter, verbose=False)
        trainer.validate(network, shorter, verbose=False)
    if "twice" in case:
        trainer.fit(network, loader)
    if "saves" in case:
        assert (folder / "epoch=1" / "m.ckpt").read_text() == "of an earlier run"
        pickle.dumps(below)
    if told.ends.meets("end"):
        spotguard.testing.preempt(told.guarded.binding.guard, seconds=60)
    log = Path(f"{out}.log")
    result = {
        "weights": network.state_dict(),
        "optimizers": [each.state_dict() for each in trainer.optimizers],
        "schedulers": [each.scheduler.state_dict() for each in trainer.lr_scheduler_configs],
        "generator": torch.get_rng_state(),
        "step": trainer.global_step,
        "epoch": trainer.current_epoch,
        "metrics": dict(trainer.callback_metrics),
        # The last life of one that averages may find all steps trained.
        "last": network.seen[-1:] if "averaged" not in case else [],
        "files": sorted(str(each.relative_to(folder)) for each in folder.rglob("*.ckpt")),
        "log": sorted(set(log.read_text().splitlines())) if log.exists() else [],
    }
    write(result, out, trainer.global_rank)


if __name__ == "__main__":
    main()
