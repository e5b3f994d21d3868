"""The earlier processes of a run, as the store and a note know them: their preemptions, and their newest step."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spotguard.hooks.checkpoint.format.entries import record
from spotguard.hooks.ipc.protocol import FAILURE
from spotguard.providers.errors import SpotguardError

from .mark import TrackerMark

log = logging.getLogger("spotguard")

#: Seconds for each request to the store.
_STORE_TIMEOUT = 30.0


@dataclass(frozen=True, slots=True)
class Note:
    """The newest step of a process that trained."""

    attempt: int = 0
    #: -1: not known.
    step: int = -1
    #: The process has ended in order, so no step came after.
    ended: bool = False

    @classmethod
    def parse(cls, text: str) -> Note:
        try:
            note = json.loads(text or "{}")
            return cls(int(note["attempt"]), int(note["step"]), bool(note["ended"]))
        except (ValueError, KeyError, TypeError):  # none, or cut off by the end of its writer
            return cls()


@dataclass(frozen=True, slots=True)
class PastPreemption:
    """The end of a notice that was no drill, as the store's record has it."""

    attempt: int
    kind: str
    source: str
    step: int
    at: float
    committed: bool
    level: str = ""
    reason: str = ""
    nbytes: int = 0
    seconds: float | None = None
    seconds_to_commit: float | None = None

    @property
    def cause(self) -> str:
        return (
            f"an error ({self.source})"
            if self.kind == FAILURE
            else f"a {self.kind} notice from {self.source}"
        )

    def mark(self, run_id: str, number: int) -> TrackerMark:
        """Return its mark, as this run's preemption of this number."""
        values: dict[str, float] = {"preemptions": number}
        text = f"{'ended' if self.kind == FAILURE else 'preempted'} at step {self.step} by {self.cause}: "
        if self.committed:
            values["save_bytes"] = self.nbytes
            for name, value in [
                ("save_seconds", self.seconds),
                ("seconds_to_commit", self.seconds_to_commit),
            ]:
                if value is not None:
                    values[name] = value
            text += f"{self.nbytes} bytes committed, level {self.level}"
        else:
            text += "nothing new is committed"
        text += f" ({self.reason})" if self.reason else ""
        record = f"{run_id}/outcomes/{self.attempt:04d}"
        return TrackerMark(
            "preempted", max(0, self.step), self.at, values, f"{text}; record {record}", record
        )


def preemptions(store: Any, run_id: str, before: int) -> list[PastPreemption]:
    """Return the preemptions of earlier attempts, oldest first: one for each attempt that a notice ended.

    Args:
        store: the run's store.
        run_id: the run.
        before: this attempt.
    """
    prefix = f"{run_id}/outcomes/"
    found: dict[int, PastPreemption] = {}
    try:
        for info in store.list(prefix, timeout=_STORE_TIMEOUT):
            number = info.key.removeprefix(prefix).partition("-")[0]
            if not (number.isdigit() and int(number) < before):
                continue
            try:
                told = record(store.get(info.key, timeout=_STORE_TIMEOUT))
                notice = told["notice"]
                past = PastPreemption(
                    int(number), notice["kind"], notice["source"], told["step"], told["ended"],
                    told["committed"], told["level"], told["reason"], told["bytes"],
                    told.get("seconds"), told.get("seconds_to_commit"),
                )  # fmt: skip
            except (KeyError, TypeError) as error:
                log.debug("%s is no outcome record: %r", info.key, error)
                continue
            earlier = found.get(past.attempt)
            # An earlier one was withdrawn.
            if not notice.get("drill") and (earlier is None or earlier.at <= past.at):
                found[past.attempt] = past
    except SpotguardError as error:
        log.warning(
            "the outcome records of run %s cannot be read, so marks of earlier preemptions may be missing: %s",
            run_id,
            error,
        )
    return [found[attempt] for attempt in sorted(found)]


def steps_lost(step: int, note: Note, by: PastPreemption | None) -> tuple[int | None, bool]:
    """Return the steps that were trained and are not in the restored checkpoint, and whether there were no more.

    Args:
        step: the restored step.
        note: the note of the last process.
        by: the notice that ended it, if one did.
    """
    parked = by.step if by is not None and by.committed else -1
    trained = max(note.step, parked)
    if trained < 0:
        return None, False
    return max(0, trained - step), note.ended or trained == parked


def newest_record(run_id: str, files: Iterable[Path]) -> int:
    """Return the highest attempt whose preemption is marked in these files of a tracker; 0 for none."""
    pattern = re.compile(rf"{re.escape(run_id)}/outcomes/(\d{{4,15}})".encode())
    newest = 0
    for path in files:
        rest = b""
        with path.open("rb") as file:
            # In pieces: a search in a large one would stop the training thread.
            while piece := file.read(1 << 20):
                newest = max([newest, *map(int, pattern.findall(rest + piece))])
                rest = piece[-200:]
    return newest


@dataclass(slots=True)
class NoteFile:
    """A note in a file on this machine."""

    path: Path
    pid: int = field(default_factory=os.getpid)

    def read(self) -> str:
        return self.path.read_text() if self.path.exists() else ""

    def write(self, note: str) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        new = self.path.with_suffix(f".{self.pid}")
        new.write_text(note)
        new.replace(self.path)
