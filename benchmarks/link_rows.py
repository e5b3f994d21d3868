"""What was measured through links, as values; and as rows of the table, each beside the best of the others."""

from __future__ import annotations

import dataclasses
import json
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from .contestants import OURS
from .rows import Row
from .services import Service
from .took import Took

Door = Literal["http", "https"]
Verb = Literal["save", "restore"]

#: Where the newest full run lies, for who draws it.
NEWEST = Path(__file__).parent / "results" / "links.json"

#: How the raw socket is called, among those who save.
RAW = "a raw socket"

#: In the place of a link's rate: as fast as the machine.
UNSHAPED = 0

_MEMORY, _FIRST, _RESTORE = 512.0, 100.0, 1.10


@dataclass(frozen=True, slots=True)
class Sample:
    """One save or restore by one way, through one link."""

    store: str
    door: Door
    mbit: int
    verb: Verb
    way: str
    took: Took
    #: Seconds: bytes ÷ the payload rate of plain TCP on this link.
    ideal: float

    @property
    def ratio(self) -> float:
        return self.took.seconds / self.ideal

    @property
    def cpu_per_gb(self) -> float:
        return self.took.cpu / self.took.nbytes * 1e9


def rows(service: Service, found: Iterable[Sample]) -> Iterator[Row]:
    """The table of one store: time on each link, then what it cost."""
    here = [each for each in found if each.store == service.name]
    plain = [each for each in here if each.door == "http" and each.mbit != UNSHAPED]
    fastest = max(each.mbit for each in plain)
    for mbit in sorted({each.mbit for each in plain}):
        at = [each for each in plain if each.mbit == mbit]
        what = f"{service.name} at {mbit} Mbit/s"
        saves = [each for each in at if each.verb == "save" and each.way != RAW]
        yield from _ways(f"save to {what}: time ÷ ideal", "×", saves, lambda s: s.ratio, service.figure)
        back = [each for each in at if each.verb == "restore"]
        yield from _ways(f"restore from {what}: time ÷ ideal", "×", back, lambda s: s.ratio, _RESTORE)
    for door, figure in (("http", service.cpu), ("https", service.cpu_tls)):
        saves = [each for each in here if (each.door, each.mbit, each.verb) == (door, fastest, "save")]
        what = f"save to {service.name} by {door.upper()}, processor"
        yield from _ways(what, "s/GB", saves, lambda s: s.cpu_per_gb, figure)
    saves = [each for each in plain if each.verb == "save" and each.way != RAW and each.mbit == fastest]
    what = f"save to {service.name}, memory beyond the state"
    yield from _ways(what, "MiB", saves, lambda s: s.took.extra, _MEMORY)
    back = [each for each in plain if each.verb == "restore" and each.mbit == fastest]
    what = f"restore from {service.name}, memory beyond the state"
    yield from _ways(what, "MiB", back, lambda s: s.took.extra, _MEMORY)
    freely = tuple(each.took.nbytes * 8e-6 / each.took.seconds for each in here if each.mbit == UNSHAPED)
    yield Row(f"save to {service.name} through no link: what its server takes", "Mbit/s", freely)
    firsts = tuple(each.took.first * 1e3 for each in plain if each.took.first is not None)
    yield Row(f"hook told → first byte to {service.name}", "ms", firsts, figure=_FIRST)


def _ways(
    what: str, unit: str, samples: list[Sample], value: Callable[[Sample], float], figure: float | None
) -> Iterator[Row]:
    """A row for each way; ours says how far its figure is, and how it stands to the best of the others."""
    values: dict[str, tuple[float, ...]] = {}
    for each in samples:
        values[each.way] = (*values.get(each.way, ()), value(each))
    peers = [way for way in values if way not in (OURS, RAW)]
    best = min(peers, key=lambda way: statistics.median(values[way]), default="")
    for way in values:
        if way == OURS:
            peer = statistics.median(values[best]) if best else None
            yield Row(f"{what}: {way}", unit, values[way], figure, peer=peer, peer_name=best)
        else:
            yield Row(f"{what}: {way}", unit, values[way])


def keep(found: Iterable[Sample]) -> list[Sample]:
    """Write the samples for `plots`, and give them back."""
    samples = list(found)
    NEWEST.parent.mkdir(exist_ok=True)
    plain = {"at": time.strftime("%Y-%m-%d %H:%M"), "samples": [dataclasses.asdict(s) for s in samples]}
    NEWEST.write_text(json.dumps(plain, indent=1) + "\n")
    return samples


def newest() -> tuple[str, list[Sample]]:
    """The day of the newest full run, and its samples."""
    plain = json.loads(NEWEST.read_text())
    return plain["at"], [Sample(**each | {"took": Took(**each["took"])}) for each in plain["samples"]]
