"""What a verification of the newest checkpoint costs the training beside it (`--verify-every`), on the demo's model.

The same steps are timed with the verifier's process stopped and running, in turn: each ratio is of two neighbours.
"""

from __future__ import annotations

import os
import queue
from collections.abc import Iterator
from pathlib import Path

import torch

from spotguard.agent.actions import Verify
from spotguard.agent.events import Event
from spotguard.agent.process.helpers.verifier import Verifier

from .background import DemoTraining
from .rows import Row
from .scale import Scale

#: Bytes of the checkpoint that is read, and the steps of one measurement.
SIZE, STEPS = 2**31, 4


def measure(scale: Scale) -> Iterator[Row]:
    pairs, steps, threads = scale.of(150, 1), scale.of(STEPS, 2), torch.get_num_threads()
    torch.set_num_threads(1)  # as the demo
    training = DemoTraining(scale, "verifying", ballast=torch.rand(scale.of(SIZE, 2**22) // 4))
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    verifier = Verifier(dict(os.environ), events.put)
    ratios: list[float] = []
    memory: list[float] = []
    try:
        newest = training.guard.save().step
        store = (scale.folder / "store").as_uri()
        begun = ended = 0
        while len(ratios) < pairs:
            if begun == ended:
                begun += 1
                verifier.start(Verify(begun, "verifying", store, newest))
            verifier.pause(True)
            alone = training.run(steps)
            verifier.pause(False)
            beside = training.run(steps)
            memory.append(_peak())
            while not events.empty():
                ended = max(ended, events.get().number)  # type: ignore[union-attr]
            if begun > ended:  # it has run all the time
                ratios.append(beside / alone)
    finally:
        verifier.close()
        training.guard.close()
        torch.set_num_threads(threads)
    yield Row("a step while a checkpoint is verified ÷ one while it is not", "×", tuple(ratios), figure=1.01)
    yield Row("  the most memory of the verifier's process", "MiB", (max(memory),), figure=256.0)


def _peak() -> float:
    """The most MiB that any ended or running process of the verifier has had."""
    return max(map(_of, _children()), default=0.0)


def _children() -> list[int]:
    return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]


def _of(pid: int) -> float:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    peak = next((line for line in status.splitlines() if line.startswith("VmHWM")), "VmHWM: 0 kB")
    return int(peak.split()[1]) / 1024
