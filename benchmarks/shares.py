"""One rank of a job that saves to S3, in a process of its own that does as it is told.

`python -m benchmarks.shares WAY RANK WORLD MEETING URL FOLDER`, with MEETING as torch's `init_method`; the words on its
stdin, each answered by one JSON object:

    train LAYOUT BLOCKS SOCKET    begin a job: bytes of this rank's tensors
    step                          train one step, without asking another rank: steps taken, and collectives so far
    save                          save it (spotguard is told by its SOCKET instead): the instant of its end
    count                         collectives so far
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import distributed_c10d
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from .mixture import Block
from .uploading import WAYS

#: Steps until a guard has seen what stays as it is, and has rehearsed its save.
_SETTLED = 4
_THREADS = 4  # of DCP's writers, as in `uploading`


class Trained:
    """A decoder's blocks and AdamW, laid out as "DDP", "FSDP2", or "HSDP" of two replicas; every number of them is new
    after a step."""

    def __init__(self, layout: str, blocks: int) -> None:
        torch.manual_seed(0)
        rank, world = dist.get_rank(), dist.get_world_size()
        inner: nn.ModuleList = nn.ModuleList(Block() for _ in range(blocks))
        self.model: nn.Module = nn.Module()
        self.model.blocks = inner
        self._part = 0  # of the state: those who hold the same have the same gradients
        if layout == "DDP":
            self.model = DistributedDataParallel(self.model)
        else:
            shape, names = (
                ((world,), ("shard",)) if layout == "FSDP2" else ((2, world // 2), ("copy", "shard"))
            )
            mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
            self._part = rank % mesh["shard"].size()
            for each in [*inner, self.model]:
                fully_shard(each, mesh=mesh)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.steps = 0
        self.step()

    def step(self) -> None:
        chance = torch.Generator().manual_seed(1000 * self.steps + self._part)
        for parameter in self.model.parameters():
            local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
            gradient = torch.randn(local.shape, generator=chance)
            parameter.grad = like(parameter, gradient)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.steps += 1

    @property
    def nbytes(self) -> int:
        """What this rank holds: weights and moments."""
        moments = [each for held in self.optimizer.state.values() for each in held.values()]
        tensors = [*self.model.parameters(), *moments]
        return sum((t.to_local() if isinstance(t, DTensor) else t).nbytes for t in tensors)

    def states(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}


def like(parameter: torch.Tensor, local: torch.Tensor) -> torch.Tensor:
    """This rank's part of something that is cut as the parameter is. Nobody is asked."""
    if not isinstance(parameter, DTensor):
        return local
    mesh, cut = parameter.device_mesh, parameter.placements
    return DTensor.from_local(local, mesh, cut, shape=parameter.shape, stride=parameter.stride())


def collectives() -> int:
    """All that this process has taken part in, whichever thread asked: each group numbers its own."""
    groups: Iterable[Any] = distributed_c10d._world.pg_map
    return sum(group._get_sequence_number_for_group() for group in groups)


class Rank:
    def __init__(self, way: str, url: str, folder: Path) -> None:
        self._way, self._url, self._folder = way, url, folder
        self._guard: Any = None
        self._save: Callable[[], object] | None = None
        self._trained: Trained

    def train(self, layout: str, blocks: str, socket: str) -> dict[str, Any]:
        if self._guard is not None:
            self._guard.close()
        trained = self._trained = Trained(layout, int(blocks))
        if self._way == "spotguard":
            self._guard = guarded(trained, self._url, layout, socket)
            for _ in range(_SETTLED):
                self.step()
        else:
            self._save = PEERS[self._way](trained, self._url, self._folder)
        return {"bytes": trained.nbytes}

    def step(self) -> dict[str, Any]:
        self._trained.step()
        if self._guard is not None:
            self._guard.step()
        # A guard counts from its register on, and has seen one step less.
        return {"step": self._trained.steps - 1, **self.count()}

    def save(self) -> dict[str, Any]:
        assert self._save is not None
        self._save()
        return {"at": time.monotonic()}

    def count(self) -> dict[str, Any]:
        return {"collectives": collectives()}


def guarded(trained: Trained, url: str, layout: str, socket: str) -> Any:
    import spotguard

    # Nothing beside what is measured.
    os.environ.update(SPOTGUARD_EVERY="off", SPOTGUARD_KEEP="1000", SPOTGUARD_SOCKET=socket)
    guard = spotguard.register(url, run_id=layout, model=trained.model, optimizer=trained.optimizer)
    guard.restore()
    return guard


def _to_disk_first(trained: Any, url: str, folder: Path) -> Callable[[], object]:
    """Each rank's files on its machine's disk, then in the store."""
    from torch.distributed.checkpoint.filesystem import FileSystemWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    client, at = importlib.import_module("boto3").client("s3"), urlsplit(url)
    writer = FileSystemWriter(folder / "dcp", sync_files=False, thread_count=_THREADS)

    def run() -> None:
        save(trained.states(), storage_writer=writer)
        for path in sorted((folder / "dcp").iterdir()):
            client.upload_file(str(path), at.netloc, f"{at.path.lstrip('/')}/disk/{path.name}")

    return run


PEERS: dict[str, Callable[[Any, str, Path], Callable[[], object]]] = {
    "dcp.save + upload_file": _to_disk_first,
    **{name: make for name, make in WAYS.items() if name.startswith("DCP")},
}


def main(way: str, rank: str, world: str, meeting: str, url: str, folder: str) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=meeting, rank=int(rank), world_size=int(world))
    told = Rank(way, url, Path(folder))
    for line in sys.stdin:
        word, *rest = line.rstrip("\n").split("\t")
        print(json.dumps(getattr(told, word)(*rest)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
