"""The prescribed runs: an emergency save of one process, an agreed save of four ranks over gloo, and a restore.

Each process trains a small network, which is under DDP if there are several. In the fourth step, between `optimizer.step()`
and `guard.step()`, an agent delivers a notice with 30 s; this process plays the agents. The step ends half a second later. Of
four ranks, each with an agent of its own, the second one gets the notice. The store is a directory, and background checkpoints
are off. The restore reads what the one process has saved. Calls count from the notice to the marker, and from the call of
`guard.restore()` to its return.
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial, reduce
from operator import or_
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # the first optimizer imports it: once here, and not in each process
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import spotguard
from benchmarks.agent_end import AgentEnd
from spotguard.hooks.checkpoint.format.keys import MARKER
from spotguard.hooks.ipc import protocol

from .trace import Passed, Recorder, passed

RANKS, NOTICED = 4, 1
_STEPS = 3
#: Seconds to the notice's deadline; in which threads that have begun come to rest, and in which every rank learns of the notice;
#: and after which a process counts as stuck.
_WINDOW, _REST, _PATIENCE = 30.0, 0.5, 120.0
_OURS = str(Path(spotguard.__file__).parent) + os.sep


def all_runs() -> dict[str, Passed]:
    """Return what each prescribed run passes, by its name."""
    with tempfile.TemporaryDirectory(prefix="sg-", dir="/tmp") as name:  # short: sockets are in it
        one, ranks = Path(name, "one"), Path(name, "ranks")
        one.mkdir(mode=0o700)
        ranks.mkdir(mode=0o700)
        return {
            "save of one process": save(one),
            f"save of {RANKS} ranks": save(ranks, RANKS, NOTICED),
            "restore": restore(one),
        }


def save(folder: Path, world: int = 1, noticed: int = 0) -> Passed:
    """Return what the processes of all ranks together pass from the notice to the marker."""
    port = _free_port()
    with ExitStack() as stack:
        agents = [AgentEnd(folder / f"agent{rank}.sock") for rank in range(world)]
        # Forked before the agents begin their threads.
        ranks = [
            stack.enter_context(
                _child(folder / f"rank{rank}.log", partial(_train, folder, rank, world, port))
            )
            for rank in range(world)
        ]
        for agent in agents:
            stack.enter_context(agent)
        for rank in ranks:
            assert rank.recv(1) == b"t", "a rank has not begun to train"
        begin = time.monotonic()
        agents[noticed].say(protocol.Preempt("notice", _WINDOW, 5.0, "terminate", "a prescribed run"))
        time.sleep(_REST)
        for rank in ranks:
            rank.send(b"g")
        _await_marker(folder)
        for agent in agents:
            agent.say(protocol.Leave("notice", 75))
        records = [_received(rank) for rank in ranks]
    end = min(marked for *_, marked in records if marked is not None)
    return reduce(or_, (passed(calls, signals, begin, end) for calls, signals, _ in records))


def restore(folder: Path) -> Passed:
    """Return what a restore of the checkpoint passes that `save` has left in `folder`."""
    with _child(folder / "restore.log", partial(_restore, folder)) as process:
        calls, signals, (begin, end) = _received(process)
    return passed(calls, signals, begin, end)


def _await_marker(folder: Path) -> None:
    end = time.monotonic() + _PATIENCE
    while not any(folder.rglob(MARKER)):
        if time.monotonic() > end:
            raise TimeoutError(f"no rank has put {MARKER} after {_PATIENCE:.0f} s")
        time.sleep(0.02)


# --- the processes ---


@contextmanager
def _child(log: Path, run: Callable[[socket.socket], None]) -> Iterator[socket.socket]:
    """Fork a process that calls `run` with its end of a socket. Yield the other end, and kill the process at the end."""
    ours, theirs = socket.socketpair()
    if (pid := os.fork()) == 0:
        try:
            os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), sys.stderr.fileno())
            ours.close()
            run(theirs)
        except BaseException:  # noqa: BLE001 the child must not run its parent's code
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(0)
    theirs.close()
    ours.settimeout(_PATIENCE)
    try:
        yield ours
    except BaseException:
        sys.stderr.write(log.read_text())
        raise
    finally:
        ours.close()
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _received(process: socket.socket) -> Any:
    """Return what the process sends before it ends."""
    with process.makefile("rb") as answer:
        return pickle.load(answer)


def _module(file: str) -> str:
    """Return the module of a file of ours; "" for another file."""
    if not file.startswith(_OURS):
        return ""
    return "spotguard." + file.removeprefix(_OURS).removesuffix(".py").removesuffix("/__init__").replace(
        os.sep, "."
    )


def _train(folder: Path, rank: int, world: int, port: int, parent: socket.socket) -> None:
    """Train until the agent has this process leave, and send what was recorded, and the time of the marker."""
    _settle({"SPOTGUARD_SOCKET": str(folder / f"agent{rank}.sock")})
    marked: list[float] = []

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if event in ("os.rename", "os.link") and str(arguments[1]).endswith(MARKER):
            marked.append(time.monotonic())

    recorder = Recorder(_module, "spotguard.providers.")
    recorder.begin()
    sys.addaudithook(audit)
    if world > 1:
        store = dist.TCPStore(  # type: ignore[attr-defined]
            "127.0.0.1", port, world, is_master=rank == 0, wait_for_workers=False
        )
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    job = _Job(folder, several=world > 1)
    job.guard.restore()
    try:
        for _ in range(_STEPS):
            job.step()
            job.guard.step()
        job.step()
        time.sleep(_REST)
        parent.send(b"t")
        parent.recv(1)
        while True:
            job.guard.step()
            job.step()
    except spotguard.Preempted:
        recorder.end()
    parent.sendall(pickle.dumps((recorder.calls, recorder.signals, min(marked, default=None))))


def _restore(folder: Path, parent: socket.socket) -> None:
    """Restore, and send what was recorded, and when the restore began and ended."""
    _settle({})
    recorder = Recorder(_module, "spotguard.providers.")
    recorder.begin()
    job = _Job(folder, several=False)
    time.sleep(_REST)
    begin = time.monotonic()
    step = job.guard.restore()
    end = time.monotonic()
    recorder.end()
    assert step == _STEPS + 1, f"the restore is at step {step}"
    parent.sendall(pickle.dumps((recorder.calls, recorder.signals, (begin, end))))


def _settle(settings: dict[str, str]) -> None:
    """Make the environment and torch the same for every run."""
    for name in [name for name in os.environ if name.startswith("SPOTGUARD_")]:
        del os.environ[name]
    os.environ.update(settings, SPOTGUARD_EVERY="off", GLOO_SOCKET_IFNAME="lo")
    torch.set_num_threads(1)
    torch.manual_seed(0)


class _Job:
    """A small network, its optimizer and its guard."""

    def __init__(self, folder: Path, *, several: bool) -> None:
        model: nn.Module = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.Linear(32, 4))
        self._model = DistributedDataParallel(model) if several else model
        self._optimizer = torch.optim.AdamW(model.parameters())
        url = (folder / "store").as_uri()
        self.guard = spotguard.register(url, run_id="run", model=self._model, optimizer=self._optimizer)

    def step(self) -> None:
        """Train one step, without its boundary."""
        self._optimizer.zero_grad()
        self._model(torch.rand(8, 16)).square().sum().backward()
        self._optimizer.step()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
