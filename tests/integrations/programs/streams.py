"""A loop over a streaming dataset: `streams.py OUT CASE WORKERS [STORE [EVENT…]]`; events as in accel.py."""

from __future__ import annotations

import io
import os
import signal
import sys
import tarfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader

import spotguard

sys.path.insert(0, str(Path(__file__).parent))
from events import Ends

SAMPLES, BATCH, EPOCHS = 48, 4, 3


def huggingface(folder: Path, buffer: bool) -> Any:
    from datasets import Dataset

    stream = Dataset.from_dict({"x": list(range(SAMPLES))}).to_iterable_dataset(num_shards=4)
    return stream.shuffle(seed=0, buffer_size=16) if buffer else stream


def mosaic(folder: Path) -> Any:
    # torchvision, which streaming imports, loads no operators beside torch's CPU build, and wants these two declared.
    for operator in () if torch.version.cuda else ("nms", "qnms"):
        schema = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
        torch.library.define(f"torchvision::{operator}", schema)
    from streaming import MDSWriter, StreamingDataset
    from streaming.base.util import clean_stale_shared_memory

    shards = folder / "mds"
    if not shards.exists():
        with MDSWriter(out=str(shards), columns={"x": "int"}, size_limit=256) as writer:
            for x in range(SAMPLES):
                writer.write({"x": x})
    clean_stale_shared_memory()  # of a life that was killed
    return StreamingDataset(local=str(shards), shuffle=True, batch_size=BATCH, num_canonical_nodes=1)


def webdataset(folder: Path, shuffle: str) -> Any:
    import webdataset as wds

    shards = folder / "wds"
    shards.mkdir(exist_ok=True)
    for number in range(4):
        if not (path := shards / f"{number}.tar").exists():
            with tarfile.open(path, "w") as tar:
                for x in range(number * SAMPLES // 4, (number + 1) * SAMPLES // 4):
                    member = tarfile.TarInfo(f"{x:04}.cls")
                    member.size = len(str(x))
                    tar.addfile(member, io.BytesIO(str(x).encode()))
    stream = wds.WebDataset([str(shards / f"{n}.tar") for n in range(4)], shardshuffle=False, seed=0)
    if shuffle == "counted":
        stream = stream.compose(wds.detshuffle(16))
    else:
        stream = stream.shuffle(16, seed=0) if shuffle == "seeded" else stream.shuffle(16)
    return stream.decode().map(lambda sample: {"x": sample["cls"]})


def loader_of(case: str, workers: int, folder: Path) -> tuple[Any, Any]:
    """The loader, and the value to register for it."""
    library, _, kind = case.partition("-")
    if library == "datasets":
        dataset = huggingface(folder, buffer="buffer" in kind)
        if kind.startswith("alone"):
            return wrapped(dataset.batch(BATCH))
        if kind.startswith("stateful"):
            from torchdata.stateful_dataloader import StatefulDataLoader  # type: ignore[import-untyped]

            loader: Any = StatefulDataLoader(dataset, batch_size=BATCH, num_workers=workers)
            return wrapped(loader)
    elif library == "mosaic":
        dataset = mosaic(folder)
        from streaming import StreamingDataLoader

        loader = StreamingDataLoader(dataset, batch_size=BATCH, num_workers=workers)
        if kind == "alone":
            return loader, loader
        if kind == "dataset":
            return loader, dataset
        return wrapped(loader)
    else:
        dataset = webdataset(folder, kind)
    return wrapped(DataLoader(dataset, batch_size=BATCH, num_workers=workers))


def wrapped(loader: Any) -> tuple[Any, Any]:
    loader = spotguard.ResumableLoader(loader)
    return loader, loader


def main() -> None:
    out, case, workers = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    warnings.simplefilter("ignore")
    ends = Ends(sys.argv[5:], Path(f"{out}.met"))
    torch.set_num_threads(1)
    torch.manual_seed(0)
    np.random.seed(0)
    loader, registered = loader_of(case, workers, out.parent)
    model = nn.Sequential(nn.Linear(1, 16), nn.Dropout(0.3), nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    progress: dict[str, Any] = {"epoch": 0, "seen": []}
    guard, done = None, 0
    if len(sys.argv) > 4:
        guard = spotguard.register(
            sys.argv[4],
            run_id="stream",
            model=model,
            optimizer=optimizer,
            loader=registered,
            progress=progress,
        )
        done = guard.restore()
        if ends.meets(f"again:{done}"):  # nothing was read since the restore
            guard.save()
            os.kill(os.getpid(), signal.SIGKILL)
    set_epoch: Callable[[int], None] = getattr(
        getattr(loader, "dataset", loader), "set_epoch", lambda epoch: None
    )
    for epoch in range(progress["epoch"], EPOCHS):
        set_epoch(epoch)
        for batch in loader:
            if guard and ends.meets(f"step:{done}"):
                spotguard.testing.preempt(guard, seconds=60)
            x = torch.as_tensor(batch["x"], dtype=torch.float32).reshape(-1, 1)
            progress["seen"].append(x.flatten().tolist())
            optimizer.zero_grad()
            (model(x / SAMPLES) - x / SAMPLES).square().mean().backward()
            optimizer.step()
            done += 1
            if guard:
                guard.step()
                if ends.meets(f"kill:{done}"):
                    guard.save()
                    os.kill(os.getpid(), signal.SIGKILL)
        progress["epoch"] = epoch + 1
    torch.save(
        {
            "weights": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "generator": torch.get_rng_state(),
            "seen": progress["seen"],
            "step": done,
        },
        out,
    )


if __name__ == "__main__":
    main()
