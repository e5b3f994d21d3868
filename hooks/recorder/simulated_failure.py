"""A failure on demand, in a training process that `spotguard simulate failure` started: real where it can be, at a given step.

The script is not changed. The failure arises where such failures do: in the loader's fetch, in a module's forward, in a backward
pass or in an optimizer's step, each of which torch lets a hook see.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.data import get_worker_info
from torch.utils.data._utils import fetch

from .failure_plan import FailurePlan


class SimulatedFailure:
    """The hooks that let one failure happen.

    Args:
        plan: the plan.
        rank: this process's rank.
        completed: returns the completed steps.
    """

    def __init__(self, plan: FailurePlan, rank: int, completed: Callable[[], int]) -> None:
        self._plan, self._rank, self._completed = plan, rank, completed
        #: Exists once the step is reached: a loader's worker has no steps of its own.
        self._reached = Path(plan.folder, "reached")
        self._kept: list[torch.Tensor] = []

    def begin(self) -> None:
        """Install the hooks, for the rest of the process."""
        if self._rank != self._plan.rank:
            return
        modules = torch.nn.modules.module
        if self._plan.place == "data":
            for fetcher in (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher):
                fetcher.fetch = self._around(fetcher.fetch)  # type: ignore[method-assign]
            modules.register_module_forward_pre_hook(lambda *_: self._note())
        elif self._plan.place == "forward":
            modules.register_module_forward_pre_hook(lambda *_: self._pass())
        elif self._plan.place == "backward":
            modules.register_module_forward_hook(lambda module, given, result: self._follow(result))
        else:
            register_optimizer_step_pre_hook(lambda *_: self._pass())

    def _follow(self, result: Any) -> None:
        """Have the failure arise in the backward pass through this result of a module."""
        if self._completed() >= self._plan.step and isinstance(result, torch.Tensor) and result.requires_grad:
            result.register_hook(lambda _: self._pass())

    def _note(self) -> None:
        if self._completed() >= self._plan.step and not self._reached.exists():
            with contextlib.suppress(OSError):  # as in `_takes`
                self._reached.touch()

    def _around(self, before: Callable[..., Any]) -> Callable[..., Any]:
        def fetched(fetcher: Any, indices: Any) -> Any:
            batch = before(fetcher, indices)
            worker = get_worker_info() is not None
            if self._reached.exists() and (worker or self._plan.kind != "loader-worker") and self._takes():
                if self._plan.kind == "nan":
                    return _poisoned(batch)
                self._fail()
            return batch

        return fetched

    def _pass(self) -> None:
        if self._completed() >= self._plan.step and self._takes():
            self._fail()

    def _takes(self) -> bool:
        """Take one of the times, unless all are taken by this process or earlier ones."""
        for number in range(self._plan.times):
            try:
                os.close(os.open(Path(self._plan.folder, f"time-{number}"), os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                continue
            except OSError:
                return False  # the command has ended, and this process, which it left behind, is not to fail
            return True
        return False

    def _fail(self) -> None:
        if self._plan.kind in ("killed", "loader-worker"):
            os.kill(os.getpid(), signal.SIGKILL)
        elif self._plan.kind == "stall":
            threading.Event().wait()
        elif self._plan.kind == "host-memory":
            while True:  # until the cgroup's limit ends it
                self._kept.append(torch.ones(1 << 22))
        _RAISERS[self._plan.kind]()


def _poisoned(batch: Any) -> Any:
    """Return a batch of equal form in which each floating value is NaN."""

    def nan(value: Any) -> Any:
        wrong = isinstance(value, torch.Tensor) and value.is_floating_point()
        return torch.full_like(value, float("nan")) if wrong else value

    return torch.utils._pytree.tree_map(nan, batch)


def _cuda_memory() -> NoReturn:
    if torch.cuda.is_available():
        torch.empty(torch.cuda.get_device_properties(0).total_memory * 2, dtype=torch.uint8, device="cuda")
    raise torch.OutOfMemoryError("CUDA out of memory. Simulated: this machine has no GPU.")


def _data() -> NoReturn:
    raise ValueError("simulated: a sample that cannot be decoded")


def _disk_full() -> NoReturn:
    with open("/dev/full", "wb", buffering=0) as full:
        full.write(b"x")
    raise OSError("simulated: /dev/full accepts what is written")


def _network() -> NoReturn:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    socket.create_connection(("127.0.0.1", port)).close()
    raise ConnectionError("simulated: a port that nobody serves accepts a connection")


def _gpu() -> NoReturn:
    raise RuntimeError("CUDA error: an illegal memory access was encountered (simulated)")


def _program() -> NoReturn:
    raise RuntimeError("simulated: an error of the program")


def _nan() -> NoReturn:
    raise FloatingPointError("simulated: the loss is nan")


_RAISERS: dict[str, Callable[[], NoReturn]] = {
    "cuda-memory": _cuda_memory,
    "data": _data,
    "disk-full": _disk_full,
    "network": _network,
    "gpu": _gpu,
    "program": _program,
    "nan": _nan,
}


def begin(rank: int, completed: Callable[[], int]) -> None:
    """Let the failure happen that the environment asks for."""
    SimulatedFailure(FailurePlan.of(os.environ), rank, completed).begin()
