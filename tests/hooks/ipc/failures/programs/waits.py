"""Two ranks in one process, of which one begins a collective that the other does not reach; says what the recorder has.

torch's recorder is one for all of a process, so it has the collectives of both.
"""

from __future__ import annotations

import json
import os
import threading
from datetime import timedelta
from typing import Any

import torch
from torch import distributed
from torch.distributed import HashStore  # type: ignore[attr-defined]

from spotguard.hooks.ipc.failures.flight_recorder import recorded_collectives

store = HashStore()
ranks: list[Any] = [None, None]


def make(rank: int) -> None:
    ranks[rank] = distributed.ProcessGroupGloo(store, rank, 2, timedelta(seconds=60))


def begin(rank: int) -> Any:
    return ranks[rank].allreduce([torch.ones(3, 5)])


def say() -> None:
    seen = recorded_collectives()
    print(json.dumps(None if seen is None else {"text": str(seen), **seen.record()}), flush=True)


makers = [threading.Thread(target=make, args=(rank,)) for rank in (0, 1)]
for maker in makers:
    maker.start()
for maker in makers:
    maker.join()
say()
for work in [begin(0), begin(1)]:
    work.wait()
while (seen := recorded_collectives()) is None or seen.waits_in is not None:
    threading.Event().wait(0.01)  # gloo tells the recorder of an end a moment after it tells its caller
say()
begin(0)
say()
os._exit(0)  # the groups' ends would wait for each other
