"""The records of one run of the command, as values: a `Record` for each rank, and the `OpenedFiles` of the run."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple


class Entry(NamedTuple):
    """One thing that happened in a turn of the loop."""

    #: "input", "loss", "step", "batch", "iterator", "epoch end", "evaluation", "save" or "guard.save()".
    what: str
    #: The optimizer's name, or the class of the loader or module.
    whose: str
    value: str
    #: The generators' states after this entry.
    generators: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class BoundaryRecord:
    """A boundary: checksums by kind and name, and the turn's entries since the boundary before."""

    step: int
    items: Mapping[str, Mapping[str, str]]
    variables: Mapping[str, str]
    turn: Sequence[Entry] = ()
    #: Variables right before the turn's first forward of training.
    opened_variables: Mapping[str, str] = field(default_factory=dict)
    #: Small registered state at that same point.
    opened_state: Mapping[str, str] = field(default_factory=dict)
    #: Registered and registrable objects, loaders' iterators, and helpers: "name: type", by the variable's full name.
    objects: Mapping[str, str] = field(default_factory=dict)
    #: Registered names that the script has bound to other objects.
    rebound: Sequence[str] = ()
    #: Variables that name a tensor which a registered object held at the restore.
    held: Sequence[str] = ()
    #: Registered parameters whose `requires_grad` is off.
    frozen: Sequence[str] = ()
    #: Registered modules and their parts that are in evaluation mode.
    evaluating: Sequence[str] = ()

    def values(self, what: str) -> list[str]:
        """Return the values of the turn's entries of one kind, in order."""
        return [entry.value for entry in self.turn if entry.what == what]

    def has(self, what: str) -> bool:
        return any(entry.what == what for entry in self.turn)


@dataclass(frozen=True, slots=True)
class Trained:
    """An optimizer that has stepped."""

    name: str
    kind: str
    registered: bool
    #: The names of the first parameters that the optimizer moves.
    trains: Sequence[str]
    #: The number of all parameters that the optimizer moves.
    count: int


@dataclass(slots=True)
class Record:
    """The record of one rank in one run. If a process was restarted within the run, the record is the last process's."""

    rank: int = 0
    world: int = 1
    pid: int = 0
    #: torch's first seed.
    seed: int = 0
    #: Whether files and threads were watched from the process's first line on.
    early: bool = False
    #: The store and the run id that the script itself passes to `register`, "-" for none.
    said: str = ""
    #: The type of each registered object, by name.
    kinds: dict[str, str] = field(default_factory=dict)
    #: The hash of each file of the script's own code, by path, and the versions that ran it.
    code: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    #: The path of the script; "" if the process has none.
    script: str = ""
    #: The words behind the script.
    arguments: Sequence[str] = ()
    #: Completed steps at the start; None if the rank never called `restore`.
    began: int | None = None
    #: Number of loaders' iterators that were made before `restore`.
    iterators: int = 0
    #: Boundaries by completed steps; the first is the restore's.
    looks: dict[int, BoundaryRecord] = field(default_factory=dict)
    #: What the script's own `guard.save()` saved, by completed steps: a boundary, and what the script has changed since.
    by_hand: dict[int, BoundaryRecord] = field(default_factory=dict)
    optimizers: dict[str, Trained] = field(default_factory=dict)
    #: The id of another run that the script asked `restore` for; "" for none.
    elsewhere: str = ""
    #: The action that the rank asked of the harness: "notice" or "kill"; "" for none.
    asked: str = ""
    #: Whether an action was taken: an asked one, or "preempt", which the process does itself.
    acted: bool = False
    #: When the action came: completed steps, and the place in the turn.
    acted_at: tuple[int, str] | None = None
    #: Whether the rank was told to leave.
    leaving: bool = False
    #: Why the rank ended: "steps", "own end", "error" or "never"; "" while it runs, and after a kill.
    ended: str = ""
    #: Optimizer steps in a run without a single boundary.
    never: int = 0
    #: Why the recorder could not read the script's variables; "" if it could.
    trouble: str = ""

    @property
    def last(self) -> int:
        """The step of the last boundary; 0 without any."""
        return max(self.looks, default=0)

    def after(self, step: int) -> Iterator[BoundaryRecord]:
        """Yield the boundaries from `step` on, in order."""
        yield from (self.looks[at] for at in sorted(self.looks) if at >= step)

    def as_begun(self, resumed: Record) -> Record:
        """Return this undisturbed record to compare a resumed one with: what it began with may be a `guard.save()` behind the boundary.

        Of several ranks, each has what it saved: a notice reaches one of them in front of that call, and another one in it.
        """
        step = resumed.began
        if step is None or step not in self.by_hand or step not in resumed.looks or step not in self.looks:
            return self
        begun, of_boundary, by_hand = (
            each.items["state"] for each in (resumed.looks[step], self.looks[step], self.by_hand[step])
        )
        if _unlike(begun, of_boundary) <= _unlike(begun, by_hand):
            return self
        return replace(self, looks={**self.looks, step: self.by_hand[step]})

    def take(self, body: Mapping[str, Any]) -> None:
        """Take in one line of the record file."""
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

    def _saved_by_hand(self, body: Mapping[str, Any]) -> None:
        self.by_hand[body["step"]] = _look(body)

    def _optimizer(self, body: Mapping[str, Any]) -> None:
        self.optimizers[body["name"]] = Trained(
            body["name"], body["kind"], body["registered"], body["trains"], body["count"]
        )

    def _code(self, body: Mapping[str, Any]) -> None:
        self.code, self.versions, self.script = body["files"], body["versions"], body["script"]
        self.arguments = body.get("arguments", ())

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


def _unlike(one: Mapping[str, str], other: Mapping[str, str]) -> int:
    return len(one.items() ^ other.items())


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
        body.get("held", ()),
        body.get("frozen", ()),
        body.get("evaluating", ()),
    )


class RecordReader:
    """Reads the records of a run that may still be running. Each read continues where the last one ended.

    Args:
        folder: the directory of the records.
        make: makes a record without lines.
    """

    def __init__(self, folder: Path, make: Callable[[], Record] = Record) -> None:
        self._folder = folder
        self._make = make
        self._read: dict[Path, int] = {}
        self._by_file: dict[Path, Record] = {}

    def go_on(self) -> bool:
        """Read the lines added since the last call, and report whether there were any."""
        progressed = False
        for path in self._folder.glob("rank-*.jsonl"):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                lines = file.read()
            complete = lines[: lines.rfind(b"\n") + 1]  # the last line may be incomplete
            self._read[path] = self._read.get(path, 0) + len(complete)
            record = self._by_file.setdefault(path, self._make())
            for line in complete.splitlines():
                record.take(json.loads(line))
                progressed = True
        return progressed

    @property
    def records(self) -> list[Record]:
        """The records, ordered by rank."""
        return sorted(self._by_file.values(), key=lambda record: record.rank)


# --- files ---

#: Caches that libraries compile, render and lock for themselves. A run that finds one filled computes the same.
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
#: Ways of opening a file that take in another process's content.
_READS = frozenset({"read", "update"})


@dataclass(frozen=True, slots=True)
class OpenedFiles:
    """The files that a life has opened."""

    #: The ways in which each file was opened, by its path; the first way first.
    ways: Mapping[str, Sequence[str]]
    #: Places in the script's code where threads were started.
    threads: Sequence[str] = ()

    def writes(self) -> set[str]:
        return {path for path, ways in self.ways.items() if _WRITES.intersection(ways)}

    def reads(self) -> set[str]:
        """Return the files whose content came from elsewhere: the life read them before it wrote to them."""
        return {path for path, ways in self.ways.items() if ways[0] in _READS}

    def within(self, folder: Path) -> OpenedFiles:
        """Return the files in a directory, by their paths below it."""
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
    """Return the files and threads that the processes of a life have recorded."""
    ways: dict[str, list[str]] = {}
    threads: dict[str, None] = {}
    for path in sorted(folder.glob("files-*.jsonl")):
        for line in path.read_text(errors="replace").splitlines():
            try:
                way, name = json.loads(line)
            except ValueError:  # cut off when the process ended
                continue
            if way == "thread":
                threads[name] = None
            else:
                ways.setdefault(os.path.realpath(name), []).append(way)
    return OpenedFiles(ways, list(threads))


def leaks(by_series: Iterable[OpenedFiles]) -> list[str]:
    """Return files that one series has written and another one reads.

    Lives of one series may share files: they are one job.
    """
    series = list(by_series)
    leaked: dict[str, None] = {}
    for reader in series:
        for writer in series:
            if writer is not reader:
                leaked.update(dict.fromkeys(sorted(reader.reads() & writer.writes())))
    return list(leaked)


def together(files: Sequence[OpenedFiles]) -> OpenedFiles:
    """Merge the files of all lives of a series, in the order of the lives."""
    ways: dict[str, list[str]] = {}
    for each in files:
        for path, opened in each.ways.items():
            ways.setdefault(path, []).extend(opened)
    return OpenedFiles(ways)
