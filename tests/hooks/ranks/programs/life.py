"""One rank's part in one job: what it trains, and what happens to it at which place of its training thread."""

from __future__ import annotations

import os
import random
import threading
import time
from functools import reduce
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

import spotguard
from spotguard.hooks.consensus.channel import Channel
from spotguard.hooks.consensus.process_group import _over_tcp
from spotguard.hooks.consensus.stores.connection import JobStore
from spotguard.hooks.consensus.topology import this_machine
from spotguard.hooks.guard import Guard
from spotguard.providers.clock import SystemClock
from spotguard.providers.stores.factory import open_store
from tests.fakes.several import Model, share_of, whole
from tests.hooks.ranks.programs.fates import FatedChannel, FatedSecond, FatedStore, Fates
from tests.hooks.ranks.programs.happenings import BESIDE, PATIENCE, happen, until
from tests.hooks.ranks.programs.trainings import TRAININGS
from tests.hooks.ranks.programs.ways import WAYS

#: Samples of a step, of all ranks together: as many for each of 1, 2, 3 or 4.
BATCH = 12


def in_order(bucket: Any) -> Any:
    """Gradients summed rank by rank. DDP lays its buckets out anew after a process's first step, and gloo's own sum of
    more than two goes by the place in a bucket: torch alone would not go on bit for bit."""
    mine = bucket.buffer()
    parts = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    work = dist.all_gather(parts, mine, async_op=True)
    assert work is not None

    def summed(done: Any) -> torch.Tensor:
        done.value()  # raises where a peer is gone, and nothing has come of it
        return reduce(torch.add, parts) / len(parts)

    return work.get_future().then(summed)


#: The threads of a process, which no guard ends.
STANDING = ("spotguard-sigterm", "spotguard-helper")


def threads() -> list[str]:
    """Those of ours that run, and belong to a guard."""
    names = [each.name for each in threading.enumerate()]
    return sorted(name for name in names if name.startswith("spotguard-") and name not in STANDING)


class Life:
    """See `gang.Gang.begin` for what a scenario says."""

    def __init__(self, rank: int, scenario: dict[str, Any]) -> None:
        self.rank, self.scenario = rank, scenario
        self.world, self.way = int(scenario["world"]), str(scenario["way"])
        self.step = -1
        self.said: dict[str, Any] = {"losses": {}, "digests": {}, "ended": "", "start": -1}
        self.events = [event for event in scenario["events"] if event["rank"] == rank]
        told = [each for each in scenario["fates"] if each["rank"] == rank]
        self.fates = Fates(told) if told or scenario.get("counted") else None
        self.guard: Guard | None = None
        torch.manual_seed(3)
        if scenario["seeded"]:
            random.seed(3)
            np.random.seed(3)
        model = Model()
        model.norm = nn.Identity()  # type: ignore[assignment]  # what it does depends on how the batch is cut
        self.model = WAYS[self.way](model, self.world)
        if self.way == "ddp":
            self.model.register_comm_hook(None, lambda _, bucket: in_order(bucket))  # type: ignore[operator]
        parameters = list(self.model.parameters())
        halves = [parameters[:2], parameters[2:]] if scenario["optimizers"] == 2 else [parameters]
        self.training = TRAININGS[scenario["training"]](self.model, halves, rank, self.at)
        self.model.register_forward_pre_hook(lambda *_: self.at("forward"))

    def play(self) -> None:
        self.guard = guard = self.register()
        for each in self.training.optimizers:  # behind the guard's own
            each.register_step_pre_hook(lambda *_: self.at("optimizer"))
        if self.fates is not None and self.scenario.get("from_restore"):
            self.fates.begin()
        self.at("restore")
        start = self.said["start"] = guard.restore(step=self.scenario["step"])
        if self.fates is not None and not self.scenario.get("from_restore"):
            self.fates.begin()
        if self.scenario["together"]:
            dist.barrier()
        if not self.scenario["events"]:
            self.digest(start)
        for step in range(start, self.scenario["total"]):
            self.step = step
            self.train()
            self.at("before boundary")
            guard.step()
            self.at("evaluation")
            if self.step + 1 in self.scenario["saves"]:
                guard.save()
                self.said["by hand"] = step + 1
            if self.scenario["digests"]:
                self.digest(self.step + 1)

    def register(self) -> Guard:
        url, run = self.scenario["store"], self.scenario["run"]
        state = {"model": self.model, **self.training.state}
        if self.fates is None:
            return spotguard.register(url, run_id=run, **state)
        # As that does, with its stores between: every call of this process to them passes by its fates.
        clock, machine = SystemClock(), this_machine(os.environ.get("SPOTGUARD_SOCKET", ""))
        job = FatedChannel(cast(JobStore, dist.distributed_c10d._get_default_store()), self.fates)
        hosts = self.rank == 0 and not self.scenario["hosted"]
        channel = Channel.join(
            job,
            self.rank,
            self.world,
            machine.encode(),
            clock,
            meet=self._meet,
            hosts=hosts,
            second=FatedSecond(_over_tcp(dist.distributed_c10d._get_default_store()), self.world, self.fates),
        )
        return Guard(FatedStore(open_store(url), self.fates), run, state, clock, channel)

    @staticmethod
    def _meet(value: bytes | None) -> bytes:
        values: list[Any] = [value]
        dist.broadcast_object_list(values, src=0)
        return bytes(values[0])

    def train(self) -> None:
        self.at("loading")
        data = torch.randn(BATCH, 5, generator=torch.Generator().manual_seed(self.step))
        shares = self.world // 2 if self.way == "tp_fsdp" else self.world
        self.said["losses"][self.step] = self.training.step(
            data.chunk(shares)[share_of(self.way, self.rank)], self.step
        )

    def digest(self, step: int) -> None:
        """Of the whole tensors, as torch gathers them: a collective."""
        held = sha256()
        for parameter in self.model.parameters():
            held.update(whole(parameter).numpy().tobytes())
            for optimizer in self.training.optimizers:
                for word, value in sorted(optimizer.state.get(parameter, {}).items()):
                    if isinstance(value, torch.Tensor):
                        held.update(word.encode() + whole(value).numpy().tobytes())
        held.update(self.training.extra().encode())
        self.said["digests"][step] = held.hexdigest()

    def at(self, phase: str) -> None:
        now = [each for each in self.events if (each["step"], each["phase"]) == (self.step, phase)]
        for event in now:
            self.events.remove(event)
            # Not by the training thread: whoever hears of a notice is another one.
            other = threading.Thread(target=happen, args=(self, event), daemon=True)
            other.start()
            if event["what"] not in BESIDE:
                other.join(PATIENCE)
            if event["what"] == "stuck":
                until(self.state_tensors)
            if event["what"] == "sleeps":
                time.sleep(3600.0)  # in C, where no notice reaches it

    def state_tensors(self) -> bool:
        return self.guard is not None and self.guard._gate._leave is not None

    def end(self) -> None:
        guard = self.guard
        if guard is None:
            return
        # Not before the save: who leaves the group ends the others' collectives.
        until(lambda: not guard._saver.saving)
        for group in list(dist.distributed_c10d._world.pg_map):
            group._get_backend(torch.device("cpu")).abort()
        self.at("closing")
        guard.close()
        patience = PATIENCE / 2
        if self.scenario["left"] is not None:
            Path(f"{self.scenario['left']}{self.rank}").touch()
            patience = 0.0  # what waits for a silent store is left behind
        # A call that nobody answers any more, and a thread that writes, have deadlines of their own.
        nothing, looks = threading.Event(), int(patience / 0.05)
        any(not threads() or nothing.wait(0.05) for _ in range(looks))
        last = guard._checkpointer.last
        self.said["completed"] = guard._gate.place.completed
        self.said["last"] = -1 if last is None else last.step
        self.said["level"] = "" if last is None else last.level
        self.said["calls"] = 0 if self.fates is None else self.fates.count
        self.said["threads"] = threads()
