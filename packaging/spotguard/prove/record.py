"""What one run of the command has written down, as values: a `Record` for each rank, and the `OpenedFiles` that it has opened."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple


class Entry(NamedTuple):
    """Something that happened in a turn of the loop."""

    #: "input", "loss", "step", "batch", "iterator", "epoch end", "evaluation" or "save".
    what: str
    #: The optimizer's name, the loader's or the module's class.
    whose: str
    value: str
    #: The generators' states after it.
    generators: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class BoundaryRecord:
    """A boundary: checksums by kind and name, and what happened since the one before."""

    step: int
    items: Mapping[str, Mapping[str, str]]
    variables: Mapping[str, str]
    turn: Sequence[Entry] = ()
    #: Right before the turn's first forward of training: variables, and small registered state.
    opened_variables: Mapping[str, str] = field(default_factory=dict)
    opened_state: Mapping[str, str] = field(default_factory=dict)
    #: Objects that are registered or could be, and loaders' iterators: "name: type", by the variable's full name.
    objects: Mapping[str, str] = field(default_factory=dict)
    #: Registered names that the script has bound to other objects.
    rebound: Sequence[str] = ()
    #: Registered parameters whose `requires_grad` is off.
    frozen: Sequence[str] = ()

    def values(self, what: str) -> list[str]:
        """Of the turn's entries of one kind, in order."""
        return [entry.value for entry in self.turn if entry.what == what]

    def has(self, what: str) -> bool:
        return any(entry.what == what for entry in self.turn)


@dataclass(frozen=True, slots=True)
class Trained:
    """An optimizer that has stepped."""

    name: str
    kind: str
    registered: bool
    #: The first of the parameters that it moves, by name, and how many there are.
    trains: Sequence[str]
    count: int


@dataclass(slots=True)
class Record:
    """One rank of one run. Where a process was started again within it, what the last one did."""

    rank: int = 0
    world: int = 1
    pid: int = 0
    #: torch's first seed.
    seed: int = 0
    #: Whether files and threads were watched from the first line on.
    early: bool = False
    #: The store and the run id that the script itself names at `register`, "-" for none.
    said: str = ""
    #: What is registered: its type, by name.
    kinds: dict[str, str] = field(default_factory=dict)
    #: Completed steps at which it began; None: it never called `restore`.
    began: int | None = None
    #: Loaders' iterators that were made before `restore`.
    iterators: int = 0
    #: By completed steps; the first is the restore's.
    looks: dict[int, BoundaryRecord] = field(default_factory=dict)
    optimizers: dict[str, Trained] = field(default_factory=dict)
    #: The other run that it wanted to restore; "" for none.
    elsewhere: str = ""
    #: What was asked of the harness: "notice" or "kill". And what it did itself: "preempt".
    asked: str = ""
    acted: bool = False
    #: Where the action came: completed steps, and the place of the turn.
    acted_at: tuple[int, str] | None = None
    #: Told to leave.
    leaving: bool = False
    #: "steps", "own end", "error" or "never"; "" while it runs, and after a kill.
    ended: str = ""
    #: Optimizer steps without one boundary.
    never: int = 0
    #: Why the script's variables could not be looked at; "" where they were.
    trouble: str = ""

    @property
    def last(self) -> int:
        """The last boundary."""
        return max(self.looks, default=0)

    def after(self, step: int) -> Iterator[BoundaryRecord]:
        """The boundaries from this one on, in order."""
        yield from (self.looks[at] for at in sorted(self.looks) if at >= step)

    def take(self, body: Mapping[str, Any]) -> None:
        """One line of the file."""
        getattr(self, f"_{body['what']}")(body)

    def _begin(self, body: Mapping[str, Any]) -> None:
        self.rank, self.world, self.pid = body["rank"], body["world"], body["pid"]
        self.seed, self.early, self.kinds = body["seed"], body["early"], body["kinds"]
        self.said = body["said"]
        self.ended = ""

    def _restored(self, body: Mapping[str, Any]) -> None:
        self.began, self.iterators = body["step"], body["iterators"]
        self.looks = {body["step"]: _look(body)}

    def _boundary(self, body: Mapping[str, Any]) -> None:
        self.looks[body["step"]] = _look(body)

    def _optimizer(self, body: Mapping[str, Any]) -> None:
        self.optimizers[body["name"]] = Trained(
            body["name"], body["kind"], body["registered"], body["trains"], body["count"]
        )

    def _elsewhere(self, body: Mapping[str, Any]) -> None:
        self.elsewhere = body["run_id"]

    def _asks(self, body: Mapping[str, Any]) -> None:
        self.asked, self.acted, self.acted_at = body["action"], True, (body["step"], body["at"])

    def _acted(self, body: Mapping[str, Any]) -> None:
        self.acted, self.acted_at = True, (body["step"], body["at"])

    def _leaving(self, body: Mapping[str, Any]) -> None:
        self.leaving = True

    def _never(self, body: Mapping[str, Any]) -> None:
        self.never = body["steps"]

    def _trouble(self, body: Mapping[str, Any]) -> None:
        self.trouble = body["text"]

    def _end(self, body: Mapping[str, Any]) -> None:
        self.ended = body["why"]


def _look(body: Mapping[str, Any]) -> BoundaryRecord:
    opened = body.get("opened") or {}
    return BoundaryRecord(
        body["step"],
        {kind: body[kind] for kind in ("state", "generators", "modules", "optimizers", "moved")},
        body["vars"],
        [Entry(*each) for each in body.get("turn", ())],
        opened.get("vars", {}),
        opened.get("state", {}),
        body["objects"],
        body["rebound"],
        body.get("frozen", ()),
    )


class RecordReader:
    """The records of a run that may still be running, read on where they were left."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[Path, int] = {}
        self._by_file: dict[Path, Record] = {}

    def go_on(self) -> bool:
        """Read what was written since; whether there was anything."""
        found = False
        for path in self._folder.glob("rank-*.jsonl"):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                lines = file.read()
            whole = lines[: lines.rfind(b"\n") + 1]  # the last one may be half written
            self._read[path] = self._read.get(path, 0) + len(whole)
            record = self._by_file.setdefault(path, Record())
            for line in whole.splitlines():
                record.take(json.loads(line))
                found = True
        return found

    @property
    def records(self) -> list[Record]:
        """By rank."""
        return sorted(self._by_file.values(), key=lambda record: record.rank)


# --- files ---

#: What libraries compile, render and lock for themselves: another run finds it done, and computes the same.
_CACHES = (
    "torchinductor",
    "torch_extensions",
    "matplotlib",
    ".triton",
    ".nv",
    "numba",
    "fontconfig",
    "pycache",
)

_WRITES = frozenset({"write", "append", "update"})
#: By which what somebody else has written is taken in.
_READS = frozenset({"read", "update"})


@dataclass(frozen=True, slots=True)
class OpenedFiles:
    """The files that a life has opened, by their path: in which ways, the first way first."""

    ways: Mapping[str, Sequence[str]]
    #: Places in the script's code where threads were started.
    threads: Sequence[str] = ()

    def writes(self) -> set[str]:
        return {path for path, ways in self.ways.items() if _WRITES.intersection(ways)}

    def reads(self) -> set[str]:
        """Those whose content came from somebody else: nothing was written first."""
        return {path for path, ways in self.ways.items() if ways[0] in _READS}

    def within(self, folder: Path) -> OpenedFiles:
        """Those in a folder, by their paths below it."""
        inside = f"{os.path.realpath(folder)}{os.sep}"
        return OpenedFiles({p.removeprefix(inside): w for p, w in self.ways.items() if p.startswith(inside)})

    def outside(self, folder: Path) -> OpenedFiles:
        inside = f"{os.path.realpath(folder)}{os.sep}"
        return OpenedFiles(
            {
                path: ways
                for path, ways in self.ways.items()
                if not path.startswith(inside) and not any(cache in path for cache in _CACHES)
            }
        )


def read_files(folder: Path) -> OpenedFiles:
    """What the processes of a life have written down."""
    ways: dict[str, list[str]] = {}
    threads: dict[str, None] = {}
    for path in sorted(folder.glob("files-*.jsonl")):
        for line in path.read_text(errors="replace").splitlines():
            try:
                way, name = json.loads(line)
            except ValueError:  # cut off by the end of the process
                continue
            if way == "thread":
                threads[name] = None
            else:
                ways.setdefault(os.path.realpath(name), []).append(way)
    return OpenedFiles(ways, list(threads))


def leaks(by_series: Iterable[OpenedFiles]) -> list[str]:
    """Files that one series has written and another one reads. Lives of one series may: they are one job."""
    series = list(by_series)
    found: dict[str, None] = {}
    for reader in series:
        for writer in series:
            if writer is not reader:
                found.update(dict.fromkeys(sorted(reader.reads() & writer.writes())))
    return list(found)


def together(files: Sequence[OpenedFiles]) -> OpenedFiles:
    """Of all lives of a series, in their order."""
    ways: dict[str, list[str]] = {}
    for each in files:
        for path, found in each.ways.items():
            ways.setdefault(path, []).extend(found)
    return OpenedFiles(ways)
