"""One process of a gang: it is told a scenario a line, plays its rank of that job, and says what became of it. Each job has
a process group and a guard of its own.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import signal
import sys
import warnings
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

import spotguard
from tests.hooks.ranks.programs.life import Life

#: Seconds after which a rank in a collective leaves it, whose peer was parked and has left by now; and where nothing happens
#: to anybody, so that only a busy machine keeps them waiting.
GROUP, QUIET = 10.0, 100.0


def play(rank: int, scenario: dict[str, Any]) -> dict[str, Any]:
    warnings.simplefilter("ignore")  # torch's, of what a test asks for
    hosts = rank == 0 and not scenario["hosted"]
    store = dist.TCPStore(  # type: ignore[attr-defined]
        "127.0.0.1", scenario["port"], scenario["world"], is_master=hosts, wait_for_workers=False
    )
    patience = timedelta(seconds=GROUP if scenario["events"] or scenario["fates"] else QUIET)
    dist.distributed_c10d.default_pg_timeout = patience  # also of the groups of a mesh
    dist.init_process_group("gloo", store=store, rank=rank, world_size=scenario["world"], timeout=patience)
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
    if dist.is_initialized():
        dist.destroy_process_group()
    return life.said


def main(rank: int) -> None:
    faulthandler.register(signal.SIGUSR1)
    torch.set_num_threads(1)
    before, store = dict(os.environ), None
    for line in sys.stdin:
        told = json.loads(line)
        if "serve" in told:
            store = dist.TCPStore(  # type: ignore[attr-defined]
                "127.0.0.1", told["serve"], None, is_master=True, wait_for_workers=False
            )
            said = {"serves": store.port}
        else:
            own = {"TORCHELASTIC_USE_AGENT_STORE": "True"} if told["hosted"] else {}
            os.environ.update({**own, **told["env"], **told.get("envs", {}).get(str(rank), {})})
            said = play(rank, told)
            os.environ.clear()
            os.environ.update(before)
            gc.collect()
        print(json.dumps(said), flush=True)
