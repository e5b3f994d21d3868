"""One process of a gang: `member.py RANK`. It is told a scenario a line, plays its rank of that job, and says what became
of it. Importing torch takes seconds, so one process plays many jobs; each has a process group and a guard of its own.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from functools import reduce
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import spotguard
from spotguard.hooks import protocol
from spotguard.hooks.guard import Guard
from spotguard.testing import preempt
from tests.fakes.several import WAYS, Model, share_of, whole

#: Seconds after which something that a scenario waits for will not come.
PATIENCE = 30.0
#: Seconds after which a rank in a collective leaves it, whose peer was parked and has left by now.
GROUP = 5.0
#: What happens while training goes on.
BESIDE = ("withdrawn when saved",)
#: Samples of a step, of all ranks together: as many for each of 1, 2, 3 or 4.
BATCH = 12


def until(there: Callable[[], bool]) -> None:
    """Wait for it. A stuck training thread that somebody frees at last, so that its process can play on."""
    nothing, looks = threading.Event(), int(PATIENCE / 0.01)
    assert any(there() or nothing.wait(0.01) for _ in range(looks)), "it did not come"


def _ended(pid: int) -> bool:
    """Also where its parent has not looked."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def collectives() -> int:
    """Made so far by this process in its groups, whoever asked for them."""
    groups = dist.distributed_c10d._world.pg_map
    return sum(group._get_sequence_number_for_group() for group in groups)  # type: ignore[attr-defined]


def in_order(bucket: Any) -> Any:
    """Gradients summed rank by rank. DDP lays its buckets out anew after a process's first step, and gloo's own sum of
    more than two goes by the place in a bucket: torch alone would not go on bit for bit."""
    mine = bucket.buffer()
    parts = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    work = dist.all_gather(parts, mine, async_op=True)
    assert work is not None
    return work.get_future().then(lambda _: reduce(torch.add, parts) / len(parts))


class Life:
    """One rank's part in one job."""

    def __init__(self, rank: int, scenario: dict[str, Any]) -> None:
        self.rank, self.scenario = rank, scenario
        self.world, self.way = int(scenario["world"]), str(scenario["way"])
        self.step = -1
        self.said: dict[str, Any] = {"losses": {}, "digests": {}, "ended": "", "start": -1}
        self.events = [event for event in scenario["events"] if event["rank"] == rank]
        self.guard: Guard | None = None
        torch.manual_seed(3)
        model = Model()
        model.norm = nn.Identity()  # type: ignore[assignment]  # what it does depends on how the batch is cut
        self.model = WAYS[self.way](model, self.world)
        if self.way == "ddp":
            self.model.register_comm_hook(None, lambda _, bucket: in_order(bucket))  # type: ignore[operator]
        parameters = list(self.model.parameters())
        halves = [parameters[:2], parameters[2:]] if scenario["optimizers"] == 2 else [parameters]
        self.optimizers = [torch.optim.AdamW(half, lr=0.01) for half in halves]
        self.model.register_forward_pre_hook(lambda *_: self.at("forward"))

    def play(self) -> None:
        optimizers = {f"optimizer{number}": each for number, each in enumerate(self.optimizers)}
        self.guard = guard = spotguard.register(
            self.scenario["store"], run_id=self.scenario["run"], model=self.model, **optimizers
        )
        for each in self.optimizers:  # behind the guard's own
            each.register_step_pre_hook(lambda *_: self.at("optimizer"))
        self.at("restore")
        start = self.said["start"] = guard.restore(step=self.scenario["step"])
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
            if self.scenario["digests"]:
                self.digest(self.step + 1)

    def train(self) -> None:
        self.at("loading")
        data = torch.randn(BATCH, 5, generator=torch.Generator().manual_seed(self.step))
        shares = self.world // 2 if self.way == "tp_fsdp" else self.world
        made = self.model(data.chunk(shares)[share_of(self.way, self.rank)])
        made.register_hook(lambda _: self.at("backward"))
        loss = made.square().mean()
        loss.backward()
        for number, each in enumerate(self.optimizers):
            if number:
                self.at("between")
            each.step()
            each.zero_grad()
        self.said["losses"][self.step] = loss.item()

    def digest(self, step: int) -> None:
        """Of the whole tensors, as torch gathers them: a collective."""
        held = sha256()
        for parameter in self.model.parameters():
            held.update(whole(parameter).numpy().tobytes())
            for optimizer in self.optimizers:
                for word, value in sorted(optimizer.state.get(parameter, {}).items()):
                    held.update(word.encode() + whole(value).numpy().tobytes())
        self.said["digests"][step] = held.hexdigest()

    def at(self, phase: str) -> None:
        now = [each for each in self.events if (each["step"], each["phase"]) == (self.step, phase)]
        for event in now:
            self.events.remove(event)
            # Not by the training thread: whoever hears of a notice is another one.
            other = threading.Thread(target=self.happen, args=(event,), daemon=True)
            other.start()
            if event["what"] not in BESIDE:
                other.join(PATIENCE)
            if event["what"] == "stuck":
                until(self.leaves)

    def leaves(self) -> bool:
        return self.guard is not None and self.guard._gate._leave is not None

    def happen(self, event: dict[str, Any]) -> None:
        guard, what = self.guard, event["what"]
        assert guard is not None
        seconds = float(event.get("seconds", PATIENCE))
        if what == "preempt":
            preempt(guard, seconds)
        elif what == "notice":
            guard._agent.hear(
                protocol.Preempt(event["id"], seconds, 0.0, "reclaim", "a test", event["drill"])
            )
        elif what == "withdrawn":
            guard._agent.hear(protocol.Withdrawn(event["id"]))
        elif what == "false alarm":
            notice = protocol.Preempt(event["id"], seconds, 0.0, "reclaim", "a test", event["drill"])
            guard._agent.hear(notice)
            until(lambda: guard._saver.saving or event["at once"])
            guard._agent.hear(protocol.Withdrawn(event["id"]))
            until(lambda: not guard._saver.alarmed)
        elif what == "withdrawn when saved":
            until(lambda: guard._checkpointer.last is not None and not guard._saver.saving)
            guard._agent.hear(protocol.Withdrawn(event["id"]))
        elif what == "noticed":
            until(lambda: guard._saver.alarmed)
        elif what == "background":
            assert guard._ranks is not None
            assert guard._ranks.background("a test")
        elif what == "saved":
            until(lambda: (last := guard._checkpointer.last) is not None and last.step >= event["least"])
        elif what == "told to leave":
            until(
                lambda: (
                    (alarm := guard._saver._alarm) is not None
                    and alarm.deadline < guard._clock.monotonic()
                    and not guard._saver.saving
                )
            )
            guard._agent.hear(protocol.Leave(event["id"], 75))
        elif what == "counts":
            before = collectives()
            until(lambda: (last := guard._checkpointer.last) is not None and last.step >= event["least"])
            self.said["collectives"] = before, collectives()
        elif what == "drift":
            with torch.no_grad():
                next(self.model.parameters()).add_(1.0)
        elif what == "outlives":
            until(lambda: _ended(event["pid"]))
        elif what == "kill":
            os.kill(os.getpid(), signal.SIGKILL)

    def end(self) -> None:
        guard = self.guard
        if guard is None:
            return
        # Not before the save: who leaves the group ends the others' collectives.
        until(lambda: not guard._saver.saving)
        for group in list(dist.distributed_c10d._world.pg_map):
            group._get_backend(torch.device("cpu")).abort()
        guard.close()
        last = guard._checkpointer.last
        self.said["completed"] = guard._gate.place.completed
        self.said["last"] = -1 if last is None else last.step
        self.said["threads"] = sorted(
            each.name for each in threading.enumerate() if each.name.startswith("spotguard-")
        )


def play(rank: int, scenario: dict[str, Any]) -> dict[str, Any]:
    store = dist.TCPStore(  # type: ignore[attr-defined]
        "127.0.0.1", scenario["port"], scenario["world"], is_master=rank == 0, wait_for_workers=False
    )
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=scenario["world"], timeout=timedelta(seconds=GROUP)
    )
    life = Life(rank, scenario)
    try:
        life.play()
        life.said["ended"] = "at its end"
        dist.barrier()
    except spotguard.Preempted:
        life.said["ended"] = "preempted"
    except Exception as error:  # noqa: BLE001 it is what the test asks for
        life.said["ended"] = f"{type(error).__name__}: {error}"
    life.end()
    dist.destroy_process_group()
    return life.said


def main() -> None:
    faulthandler.register(signal.SIGUSR1)
    torch.set_num_threads(1)
    rank = int(sys.argv[1])
    gc.freeze()
    for line in sys.stdin:
        said = play(rank, json.loads(line))
        gc.collect()
        print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
