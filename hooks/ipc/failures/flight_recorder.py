"""torch's flight recorder: the newest collectives of this process, and the one in which it waits.

torch keeps a ring of the last collectives (`TORCH_FR_BUFFER_SIZE`; 2,000 by default in torch 2.13, and none in some older ones).
Nothing is read before training stands still. A ring of 2,000 then takes 0.1 s (measured).

torch holds the interpreter's lock while it reads its ring, so no thread of ours could give a call up that hangs. It is therefore
made last, when the state is in the store.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from ....providers.text import NAME, clip

#: The recorders: NCCL's own, and that of all other backends.
_DUMPS = ("_dump_nccl_trace_json", "_dump_fr_trace_json")
#: Where torch reads the length of its ring, and the longest that is read.
_LENGTHS, _LONGEST = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"), 20_000
#: Bytes of the most that is parsed: a second's work. A collective may have a thousand tensors.
_LARGEST = 16 * 1024 * 1024
#: Collectives that are kept; of each, tensors, and dimensions of a tensor.
_KEPT, _TENSORS, _DIMENSIONS = 40, 4, 8
_FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class RecordedCollective:
    """One collective, or one message between two ranks."""

    #: As "gloo:all_reduce".
    name: str
    #: Its number in its process group, the same on all ranks; and whether messages between two ranks are counted.
    number: int
    p2p: bool
    #: The process group's name and description, as "0 default_pg".
    group: str
    #: "finished", or torch's own word for one that is not: "scheduled" or "started".
    state: str
    #: Seconds since it was begun.
    seconds: float
    #: The sizes of its tensors, the first few of them, and the number of all.
    sizes: tuple[tuple[int, ...], ...]
    tensors: int

    @classmethod
    def of(cls, entry: dict[str, Any], now: float) -> RecordedCollective:
        p2p, sizes = bool(entry["is_p2p"]), entry["input_sizes"]
        return cls(
            clip(str(entry["profiling_name"]), NAME),
            int(entry["p2p_seq_id" if p2p else "collective_seq_id"]),
            p2p,
            clip(" ".join(map(str, entry["process_group"])), NAME),
            # gloo's stay "scheduled" for ever, and are retired once they have ended.
            _FINISHED
            if entry["retired"] or entry["state"] == "completed"
            else clip(str(entry["state"]), NAME),
            round(max(0.0, now - entry["time_created_ns"] / 1e9), 1),
            tuple(tuple(map(int, each[:_DIMENSIONS])) for each in sizes[:_TENSORS]),
            len(sizes),
        )

    @property
    def waits(self) -> bool:
        return self.state != _FINISHED

    def __str__(self) -> str:
        return f"{self.name}, number {self.number} of process group {self.group}"

    def record(self) -> dict[str, Any]:
        """Return it as plain JSON."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class RecordedCollectives:
    """The newest collectives of this process, the oldest of them first."""

    newest: tuple[RecordedCollective, ...]
    #: The one in which this process waits: the oldest that has not ended. None: it waits in none.
    waits_in: RecordedCollective | None

    def __str__(self) -> str:
        if self.waits_in is not None:
            return f"it waits in {self.waits_in}, for {self.waits_in.seconds:.0f} s"
        return f"it waits in no collective; its last one was {self.newest[-1]}"

    def record(self) -> dict[str, Any]:
        """Return them as plain JSON."""
        waits = None if self.waits_in is None else self.waits_in.record()
        return {"waits_in": waits, "newest": [each.record() for each in self.newest]}


def recorded_collectives() -> RecordedCollectives | None:
    """Return the newest collectives; None if this process has had none, or if this torch records none."""
    try:
        found = [*_collectives(_entries(), time.time())]
    except Exception:  # noqa: BLE001 - another torch may give anything, and the stacks are worth more
        return None
    if not found:
        return None
    waits = next((each for each in found if each.waits), None)
    return RecordedCollectives(tuple(found[-_KEPT:]), waits)


def _entries() -> Iterator[dict[str, Any]]:
    c10d = sys.modules.get("torch._C._distributed_c10d")
    if any(int(os.environ.get(name) or 0) > _LONGEST for name in _LENGTHS):
        return
    for name in _DUMPS:
        if (dump := getattr(c10d, name, None)) is not None:
            text = dump(includeCollectives=True, onlyActive=False)
            if len(text) <= _LARGEST:
                yield from json.loads(text).get("entries", ())


def _collectives(entries: Iterable[dict[str, Any]], now: float) -> Iterator[RecordedCollective]:
    for each in sorted(entries, key=lambda each: int(each["time_created_ns"])):
        yield RecordedCollective.of(each, now)
