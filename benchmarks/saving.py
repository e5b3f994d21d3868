"""One way to save or load, in a process of its own: `python -m benchmarks.saving save|load WAY FOLDER MIB TIMES [DEVICE]`.

Prints one JSON object for each time: seconds, CPU seconds, and the most host memory that it took beyond the state.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

import spotguard
from spotguard.hooks.guard import Guard

WIDTH = 1024
LAYER_MIB = 48  # a weight of 16 MiB and its two moments


class Trained:
    """A model with AdamW: a third of the bytes are weights, the rest are moments."""

    def __init__(self, mib: int, *, stepped: bool, device: str = "cpu") -> None:
        torch.manual_seed(0)
        layers = max(1, mib // LAYER_MIB)
        self.model = nn.ModuleList(
            nn.Linear(WIDTH, 4 * WIDTH, bias=False, device=device) for _ in range(layers)
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        if stepped:
            for parameter in self.model.parameters():
                parameter.grad = torch.randn_like(parameter)
            self.optimizer.step()
            self.optimizer.zero_grad()

    @property
    def nbytes(self) -> int:
        """With both moments, whether they are there yet or not."""
        return 3 * sum(parameter.nbytes for parameter in self.model.parameters())

    def sample(self) -> list[float]:
        """Some numbers that a loaded state shares with the saved one."""
        last = list(self.model.parameters())[-1]
        moment = self.optimizer.state[last]["exp_avg"]
        return [float(x) for x in (*last.detach().flatten()[-4:], *moment.flatten()[-4:])]

    def states(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}


def saver(way: str, trained: Trained, folder: Path) -> Callable[[], object]:
    """A call that saves once. Everything made before its first call counts as its memory, not as its time."""
    if way == "spotguard":
        guard = _guard(trained, folder)
        guard.restore()
        return guard.save
    if way.startswith("torch"):
        return lambda: _torch_save(trained, folder / "state.pt", flush="fsync" in way)
    writer = FileSystemWriter(
        folder / "dcp", thread_count=2 if "2 threads" in way else 1, sync_files="fsync" in way
    )
    return lambda: save(trained.states(), storage_writer=writer, no_dist=True)


def loader(way: str, trained: Trained, folder: Path) -> Callable[[], object]:
    """A call that loads into a new model and an optimizer that has no state yet, as every restart does."""
    if way == "spotguard":
        return _guard(trained, folder).restore
    if way == "torch.load":
        return lambda: _torch_load(trained, folder / "state.pt")
    return lambda: _dcp_load(trained, folder / "dcp")


def _guard(trained: Trained, folder: Path) -> Guard:
    os.environ.update(SPOTGUARD_EVERY="off", SPOTGUARD_KEEP="1000")
    states = {"model": trained.model, "optimizer": trained.optimizer}
    return spotguard.register(folder.as_uri(), run_id="rate", **states)


def _torch_save(trained: Trained, path: Path, *, flush: bool) -> None:
    with path.open("wb") as file:
        torch.save(trained.states(), file)
        if flush:
            file.flush()
            os.fsync(file.fileno())


def _torch_load(trained: Trained, path: Path) -> None:
    states = torch.load(path, weights_only=True)
    trained.model.load_state_dict(states["model"])
    trained.optimizer.load_state_dict(states["optimizer"])


def _dcp_load(trained: Trained, path: Path) -> None:
    # Its way to an optimizer's state that is not there yet: a step with zero gradients, then loading in place.
    get_state_dict(trained.model, trained.optimizer)
    states = trained.states()
    load(states, storage_reader=FileSystemReader(path), no_dist=True)
    trained.model.load_state_dict(states["model"])
    trained.optimizer.load_state_dict(states["optimizer"])


def resident(name: str) -> int:
    """A line of /proc/self/status ("VmRSS", "VmHWM") in bytes."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(name))


def main(verb: str, way: str, folder: Path, mib: int, times: int, device: str = "cpu") -> None:
    warnings.simplefilter("ignore")  # DCP's, about being alone
    trained = Trained(mib, stepped=verb == "save", device=device)
    arrived: Callable[[], object] = torch.cuda.synchronize if device == "cuda" else lambda: None
    arrived()
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts anew: proc(5)
    before = resident("VmRSS")
    # What a load makes of an empty optimizer is the state itself, not more.
    allowed = before + (trained.nbytes * 2 // 3 if verb == "load" else 0)
    call = (saver if verb == "save" else loader)(way, trained, folder)
    for number in range(times):
        started, used = time.perf_counter(), time.process_time()
        call()
        arrived()
        spent, used = time.perf_counter() - started, time.process_time() - used
        extra = max(0, resident("VmHWM") - allowed) / 2**20
        print(json.dumps({"seconds": spent, "cpu": used, "extra": extra, "bytes": trained.nbytes}))
        if verb == "save" and number < times - 1:
            _forget(folder)
    detector = folder / "sample.json"
    if verb == "save":
        detector.write_text(json.dumps(trained.sample()))
    elif json.loads(detector.read_text()) != trained.sample():
        raise RuntimeError(f"{way} has loaded something else than was saved")


def _forget(folder: Path) -> None:
    """The next save finds the disk as this one did."""
    for path in (folder / "rate" / "checkpoints", folder / "dcp"):
        shutil.rmtree(path, ignore_errors=True)
    (folder / "state.pt").unlink(missing_ok=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]), *sys.argv[6:])
