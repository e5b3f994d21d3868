"""Records for tests: built by hand, or read from what `make_records` has kept."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from spotguard.prove.record import BoundaryRecord, Entry, OpenedFiles, Record

RECORDS = Path(__file__).parent / "records"

#: Of a tensor, as a record writes it.
TENSOR = "float32[4, 8] {:08x}"


def tensor(number: int) -> str:
    return TENSOR.format(number)


def boundary(
    step: int,
    *,
    turn: Sequence[tuple[str, str, str]] = (),
    generators: Mapping[str, str] | None = None,
    variables: Mapping[str, str] | None = None,
    opened: Mapping[str, str] | None = None,
    opened_state: Mapping[str, str] | None = None,
    **items: Mapping[str, str],
) -> BoundaryRecord:
    """One boundary, of which only what matters is said.

    Args:
        turn: what, whose, value.
    """
    kinds = {kind: items.get(kind, {}) for kind in ("state", "modules", "optimizers", "moved")}
    drawn = generators or {}
    return BoundaryRecord(
        step=step,
        items={**kinds, "generators": drawn},
        variables=variables or {},
        turn=[Entry(*each, drawn) for each in turn],
        opened_variables=opened or {},
        opened_state=opened_state or {},
    )


def record(*looks: BoundaryRecord, **facts: Any) -> Record:
    """Of a run that began at its first boundary."""
    return Record(began=looks[0].step, looks={look.step: look for look in looks}, **facts)


@dataclass(frozen=True, slots=True)
class RecordedLife:
    record: Record
    files: OpenedFiles
    failed: str


@cache
def recorded(name: str) -> Mapping[str, Sequence[RecordedLife]]:
    """What `make_records` has kept of a program: its lives, by their series."""
    body = json.loads(gzip.decompress((RECORDS / f"{name}.json.gz").read_bytes()))
    return {series: [_life(each) for each in of] for series, of in body.items()}


def _life(body: dict[str, Any]) -> RecordedLife:
    found = Record()
    for line in body["rank"]:
        found.take(line)
    ways: dict[str, list[str]] = {}
    threads: list[str] = []
    for way, path in body["files"]:
        if way == "thread":
            threads.append(path.rpartition("/work/")[2])
        else:
            ways.setdefault(path, []).append(way)
    return RecordedLife(found, OpenedFiles(ways, threads), body["failed"])
