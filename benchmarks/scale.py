"""How much of it: the whole measurement, or sizes so small that only the way through is tried."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Scale:
    #: An empty folder for what the benchmark writes, gone afterwards.
    folder: Path
    tiny: bool = False
    #: How long something idle is watched.
    seconds: float = 600.0
    #: Where the rate of a store is measured: a file system in memory, and a disk.
    targets: tuple[Path, ...] = field(default_factory=lambda: (Path("/dev/shm"), Path.cwd()))

    def of(self, full: T, tiny: T) -> T:
        return tiny if self.tiny else full
