"""Loaders of MONAI, torchdata and webdataset: cut, built anew, restored, trained on, and compared with a whole run.

Prints a JSON object: for each name "exact", or what happened instead. A warning of the resumed run stands behind it.

Usage: loaders.py FOLDER [NAME …]
"""

from __future__ import annotations

import io
import itertools
import json
import logging
import sys
import tarfile
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import monai.data as data  # type: ignore[import-not-found]
import monai.transforms as transforms  # type: ignore[import-not-found]
import monai.utils  # type: ignore[import-not-found]
import numpy as np
import torch
import torchdata.nodes as nodes  # type: ignore[import-untyped]
import webdataset as wds
from torch import nn
from torch.utils.data import DataLoader, RandomSampler
from torchdata.stateful_dataloader import StatefulDataLoader  # type: ignore[import-untyped]

import spotguard

SAMPLES, BATCH, PASSES = 24, 4, 3
#: In the first pass, at its end, and in the second one. A pass has six batches, or four without a last small one.
CUTS = (2, 6, 9)
torch.set_num_threads(1)
warnings.simplefilter("ignore")

SAMPLE = [{"x": torch.full((1, 8), float(n))} for n in range(SAMPLES)]


def plain() -> Any:
    """Transforms without a random one."""
    return transforms.Compose(
        [transforms.ScaleIntensityRanged(keys="x", a_min=0, a_max=24, b_min=0, b_max=1)]
    )


def drawing() -> Any:
    """Transforms that draw from their own numpy generators."""
    return transforms.Compose(
        [plain(), transforms.RandGaussianNoised(keys="x", prob=0.5), transforms.RandFlipd("x", 0.5)]
    )


def seeded() -> Any:
    """The same, each with a seed of its own."""
    return drawing().set_random_state(seed=7)


def of_monai(dataset: Any, workers: int = 0, **options: Any) -> Any:
    options.setdefault("shuffle", not isinstance(dataset, torch.utils.data.IterableDataset))
    return data.DataLoader(dataset, batch_size=BATCH, num_workers=workers, **options)


def shards(folder: Path) -> list[str]:
    found = []
    for number in range(4):
        path = folder / f"{number}.tar"
        found.append(str(path))
        if path.exists():
            continue
        with tarfile.open(path, "w") as tar:
            for n in range(number * SAMPLES // 4, (number + 1) * SAMPLES // 4):
                member = tarfile.TarInfo(f"{n:04}.cls")
                member.size = len(str(n))
                tar.addfile(member, io.BytesIO(str(n).encode()))
    return found


def of_webdataset(stream: Any) -> Any:
    return stream.decode().map(lambda sample: {"x": torch.full((1, 8), float(sample["cls"]))})


def web(folder: Path, **options: Any) -> Any:
    return wds.WebDataset(shards(folder), **{"shardshuffle": False, "seed": 0, **options})


def of_nodes(node: Any) -> Any:
    return nodes.Loader(nodes.Batcher(node, BATCH), restart_on_stop_iteration=True)


def mapped(node: Any) -> Any:
    return nodes.Mapper(node, lambda each: torch.stack([SAMPLE[n]["x"] for n in each]))


def noisy() -> Callable[[list[int]], torch.Tensor]:
    transform = seeded()
    return lambda each: torch.stack([torch.as_tensor(transform(SAMPLE[n])["x"]) for n in each])


def sampled() -> Any:
    return nodes.SamplerWrapper(RandomSampler(range(SAMPLES)))


def numbers(start: int = 0) -> Any:
    return nodes.IterableWrapper(range(start, SAMPLES))


#: How each loader is made, given a folder for its files.
LOADERS: dict[str, Callable[[Path], Any]] = {
    "MONAI Dataset": lambda _: of_monai(data.Dataset(SAMPLE, plain())),
    "MONAI Dataset, random transforms": lambda _: of_monai(data.Dataset(SAMPLE, drawing())),
    "MONAI Dataset, random transforms with a seed": lambda _: of_monai(data.Dataset(SAMPLE, seeded())),
    "MONAI Dataset, random transforms, 2 workers": lambda _: of_monai(data.Dataset(SAMPLE, drawing()), 2),
    "MONAI Dataset, random transforms, persistent workers": lambda _: of_monai(
        data.Dataset(SAMPLE, drawing()), 2, persistent_workers=True
    ),
    "MONAI CacheDataset": lambda _: of_monai(data.CacheDataset(SAMPLE, drawing(), progress=False)),
    "MONAI CacheDataset, 2 workers": lambda _: of_monai(
        data.CacheDataset(SAMPLE, drawing(), progress=False), 2
    ),
    "MONAI SmartCacheDataset": lambda _: of_monai(
        data.SmartCacheDataset(SAMPLE, drawing(), replace_rate=0.25, cache_num=12, progress=False)
    ),
    "MONAI PersistentDataset": lambda folder: of_monai(
        data.PersistentDataset(SAMPLE, drawing(), folder / "kept")
    ),
    "MONAI CacheNTransDataset": lambda folder: of_monai(
        data.CacheNTransDataset(SAMPLE, drawing(), 1, folder / "kept")
    ),
    "MONAI ShuffleBuffer": lambda _: of_monai(data.ShuffleBuffer(SAMPLE, drawing(), buffer_size=8)),
    "MONAI ShuffleBuffer, 2 workers": lambda _: of_monai(
        data.ShuffleBuffer(SAMPLE, drawing(), buffer_size=8), 2
    ),
    "MONAI IterableDataset": lambda _: of_monai(data.IterableDataset(SAMPLE, drawing())),
    "MONAI ArrayDataset": lambda _: of_monai(
        data.ArrayDataset(
            [each["x"] for each in SAMPLE], transforms.Compose([transforms.RandGaussianNoise(0.5)])
        )
    ),
    "MONAI ThreadDataLoader": lambda _: data.ThreadDataLoader(
        data.Dataset(SAMPLE, drawing()), batch_size=BATCH, num_workers=0, shuffle=True
    ),
    "MONAI ThreadDataLoader, buffer of 4": lambda _: data.ThreadDataLoader(
        data.Dataset(SAMPLE, drawing()), buffer_size=4, batch_size=BATCH, num_workers=0, shuffle=True
    ),
    "MONAI Dataset, weights": lambda _: of_monai(
        data.Dataset(SAMPLE, plain()),
        shuffle=False,
        sampler=torch.utils.data.WeightedRandomSampler([1.0] * SAMPLES, SAMPLES),
    ),
    "torchdata StatefulDataLoader": lambda _: StatefulDataLoader(SAMPLE, BATCH, shuffle=True),
    "torchdata StatefulDataLoader, 2 workers": lambda _: StatefulDataLoader(
        SAMPLE, BATCH, shuffle=True, num_workers=2
    ),
    "torchdata StatefulDataLoader, a state every 2 batches": lambda _: StatefulDataLoader(
        SAMPLE, BATCH, shuffle=True, num_workers=2, snapshot_every_n_steps=2
    ),
    "torchdata nodes, sampler": lambda _: nodes.Loader(mapped(nodes.Batcher(sampled(), BATCH))),
    "torchdata nodes, prefetcher": lambda _: nodes.Loader(
        nodes.Prefetcher(mapped(nodes.Batcher(sampled(), BATCH)), 3)
    ),
    "torchdata nodes, prefetcher of random transforms": lambda _: nodes.Loader(
        nodes.Prefetcher(nodes.Mapper(nodes.Batcher(sampled(), BATCH), noisy()), 3)
    ),
    "torchdata nodes, threads": lambda _: nodes.Loader(
        nodes.ParallelMapper(
            nodes.Batcher(sampled(), BATCH),
            lambda each: torch.stack([SAMPLE[n]["x"] for n in each]),
            num_workers=2,
            in_order=True,
            method="thread",
        )
    ),
    "torchdata nodes, weights": lambda _: nodes.Loader(
        mapped(
            nodes.Batcher(
                nodes.MultiNodeWeightedSampler(
                    {"a": numbers(), "b": numbers(12)}, {"a": 0.5, "b": 0.5}, seed=5
                ),
                BATCH,
            )
        )
    ),
    "torchdata nodes, an iterable": lambda _: nodes.Loader(mapped(nodes.Batcher(numbers(), BATCH))),
    "webdataset": lambda folder: DataLoader(of_webdataset(web(folder)), BATCH),
    "webdataset, shuffle with a seed": lambda folder: DataLoader(
        of_webdataset(web(folder).shuffle(8, seed=0)), BATCH
    ),
    "webdataset, shuffle without a seed": lambda folder: DataLoader(
        of_webdataset(web(folder).shuffle(8)), BATCH
    ),
    "webdataset, shuffle of shards": lambda folder: DataLoader(
        of_webdataset(web(folder, shardshuffle=4)), BATCH
    ),
    "webdataset, resampled": lambda folder: DataLoader(
        of_webdataset(wds.WebDataset(shards(folder), resampled=True, shardshuffle=False, seed=0)).with_epoch(
            SAMPLES
        ),
        BATCH,
    ),
    "webdataset, 2 workers": lambda folder: DataLoader(of_webdataset(web(folder)), BATCH, num_workers=2),
    "webdataset WebLoader": lambda folder: wds.WebLoader(of_webdataset(web(folder)), batch_size=BATCH),
    "webdataset WebLoader, shuffled behind it": lambda folder: (
        wds.WebLoader(of_webdataset(web(folder)), batch_size=None).shuffle(8).batched(BATCH)
    ),
    "webdataset RandomMix": lambda folder: DataLoader(
        wds.RandomMix([of_webdataset(web(folder)), of_webdataset(web(folder))], longest=True), BATCH
    ),
}


class Heard(logging.Handler):
    """The warnings of spotguard."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def tensor_of(batch: Any) -> torch.Tensor:
    x = batch["x"] if isinstance(batch, dict) else batch[0] if isinstance(batch, (list, tuple)) else batch
    return torch.as_tensor(np.asarray(x), dtype=torch.float32).reshape(-1, 8)


def life(name: str, folder: Path, ends: int, store: str = "") -> dict[str, Any]:
    """Train for this many steps, or to the end; with a store, as a guarded script does."""
    monai.utils.set_determinism(0)
    torch.use_deterministic_algorithms(False)
    loader = LOADERS[name](folder)
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.2), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    progress: dict[str, Any] = {"epoch": 0, "seen": []}
    guard, done = None, 0
    values: dict[str, Any] = {"model": model, "optimizer": optimizer, "progress": progress}
    if store:
        loader = spotguard.ResumableLoader(loader)
        guard = spotguard.register(store, run_id="run", loader=loader, **values)
    try:
        if guard is not None:
            done = guard.restore()
        for epoch in range(progress["epoch"], PASSES):
            for batch in _some(loader):
                x = tensor_of(batch)
                progress["seen"].append(x.flatten().tolist())
                optimizer.zero_grad()
                (model(x) - 1).square().mean().backward()
                optimizer.step()
                done += 1
                if guard is not None:
                    guard.step()
                if done == ends:
                    if guard is not None:
                        guard.save()
                    return {}
            progress["epoch"] = epoch + 1
    finally:
        if guard is not None:
            guard.close()
    weights = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    return {
        "batches": progress["seen"],
        "weights": weights,
        "generator": torch.get_rng_state().numpy().tobytes(),
    }


def _some(loader: Iterable[Any]) -> Iterable[Any]:
    """A pass; a stream without an end would never be over."""
    return itertools.islice(loader, SAMPLES) if isinstance(loader, wds.pipeline.DataPipeline) else loader


def tried(name: str, folder: Path) -> str:
    folder = folder / f"{[*LOADERS].index(name)}"
    folder.mkdir()
    try:
        whole, again = life(name, folder, -1), life(name, folder, -1)
    except Exception as error:  # noqa: BLE001 - whatever the package raises
        return f"does not train here: {type(error).__name__}: {error}"
    if whole != again:
        return "two whole runs differ"
    for cut in CUTS:
        heard = Heard()
        log = logging.getLogger("spotguard")
        log.addHandler(heard)
        store = (folder / f"store-{cut}").as_uri()
        try:
            life(name, folder, cut, store)
            now = life(name, folder, -1, store)
        except Exception as error:  # noqa: BLE001 - a refusal
            return f"cut at {cut}: {type(error).__name__}: {error}"
        finally:
            log.removeHandler(heard)
        differing = [part for part in whole if whole[part] != now[part]]
        if differing or heard.lines:
            what = f"{' and '.join(differing)} differ" if differing else "exact"
            return f"cut at {cut}: {what}; " + (" | ".join(heard.lines) or "SILENT")
    return "exact"


if __name__ == "__main__":
    logging.getLogger("spotguard").propagate = False
    table = {name: tried(name, Path(sys.argv[1])) for name in sys.argv[2:] or LOADERS}
    print(json.dumps(table))
