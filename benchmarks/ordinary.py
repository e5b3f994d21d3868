"""Ordinary trainings, in which nothing fails: `ordinary.py KIND SECONDS SEED FOLDER`. KIND is one of `KINDS`.

Their data comes from a file system that other jobs share: a batch takes 0.2 s in the median, one of a few hundred takes seconds, and
every few minutes one takes up to 40 s. Most evaluations are short, and some take one to two minutes. They compute little, so that many fit
beside each other on a core.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "CUDA_VISIBLE_DEVICES": ""}

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

import spotguard

#: Seconds of a batch: the median, and the standard deviation of the logarithm.
MEDIAN, SPREAD = 0.2, 0.7
#: One batch of so many has a pause, and its least and most seconds.
PAUSES, PAUSE = 800, (5.0, 40.0)
#: The share of evaluations that are long, and their least and most seconds. The others, in batches.
LONG, LONG_SECONDS, SHORT = 0.15, (60.0, 120.0), (10, 40)
#: Seconds that another program scores a model, as a rule; a long time is as that of a long evaluation.
SCORED = (2.0, 10.0)
FEATURES, BATCH, BATCHES = 256, 64, 400

Batch = tuple[torch.Tensor, torch.Tensor]


class Reading:
    """A `collate_fn` that takes as long as such a batch takes to be read. Each process draws by itself."""

    def __init__(self, seed: int) -> None:
        self._seed, self._pid, self._random = seed, 0, Random()

    def __call__(self, rows: list[Any]) -> Any:
        if self._pid != os.getpid():  # a worker's seed is another one in each epoch
            self._pid, self._random = os.getpid(), Random(f"{self._seed} {torch.initial_seed()}")
        time.sleep(self._random.lognormvariate(math.log(MEDIAN), SPREAD))
        if self._random.randrange(PAUSES) == 0:
            time.sleep(self._random.uniform(*PAUSE))
        return default_collate(rows)


class Rows(Dataset[Batch]):
    def __init__(self, seed: int, count: int = BATCH * BATCHES) -> None:
        draws = torch.Generator().manual_seed(seed)
        self._x = torch.randn(count, FEATURES, generator=draws)
        weights = torch.randn(FEATURES, 1, generator=draws) / FEATURES**0.5
        self._y = torch.tanh(self._x @ weights) + 0.1 * torch.randn(count, 1, generator=draws)

    def __len__(self) -> int:
        return len(self._x)

    def __getitem__(self, index: int) -> Batch:
        return self._x[index], self._y[index]


class Ordinary:
    """The part that the trainings have in common."""

    def __init__(self, seconds: float, seed: int, folder: Path) -> None:
        self.folder, self.rank = folder, int(os.environ.get("RANK", "0"))
        self.ends_at = time.monotonic() + seconds
        self.seed = seed * 10 + self.rank
        self.random = Random(f"{self.seed} evaluations")
        self.rows = Rows(seed)  # the same in all ranks, which shuffle by themselves
        self.reading = Reading(self.seed)

    @property
    def over(self) -> bool:
        return time.monotonic() >= self.ends_at

    def long_or(self, short: float) -> float:
        """Draw the seconds of an evaluation."""
        return self.random.uniform(*LONG_SECONDS) if self.random.random() < LONG else short

    def evaluated(self) -> Iterator[int]:
        """Yield once for each batch of an evaluation."""
        batches, until = self.random.randint(*SHORT), time.monotonic() + self.long_or(0.0)
        while batches > 0 or time.monotonic() < until:
            yield batches
            batches -= 1

    def evaluate(self, model: nn.Module) -> None:
        model.eval()
        with torch.no_grad():
            for (x, y), _ in zip(self.loader(), self.evaluated(), strict=False):
                (model(x) - y).square().mean().item()
        model.train()

    def score(self, model: nn.Module) -> None:
        """Have another program score a checkpoint, and wait for it."""
        torch.save(model.state_dict(), self.folder / "scored.pt")
        seconds = self.long_or(self.random.uniform(*SCORED))
        subprocess.run([sys.executable, "-S", "-c", f"import time; time.sleep({seconds})"], check=True)

    def loader(self, workers: int = 0) -> DataLoader[Batch]:
        return DataLoader(
            self.rows, BATCH, shuffle=True, num_workers=workers, collate_fn=self.reading, drop_last=True
        )


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(FEATURES, 512), nn.ReLU(), nn.Linear(512, 1))


def plain(training: Ordinary, *, scored: bool = False) -> None:
    """A loop over epochs with a worker that loads; after each, an evaluation, a file of its own, and sometimes a save by hand."""
    model = network()
    optimizer = torch.optim.AdamW(model.parameters())
    loader = spotguard.ResumableLoader(training.loader(workers=0 if scored else 1))
    guard = spotguard.register(model=model, optimizer=optimizer, loader=loader)
    guard.restore()
    epoch = 0
    while not training.over:
        for x, y in loader:
            optimizer.zero_grad()
            loss = (model(x) - y).square().mean()
            loss.backward()
            optimizer.step()
            guard.step(loss=loss)
            if training.over:
                break
        epoch += 1
        (training.score if scored else training.evaluate)(model)
        torch.save({"epoch": epoch, "model": model.state_dict()}, training.folder / "own.pt")
        if epoch % 2 == 0:
            guard.save()


def scored(training: Ordinary) -> None:
    """The same loop without a worker; another program evaluates, and the script waits for it."""
    plain(training, scored=True)


def ranks(training: Ordinary) -> None:
    """Two ranks of DDP. Both evaluate, or rank 0 alone; rank 0 writes a file of its own; the other rank waits."""
    dist.init_process_group("gloo")
    model = DistributedDataParallel(network())
    optimizer = torch.optim.AdamW(model.parameters())
    guard = spotguard.register(model=model, optimizer=optimizer)
    guard.restore()
    loader = training.loader()
    over, epoch = torch.zeros(1), 0
    while not over:
        for x, y in loader:
            optimizer.zero_grad()
            loss = (model(x) - y).square().mean()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            guard.step(loss=loss)
            over.fill_(training.over)
            dist.all_reduce(over, dist.ReduceOp.MAX)
            if over:
                break
        epoch += 1
        if epoch % 2 == 0 or training.rank == 0:
            training.evaluate(model.module)
        if training.rank == 0:
            torch.save({"epoch": epoch, "model": model.module.state_dict()}, training.folder / "own.pt")
        dist.barrier()
        if epoch % 2 == 0:
            guard.save()
    dist.destroy_process_group()


def transformers(training: Ordinary) -> None:
    """Hugging Face's Trainer on a small GPT-2, which evaluates and writes its own checkpoints."""
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

    class Texts(Dataset[dict[str, torch.Tensor]]):
        def __init__(self, count: int) -> None:
            # A word follows from the one before it, mostly.
            draws = torch.Generator().manual_seed(training.seed)
            first = torch.randint(0, 64, (count, 1), generator=draws)
            noise = torch.randint(0, 2, (count, 32), generator=draws).cumsum(1)
            self._ids = (first + noise) % 64

        def __len__(self) -> int:
            return len(self._ids)

        def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
            return {"input_ids": self._ids[index], "labels": self._ids[index]}

    class Ends(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            control.should_training_stop = control.should_training_stop or training.over

    class Drawn(Trainer):
        """A Trainer that evaluates on as many batches as an evaluation has."""

        def evaluate(self, eval_dataset: Any = None, *given: Any, **more: Any) -> dict[str, float]:
            seconds = training.long_or(0.0)
            batches = max(training.random.randint(*SHORT), round(seconds / MEDIAN / math.exp(SPREAD**2 / 2)))
            measured: dict[str, float] = super().evaluate(Texts(8 * batches), *given, **more)
            return measured

    config = GPT2Config(
        vocab_size=64, n_positions=32, n_embd=64, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
    )
    arguments = TrainingArguments(
        output_dir=str(training.folder / "files"),
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        num_train_epochs=10_000,
        per_device_train_batch_size=8,
        per_device_eval_batch_size=8,
        gradient_accumulation_steps=2,
        learning_rate=1e-3,
        warmup_steps=50,
        logging_steps=50,
        eval_strategy="epoch",
        save_strategy="steps",
        save_steps=150,
        save_total_limit=2,
        seed=7,
    )
    trainer = Drawn(
        model=GPT2LMHeadModel(config),
        args=arguments,
        train_dataset=Texts(8 * BATCHES),
        eval_dataset=Texts(8 * SHORT[0]),
        data_collator=training.reading,
        callbacks=[Ends()],
    )
    spotguard.integrations.transformers.attach(trainer)
    trainer.train()


def lightning(training: Ordinary) -> None:
    """Lightning's Trainer, which validates twice an epoch and writes its own checkpoints."""
    import lightning.pytorch as pl
    from lightning.pytorch.callbacks import Callback, ModelCheckpoint

    class Validation(IterableDataset[Batch]):
        def __iter__(self) -> Iterator[Any]:
            return (batch for batch, _ in zip(training.loader(), training.evaluated(), strict=False))

    class Network(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layers = network()

        def _loss(self, batch: Batch) -> torch.Tensor:
            x, y = batch
            loss: torch.Tensor = (self.layers(x) - y).square().mean()
            return loss

        def training_step(self, batch: Batch, number: int) -> torch.Tensor:
            loss = self._loss(batch)
            self.log("loss", loss, on_step=False, on_epoch=True)
            return loss

        def validation_step(self, batch: Batch, number: int) -> None:
            self.log("v", self._loss(batch), batch_size=BATCH)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters())

    class Ends(Callback):
        def on_train_batch_end(self, trainer: Any, *given: Any) -> None:
            trainer.should_stop = trainer.should_stop or training.over

    pl.seed_everything(training.seed, verbose=False)
    trainer = pl.Trainer(
        accelerator="cpu",
        max_epochs=10_000,
        val_check_interval=0.5,
        num_sanity_val_steps=2,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[
            Ends(),
            ModelCheckpoint(dirpath=training.folder / "files", monitor="v", save_top_k=2),
            spotguard.integrations.lightning.SpotguardCallback(),
        ],
    )
    trainer.fit(Network(), training.loader(), DataLoader(Validation(), batch_size=None))


KINDS: dict[str, Callable[[Ordinary], None]] = {
    "plain": plain,
    "scored": scored,
    "ranks": ranks,
    "transformers": transformers,
    "lightning": lightning,
}

if __name__ == "__main__":
    torch.set_num_threads(1)
    training = Ordinary(float(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
    torch.manual_seed(training.seed)
    KINDS[sys.argv[1]](training)
