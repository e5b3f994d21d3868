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
import time
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.data import get_worker_info
from torch.utils.data._utils import fetch

from .failure_plan import IN_KERNEL_LOG, LASTING, FailurePlan

#: The kernel's lines of each class, in the words of Linux (mm/oom_kill.c) and of NVIDIA's driver ("Xid Errors").
_LINES = {
    "memory-kill": (
        "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,task=python,pid={pid},uid=0",
        "Out of memory: Killed process {pid} (python) total-vm:1kB, anon-rss:1kB, file-rss:0kB, shmem-rss:0kB (simulated)",
    ),
    "gpu-lost": (
        "NVRM: Xid (PCI:0000:00:00): 79, pid={pid}, name=python, GPU has fallen off the bus. (simulated)",
    ),
    "gpu-memory-error": (
        "NVRM: Xid (PCI:0000:00:00): 94, pid={pid}, name=python, Contained ECC error. (simulated)",
    ),
}


class SimulatedFailure:
    """The hooks that let one failure happen.

    Args:
        plan: the plan.
        rank: this process's rank.
        completed: returns the completed steps.
    """

    def __init__(self, plan: FailurePlan, rank: int, completed: Callable[[], int]) -> None:
        self._plan, self._rank, self._completed = plan, rank, completed
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
        if self._completed() >= self._plan.step and not self._plan.reached.exists():
            with contextlib.suppress(OSError):  # as in `_take`
                self._plan.reached.touch()

    def _around(self, before: Callable[..., Any]) -> Callable[..., Any]:
        def fetched(fetcher: Any, indices: Any) -> Any:
            batch = before(fetcher, indices)
            worker = get_worker_info() is not None
            if not self._plan.reached.exists() or (self._plan.kind == "loader-worker" and not worker):
                return batch
            if (number := self._take()) is not None:
                if self._plan.kind == "nan":
                    return _poisoned(batch)
                self._fail(number)
            return batch

        return fetched

    def _pass(self) -> None:
        if self._completed() >= self._plan.step and (number := self._take()) is not None:
            self._fail(number)

    def _take(self) -> int | None:
        """Take one of the times, and return its number; None if all are taken by this process or earlier ones."""
        for number in range(self._plan.times):
            try:
                mark = os.open(self._plan.time(number), os.O_CREAT | os.O_EXCL | os.O_WRONLY)
            except FileExistsError:
                continue
            except OSError:
                return None  # the command has ended, and this process, which it left behind, is not to fail
            os.write(mark, b"%d" % os.getpid())
            os.close(mark)
            return number
        return None

    def _fail(self, number: int) -> None:
        plan = self._plan
        if plan.kind in IN_KERNEL_LOG:
            with open(plan.kernel_log, "a") as log:
                log.writelines(f"3,1,1,-;{line.format(pid=os.getpid())}\n" for line in _LINES[plan.kind])
        if plan.kind in ("killed", "loader-worker", "memory-kill"):
            os.kill(os.getpid(), signal.SIGKILL)
        elif plan.kind == "stopped":
            os.kill(os.getpid(), signal.SIGSTOP)  # `spotguard simulate` continues it
        elif plan.kind == "stall":
            threading.Event().wait()
        elif plan.kind == "host-memory":
            while True:  # until the cgroup's limit ends it
                self._kept.append(torch.ones(1 << 22))
        else:
            if plan.kind in LASTING:
                time.sleep(plan.seconds)  # a driver in trouble answers late
            _RAISERS[plan.kind]()


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


def _lost() -> NoReturn:
    raise RuntimeError("CUDA error: unspecified launch failure (simulated)")


def _uncorrectable() -> NoReturn:
    raise RuntimeError("CUDA error: uncorrectable ECC error encountered (simulated)")


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
    "gpu-lost": _lost,
    "gpu-memory-error": _uncorrectable,
    "program": _program,
    "nan": _nan,
}


def begin(plan_text: str, rank: int, world: int, completed: Callable[[], int]) -> None:
    """Let the failure happen that the environment asks for."""
    plan = FailurePlan.of(plan_text)
    if plan.rank < world:
        with contextlib.suppress(OSError):  # as in `_take`
            plan.rank_is("here" if rank == plan.rank else "elsewhere").touch()
    SimulatedFailure(plan, rank, completed).begin()
