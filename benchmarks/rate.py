"""Save and restore to the local store, beside `torch.save` and `torch.distributed.checkpoint` on the same state.

Each way runs in a process of its own, in turns, several rounds, so that what else the machine does falls on all.
spotguard always has its bytes durable (fsync of files and folders) and checksummed; peers are measured with fsync
and without.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path

from .children import child, lines
from .rows import Row
from .scale import Scale

SAVES = ("spotguard", "torch.save + fsync", "torch.save", "DCP + fsync", "DCP + fsync, 2 threads", "DCP")
#: Who loads, and whose bytes.
LOADS = {
    "spotguard": "spotguard",
    "torch.load": "torch.save + fsync",
    "DCP": "DCP + fsync",
}

Found = dict[str, list[dict[str, float]]]


def measure(scale: Scale) -> Iterator[Row]:
    mib, rounds, times = scale.of((528, 3, 3), (48, 1, 1))
    saves = scale.of(SAVES, SAVES[:1])
    loads = [way for way, wrote in LOADS.items() if wrote in saves]
    for target in scale.of(scale.targets, scale.targets[:1]):
        saved: Found = {way: [] for way in saves}
        loaded: Found = {way: [] for way in loads}
        for _ in range(rounds):
            with tempfile.TemporaryDirectory(prefix="sg-rate-", dir=target) as folder:
                for way in saves:
                    place = Path(folder) / way.replace(" ", "-")
                    place.mkdir()
                    saved[way] += run_way("save", way, place, mib, times)
                    for by in (by for by, wrote in LOADS.items() if wrote == way):
                        loaded[by] += run_way("load", by, place, mib, 1)
        where = "in memory (tmpfs)" if str(target) == "/dev/shm" else "on disk"
        yield from rate_rows(f"save {where}", saved, [way for way in saves if "fsync" in way])
        yield from rate_rows(f"restore {where}", loaded, [way for way in loads if way != "spotguard"])


def run_way(
    verb: str, way: str, folder: Path, mib: int, times: int, device: str = "cpu"
) -> list[dict[str, float]]:
    words = ["-m", "benchmarks.saving", verb, way, str(folder), str(mib), str(times), device]
    with child(words, cwd=folder, answers=True) as process:
        return [json.loads(line) for line in lines(process)]


def rate_rows(what: str, found: Found, peers: list[str]) -> Iterator[Row]:
    rates = {
        way: tuple(each["bytes"] / each["seconds"] / 1e9 for each in times) for way, times in found.items()
    }
    cpu = {way: tuple(each["cpu"] / each["bytes"] * 1e9 for each in times) for way, times in found.items()}
    memory = {way: tuple(each["extra"] for each in times) for way, times in found.items()}
    fast = max(peers, key=lambda way: statistics.median(rates[way]), default="")
    thrifty = min(peers, key=lambda way: statistics.median(cpu[way]), default="")
    yield from _beside(f"{what}:", "GB/s", rates, fast)
    yield from _beside(f"{what}, CPU:", "s/GB", cpu, thrifty)
    for way in found:
        figure = 512.0 if way == "spotguard" else None
        yield Row(f"{what}, memory beyond the state: {way}", "MiB", memory[way], figure=figure)


def _beside(what: str, unit: str, values: dict[str, tuple[float, ...]], best: str) -> Iterator[Row]:
    """A row for each way; ours says how it stands to the best peer's that gives the same durability."""
    for way in values:
        if best and way == "spotguard":
            yield Row(
                f"{what} {way}", unit, values[way], peer=statistics.median(values[best]), peer_name=best
            )
        else:
            yield Row(f"{what} {way}", unit, values[way])
